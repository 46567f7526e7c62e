// Where the page is put together: one poll feeds all views.

import * as chat from "./chat.js";
import { byId, setText } from "./dom.js";
import * as experts from "./experts.js";
import * as figures from "./figures.js";
import { getJson } from "./http.js";
import * as keys from "./keys.js";
import * as models from "./models.js";
import * as plan from "./plan.js";
import { Poller } from "./poller.js";
import * as rebalance from "./rebalance.js";
import * as server from "./server.js";
import * as views from "./views.js";

let daemon = ""; // which one was asked last
let status = null;
let absence = ""; // why there is nothing to show of the model

async function poll() {
  status = await getJson(models.route("admin/status"));
  absence = models.absence(status);
  if (daemon !== nameOf(status)) await meet();
  setText(byId("model-name"), status.model.id);
  document.title = `${status.model.id} · Isotherm`;
  figures.show(status);
  server.show(status);
  if (absence) return;
  plan.showSpeed(status.speed);
  rebalance.show(status.accelerators);
  if (views.isShown("experts")) await experts.refresh();
}

/** A daemon's process and the load of its model: what is known of one is not true of another. */
const nameOf = ({ pid, model, load_s: load }) => [pid, model.id, load, Boolean(absence)].join();

/** All that was known is of another one. */
async function meet() {
  experts.forget();
  rebalance.forget();
  await models.refresh(status.model.id);
  if (!absence) await plan.refresh();
  daemon = nameOf(status);
}

function tell(state, wait = 0, error = null) {
  const pill = byId("connection");
  const isReady = state === "live" && status.state === "ready" && !absence;
  pill.dataset.state = state === "live" && !isReady ? "unready" : state;
  document.body.classList.toggle("stale", state !== "live" || absence !== "");
  const live = isReady ? "Ready" : absence ? "Not loaded" : status?.state;
  const words = { live, reconnecting: "Reconnecting", locked: "Locked" };
  setText(pill, words[state]);
  const told = {
    live: isReady ? "" : absence || `The engine is ${status?.state}. ${status?.reason ?? ""}`,
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
models.start(() => poller.now());
experts.start(() => poller.now());
rebalance.start(() => poller.now());
byId("retry-now").addEventListener("click", () => poller.now());
byId("key-button").addEventListener("click", () => {
  keys.ask(keys.current()).then(() => poller.now(), () => {});
});
views.start(() => poller.now());
