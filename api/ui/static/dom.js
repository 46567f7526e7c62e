// Building elements. Texts become text nodes, never markup.

export const byId = (id) => document.getElementById(id);

/** An element. attributes: "class", any attribute, or on... with a listener; null, undefined and false are left out. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A part of the page that scrolls by itself, sideways or down. */
export const scrolling = (name, ...content) =>
  el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, content);

/** A button with what it does. */
export const button = (text, onclick, kind = null) => el("button", { type: "button", class: kind, onclick }, text);

/** A table with a caption for those who cannot see where it stands. rows: lists of texts or nodes, the first a header.
 * numeric: the columns of numbers. */
export function table(caption, head, rows, numeric = []) {
  const cell = (content, column, name) =>
    el(name, { class: numeric.includes(column) ? "number" : null, scope: name === "th" ? "row" : null }, content);
  return el(
    "table",
    {},
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, head.map((text, column) =>
      el("th", { scope: "col", class: numeric.includes(column) ? "number" : null }, text)))),
    el("tbody", {}, rows.map((row) =>
      el("tr", {}, row.map((content, column) => cell(content, column, column ? "td" : "th"))))),
  );
}

/** Set a text only where it differs, so that nobody who reads the page aloud hears it again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
