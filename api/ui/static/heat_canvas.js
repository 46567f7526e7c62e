// The heat map itself: a cell for each expert of each layer, drawn on a canvas, since there may be many thousands.

import { isDark, ramps, step } from "./ramps.js";

const LEAST_PX = 5; // below that it is scrolled
const WIDEST_PX = 34;
const HIGHEST_PX = 18;
const AXIS_PX = 18;
const GUTTER_PX = 30;
const LABEL_EVERY_PX = 46;

export class HeatCanvas {
  #scroll;
  #canvas;
  #gutter;
  #map = null;
  #look = { order: "number", colour: "place" };
  #orders = []; // of each row, the experts from left to right
  #cell = { width: LEAST_PX, height: LEAST_PX };

  /** onCell: is called with { row, expert } of the cell that the keyboard or a touch has gone to; onHover: with that
   * and its place on the page, or null. */
  constructor(scroll, canvas, gutter, { onCell, onHover }) {
    this.#scroll = scroll;
    this.#canvas = canvas;
    this.#gutter = gutter;
    this.cursor = null; // { row, column }
    new ResizeObserver(() => this.draw()).observe(scroll);
    document.addEventListener("theme", () => this.draw());
    canvas.addEventListener("keydown", (event) => {
      if (this.#go(event)) {
        event.preventDefault();
        this.#tell(onCell);
      }
    });
    canvas.addEventListener("focus", () => {
      this.cursor ??= { row: 0, column: 0 };
      this.#tell(onCell);
    });
    canvas.addEventListener("blur", () => this.draw());
    canvas.addEventListener("click", (event) => {
      const at = this.#at(event);
      if (!at) return;
      this.cursor = at;
      this.#tell(onCell);
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = this.#at(event);
      onHover(at && { ...this.#named(at), x: event.clientX, y: event.clientY });
    });
    canvas.addEventListener("pointerleave", () => onHover(null));
  }

  /** map: what /admin/experts answers, with `moved`, a Set of "row:expert". look: { order, colour }. */
  show(map, look) {
    this.#map = map;
    this.#look = look;
    const numbers = Array.from({ length: map.experts }, (_, expert) => expert);
    this.#orders = map.heat.map((heat) =>
      (look.order === "heat" ? numbers.toSorted((one, other) => heat[other] - heat[one] || one - other) : numbers));
    this.draw();
  }

  draw() {
    if (!this.#map?.layers.length || !this.#scroll.clientWidth) return;
    const { layers, experts, devices } = this.#map;
    const width = Math.min(Math.max(this.#scroll.clientWidth / experts, LEAST_PX), WIDEST_PX);
    this.#cell = { width, height: Math.min(Math.floor(width), HIGHEST_PX) };
    const size = { width: width * experts, height: AXIS_PX + this.#cell.height * layers.length };
    const pen = prepared(this.#canvas, size.width, size.height);
    this.#drawCells(pen, ramps(devices, this.#look.colour === "place" && devices.length > 1));
    this.#drawMarks(pen);
    this.#drawAxis(pen, experts);
    this.#drawGutter(layers, size.height);
  }

  #drawCells(pen, colours) {
    const { heat, where } = this.#map;
    const { width, height } = this.#cell;
    const gap = width >= 8 ? 1 : 0;
    this.#orders.forEach((order, row) => {
      order.forEach((expert, column) => {
        pen.fillStyle = colours[where[row][expert]][step(heat[row][expert])];
        const left = Math.round(column * width);
        pen.fillRect(left, AXIS_PX + row * height, Math.round((column + 1) * width) - left - gap, height - gap);
      });
    });
  }

  /** Rings around what moves or has just moved, and around the cell of the keyboard. */
  #drawMarks(pen) {
    const { width, height } = this.#cell;
    const ring = (row, column, colour, thickness) => {
      pen.strokeStyle = colour;
      pen.lineWidth = thickness;
      const out = thickness / 2;
      const left = Math.round(column * width);
      const wide = Math.round((column + 1) * width) - left - 1;
      pen.strokeRect(left - out, AXIS_PX + row * height - out, wide + thickness, height - 1 + thickness);
    };
    const coming = new Set(this.#map.coming.map(([layer, expert]) => `${this.#map.layers.indexOf(layer)}:${expert}`));
    for (const name of new Set([...coming, ...this.#map.moved])) {
      const [row, expert] = name.split(":").map(Number);
      ring(row, this.#orders[row].indexOf(expert), isDark() ? "#ffffff" : "#000000", 1.5);
    }
    if (this.cursor && document.activeElement === this.#canvas) {
      ring(this.cursor.row, this.cursor.column, isDark() ? "#000000" : "#ffffff", 5);
      ring(this.cursor.row, this.cursor.column, isDark() ? "#8fbcff" : "#0b57d0", 2.5);
    }
  }

  #drawAxis(pen, experts) {
    const { width } = this.#cell;
    const every = [1, 2, 4, 8, 16, 32, 64, 128].find((each) => each * width >= LABEL_EVERY_PX) ?? 256;
    label(pen, this.#canvas);
    pen.textAlign = "left";
    for (let column = 0; column < experts; column += every) pen.fillText(String(column), column * width, AXIS_PX - 6);
  }

  #drawGutter(layers, height) {
    const pen = prepared(this.#gutter, GUTTER_PX, height);
    const every = [1, 2, 4, 8].find((each) => each * this.#cell.height >= 11) ?? 16;
    label(pen, this.#canvas);
    pen.textAlign = "right";
    layers.forEach((layer, row) => {
      const middle = AXIS_PX + (row + 0.5) * this.#cell.height;
      if (row % every === 0) pen.fillText(String(layer), GUTTER_PX - 6, middle + 3.5);
    });
  }

  /** Whether a key means a way to go, which is gone then. */
  #go({ key, ctrlKey }) {
    if (!this.#map?.layers.length) return false;
    const [last, end] = [this.#map.layers.length - 1, this.#map.experts - 1];
    const { row, column } = this.cursor ?? { row: 0, column: 0 };
    const ways = {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [ctrlKey ? 0 : row, 0],
      End: [ctrlKey ? last : row, end],
      PageUp: [row - 10, column],
      PageDown: [row + 10, column],
    };
    if (!(key in ways)) return false;
    const within = (value, most) => Math.min(Math.max(value, 0), most);
    this.cursor = { row: within(ways[key][0], last), column: within(ways[key][1], end) };
    this.#reveal();
    return true;
  }

  #reveal() {
    const left = this.cursor.column * this.#cell.width;
    const right = left + this.#cell.width;
    const { scrollLeft, clientWidth } = this.#scroll;
    if (left < scrollLeft) this.#scroll.scrollLeft = left;
    else if (right > scrollLeft + clientWidth) this.#scroll.scrollLeft = right - clientWidth;
  }

  #tell(onCell) {
    this.draw();
    if (this.#map?.layers.length) onCell(this.#named(this.cursor));
  }

  #named({ row, column }) {
    return { row, column, expert: this.#orders[row][column] };
  }

  #at(event) {
    if (!this.#map?.layers.length) return null;
    const column = Math.floor(event.offsetX / this.#cell.width);
    const row = Math.floor((event.offsetY - AXIS_PX) / this.#cell.height);
    const isCell = row >= 0 && row < this.#map.layers.length && column >= 0 && column < this.#map.experts;
    return isCell ? { row, column } : null;
  }
}

/** A canvas's pen, cleared, for sizes in CSS pixels. */
function prepared(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}

function label(pen, canvas) {
  const style = getComputedStyle(canvas);
  pen.fillStyle = style.color;
  pen.font = `10px ${style.fontFamily}`;
}
