// Curves of one run or of several, one picture per metric, all over the same steps or the same time.

import { h } from "./dom.js";
import { count, number } from "./format.js";
import * as net from "./net.js";
import { Plot } from "./plot.js";

const FIRST = ["loss"];
const LAST = ["lr", "grad_norm", "samples_per_sec", "tokens_per_sec", "memory_allocated_gb"];
const MOST_APPENDED = 4000;

const rank = (key) => (FIRST.includes(key) ? 0 : LAST.includes(key) ? 2 + LAST.indexOf(key) : 1);
const KINDS = { limit: "at its time limit", lost: "a part of its job died", other: "in another way" };
const kindOf = (cause) => (["preempted", "limit", "cancelled", "failed", "lost"].includes(cause) ? cause : "other");

// What was thinned may hold more than what is shown.
const isThin = (curves) => (curves.series ?? []).some((one) => one.steps.length >= 1900);

// A validation at the end of a stage and one before the next have the same step: the first stays.
const once = (xs, ys) => {
  if (!xs.some((x, at) => at && x <= xs[at - 1])) return { xs, ys };
  const kept = [...xs.keys()].filter((at) => !at || xs[at] > xs[at - 1]);
  return { xs: kept.map((at) => xs[at]), ys: kept.map((at) => ys[at]) };
};

export class Curves {
  constructor() {
    this.state = { x: "step", isLog: null, range: null }; // isLog null: as each metric asks for
    this.runs = new Map(); // name → {whole, near, hue}
    this.plots = new Map();
    this.grid = h("div", { class: "plots" });
    this.empty = h("p", { class: "empty" });
    const choice = (label, key, value) => h("button", { type: "button", "data-x": value, "aria-pressed": "false", onclick: () => this.set({ [key]: value, range: null }) }, label);
    this.byStep = choice("step", "x", "step");
    this.byTime = choice("time", "x", "time");
    this.log = h("button", { type: "button", class: "by-log", "aria-pressed": "false", onclick: () => this.turnLog() }, "log scale");
    this.whole = h("button", { type: "button", class: "whole", hidden: true, onclick: () => this.set({ range: null }) }, "show all");
    this.bar = h("div", { class: "tools", role: "toolbar", "aria-label": "How curves are drawn" },
      h("span", { class: "pair", role: "group", "aria-label": "Horizontal axis" }, this.byStep, this.byTime), this.log, this.whole);
    this.key = h("p", { class: "marks-key", hidden: true });
    this.element = h("section", { class: "card curves", "aria-label": "Curves" }, h("div", { class: "head" }, h("h2", {}, "Curves"), this.bar), this.grid, this.key);
    addEventListener("theme", () => { for (const plot of this.plots.values()) plot.repaint(); });
  }

  destroy() { for (const plot of this.plots.values()) plot.destroy(); this.plots.clear(); }

  set(change) {
    Object.assign(this.state, change);
    if ("range" in change || "x" in change) this.nearer();
    this.draw();
  }

  turnLog() { this.set({ isLog: !this.isLog(this.keys()[0]) }); }

  // A loss that falls over orders of magnitude is a flat line otherwise.
  isLog(key) {
    if (this.state.isLog !== null || !key?.includes("loss")) return this.state.isLog ?? false;
    let low = Infinity, high = -Infinity;
    for (const run of this.runs.values()) for (const one of run.whole.series) if (one.key === key) for (const y of one.values) if (y !== null) { low = Math.min(low, y); high = Math.max(high, y); }
    return low > 0 && high / low > 100;
  }

  keys() {
    return [...new Set([...this.runs.values()].flatMap((run) => run.whole.series.map((one) => one.key)))]
      .sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  }

  // -- what is known ------------------------------------------------------------------------------

  take(name, curves, hue) {
    this.runs.set(name, { whole: curves, near: null, hue, added: 0 });
    this.draw();
  }

  keepOnly(names) {
    for (const name of this.runs.keys()) if (!names.includes(name)) this.runs.delete(name);
  }

  has(name) { return this.runs.has(name); }

  reached(name) {
    const steps = (this.runs.get(name)?.whole.series ?? []).map((one) => one.steps.at(-1) ?? -1);
    return Math.max(-1, ...steps);
  }

