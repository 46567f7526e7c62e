// The key figures: speed foretold and measured, load, memory.

import { bar, bullet } from "./bars.js";
import { byId, el, setText } from "./dom.js";
import { bytes, count, percent, plural, rate } from "./format.js";
import { Sparkline } from "./sparkline.js";

const sparkline = new Sparkline();

class Figure {
  #value = el("span", { class: "value" });
  #unit = el("span", { class: "unit" });
  #chart = el("span", { class: "chart" });
  #note = el("span", { class: "note" });

  constructor(name) {
    this.node = el("div", { class: "figure" },
      el("dt", {}, name), el("dd", {}, el("span", {}, this.#value, " ", this.#unit), this.#chart, this.#note));
  }

  show(value, unit, chart, note) {
    setText(this.#value, value);
    setText(this.#unit, unit);
    if (this.#chart.firstChild !== chart) this.#chart.replaceChildren(chart);
    setText(this.#note, note);
  }
}

const now = new Figure("Now");
const decode = new Figure("Decoding");
const prefill = new Figure("Prompts");
const requests = new Figure("Requests");
const cache = new Figure("KV cache");
const memory = new Figure("Memory");

export function start() {
  byId("figures").replaceChildren(...[now, decode, prefill, requests, cache, memory].map((figure) => figure.node));
}

/** status: what /admin/status answers. */
export function show(status) {
  const pace = status.tokens_per_second;
  sparkline.add(pace);
  now.show(rate(pace), "tokens/s", sparkline.node, `${count(status.generated_tokens)} since the start`);
  showSpeed(decode, "decode", status.speed);
  showSpeed(prefill, "prefill", status.speed);
  const { running, waiting } = status.requests;
  const all = Math.max(running + waiting, 1);
  const queue = waiting ? `${count(waiting)} waiting` : "none waiting";
  requests.show(count(running), "running", bar(running / all, waiting ? "busy" : ""), queue);
  const { kv } = status;
  const free = `${count(kv.free_blocks)} of ${plural(kv.blocks, "block")} free, ${kv.format}`;
  cache.show(percent(kv.usage), "in use", bar(kv.usage), free);
  showMemory(status);
}

function showSpeed(figure, phase, speed) {
  const measured = speed.measured[`${phase}_tok_s`];
  const predicted = speed.predicted?.[`${phase}_tok_s`] ?? null;
  const range = predicted && `predicted ${rate(predicted.value)} (${rate(predicted.low)}–${rate(predicted.high)})`;
  const missing = speed.predicted ? "prediction under way" : "no plan, no prediction";
  figure.show(rate(measured), "tokens/s", bullet(measured, predicted), range || missing);
}

function showMemory(status) {
  const { resident_bytes: used, weight_bytes: weights } = status.memory;
  const hits = status.accelerators?.hit_rate;
  const found = hits === null || hits === undefined ? "" : `, ${percent(hits)} of choices on accelerators`;
  memory.show(bytes(used), "in RAM", bar(weights / Math.max(used, 1)), `${bytes(weights)} weights${found}`);
}
