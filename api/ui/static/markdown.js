// Markdown as elements. Everything that is not one of the forms below is text: no markup of the model's gets through.

import { el, scrolling } from "./dom.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 8; // lists in quotes in lists

/** Shows a text that grows. Only blocks that changed are made anew, so that a long answer costs no more as it grows. */
export class Markdown {
  #node;
  #shown = [];

  constructor(node) {
    this.#node = node;
  }

  show(text) {
    const next = blocks(text.split("\n"));
    let same = 0;
    while (same < next.length && same < this.#shown.length && next[same].source === this.#shown[same]) same += 1;
    while (this.#node.childNodes.length > same) this.#node.lastChild.remove();
    for (const block of next.slice(same)) this.#node.append(render(block, 0));
    this.#shown = next.map((block) => block.source);
  }
}

/** Cuts lines into blocks. source: the lines of a block, with its kind. */
function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const kind = kindOf(lines, at);
    const end = ENDS[kind](lines, at);
    const own = lines.slice(at, end);
    found.push({ kind, lines: own, source: `${kind}\n${own.join("\n")}` });
    at = end;
  }
  return found;
}

function kindOf(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  const next = lines[at + 1] ?? "";
  if (line.includes("|") && next.includes("-") && TABLE_LINE.test(next)) return "table";
  return "paragraph";
}

const until = (lines, at, stop) => {
  let end = at + 1;
  while (end < lines.length && !stop(end)) end += 1;
  return end;
};

const ENDS = {
  code(lines, at) {
    const mark = FENCE.exec(lines[at])[1];
    const closes = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
    const end = until(lines, at, (i) => closes.test(lines[i]));
    return Math.min(end + 1, lines.length);
  },
  heading: (lines, at) => at + 1,
  rule: (lines, at) => at + 1,
  quote: (lines, at) => until(lines, at, (i) => !QUOTE.test(lines[i])),
  table: (lines, at) => until(lines, at, (i) => !lines[i].includes("|")),
  list(lines, at) {
    const ordered = isOrdered(lines[at]);
    return until(lines, at, (i) => {
      const line = lines[i];
      if (ITEM.test(line)) return isOrdered(line) !== ordered && !/^ {2,}/.test(line);
      if (!line.trim()) return !goesOn(lines[i + 1] ?? "", ordered);
      return !/^\s/.test(line) && (!lines[i - 1].trim() || kindOf(lines, i) !== "paragraph");
    });
  },
  paragraph: (lines, at) => until(lines, at, (i) => !lines[i].trim() || kindOf(lines, i) !== "paragraph"),
};

/** Whether a line after an empty one still belongs to a list. */
const goesOn = (line, ordered) => /^ {2,}\S/.test(line) || (ITEM.test(line) && isOrdered(line) === ordered);

const isOrdered = (line) => /\d/.test(ITEM.exec(line)[2]);

function render(block, depth) {
  return RENDERERS[depth < DEEPEST ? block.kind : "paragraph"](block.lines, depth);
}

const inner = (lines, depth) => blocks(lines).map((block) => render(block, depth + 1));

const RENDERERS = {
  code(lines) {
    const [, mark, language] = FENCE.exec(lines[0]);
    const isClosed = lines.length > 1 && lines.at(-1).trim().startsWith(mark[0].repeat(3));
    return codeBlock(lines.slice(1, isClosed ? -1 : undefined).join("\n"), language);
  },
  heading(lines) {
    const [, marks, text] = HEADING.exec(lines[0]);
    return el(`h${Math.min(marks.length + 2, 6)}`, {}, inline(text));
  },
  rule: () => el("hr"),
  quote: (lines, depth) => el("blockquote", {}, inner(lines.map((line) => line.replace(QUOTE, "")), depth)),
  list(lines, depth) {
    const ordered = isOrdered(lines[0]);
    const start = ordered ? Number.parseInt(ITEM.exec(lines[0])[2], 10) : 1;
    const shown = items(lines).map((own) => item(own, depth));
    return el(ordered ? "ol" : "ul", { start: start === 1 ? null : start }, shown);
  },
  table(lines) {
    const [head, , ...rows] = lines.map(cells);
    const row = (own, name) => el("tr", {}, head.map((_, column) => el(name, {}, inline(own[column] ?? ""))));
    return scrolling("Table",
      el("table", {}, el("thead", {}, row(head, "th")), el("tbody", {}, rows.map((own) => row(own, "td")))));
  },
  paragraph: (lines) => el("p", {}, inline(lines.join("\n"))),
};

/** A list's lines, item by item, without marks and indentation. */
function items(lines) {
  const base = ITEM.exec(lines[0])[1].length;
  const found = [];
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= base + 1) found.push([line.slice(match[0].length)]);
    else found.at(-1).push(line.replace(/^ {1,4}/, ""));
  }
  return found;
}

function item(lines, depth) {
  const content = inner(lines, depth);
  const only = content[0];
  // A short item needs no paragraph of its own.
  return el("li", {}, only?.localName === "p" ? [...only.childNodes] : only, content.slice(1));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

export function codeBlock(text, language) {
  const code = el("code", {}, text);
  const copy = el("button", { type: "button", class: "quiet copy", onclick: async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return el("div", { class: "code" },
    el("div", { class: "code-head" }, el("span", {}, language), navigator.clipboard ? copy : null),
    el("pre", { tabindex: "0" }, code));
}
