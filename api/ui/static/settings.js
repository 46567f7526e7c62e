// What a chat request says besides its messages.

import { byId, setText } from "./dom.js";

const NAME = "isotherm.settings";
const FIELDS = ["system", "temperature", "max-tokens", "thinking", "tools"];

const field = (name) => byId(`setting-${name}`);

/** Fill the form with what was kept, and keep what is changed. */
export function start() {
  const kept = load();
  for (const name of FIELDS) {
    field(name).value = typeof kept[name] === "string" ? kept[name] : "";
    field(name).addEventListener("change", () => { save(); check(); });
  }
  check();
}

export const system = () => field("system").value.trim();

/** The fields of a request. Throws an Error that says which setting is wrong. */
export function fields() {
  const made = {};
  if (field("temperature").value) made.temperature = number("temperature", "Temperature");
  if (field("max-tokens").value) made.max_tokens = number("max-tokens", "Most tokens");
  const thinking = field("thinking").value;
  if (thinking) made.chat_template_kwargs = { enable_thinking: thinking === "on" };
  const tools = field("tools").value.trim();
  if (tools) made.tools = parsed(tools);
  return made;
}

function number(name, told) {
  if (!field(name).validity.valid) throw new Error(`${told}: ${field(name).validationMessage}`);
  return field(name).valueAsNumber;
}

function parsed(tools) {
  let list;
  try {
    list = JSON.parse(tools);
  } catch (error) {
    throw new Error(`Tools: this is not valid JSON (${error.message})`, { cause: error });
  }
  if (!Array.isArray(list)) throw new Error("Tools: write a list, such as [{\"type\": \"function\", ...}]");
  return list;
}

function check() {
  let fault = "";
  try {
    fields();
  } catch (error) {
    fault = error.message;
  }
  byId("settings-fault").hidden = !fault;
  setText(byId("settings-fault"), fault);
}

function save() {
  localStorage.setItem(NAME, JSON.stringify(Object.fromEntries(FIELDS.map((name) => [name, field(name).value]))));
}

function load() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "{}") ?? {};
  } catch {
    return {}; // what is there is none of ours
  }
}
