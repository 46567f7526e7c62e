// Colours of the heat map: a ramp for each device, warm for accelerators, cool for RAM.

const LIGHT = {
  heat: ["#2a5aa8", "#7fa9d9", "#dcdcd8", "#ec9566", "#b2182b"],
  ram: ["#e9eef5", "#bcd3ec", "#7fb0e0", "#3779bd", "#123f75"],
  devices: [
    ["#faeee3", "#f7cfa8", "#ef9c55", "#cb5a14", "#7f2c05"],
    ["#f7eaf3", "#eabfdc", "#d583b8", "#a83c86", "#651a50"],
    ["#e8f3ea", "#b7dcc0", "#71b886", "#2d8549", "#0f4a24"],
    ["#efecf9", "#cfc5ee", "#a291dc", "#6a54b5", "#372477"],
  ],
};
const DARK = {
  heat: ["#2f5fae", "#6f93c4", "#8d8d8a", "#e08a55", "#ff5a4a"],
  ram: ["#1b232e", "#24405f", "#326ca8", "#5b9de6", "#a5d0ff"],
  devices: [
    ["#2b211a", "#61361a", "#a9571d", "#f0883e", "#ffc58a"],
    ["#2a1d27", "#5b2b4d", "#9a4582", "#e07cc2", "#ffb3e6"],
    ["#1b271e", "#28502f", "#3b8450", "#68c684", "#a8f0bd"],
    ["#211e2e", "#40346a", "#6552ab", "#9f8cf0", "#cabfff"],
  ],
};
const STEPS = 64;
const LOWEST = -2; // log2 of the heat: a quarter of the fair share, and four times it
const HIGHEST = 2;

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Ramps by the place of a device in the list of devices, RAM first; `byPlace` false: one for all, by heat alone. */
export function ramps(devices, byPlace) {
  const set = isDark() ? DARK : LIGHT;
  if (!byPlace) return devices.map(() => ramp(set.heat));
  return devices.map((_, place) => ramp(place ? set.devices[(place - 1) % set.devices.length] : set.ram));
}

/** The place in a ramp of a heat, as multiple of the fair share. */
export function step(heat) {
  const level = heat > 0 ? (Math.log2(heat) - LOWEST) / (HIGHEST - LOWEST) : 0;
  return Math.round(Math.min(Math.max(level, 0), 1) * (STEPS - 1));
}

function ramp(stops) {
  return Array.from({ length: STEPS }, (_, at) => {
    const place = (at / (STEPS - 1)) * (stops.length - 1);
    const left = Math.min(Math.floor(place), stops.length - 2);
    const [from, to] = [rgb(stops[left]), rgb(stops[left + 1])];
    const mixed = from.map((value, which) => Math.round(value + (to[which] - value) * (place - left)));
    return `rgb(${mixed.join(" ")})`;
  });
}

const rgb = (text) => [1, 3, 5].map((at) => Number.parseInt(text.slice(at, at + 2), 16));
