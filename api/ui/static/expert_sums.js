// Sums of what /admin/experts answers, in words and in a table.

import { table } from "./dom.js";
import { count, percent, plural } from "./format.js";

export const deviceName = (device) => (device === "ram" ? "RAM" : device);

/** A sentence or two about the whole map. */
export function summary(map) {
  const places = map.devices.map((device, place) => {
    const here = map.where.reduce((sum, row) => sum + row.filter((at) => at === place).length, 0);
    return `${count(here)} in ${deviceName(device)}`;
  });
  const size = `${plural(map.layers.length, "layer")} of ${plural(map.experts, "expert")}`;
  const shape = `${size}, ${map.top_k} of them for each token. `;
  const lie = map.devices.length > 1 ? `${places.join(", ").replaceAll(" in gpu", " on gpu")}. ` : "All lie in RAM. ";
  return shape + lie + use(map);
}

function use(map) {
  const phase = map.phase === "decode" ? "decoded token" : "token";
  if (!map.tokens) return map.phase === "decode" ? "Nothing was decoded yet." : "No prompt was read yet.";
  const hottest = `the hottest tenth took ${percent(hottestTenth(map))} of the choices`;
  const found = `; ${percent(hits(map))} would find their expert on an accelerator`;
  return `In the last ${plural(Math.round(map.tokens), phase)} ${hottest}${map.devices.length > 1 ? found : ""}.`;
}

/** The share of choices that went to experts which now lie on accelerators. */
function hits(map) {
  const rows = map.heat.map((heat, row) => hitsOf(heat, map.where[row]));
  return rows.reduce((sum, share) => sum + share, 0) / rows.length;
}

function hitsOf(heat, where) {
  const all = heat.reduce((sum, each) => sum + each, 0);
  return all ? heat.reduce((sum, each, expert) => sum + (where[expert] ? each : 0), 0) / all : 0;
}

function hottestTenth(map) {
  const tenth = Math.max(Math.round(map.experts / 10), 1);
  const shares = map.heat.map((heat) => {
    const sorted = heat.toSorted((one, other) => other - one);
    const all = sorted.reduce((sum, each) => sum + each, 0);
    return all ? sorted.slice(0, tenth).reduce((sum, each) => sum + each, 0) / all : 0;
  });
  return shares.reduce((sum, share) => sum + share, 0) / shares.length;
}

/** What one cell says. */
export function cellText(map, row, expert) {
  const place = deviceName(map.devices[map.where[row][expert]]);
  const coming = map.coming.find(([layer, number]) => layer === map.layers[row] && number === expert);
  const way = coming ? `, on its way to ${deviceName(map.devices[coming[2]])}` : "";
  const moved = map.moved.has(`${row}:${expert}`) ? ", has just moved" : "";
  const heat = map.tokens ? `chosen ${map.heat[row][expert].toFixed(2)} times its fair share` : "not chosen yet";
  return `Layer ${map.layers[row]}, expert ${expert}: in ${place}${way}${moved}, ${heat}`.replace("in gpu", "on gpu");
}

/** The map as a table, a row for each layer. */
export function layerTable(map) {
  const several = map.devices.length > 1;
  const found = several ? ["Found on accelerators"] : [];
  const head = ["Layer", ...map.devices.map(deviceName), ...found, "Hottest experts, times the fair share"];
  const rows = map.layers.map((layer, row) => {
    const [heat, where] = [map.heat[row], map.where[row]];
    const counts = map.devices.map((_, place) => count(where.filter((at) => at === place).length));
    const hottest = heat.map((each, expert) => [each, expert]).toSorted((one, other) => other[0] - one[0]).slice(0, 5);
    const named = map.tokens ? hottest.map(([each, expert]) => `${expert} (${each.toFixed(1)})`).join(", ") : "–";
    return [String(layer), ...counts, ...(several ? [percent(hitsOf(heat, where))] : []), named];
  });
  return table("Experts by layer", head, rows, [...head.keys()].slice(1, -1));
}
