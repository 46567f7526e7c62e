// The API key: asked for when the server wants one, and kept as long as this tab.

import { byId } from "./dom.js";

const NAME = "isotherm.key";
let key = sessionStorage.getItem(NAME) ?? "";
let asking = null;

export class KeyMissing extends Error {}

/** The key as the bytes of a header, which a string of the Fetch API stands for. */
export const header = () => String.fromCharCode(...new TextEncoder().encode(key));

export const current = () => key;

/** Wait until there is another key than the one that was refused. Throws KeyMissing if none is given. */
export async function ask(refused) {
  if (refused !== key) return;
  asking ??= prompt(refused !== "").finally(() => { asking = null; });
  await asking;
}

function prompt(wasRefused) {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  byId("key-title").textContent = wasRefused ? "That key was not accepted" : "This server asks for a key";
  input.value = "";
  return new Promise((resolve, reject) => {
    const done = new AbortController();
    const { signal } = done;
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      key = input.value.trim();
      sessionStorage.setItem(NAME, key);
      done.abort();
      dialog.close();
      resolve();
    }, { signal });
    byId("key-cancel").addEventListener("click", () => dialog.close(), { signal });
    dialog.addEventListener("close", () => {
      done.abort();
      reject(new KeyMissing("this server asks for an API key"));
    }, { signal });
    dialog.showModal();
  });
}
