// The plan: what was foretold, why, and what memory goes to.

import { stackedBar, terms } from "./bars.js";
import { byId, el, scrolling, table } from "./dom.js";
import { bytes, count, milliseconds, percent, plural, rate } from "./format.js";
import { getJson } from "./http.js";
import { route } from "./models.js";

const MOVED = "Experts have moved since; the prediction is of where they lie now.";
const WORTH_SHOWN = 6; // GiB

const box = byId("plan");
let speedNode = null;

/** Ask for the plan and show it. */
export async function refresh() {
  const { plan } = await getJson(route("admin/plan"));
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
    el("p", { class: "note" },
      "A plan says how fast a model will be and where each of its parts should lie. Make one by ",
      el("code", {}, "isotherm plan MODEL --out plan.json"), " and serve by ",
      el("code", {}, "isotherm serve MODEL --plan plan.json"), "."),
  ];
}

function parts(plan) {
  const reasons = plan.reasons.map((reason) => el("li", {}, reason));
  return [
    el("p", { class: "note" }, conditions(plan)),
    section("Predicted and measured", speedNode),
    section("Why", el("p", {}, "Policy: ", el("strong", {}, plan.policy)), el("ul", { class: "reasons" }, reasons)),
    section("What memory goes to", Object.entries(plan.ledger).map(([device, account]) => ledger(device, account))),
    ...worth(plan),
    timeSection(plan),
    ...considered(plan),
  ];
}

function conditions({ hardware, traffic, context, kv_kind: kv, trace }) {
  const streams = `${plural(traffic.streams, "stream")} after ${count(traffic.context)} tokens`;
  const experts = trace ? `traffic: ${trace}` : "experts taken to be all alike";
  return `For ${hardware}, ${streams}, prompts of ${count(traffic.prompt)}; `
    + `context ${count(context)}, KV cache ${kv}; ${experts}.`;
}

const section = (title, ...content) =>
  el("section", { class: "part", "aria-label": title }, el("h3", {}, title), content);

/** A section that is a table, and what is said below it. */
const tableSection = (title, head, rows, numeric, ...below) =>
  section(title, scrolling(title, table(title, head, rows, numeric)), below);

function speedTable({ predicted, measured }) {
  const rows = [["Decoding", "decode_tok_s"], ["Prompts", "prefill_tok_s"]].map(([name, key]) => {
    const [foretold, got] = [predicted?.[key], measured[key]];
    const range = foretold ? `${rate(foretold.low)}–${rate(foretold.high)}` : "–";
    return [name, rate(foretold?.value), range, rate(got), foretold && got ? percent(got / foretold.value) : "–"];
  });
  const head = ["Tokens/s", "Predicted", "Nine in ten", "Measured", "Of predicted"];
  const title = "Tokens a second, predicted and measured";
  const note = predicted && !predicted.as_planned && el("p", { class: "note" }, MOVED);
  return el("div", {}, scrolling(title, table(title, head, rows, [1, 2, 3, 4])), note);
}

function ledger(device, account) {
  const { terms: sizes, total_bytes: total, budget_bytes: budget } = account;
  const shares = Object.entries(sizes).map(([name, size], place) => ({ name, size, kind: `term-${place % 8}` }));
  return el("div", { class: "ledger" },
    el("h4", {}, device === "ram" ? "RAM" : device, " ",
      el("span", { class: "note" }, `${bytes(total)} of ${bytes(budget)}`)),
    budget > 0 && stackedBar(shares, budget),
    terms(shares));
}

/** What memory of accelerators is worth. */
function worth(plan) {
  const rows = Object.entries(plan.value_ms_by_gib).map(([device, values]) => {
    const saved = values.slice(0, WORTH_SHOWN).map(milliseconds).join(", ");
    const more = values.length > WORTH_SHOWN ? ", …" : "";
    return [device, saved ? saved + more : "–", milliseconds(plan.shadow_price_ms_per_gib[device] ?? 0)];
  });
  const head = ["Accelerator", "Each GiB, the best first", "The next one"];
  return rows.length ? [tableSection("What each GiB saves of a step", head, rows, [])] : [];
}

function timeSection(plan) {
  const row = ([name, value]) => [name, milliseconds(value), percent(value / plan.step_ms)];
  const rows = [...Object.entries(plan.parts_ms).map(row), ["A step", milliseconds(plan.step_ms), ""]];
  const bound = `${plan.cpu_gb.toFixed(2)} GB are read from RAM in a step, which alone allows `
    + `${rate(plan.bound_tok_s)} tokens/s.`;
  return tableSection("Where a step goes", ["Part", "Time", "Share"], rows, [1, 2], el("p", { class: "note" }, bound));
}

function considered(plan) {
  const time = (ms) => (ms === null ? "–" : milliseconds(ms));
  const rows = plan.considered.map((item) => [item.policy, time(item.step_ms), item.note]);
  return rows.length ? [tableSection("What else was considered", ["Policy", "A step", ""], rows, [1])] : [];
}
