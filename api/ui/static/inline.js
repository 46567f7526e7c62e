// Text with emphasis, code and links, as nodes.

import { el } from "./dom.js";

const PAIRS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const LINK = /^\[([^\]\n]{1,500})\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"\n]*")?\s*\)/;
const ADDRESS = /^https?:\/\/[^\s<>"'`]+[^\s<>"'`.,:;!?)\]}*_]/;
const SAFE = new Set(["http:", "https:", "mailto:"]);
const SPECIAL = /[\\`*_~[!h<]/g;
const DEEPEST = 6;

/** The nodes of a text. */
export function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  let at = 0;
  const hopeless = new Set(); // marks that are not closed in what is left, so that nobody looks for their ends again
  const put = (node, length) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
    at += length;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) break;
    plain += text.slice(at, next.index);
    at = next.index;
    const found = special(text, at, depth, hopeless);
    if (found?.node) put(found.node, found.length);
    else {
      plain += found?.text ?? text[at];
      at += found?.length ?? 1;
    }
  }
  plain += text.slice(at);
  if (plain) nodes.push(plain);
  return nodes;
}

function special(text, at, depth, hopeless) {
  const mark = text[at];
  if (mark === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { text: text[at + 1], length: 2 } : null;
  if (mark === "`") return code(text, at, hopeless);
  if (mark === "h" || mark === "<") return address(text, at);
  if (mark === "[" || mark === "!") return link(text, at, depth);
  return depth < DEEPEST ? emphasis(text, at, depth, hopeless) : null;
}

function code(text, at, hopeless) {
  const marks = /^`+/.exec(text.slice(at, at + 64))[0];
  const end = hopeless.has(marks) ? -1 : text.indexOf(marks, at + marks.length);
  if (end < 0) {
    hopeless.add(marks);
    return { text: marks, length: marks.length };
  }
  const inside = text.slice(at + marks.length, end).replace(/^ (.*) $/, "$1");
  return { node: el("code", {}, inside), length: end + marks.length - at };
}

function address(text, at) {
  const start = text[at] === "<" ? at + 1 : at;
  const match = /\w/.test(text[at - 1] ?? "") ? null : ADDRESS.exec(text.slice(start, start + 2000));
  if (!match) return null;
  const closed = start > at && text[start + match[0].length] === ">";
  if (start > at && !closed) return null;
  return { node: anchor(match[0], [match[0]]), length: match[0].length + (closed ? 2 : 0) };
}

/** Pictures would come from elsewhere, so they are links too. */
function link(text, at, depth) {
  const start = text[at] === "!" ? at + 1 : at;
  const match = text[start] === "[" ? LINK.exec(text.slice(start, start + 3000)) : null;
  if (!match) return null;
  const inside = depth < DEEPEST ? inline(match[1], depth + 1) : [match[1]];
  return { node: anchor(match[2], inside), length: start - at + match[0].length };
}

function anchor(target, content) {
  const url = URL.canParse(target) ? new URL(target) : null;
  if (!url || !SAFE.has(url.protocol)) return el("span", {}, content);
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, content);
}

function emphasis(text, at, depth, hopeless) {
  for (const [mark, name] of PAIRS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    if (hopeless.has(mark) || /^(\s|$)/.test(text.slice(from, from + 1))) continue;
    if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) continue; // snake_case
    const end = closing(text, mark, from);
    if (end < 0) {
      hopeless.add(mark);
      continue;
    }
    return { node: el(name, {}, inline(text.slice(from, end), depth + 1)), length: end + mark.length - at };
  }
  return null;
}

function closing(text, mark, from) {
  for (let end = text.indexOf(mark, from); end >= 0; end = text.indexOf(mark, end + 1)) {
    const isDoubled = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    const isInWord = mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "");
    if (end > from && !isDoubled && !isInWord && !/\s/.test(text[end - 1])) return end;
  }
  return -1;
}
