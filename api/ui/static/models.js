// Which model the page is about, where several are served: the one that is chosen for the chat.

import { byId, el } from "./dom.js";
import { getJson } from "./http.js";

const select = byId("model-select");

/** onChange: is called when another one is chosen. */
export function start(onChange) {
  select.addEventListener("change", onChange);
}

/** The model that is chosen, "" where there is no choice. */
export const chosen = () => (select.options.length > 1 ? select.value : "");

/** A route as it is asked of that model. */
export function route(path) {
  return chosen() ? `${path}${path.includes("?") ? "&" : "?"}model=${encodeURIComponent(chosen())}` : path;
}

/** Ask which models there are. shown: the one to begin with. */
export async function refresh(shown) {
  const { data } = await getJson("v1/models");
  const before = chosen();
  select.replaceChildren(...data.map((model) => el("option", {}, model.id)));
  select.value = data.some((model) => model.id === before) ? before : shown;
  byId("model-choice").hidden = data.length < 2;
}

/** Why there is nothing to show of a model, "" where it is loaded. status: what /admin/status answers of it. */
export function absence(status) {
  const row = status.models?.find((model) => model.id === status.model.id);
  if (!row || row.state === "ready") return "";
  const { stage, done, total } = row.loading ?? {};
  const share = total ? `, ${Math.floor((100 * done) / total)} %` : "";
  if (row.state === "loading") return `${row.id} is being loaded${stage ? `: ${stage}${share}` : ""}.`;
  if (row.state === "failed") return `${row.id} could not be loaded: ${row.reason}`;
  if (row.state === "restarting") return `${row.id} is being started again: ${row.reason}`;
  return `${row.id} is not loaded; the next message for it loads it.`;
}
