// One picture of curves: uPlot with marks and stages as elements above it, so that they can be read.

import { h } from "./dom.js";
import { clock, count, number, seconds } from "./format.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colour = (at) => css(`--line-${at % 8}`);
const MOST_MARKS = 200;

// The place of the value nearest to x; -1: there is none.
const nearest = (xs, x) => {
  if (!xs.length) return -1;
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
  return x - xs[low] < xs[high] - x ? low : high;
};

export class Plot {
  // axis: "step", "clock" or "elapsed"; lines: [{label, hue, isDashed, xs, ys}]
  constructor({ title, height = 220, namesStages = false, onZoom, onReset, syncKey }) {
    Object.assign(this, { title, height, namesStages, onZoom, onReset, syncKey, plot: null, lines: [], marks: [], stages: [], drawn: "" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.board = h("div", { class: "over" });
    this.holder = h("div", { class: "canvas" });
    this.legend = h("ul", { class: "legend" });
    this.note = h("span", { class: "thin" });
    this.element = h("figure", { class: "plot", role: "group", "aria-label": title },
      h("figcaption", {}, h("span", { class: "what" }, title), this.legend, this.note), this.holder);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.holder);
  }

  destroy() { this.observer.disconnect(); this.plot?.destroy(); this.plot = null; }

  resize() {
    const width = this.holder.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1) this.plot.setSize({ width, height: this.height });
    else if (!this.plot && width) this.draw();
  }

  show({ lines, marks, stages, axis, isLog, range, note = "" }) {
    Object.assign(this, { lines, marks, stages, axis, isLog, range });
    this.note.textContent = note;
    this.draw();
  }

  draw() {
    const width = this.holder.clientWidth;
    if (!width || !this.lines) return;
    const shape = JSON.stringify([this.axis, this.isLog, this.lines.map(({ label, hue, isDashed }) => [label, hue, isDashed])]);
    const data = this.data();
    if (this.plot && shape === this.drawn) {
      this.plot.setData(data, false);
      this.scale();
    } else {
      this.plot?.destroy();
      this.drawn = shape;
      this.plot = new uPlot(this.options(width), data, this.holder);
      this.plot.over.append(this.board, this.tip);
      this.scale();
      this.tellLegend();
    }
    this.tell();
  }

  data() {
    const drawn = this.lines.map(({ xs, ys }) => [xs, this.isLog ? ys.map((y) => (y > 0 ? y : null)) : ys]);
    if (!drawn.length) return [[]];
    return drawn.length === 1 ? drawn[0] : uPlot.join(drawn);
  }

  scale() {
    const xs = this.plot.data[0];
    if (!xs.length) return;
    const [min, max] = this.range ?? [xs[0], xs[xs.length - 1]];
    this.plot.batch(() => this.plot.setScale("x", { min, max: max > min ? max : min + 1 }));
    this.over();
  }

