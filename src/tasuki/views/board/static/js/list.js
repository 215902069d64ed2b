// The list of runs: only rows that are seen exist, so that thousands are as smooth as ten.

import { $, h, s } from "./dom.js";
import { count, number, plural, seconds, share } from "./format.js";

const ROW = 78;
const SPARE = 4;
const RANK = ["running", "held", "failed", "handed-over", "waiting", "cancelled", "complete"];
export const MOST = 8;

export const progressOf = (row) => {
  if (row.state === "complete") return 1;
  if (typeof row.progress === "number") return row.progress;
  const stages = row.stages ?? [];
  const done = stages.filter((stage) => stage.is_trained);
  const isInside = row.step && row.total_steps && !done.some((stage) => stage.name === row.stage);
  return stages.length ? Math.min(1, (done.length + (isInside ? row.step / row.total_steps : 0)) / stages.length) : 0;
};

export const pill = (state) => h("span", { class: `state ${state ?? "unknown"}` }, h("i", { "aria-hidden": "true" }), state ?? "unreadable");

const spark = (values) => {
  let known = (values ?? []).filter((value) => typeof value === "number");
  if (known.length < 2) return h("span", { class: "spark" });
  if (Math.min(...known) > 0 && Math.max(...known) > 100 * Math.min(...known)) known = known.map(Math.log);
  const low = Math.min(...known), high = Math.max(...known), room = high - low || 1;
  const at = (value, index) => `${((index / (known.length - 1)) * 78 + 1).toFixed(1)},${(21 - ((value - low) / room) * 18).toFixed(1)}`;
  return s("svg", { class: "spark", viewBox: "0 0 80 24", width: 80, height: 24, "aria-hidden": "true" },
    s("polyline", { points: known.map(at).join(" ") }));
};

const words = (row) => {
  if (row.is_unread) return "reading …";
  if (row.state === null) return row.reason ?? "cannot be read";
  const told = [];
  if (row.stage) told.push(row.stage);
  if (row.step !== null && row.step !== undefined) told.push(`${count(row.step)}/${count(row.total_steps)}`);
  if (row.state === "running" && row.eta_s) told.push(`${seconds(row.eta_s)} left`);
  if (row.loss !== null && row.loss !== undefined) told.push(`loss ${number(row.loss)}`);
  return told.join(" · ") || row.reason || "not started yet";
};

export class List {
  constructor({ onOpen, onCompare }) {
    this.rows = new Map(); this.shown = []; this.at = 0; this.open = null; this.compared = new Set();
    this.onOpen = onOpen; this.onCompare = onCompare; this.made = new Map();
    this.scroll = $("#scroll"); this.body = $("#rows"); this.filter = $("#filter");
    this.scroll.addEventListener("scroll", () => this.draw(), { passive: true });
    this.filter.addEventListener("input", () => { this.at = 0; this.choose(); this.scroll.scrollTop = 0; });
    new ResizeObserver(() => this.draw()).observe(this.scroll);
    $("#chosen button").addEventListener("click", () => this.onCompare([this.open]));
  }

  take(rows, gone = []) {
    for (const row of rows) this.rows.set(row.experiment, row);
    for (const name of gone) this.rows.delete(name);
    this.choose();
  }

  choose() {
    const wanted = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rank = (row) => { const at = RANK.indexOf(row.state); return at < 0 ? RANK.length : at; };
    const here = this.shown[this.at]?.experiment;
    this.shown = [...this.rows.values()]
      .filter((row) => { const text = `${row.experiment} ${row.state ?? ""} ${row.stage ?? ""}`.toLowerCase(); return wanted.every((word) => text.includes(word)); })
      .sort((a, b) => rank(a) - rank(b) || a.experiment.localeCompare(b.experiment, "en", { numeric: true }));
    const again = this.shown.findIndex((row) => row.experiment === here);
    this.at = again >= 0 ? again : Math.min(this.at, Math.max(0, this.shown.length - 1));
    this.tell();
    this.draw(true);
  }

  tell() {
    const states = {};
    for (const row of this.shown) states[row.state] = (states[row.state] ?? 0) + 1;
    const parts = RANK.filter((state) => states[state]).map((state) => `${states[state]} ${state}`);
    const all = this.shown.length === this.rows.size ? plural(this.rows.size, "run") : `${count(this.shown.length)} of ${plural(this.rows.size, "run")}`;
    const text = this.rows.size ? [all, ...parts].join(" · ") : "no runs here yet";
    if ($("#count").textContent !== text) $("#count").textContent = text;
  }

