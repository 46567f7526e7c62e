// A turn of the conversation on the page.

import { button, el, setText } from "./dom.js";
import { count, plural, rate } from "./format.js";
import { codeBlock, Markdown } from "./markdown.js";

const ENDS = { length: "It was cut at the limit of tokens.", content_filter: "It was held back." };

/** What the user said, or what a tool gave. */
export function saidView(turn) {
  const name = turn.role === "user" ? "You" : "Tool";
  return el("article", { class: `turn ${turn.role}`, "aria-label": name },
    el("h3", { class: "who" }, name),
    el("div", { class: "text plain" }, turn.content));
}

export class AnswerView {
  #answer;
  #actions;
  #text = el("div", { class: "text" });
  #markdown = new Markdown(this.#text);
  #thought = el("pre", { class: "thought" });
  #summary = el("summary");
  #reasoning = el("details", { class: "reasoning", hidden: true }, this.#summary, this.#thought);
  #calls = el("div", { class: "calls" });
  #callsShown = "";
  #foot = el("footer");

  /** actions: onRetry(answer), and onResults(answer, texts) with what tools gave, by call. */
  constructor(answer, actions) {
    this.#answer = answer;
    this.#actions = actions;
    this.node = el("article", { class: "turn assistant", "aria-label": "Answer" },
      el("h3", { class: "who" }, "Isotherm"), this.#reasoning, this.#text, this.#calls, this.#foot);
  }

  /** Show how far it is. isOpen: more is to come; isLast: of the conversation. */
  show({ isOpen, isLast }) {
    const answer = this.#answer;
    this.node.classList.toggle("open", isOpen);
    this.#reasoning.hidden = !answer.reasoning;
    setText(this.#summary, isOpen && !answer.content ? "Reasoning …" : "Reasoning");
    setText(this.#thought, answer.reasoning.trim());
    this.#markdown.show(answer.content.trim());
    this.#showCalls(isOpen, isLast);
    if (isOpen) this.#foot.replaceChildren();
    else this.#foot.replaceChildren(...this.#footer(isLast));
  }

  #showCalls(isOpen, isLast) {
    const { calls, complete } = this.#answer;
    const canAnswer = !isOpen && isLast && complete && calls.length > 0;
    const state = JSON.stringify([calls, canAnswer]);
    if (state === this.#callsShown) return; // or what is being typed would be lost
    this.#callsShown = state;
    const inputs = calls.map((call) => el("textarea", { rows: 2, "aria-label": `What ${call.name} gave` }));
    this.#calls.replaceChildren(...calls.map((call, which) =>
      el("section", { class: "call", "aria-label": `Call of ${call.name}` },
        el("p", { class: "call-name" }, "Calls ", el("code", {}, call.name)),
        codeBlock(pretty(call.arguments), "json"),
        canAnswer && el("label", { class: "result" }, "Its result", inputs[which]))));
    if (canAnswer) {
      const results = () => inputs.map((input) => input.value);
      this.#calls.append(button("Send results", () => this.#actions.onResults(this.#answer, results())));
    }
  }

  #footer(isLast) {
    const { error, stopped, finish, stats } = this.#answer;
    const again = () => this.#actions.onRetry(this.#answer);
    const retry = isLast && button(error ? "Try again" : "Another answer", again, "quiet");
    return [
      error && el("p", { class: "fault", role: "alert" }, error),
      el("p", { class: "note" }, [stopped && "Stopped.", ENDS[finish], told(stats)].filter(Boolean).join(" "), retry),
    ].filter(Boolean);
  }
}

function told(stats) {
  if (!stats) return "";
  const parts = [plural(stats.tokens, "token")];
  if (stats.perSecond) parts.push(`${rate(stats.perSecond)} tokens/s`);
  if (stats.firstMs !== null) parts.push(`first after ${(stats.firstMs / 1000).toFixed(2)} s`);
  parts.push(`prompt ${count(stats.prompt)}${stats.cached ? `, ${count(stats.cached)} of it found` : ""}`);
  return parts.join(" · ");
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is still being written, or the model's own fault
  }
}
