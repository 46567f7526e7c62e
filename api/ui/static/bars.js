// Bars: how full something is, and what was measured beside what was foretold.

import { el } from "./dom.js";
import { bytes } from "./format.js";

/** share: 0 to 1. kind: a class for its colour. */
export function bar(share, kind = "") {
  const fill = el("span", { class: `fill ${kind}` });
  fill.style.width = `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(2)}%`;
  return el("span", { class: "bar", "aria-hidden": "true" }, fill);
}

/** Parts of a whole, each { size, kind }. */
export function stackedBar(parts, whole) {
  return el("span", { class: "stacked", "aria-hidden": "true" }, parts.map(({ size, kind }) => {
    const fill = el("span", { class: kind });
    fill.style.width = `${((100 * size) / whole).toFixed(3)}%`;
    return fill;
  }));
}

/** What the colours of such parts stand for, each { name, size, kind }. */
export function terms(parts) {
  return el("ul", { class: "terms" }, parts.map(({ name, size, kind }) => {
    const swatch = el("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
    return el("li", {}, swatch, name, " ", el("span", { class: "number" }, bytes(size)));
  }));
}

/** measured: or null; predicted: { value, low, high } or null. */
export function bullet(measured, predicted) {
  const most = 1.15 * Math.max(measured ?? 0, predicted?.high ?? 0, 1e-9);
  const at = (value) => `${((100 * value) / most).toFixed(2)}%`;
  const node = el("span", { class: "bullet", "aria-hidden": "true" });
  if (predicted) {
    const band = el("span", { class: "band" });
    band.style.left = at(predicted.low);
    band.style.width = at(predicted.high - predicted.low);
    node.append(band);
  }
  const fill = el("span", { class: "fill" });
  fill.style.width = at(measured ?? 0);
  node.append(fill);
  if (predicted) {
    const mark = el("span", { class: "mark" });
    mark.style.left = at(predicted.value);
    node.append(mark);
  }
  return node;
}