  draw(isAnew = false) {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - SPARE);
    const last = Math.min(this.shown.length, Math.ceil((this.scroll.scrollTop + (this.scroll.clientHeight || 600)) / ROW) + SPARE);
    this.body.style.height = `${this.shown.length * ROW}px`;
    const seen = new Set();
    for (let at = first; at < last; at += 1) {
      const row = this.shown[at], name = row.experiment;
      seen.add(name);
      const made = this.made.get(name);
      const key = `${name === this.open}|${this.compared.has(name)}|${at === this.at}|${at}|${this.shown.length}`;
      if (made && !isAnew && made.key === key) continue;
      if (made && made.row === row && made.key === key) continue;
      if (made && made.row === row) this.mark(made.element, row, at);
      else {
        const focused = made?.element.contains(document.activeElement) ? document.activeElement.className : null;
        const element = this.make(row, at);
        if (made) made.element.replaceWith(element); else this.body.append(element);
        if (focused) element.querySelector(`.${focused.split(" ")[0]}`)?.focus({ preventScroll: true });
        this.made.set(name, { element, row, key });
      }
      this.made.get(name).key = key;
    }
    for (const [name, made] of this.made) {
      if (!seen.has(name) && !made.element.contains(document.activeElement)) { made.element.remove(); this.made.delete(name); }
    }
    if (isAnew) for (const at of this.shown.keys()) if (at >= first && at < last) this.body.append(this.made.get(this.shown[at].experiment).element);
  }

  mark(element, row, at) {
    element.style.top = `${at * ROW}px`;
    element.setAttribute("aria-posinset", at + 1);
    element.setAttribute("aria-setsize", this.shown.length);
    element.classList.toggle("at", at === this.at);
    element.classList.toggle("open", row.experiment === this.open);
    const link = $("a", element);
    if (row.experiment === this.open) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    link.tabIndex = at === this.at ? 0 : -1;
    const box = $("input", element);
    box.checked = this.compared.has(row.experiment);
    box.tabIndex = at === this.at ? 0 : -1;
  }

  make(row, at) {
    const name = row.experiment, far = progressOf(row);
    const element = h("li", { class: "row", role: "listitem" },
      h("a", { class: "go", href: `#/run/${encodeURIComponent(name)}` },
        h("span", { class: "name", title: name }, name), pill(row.is_unread ? "unread" : row.state),
        h("span", { class: "bar", role: "progressbar", "aria-label": "done", "aria-valuenow": Math.round(far * 100), "aria-valuemin": 0, "aria-valuemax": 100 },
          h("i", { style: { width: `${far * 100}%` } })),
        h("span", { class: "far" }, share(far)), spark(row.spark),
        h("span", { class: "told", title: words(row) }, words(row))),
      h("label", { class: "pick", title: "compare" }, h("input", { class: "box", type: "checkbox", "aria-label": `compare ${name}`, onchange: (event) => this.compare(name, event.target.checked) })));
    element.classList.add(row.state ?? "unknown");
    this.mark(element, row, at);
    return element;
  }

  compare(name, isOn = !this.compared.has(name)) {
    const others = [...this.compared].filter((one) => one !== name);
    this.onCompare(isOn ? [...others, name].slice(-MOST) : others);
  }

  showCompared(names, open) {
    this.compared = new Set(names); this.open = open;
    const bar = $("#chosen");
    bar.hidden = names.length < 2;
    $("span", bar).textContent = `${names.length} runs side by side`;
    this.draw(true);
  }

  move(by) {
    if (!this.shown.length) return;
    this.at = Math.max(0, Math.min(this.shown.length - 1, this.at + by));
    const top = this.at * ROW, view = this.scroll;
    if (top < view.scrollTop) view.scrollTop = top;
    if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
    this.draw();
    this.made.get(this.shown[this.at].experiment)?.element.querySelector("a").focus({ preventScroll: true });
  }

  here() { return this.shown[this.at]?.experiment ?? null; }

  goTo(name) { const at = this.shown.findIndex((row) => row.experiment === name); if (at >= 0 && at !== this.at) { this.at = at; this.draw(); } }
}
