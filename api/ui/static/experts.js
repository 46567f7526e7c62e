// The view of the experts: the heat map, what it says, and what moved.

import { byId, el, setText } from "./dom.js";
import { cellText, deviceName, layerTable, summary } from "./expert_sums.js";
import { clock } from "./format.js";
import { HeatCanvas } from "./heat_canvas.js";
import { getJson } from "./http.js";
import { route } from "./models.js";
import { ramps } from "./ramps.js";

const SHOWN_MS = 6000; // for which an expert that has moved is marked
const MOVES_KEPT = 30;
const DENSE = "This model is dense: it has no experts, so there is nothing to place.";

let canvas = null;
let map = null;
let movedAt = new Map(); // by "row:expert"
let tableText = "";

const look = () => ({ order: byId("map-order").value, colour: byId("map-colour").value });

export function start(refreshSoon) {
  const [scroll, cells, gutter] = ["map-scroll", "map-canvas", "map-gutter"].map(byId);
  canvas = new HeatCanvas(scroll, cells, gutter, { onCell: tellCell, onHover: tip });
  byId("map-phase").addEventListener("change", refreshSoon);
  for (const id of ["map-order", "map-colour"]) {
    byId(id).addEventListener("change", () => {
      if (map) draw();
    });
  }
  byId("map-table").addEventListener("toggle", showTable);
  document.addEventListener("theme", () => {
    if (map) showLegend();
  });
}

/** Ask how things are and show it. */
export async function refresh() {
  const next = await getJson(route(`admin/experts?phase=${byId("map-phase").value}`));
  noteMoves(next);
  map = { ...next, moved: new Set(movedAt.keys()) };
  const isDense = !map.layers.length;
  for (const id of ["map", "map-controls", "map-cell", "map-legend", "map-table"]) byId(id).hidden = isDense;
  byId("map-colour-choice").hidden = map.devices.length < 2;
  setText(byId("map-summary"), isDense ? DENSE : summary(map));
  if (isDense) return;
  draw();
  showLegend();
  showTable();
}

/** The daemon is another one now: what lay elsewhere before has not moved. */
export function forget() {
  map = null;
  movedAt = new Map();
}

function draw() {
  canvas.show(map, look());
  showLegend();
  const { cursor } = canvas;
  if (cursor && document.activeElement === byId("map-canvas")) canvas.draw();
}

function tellCell({ row, expert }) {
  setText(byId("map-cell"), cellText(map, row, expert));
}

function tip(cell) {
  const node = byId("map-tooltip");
  node.hidden = !cell;
  if (!cell) return;
  setText(node, cellText(map, cell.row, cell.expert));
  const frame = byId("map").getBoundingClientRect();
  const left = Math.min(Math.max(cell.x - frame.left + 12, 0), Math.max(frame.width - node.offsetWidth, 0));
  node.style.transform = `translate(${left}px, ${cell.y - frame.top + 16}px)`;
}

function noteMoves(next) {
  const now = Date.now();
  for (const [name, at] of movedAt) if (now - at > SHOWN_MS) movedAt.delete(name);
  if (!map || map.layers.length !== next.layers.length || map.experts !== next.experts) return;
  const lines = [];
  next.where.forEach((row, number) => row.forEach((place, expert) => {
    if (place === map.where[number][expert]) return;
    movedAt.set(`${number}:${expert}`, now);
    const [from, to] = [map.where[number][expert], place].map((at) => deviceName(next.devices[at]));
    lines.push(`${clock(new Date(now))}  layer ${next.layers[number]}, expert ${expert}: ${from} → ${to}`);
  }));
  if (!lines.length) return;
  const list = byId("map-moves").querySelector("ul");
  list.prepend(...lines.map((line) => el("li", {}, line)));
  while (list.children.length > MOVES_KEPT) list.lastChild.remove();
  byId("map-moves").hidden = false;
}

function showTable() {
  const details = byId("map-table");
  if (!details.open || !map?.layers.length) return;
  const made = layerTable(map);
  if (made.textContent === tableText) return; // nobody is torn out of a table that stays the same
  tableText = made.textContent;
  details.querySelector(".scroll").replaceChildren(made);
}

function showLegend() {
  const byPlace = look().colour === "place" && map.devices.length > 1;
  const colours = ramps(map.devices, byPlace);
  const named = byPlace ? map.devices.map(deviceName) : ["Heat"];
  byId("map-legend").replaceChildren(
    ...named.map((name, place) => {
      const strip = el("span", { class: "strip", "aria-hidden": "true" });
      const stops = colours[place].filter((_, at) => at % 9 === 0);
      strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
      return el("span", { class: "key" }, name, strip);
    }),
    el("span", { class: "note" }, "from ¼ to 4 times the fair share; a ring marks what moves"),
  );
}
