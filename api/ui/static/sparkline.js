// A small curve of what a number was lately.

const SVG = "http://www.w3.org/2000/svg";
const KEPT = 80;
const [WIDTH, HEIGHT] = [160, 32];

export class Sparkline {
  #values = [];
  #line = document.createElementNS(SVG, "polyline");
  #area = document.createElementNS(SVG, "polygon");

  constructor() {
    this.node = document.createElementNS(SVG, "svg");
    this.node.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.node.setAttribute("preserveAspectRatio", "none");
    this.node.setAttribute("class", "sparkline");
    this.node.setAttribute("aria-hidden", "true");
    this.node.append(this.#area, this.#line);
  }

  add(value) {
    this.#values.push(value);
    if (this.#values.length > KEPT) this.#values.shift();
    const most = Math.max(...this.#values, 1e-9);
    const first = KEPT - this.#values.length;
    const points = this.#values.map((each, place) => {
      const x = ((first + place) * WIDTH) / (KEPT - 1);
      return `${x.toFixed(1)},${(HEIGHT - 1.5 - (each / most) * (HEIGHT - 4)).toFixed(1)}`;
    });
    this.#line.setAttribute("points", points.join(" "));
    const left = ((first * WIDTH) / (KEPT - 1)).toFixed(1);
    this.#area.setAttribute("points", `${left},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  }
}