  // New points of a run that is looked at; true: there are so many that all is asked for again.
  append(name, news) {
    const run = this.runs.get(name);
    if (!run) return false;
    for (const one of news.series ?? []) {
      const known = run.whole.series.find((old) => old.key === one.key && old.split === one.split);
      if (!known) { run.whole.series.push(one); continue; }
      const last = known.steps.at(-1) ?? -1;
      const from = one.steps.findIndex((step) => step > last); // what is known may be told again
      if (from < 0) continue;
      for (const key of ["steps", "t", "values"]) known[key].push(...one[key].slice(from));
      run.added += one.steps.length - from;
    }
    if (news.marks) run.whole.marks = news.marks;
    this.draw();
    return run.added > MOST_APPENDED;
  }

  // Between the ends of what is looked at, all there is.
  async nearer() {
    const { range } = this.state;
    this.question?.abort();
    for (const run of this.runs.values()) run.near = null;
    if (!range) return;
    this.question = new AbortController();
    const { signal } = this.question;
    await Promise.all([...this.runs].filter(([, run]) => isThin(run.whole)).map(async ([name, run]) => {
      const [first, last] = this.steps(run, range);
      try {
        const near = await net.run(name, "curves", { first: Math.floor(first), last: Math.ceil(last) }, signal);
        if (!signal.aborted) run.near = near;
      } catch { /* what is shown already stays */ }
    }));
    if (!signal.aborted) this.draw();
  }

  steps(run, range) {
    if (this.state.x === "step") return range;
    const longest = run.whole.series.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
    const times = this.xs(run, longest);
    const inside = longest.steps.filter((_, at) => times[at] >= range[0] && times[at] <= range[1]);
    return inside.length ? [inside[0] - 1, inside.at(-1) + 1] : [0, 0];
  }

  // -- what is drawn ------------------------------------------------------------------------------

  axis() { return this.state.x === "step" ? "step" : this.runs.size > 1 ? "elapsed" : "clock"; }

  begin(run) {
    run.begin ??= Math.min(...run.whole.series.map((one) => one.t[0] ?? Infinity));
    return run.begin;
  }

  xs(run, one) {
    if (this.state.x === "step") return one.steps;
    const begin = this.axis() === "elapsed" ? this.begin(run) : 0;
    let high = -Infinity; // a clock that was put back must not draw backwards
    return one.t.map((t) => { high = Math.max(high, t - begin); return high; });
  }

  lines(key) {
    const found = [], several = this.runs.size > 1;
    for (const [name, run] of [...this.runs].sort(([, a], [, b]) => a.hue - b.hue)) {
      const of = (run.near ?? run.whole).series.filter((one) => one.key === key);
      for (const one of of) {
        const split = one.split ?? "train", isDashed = split !== "train";
        const splits = new Set(run.whole.series.filter((other) => other.key === key).map((other) => other.split));
        const label = several ? (splits.size > 1 || isDashed ? `${name} ${split}` : name) : split;
        found.push({ label, hue: several ? run.hue : isDashed ? 2 : 0, isDashed, ...once(this.xs(run, one), one.values) });
      }
    }
    return found;
  }

  marks() {
    const several = this.runs.size > 1;
    return [...this.runs].flatMap(([name, run]) => (run.whole.marks ?? []).map((mark) => ({
      x: this.state.x === "step" ? mark.step : mark.t === null ? null : this.axis() === "elapsed" ? mark.t - this.begin(run) : mark.t,
      kind: kindOf(mark.cause),
      hue: several ? run.hue : undefined,
      words: `${several ? `${name}: ` : ""}attempt ${mark.attempt} ended: ${mark.cause ?? "without a word"}${mark.step === null ? "" : `, at step ${count(mark.step)}`}`,
    })));
  }

