// Requests to the daemon that served this page, wherever a proxy has put it.

import * as keys from "./keys.js";

const ROOT = new URL("../", document.baseURI);

export class HttpError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Nobody answered, or not in time. */
export class Unreachable extends Error {}

/** A response that is fine. timeout: in ms, of each try. Asks for a key where one is wanted; throws HttpError,
 * KeyMissing, Unreachable, or an AbortError when the signal says stop. */
export async function send(path, { method = "GET", body, signal, timeout } = {}) {
  for (;;) {
    const key = keys.current();
    const headers = {};
    if (key) headers.authorization = `Bearer ${keys.header()}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(new URL(path, ROOT), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: timeout === undefined ? signal : AbortSignal.timeout(timeout),
      cache: "no-store",
    }).catch(unreachable);
    if (response.ok) return response;
    if (response.status !== 401) throw await failure(response);
    await keys.ask(key);
  }
}

export async function getJson(path, timeout = 10_000) {
  return (await send(path, { timeout })).json();
}

export async function postJson(path, body) {
  return (await send(path, { method: "POST", body })).json();
}

function unreachable(error) {
  const isOurs = !(error instanceof TypeError || error.name === "TimeoutError");
  throw isOurs ? error : new Unreachable("The daemon does not answer.", { cause: error });
}

async function failure(response) {
  const text = await response.text();
  let told = "";
  try {
    told = JSON.parse(text)?.error?.message ?? "";
  } catch {
    told = text.slice(0, 300); // a proxy's own words
  }
  return new HttpError(told || `the server answered ${response.status}`, response.status);
}
