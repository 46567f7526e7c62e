// Where the page is put together: one poll feeds all views.

import * as chat from "./chat.js";
import { byId, setText } from "./dom.js";
import * as experts from "./experts.js";
import * as figures from "./figures.js";
import { getJson } from "./http.js";
import * as keys from "./keys.js";
import * as plan from "./plan.js";
import { Poller } from "./poller.js";
import * as rebalance from "./rebalance.js";
import * as server from "./server.js";
import * as views from "./views.js";

let daemon = ""; // which one was asked last
let status = null;

async function poll() {
  status = await getJson("admin/status");
  if (daemon !== String(status.pid) + status.model.id) await meet();
  setText(byId("model-name"), status.model.id);
  document.title = `${status.model.id} · Isotherm`;
  figures.show(status);
  server.show(status);
  plan.showSpeed(status.speed);
  rebalance.show(status.accelerators);
  if (views.isShown("experts")) await experts.refresh();
}

/** Another daemon than before: all that was known is of the last one. */
async function meet() {
  experts.forget();
  rebalance.forget();
  await Promise.all([chat.refreshModels(), plan.refresh()]);
  daemon = String(status.pid) + status.model.id;
}

function tell(state, wait = 0, error = null) {
  const pill = byId("connection");
  const isReady = state === "live" && status.state === "ready";
  pill.dataset.state = state === "live" && !isReady ? "unready" : state;
  document.body.classList.toggle("stale", state !== "live");
  const words = { live: isReady ? "Ready" : status?.state, reconnecting: "Reconnecting", locked: "Locked" };
  setText(pill, words[state]);
  const told = {
    live: isReady ? "" : `The engine is ${status?.state}. ${status?.reason ?? ""}`,
    reconnecting: `${error?.message} It is asked again until it answers.`,
    locked: "This server asks for an API key.",
  }[state];
  byId("banner").hidden = !told;
  setText(byId("banner-text"), told);
  byId("retry-now").hidden = state === "live";
  setText(byId("retry-now"), state === "locked" ? "Enter a key" : "Try now");
  byId("key-button").hidden = !keys.current();
}

const poller = new Poller(poll, tell);
figures.start();
server.start();
chat.start();
experts.start(() => poller.now());
rebalance.start(() => poller.now());
byId("retry-now").addEventListener("click", () => poller.now());
byId("key-button").addEventListener("click", () => {
  keys.ask(keys.current()).then(() => poller.now(), () => {});
});
views.start(() => poller.now());