  stages() {
    if (this.runs.size !== 1 || this.state.x !== "step") return [];
    const [run] = this.runs.values();
    return (run.whole.stages ?? []).filter((stage) => stage.first_step !== null).map((stage) => ({ name: stage.name, x: stage.first_step }));
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = null; this.paint(); });
  }

  paint() {
    const { range, x } = this.state, keys = this.keys();
    this.byStep.setAttribute("aria-pressed", x === "step");
    this.byTime.setAttribute("aria-pressed", x === "time");
    this.log.setAttribute("aria-pressed", this.isLog(keys[0]));
    this.whole.hidden = !range;
    for (const [key, plot] of this.plots) if (!keys.includes(key)) { plot.destroy(); plot.element.remove(); this.plots.delete(key); }
    this.empty.textContent = this.runs.size ? "No numbers yet: they come with the first steps." : "reading …";
    if (keys.length) this.empty.remove(); else this.grid.append(this.empty);
    const marks = this.marks(), stages = this.stages();
    this.tellKinds(marks);
    keys.forEach((key, at) => {
      if (!this.plots.has(key)) {
        const plot = new Plot({ title: key, height: at ? 200 : 280, namesStages: at === 0, syncKey: "curves", onZoom: (range) => this.set({ range }), onReset: () => this.set({ range: null }) });
        plot.element.classList.toggle("first", at === 0);
        this.plots.set(key, plot);
        this.grid.append(plot.element);
      }
      const lines = this.lines(key);
      this.plots.get(key).show({ lines, marks, stages, axis: this.axis(), isLog: this.isLog(key), range: this.bounds(range, marks), note: this.note(lines) });
    });
    if (keys.length) performance.mark("curves-drawn");
  }

  tellKinds(marks) {
    const kinds = [...new Set(marks.map((mark) => mark.kind))];
    this.key.hidden = !kinds.length;
    this.key.replaceChildren("an attempt ended: ", ...kinds.map((kind) => h("span", { class: kind }, h("i", { class: `arrow ${kind}`, "aria-hidden": "true" }), KINDS[kind] ?? kind)));
  }

  // All pictures over the same ground, also where a metric begins later, or a mark is the last thing.
  bounds(range, marks) {
    if (range) return range;
    let low = Infinity, high = -Infinity;
    for (const run of this.runs.values()) for (const one of run.whole.series) {
      const xs = this.xs(run, one);
      if (xs.length) { low = Math.min(low, xs[0]); high = Math.max(high, xs.at(-1)); }
    }
    for (const { x } of marks) if (x > high && x - high < (high - low) / 4) high = x;
    return high > low ? [low, high] : null;
  }

  note(lines) {
    const [first] = lines;
    const last = first?.ys.findLast((y) => y !== null && y !== undefined);
    return lines.length === 1 && last !== undefined ? number(last) : "";
  }
}

// Figures of the machine, over the time.
export class Machine {
  constructor() { this.plots = new Map(); this.grid = h("div", { class: "plots" }); this.element = h("section", { class: "card", "aria-label": "Machine" }, h("div", { class: "head" }, h("h2", {}, "Machine")), this.grid);
    addEventListener("theme", () => { for (const plot of this.plots.values()) plot.repaint(); }); }

  destroy() { for (const plot of this.plots.values()) plot.destroy(); this.plots.clear(); }

  show(curves) {
    const figures = curves?.machine ?? [];
    if (!figures.length) { this.grid.replaceChildren(h("p", { class: "empty" }, curves ? "No figures yet: a line every 30 seconds tells memory and use." : "reading …")); return; }
    if (!this.plots.size) this.grid.replaceChildren();
    for (const one of figures) {
      const isBytes = one.unit === "bytes", unit = isBytes ? "GB" : one.unit;
      if (!this.plots.has(one.key)) {
        const name = one.key.replace(/_(bytes|percent)$/, "").replaceAll("_", " ");
        const plot = new Plot({ title: unit ? `${name} (${unit})` : name, height: 180, syncKey: "machine" });
        this.plots.set(one.key, plot);
        this.grid.append(plot.element);
      }
      let high = -Infinity;
      const xs = one.t.map((t) => { high = Math.max(high, t); return high; });
      const marks = (curves.marks ?? []).map((mark) => ({ x: mark.t, kind: kindOf(mark.cause), words: `attempt ${mark.attempt} ended: ${mark.cause ?? "without a word"}` }));
      this.plots.get(one.key).show({ lines: [{ label: one.key, hue: 5, isDashed: false, xs, ys: isBytes ? one.values.map((y) => (y === null ? null : y / 1e9)) : one.values }], marks, stages: [], axis: "clock", isLog: false, range: null, note: "" });
    }
  }
}
