// Rebalancing: what moving experts would bring, first; and then doing it.

import { button, byId, el, scrolling, table } from "./dom.js";
import { bytes, count, milliseconds, plural } from "./format.js";
import { HttpError, postJson } from "./http.js";
import { route } from "./models.js";

const PATH = "admin/rebalance";
const AGAIN_MS = 500;

let hasAccelerators = null;
let roundsBack = 0;
let onMoved = () => {};

const box = byId("rebalance");
const status = el("p", { role: "status", class: "note" });
const proposal = el("div", { class: "proposal" });
const automatic = el("input", { type: "checkbox", onchange: () => act(setAutomatic) });
const look = button("See what would move", () => act(() => propose(false)), "primary");
const back = button("Take the last round back", () => act(() => propose(true)));
const controls = el("p", { class: "actions" }, look, back,
  el("label", { class: "compact check" }, automatic, "The daemon moves experts by itself"));

/** moved: is called when experts have changed places. */
export function start(moved) {
  onMoved = moved;
}

/** accelerators: what /admin/status tells of them. */
export function show(accelerators) {
  const has = Boolean(accelerators);
  if (has === hasAccelerators) return;
  hasAccelerators = has;
  if (has) void meet();
  else box.replaceChildren(el("p", { class: "note" }, "All experts lie in RAM. With ",
    el("code", {}, "isotherm serve --accelerator"), " the hot ones lie on accelerators and follow the traffic."));
}

/** Ask how rebalancing stands: it may be that nothing can be moved. */
async function meet() {
  try {
    told(await postJson(route(PATH), {}));
    box.replaceChildren(controls, status, proposal);
  } catch (error) {
    box.replaceChildren(el("p", { class: "note" }, error.message));
    if (!(error instanceof HttpError && error.status === 400)) hasAccelerators = null; // it is asked again
  }
}

/** The daemon is another one now. */
export function forget() {
  hasAccelerators = null;
  proposal.replaceChildren();
}

/** Do something with the buttons held; what the server has against it is said. */
async function act(action) {
  for (const button of [look, back, automatic]) button.disabled = true;
  status.classList.remove("fault");
  try {
    await action();
  } catch (error) {
    proposal.replaceChildren();
    status.textContent = error.message;
    status.classList.add("fault");
  }
  for (const button of [look, automatic]) button.disabled = false;
  back.disabled = !roundsBack;
}

/** Take in what every report says. */
function told(report) {
  automatic.checked = report.automatic;
  roundsBack = report.rounds_back;
  back.disabled = !roundsBack;
  const { rounds_made: made, rest_tokens: rest } = report;
  const rounds = `${plural(made, "round")} made so far, ${count(roundsBack)} can be taken back`;
  const pause = `; none is begun by itself for the next ${plural(Math.ceil(rest), "token")}`;
  status.textContent = `${made ? rounds : "No round was made yet"}${rest > 0 ? pause : ""}.`;
}

async function setAutomatic() {
  told(await postJson(route(PATH), { automatic: automatic.checked }));
}

async function propose(isBack) {
  const report = await postJson(route(PATH), isBack ? { rollback: true } : {});
  told(report);
  if (report.under_way) {
    proposal.replaceChildren(el("p", {}, "Experts are being moved right now; ask again in a moment."));
  } else if (!report.swaps.length) {
    proposal.replaceChildren(el("p", {}, "Nothing would move: no swap would pay, by the recent traffic."));
  } else {
    proposal.replaceChildren(...offer(report, isBack));
  }
}

function offer(report, isBack) {
  const { swaps } = report;
  const gain = `${report.saving_ms < 0 ? "losing" : "saving"} ${milliseconds(Math.abs(report.saving_ms))}`;
  const way = `${bytes(report.nbytes)} over the link in ${milliseconds(report.transfer_ms)}`;
  const sum = `${plural(swaps.length, "swap")}: ${way}, ${gain} in the next ${count(swaps[0].horizon)} tokens.`;
  const rows = swaps.map((swap) => [
    String(swap.layer), `${swap.promoted} → gpu${swap.device}`, `${swap.demoted} → RAM`,
    `${swap.promoted_rate.toFixed(3)} against ${swap.demoted_rate.toFixed(3)}`,
    signed(swap.saving_ms), milliseconds(swap.transfer_ms),
  ]);
  const head = ["Layer", "Comes", "Goes", "Chosen, times a token", "Saves", "Takes"];
  const title = isBack ? "What would be taken back" : "What would move";
  return [
    el("p", {}, el("strong", {}, `${title}. `), sum),
    scrolling(title, table(title, head, rows, [4, 5])),
    el("p", { class: "actions" },
      button(isBack ? "Take them back" : "Move them", () => act(() => run(isBack)), "primary"),
      button("Leave them", () => proposal.replaceChildren())),
  ];
}

const signed = (value) => (value < 0 ? `−${milliseconds(-value)}` : milliseconds(value));

async function run(isBack) {
  let report = await postJson(route(PATH), { rollback: isBack, dry_run: false });
  const begun = report.swaps.length;
  proposal.replaceChildren(el("p", {}, `${plural(begun, "swap")} under way …`));
  look.focus({ preventScroll: true });
  while (report.under_way) {
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    report = await postJson(route(PATH), {});
  }
  told(report);
  proposal.replaceChildren(el("p", {}, begun ? `${plural(begun, "swap")} done.` : "Nothing had to move any more."));
  onMoved();
}
