// The plan: what was foretold, why, and what memory goes to.

import { stackedBar, terms } from "./bars.js";
import { byId, el, table } from "./dom.js";
import { bytes, count, milliseconds, percent, plural, rate } from "./format.js";
import { getJson } from "./http.js";

const box = byId("plan");
let speedNode = null;

/** Ask for the plan and show it. */
export async function refresh() {
  const { plan } = await getJson("admin/plan");
  speedNode = plan && el("div");
  box.replaceChildren(...(plan ? parts(plan) : without()));
}

/** speed: of /admin/status. */
export function showSpeed(speed) {
  if (!speedNode) return;
  const made = speedTable(speed);
  if (made.textContent !== speedNode.textContent) speedNode.replaceChildren(made);
}

function without() {
  return [
    el("p", {}, "This daemon serves without a plan: all of the model lies in RAM."),
    el("p", { class: "note" }, "A plan says how fast a model will be and where each of its parts should lie. Make one by ",
      el("code", {}, "isotherm plan MODEL --out plan.json"), " and serve by ", el("code", {}, "isotherm serve MODEL --plan plan.json"), "."),
  ];
}

function parts(plan) {
  return [
    el("p", { class: "note" }, `For ${plan.hardware}, ${plural(plan.traffic.streams, "stream")} after ${count(plan.traffic.context)} tokens, `
      + `prompts of ${count(plan.traffic.prompt)}; context ${count(plan.context)}, KV cache ${plan.kv_kind}; `
      + `${plan.trace ? `traffic: ${plan.trace}` : "experts taken to be all alike"}.`),
    section("Predicted and measured", speedNode),
    section("Why", el("p", {}, "Policy: ", el("strong", {}, plan.policy)), el("ul", { class: "reasons" }, plan.reasons.map((reason) => el("li", {}, reason)))),
    section("What memory goes to", Object.entries(plan.ledger).map(([device, account]) => ledger(device, account))),
    ...worth(plan),
    section("Where a step goes", timeTable(plan)),
    ...considered(plan),
  ];
}

const section = (title, ...content) => el("section", { class: "part", "aria-label": title }, el("h3", {}, title), content);

function speedTable({ predicted, measured }) {
  const rows = [["Decoding", "decode_tok_s"], ["Prompts", "prefill_tok_s"]].map(([name, key]) => {
    const [foretold, got] = [predicted?.[key], measured[key]];
    const against = foretold && got ? percent(got / foretold.value) : "–";
    return [name, foretold ? rate(foretold.value) : "–", foretold ? `${rate(foretold.low)}–${rate(foretold.high)}` : "–", rate(got), against];
  });
  const where = predicted && !predicted.as_planned ? el("p", { class: "note" }, "Experts have moved since; the prediction is of where they lie now.") : [];
  return el("div", {}, scrolled("Tokens a second, predicted and measured",
    table("Tokens a second, predicted and measured", ["Tokens/s", "Predicted", "Nine in ten", "Measured", "Of predicted"], rows, [1, 2, 3, 4])), where);
}

const scrolled = (name, content) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, content);

function ledger(device, account) {
  const parts = Object.entries(account.terms).map(([name, size], place) => ({ name, size, kind: `term-${place % 8}` }));
  return el("div", { class: "ledger" },
    el("h4", {}, device === "ram" ? "RAM" : device, " ", el("span", { class: "note" }, `${bytes(account.total_bytes)} of ${bytes(account.budget_bytes)}`)),
    account.budget_bytes > 0 && stackedBar(parts, account.budget_bytes),
    terms(parts));
}

/** What memory of accelerators is worth. */
function worth(plan) {
  const rows = Object.entries(plan.value_ms_by_gib).map(([device, values]) => {
    const saved = values.slice(0, 6).map(milliseconds).join(", ") + (values.length > 6 ? ", …" : "");
    return [device, saved || "–", milliseconds(plan.shadow_price_ms_per_gib[device] ?? 0)];
  });
  if (!rows.length) return [];
  const title = "What each GiB saves of a step";
  return [section(title, scrolled(title, table(title, ["Accelerator", "Each GiB, the best first", "The next one"], rows)))];
}

function timeTable(plan) {
  const rows = Object.entries(plan.parts_ms).map(([name, value]) => [name, milliseconds(value), percent(value / plan.step_ms)]);
  rows.push(["A step", milliseconds(plan.step_ms), ""]);
  const bound = `${plan.cpu_gb.toFixed(2)} GB are read from RAM in a step, which alone allows ${rate(plan.bound_tok_s)} tokens/s.`;
  return [scrolled("Where a step goes", table("Where a step goes", ["Part", "Time", "Share"], rows, [1, 2])), el("p", { class: "note" }, bound)];
}

function considered(plan) {
  if (!plan.considered.length) return [];
  const rows = plan.considered.map((item) => [item.policy, item.step_ms === null ? "–" : milliseconds(item.step_ms), item.note]);
  return [section("What else was considered", scrolled("What else was considered", table("What else was considered", ["Policy", "A step", ""], rows, [1])))];
}
