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
  sparkline.add(status.tokens_per_second);
  now.show(rate(status.tokens_per_second), "tokens/s", sparkline.node, `${count(status.generated_tokens)} since the start`);
  showSpeed(decode, "decode", status.speed);
  showSpeed(prefill, "prefill", status.speed);
  const { running, waiting } = status.requests;
  const all = Math.max(running + waiting, 1);
  requests.show(count(running), "running", bar(running / all, waiting ? "busy" : ""), waiting ? `${count(waiting)} waiting` : "none waiting");
  const { kv } = status;
  cache.show(percent(kv.usage), "in use", bar(kv.usage), `${count(kv.free_blocks)} of ${plural(kv.blocks, "block")} free, ${kv.format}`);
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
  const used = status.memory.resident_bytes;
  const hits = status.accelerators?.hit_rate;
  const found = hits === null || hits === undefined ? "" : `, ${percent(hits)} of choices on accelerators`;
  memory.show(bytes(used), "in RAM", bar(status.memory.weight_bytes / Math.max(used, 1)), `${bytes(status.memory.weight_bytes)} weights${found}`);
}
