// The view of the server: what runs, on what, and what had to give way.

import { bar, stackedBar, terms } from "./bars.js";
import { button, byId, el, setText } from "./dom.js";
import { bytes, clock, count, duration, percent, plural } from "./format.js";
import { postJson } from "./http.js";
import { route } from "./models.js";

const facts = el("dl", { class: "facts" });
const devices = el("div", { class: "devices" });
const devicesCard = el("section", { class: "card", "aria-labelledby": "devices-title", hidden: true },
  el("header", { class: "view-head" }, el("h2", { id: "devices-title" }, "Accelerators")), devices);
const events = el("ul", { class: "events" });
const cards = new Map(); // of accelerators, by name

export function start() {
  byId("server").append(
    el("section", { class: "card", "aria-labelledby": "facts-title" },
      el("header", { class: "view-head" }, el("h2", { id: "facts-title" }, "This daemon")), facts),
    devicesCard,
    el("section", { class: "card", "aria-labelledby": "events-title" },
      el("header", { class: "view-head" }, el("h2", { id: "events-title" }, "Degradations")), events));
}

/** status: what /admin/status answers. */
export function show(status) {
  showFacts(factsOf(status));
  devicesCard.hidden = !status.accelerators;
  for (const device of status.accelerators?.devices ?? []) cardOf(device.device).show(device);
  showEvents(status.events);
}

function factsOf(status) {
  const { model, memory, prefix_cache: prefix } = status;
  const formats = Object.entries(model.formats).map(([name, row]) =>
    `${plural(row.tensors, "tensor")} in ${name}, run as ${row.packed}${row.exact ? "" : " (encoded again)"}`);
  const replaced = Object.entries(status.self_test.replaced).map(([kernel, tier]) => `${kernel} runs as ${tier}`);
  const found = `${percent(prefix.hit / prefix.queried)} of ${count(prefix.queried)} prompt tokens were found`;
  return [
    ["Health", status.reason ? `${status.state}: ${status.reason}` : status.state],
    ["Up for", `${duration(status.uptime_s)}, process ${status.pid}, loaded in ${status.load_s.toFixed(1)} s`],
    ["Version", status.version],
    ["Model", `${model.id} (${model.architecture}), context ${count(model.context)} tokens`],
    ["File", model.path],
    ["Weights", formats.join("; ")],
    ["Memory", `${bytes(memory.resident_bytes)} in use: ${bytes(memory.weight_bytes)} weights, `
      + `${bytes(memory.kv_bytes)} KV cache`],
    ["Kernels", [`${status.kernels}, ${plural(status.threads, "thread")}`, ...replaced].join("; ")],
    ["Prefix cache", prefix.queried ? found : "not asked yet"],
    ["Preemptions", count(status.preemptions)],
    ["Pack cache", status.pack_cache ? `${status.pack_cache.state}, ${status.pack_cache.path}` : "off"],
  ];
}

function showFacts(rows) {
  if (facts.children.length !== rows.length) {
    facts.replaceChildren(...rows.map(([name]) => el("div", {}, el("dt", {}, name), el("dd"))));
  }
  rows.forEach(([, value], which) => setText(facts.children[which].lastChild, value));
}

function showEvents({ counts, recent }) {
  const details = Object.fromEntries(recent.map((event) => [event.name, event]));
  const lines = Object.entries(counts).map(([name, number]) => {
    const event = details[name];
    const last = event && `, last at ${clock(new Date(event.at * 1000))}: ${event.detail}`;
    return el("li", {}, el("code", {}, name), ` × ${count(number)}`, last);
  });
  const made = lines.length ? lines : [el("li", { class: "note" }, "None: nothing had to give way.")];
  const texts = (list) => [...list].map((line) => line.textContent).join("\n");
  if (texts(made) !== texts(events.children)) events.replaceChildren(...made);
}

function cardOf(name) {
  let card = cards.get(name);
  if (!card) {
    card = new DeviceCard(name);
    cards.set(name, card);
    devices.append(card.node);
  }
  return card;
}

/** An accelerator: what is used of it, and a form that bounds that. */
class DeviceCard {
  #name;
  #text = el("p");
  #chart = el("div", { class: "ledger" });
  #told = el("p", { class: "note", role: "status" });
  #input;

  constructor(name) {
    this.#name = name;
    this.#input = el("input", { type: "text", size: 9, placeholder: "6GiB", "aria-label": `Most memory of ${name}` });
    const form = el("form", { class: "actions" }, el("label", { class: "compact" }, "Use no more than ", this.#input),
      el("button", { type: "submit" }, "Set"), button("Use all", () => this.#limit(null)));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#input.value.trim()) void this.#limit(this.#input.value.trim());
    });
    this.node = el("div", { class: "device", role: "group", "aria-label": name },
      el("h3", {}, name), this.#text, this.#chart, form, this.#told);
  }

  show(device) {
    if (device.lost) {
      setText(this.#text, `${device.name} has failed and is done without; start the daemon again to use it.`);
      this.#chart.replaceChildren(bar(0));
      return;
    }
    const growing = device.growing ? ", more are coming" : "";
    setText(this.#text, `${device.name}: ${bytes(device.used_bytes)} of ${bytes(device.limit_bytes)} in use, `
      + `${plural(device.experts, "expert")} in ${bytes(device.expert_bytes)}${growing}; `
      + `${count(device.hits)} choices found theirs here.`);
    const parts = [
      { name: "experts", size: device.expert_bytes, kind: "term-0" },
      { name: "all else", size: device.used_bytes - device.expert_bytes, kind: "term-2" },
    ];
    this.#chart.replaceChildren(stackedBar(parts, Math.max(device.limit_bytes, 1)), terms(parts));
  }

  async #limit(size) {
    setText(this.#told, "Asking …");
    try {
      await postJson(route("admin/vram"), { [this.#name]: size });
      setText(this.#told, size ? `It uses no more than ${size} from now on.` : "It may use all of its memory again.");
    } catch (error) {
      setText(this.#told, error.message);
    }
  }
}