  options(width) {
    const soft = () => css("--soft"), grid = () => css("--grid");
    const inWords = { step: count, clock: (x) => clock(x), elapsed: seconds }[this.axis];
    const axis = { stroke: soft, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
    const short = (value) => (this.axis === "clock" ? clock(value, this.plot ? this.plot.scales.x.max - this.plot.scales.x.min < 600 : true) : inWords(value));
    return {
      width, height: this.height, padding: [14, 22, 0, 0],
      legend: { show: false },
      cursor: { sync: this.syncKey ? { key: this.syncKey, setSeries: false, scales: ["x", null] } : undefined,
        drag: { x: true, y: false, setScale: false }, points: { size: 7 }, y: false,
        bind: { dblclick: () => () => { this.onReset?.(); return null; } } },
      scales: { x: { time: false, auto: false }, y: { distr: this.isLog ? 3 : 1, range: this.isLog ? undefined : (u, low, high) => this.room(low, high) } },
      axes: [
        { ...axis, values: (u, splits) => splits.map((x) => short(x)), space: 74, size: 30 },
        { ...axis, values: (u, splits) => splits.map((y) => (y === null ? "" : number(y))), size: (u, values) => Math.max(44, Math.min(76, 14 + 7.2 * Math.max(0, ...(values ?? []).map((text) => text.length)))), space: 34 },
      ],
      series: [{}, ...this.lines.map(({ label, hue, isDashed, xs }) => ({
        label, stroke: () => colour(hue), width: 1.75, dash: isDashed ? [6, 4] : undefined, spanGaps: false,
        points: { show: xs.length < 60 && isDashed, size: 6, fill: () => colour(hue), stroke: () => css("--card"), width: 1.5 },
      }))],
      hooks: {
        draw: [() => this.over()],
        setCursor: [(u) => this.hover(u)],
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          const range = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          this.onZoom?.(range);
        }],
      },
    };
  }

  room(low, high) {
    if (low === null || high === null) return [0, 1];
    const spare = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - spare < 0 ? 0 : low - spare, high + spare];
  }

  // Marks and stages, where they are now.
  over() {
    const { plot } = this;
    if (!plot) return;
    const wide = plot.over.clientWidth, place = (x) => plot.valToPos(x, "x");
    const seen = ({ x }) => x !== null && x >= plot.scales.x.min && x <= plot.scales.x.max;
    const parts = [];
    const stages = this.stages.map((stage) => ({ ...stage, left: place(stage.x) }));
    stages.forEach((stage, at) => {
      const left = Math.max(0, stage.left), right = at + 1 < stages.length ? stages[at + 1].left : wide;
      if (right - left < 12 || left >= wide) return;
      if (stage.left > 1) parts.push(h("i", { class: "border", style: { left: `${stage.left}px` } }));
      const name = h("span", { class: "stage", style: { left: `${left}px`, maxWidth: `${Math.min(right, wide) - left - 4}px` } }, stage.name);
      if (this.namesStages && right - left > 40) parts.push(name);
    });
    for (const mark of this.marks.filter(seen).slice(-MOST_MARKS)) {
      parts.push(h("i", { class: `mark ${mark.kind}`, title: mark.words, role: "img", "aria-label": mark.words,
        style: { left: `${place(mark.x)}px` }, vars: mark.hue === undefined ? {} : { "--of": `var(--line-${mark.hue % 8})` } }));
    }
    this.board.replaceChildren(...parts);
  }

  hover(u) {
    const { left, idx } = u.cursor;
    if (left === null || left < 0 || idx === null || idx === undefined) { this.tip.hidden = true; return; }
    const x = u.posToVal(left, "x");
    const rows = [];
    let at = null;
    for (const { label, hue, xs, ys } of this.lines) {
      const place = nearest(xs, x);
      if (place < 0) continue;
      if (at === null || Math.abs(xs[place] - x) < Math.abs(at - x)) at = xs[place];
      const far = Math.abs(u.valToPos(xs[place], "x") - left);
      if (far < 60) rows.push(h("div", {}, h("i", { vars: { "--of": `var(--line-${hue % 8})` } }), h("span", {}, label), h("b", {}, number(ys[place]))));
    }
    const head = at === null ? "" : this.axis === "step" ? `step ${count(at)}` : this.axis === "clock" ? clock(at) : seconds(at);
    const near = this.marks.filter((mark) => mark.x !== null && Math.abs(u.valToPos(mark.x, "x") - left) < 6).slice(0, 3);
    this.tip.replaceChildren(h("p", {}, head), ...rows, ...near.map((mark) => h("p", { class: `at ${mark.kind}` }, mark.words)));
    this.tip.hidden = !rows.length && !near.length;
    const isRight = left > u.over.clientWidth * 0.6;
    Object.assign(this.tip.style, { left: isRight ? "auto" : `${left + 14}px`, right: isRight ? `${u.over.clientWidth - left + 14}px` : "auto" });
  }

  tellLegend() {
    this.legend.replaceChildren(...(this.lines.length < 2 && !this.lines.some(({ isDashed }) => isDashed) ? [] : this.lines.map(({ label, hue, isDashed }) =>
      h("li", {}, h("i", { class: isDashed ? "dashed" : "", vars: { "--of": `var(--line-${hue % 8})` }, "aria-hidden": "true" }), label))));
  }

  tell() {
    const said = this.lines.map(({ label, ys }) => { const last = ys.findLast((y) => y !== null && y !== undefined); return `${label} ${number(last)}`; });
    this.element.setAttribute("aria-label", `${this.title}: ${said.join(", ") || "no numbers yet"}${this.marks.length ? `; ${this.marks.length} ends of attempts marked` : ""}`);
    this.element.dataset.points = String(Math.max(0, ...this.lines.map(({ xs }) => xs.length)));
  }

  repaint() { this.plot?.redraw(false, true); }
}
