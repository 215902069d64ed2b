// One run, or several side by side: its head, and six parts.

import { Curves, Machine } from "./curves.js";
import { h, put } from "./dom.js";
import { bytes, count, moment, money, NONE, number, plural, seconds, share } from "./format.js";
import { pill, progressOf } from "./list.js";
import { LogView } from "./logs.js";
import * as net from "./net.js";
import { allocated, gantt, ledger } from "./time.js";

export const PARTS = ["overview", "machine", "events", "checkpoints", "logs", "spec"];

const table = (caption, heads, rows, kinds = {}) => h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
  h("table", {}, h("caption", { class: "visually-hidden" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head, at) => h("th", { scope: "col", class: kinds[at] }, head)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, at) => (at ? h("td", { class: kinds[at] }, cell ?? NONE) : h("th", { scope: "row", class: kinds[at] }, cell ?? NONE))))))));

const card = (title, ...inside) => h("section", { class: "card", "aria-label": title }, h("div", { class: "head" }, h("h2", {}, title)), ...inside);
const NO_CURVES = { series: [], marks: [], machine: [], stages: [] };
const fact = (what, value, more = "") => h("div", {}, h("dt", {}, what), h("dd", {}, value, more && h("small", {}, more)));

export class RunView {
  constructor(root, { onCompare, onLook }) {
    Object.assign(this, { root, onCompare, onLook, names: [], part: "overview", details: new Map() });
    this.curves = new Curves();
    this.machine = new Machine();
    this.logs = new LogView({ onLook });
  }

  get name() { return this.names[0] ?? null; }

  hue(name) { return this.names.indexOf(name); }

  async open(names, part) {
    const isOther = names[0] !== this.names[0];
    const others = names.filter((name) => !this.names.includes(name));
    Object.assign(this, { names, part });
    this.curves.keepOnly(names);
    if (isOther) { this.logs.close(); this.machine.destroy(); this.curves.state.range = null; }
    if (others.length || !this.root.querySelector(".run")) this.frame();
    this.show();
    await Promise.all(names.filter((name) => !this.curves.has(name) || !this.details.has(name)).map((name) => this.fetch(name)));
    for (const [at, name] of names.entries()) { const run = this.curves.runs.get(name); if (run) run.hue = at; }
    if (this.names === names) { this.show(); this.curves.draw(); this.onLook(); }
  }

  // Curves and the rest come apart: whichever is read first is shown first.
  async fetch(name) {
    const isShown = () => this.names.includes(name);
    const curves = net.run(name, "curves").catch((error) => { if (error.status === 409) return NO_CURVES; throw error; }).then((found) => {
      if (!isShown()) return;
      this.curves.take(name, found, this.hue(name));
      if (name === this.name) this.machine.show(found);
    });
    const detail = net.run(name).then((found) => { if (isShown()) { this.details.set(name, found); this.show(); } });
    try {
      await Promise.all([curves, detail]);
    } catch (error) {
      if (isShown()) { this.details.set(name, { problem: error.message, hint: error.hint }); if (name === this.name) this.fail(error); }
    }
  }

  // -- news ---------------------------------------------------------------------------------------

  async changed({ name, is_anew: isAnew }) {
    if (!this.names.includes(name)) return;
    if (isAnew) await this.fetch(name); // an attempt has gone back: numbers were taken back, too
    else { try { this.details.set(name, await net.run(name)); } catch { return; } }
    this.show();
    if (isAnew) this.onLook(true);
  }

  async grown(news) {
    if (this.curves.append(news.name, news)) { await this.fetch(news.name); this.onLook(true); }
    if (news.name === this.name && news.machine?.length) {
      const known = this.curves.runs.get(news.name).whole;
      for (const one of news.machine) {
        const old = (known.machine ??= []).find((other) => other.key === one.key);
        if (!old) known.machine.push(one);
        else { const last = old.t.at(-1) ?? -Infinity; one.t.forEach((t, at) => { if (t > last || one.is_behind) { old.t.push(t); old.values.push(one.values[at]); } }); }
      }
      if (this.part === "machine") this.machine.show(known);
    }
  }

  row(row) { if (this.names.includes(row.experiment)) { const known = this.details.get(row.experiment); if (known?.status) Object.assign(known.status, row); if (row.experiment === this.name) this.head(); } }

  // -- what is shown ------------------------------------------------------------------------------

  frame() {
    this.top = h("header", { class: "top" });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the run" }, PARTS.map((part) => h("a", { role: "tab", id: `tab-${part}`, "aria-controls": "part", href: `#/run/${encodeURIComponent(this.name)}/${part}`, "data-part": part }, part)));
    this.body = h("div", { id: "part", role: "tabpanel" });
    put(this.root, h("article", { class: "run" }, this.top, this.tabs, this.body));
  }

  fail(error) { put(this.root, h("article", { class: "run" }, h("header", { class: "top" }, h("h1", {}, this.name)), h("p", { class: "note" }, error.message), error.hint && h("p", { class: "hint" }, error.hint))); }

  show() {
    if (!this.root.contains(this.top)) return;
    this.head();
    for (const tab of this.tabs.children) {
      const isOn = tab.dataset.part === this.part;
      tab.setAttribute("aria-selected", isOn);
      tab.tabIndex = isOn ? 0 : -1;
      tab.href = `#/run/${encodeURIComponent(this.name)}${tab.dataset.part === "overview" ? "" : `/${tab.dataset.part}`}`;
    }
    this.body.setAttribute("aria-labelledby", `tab-${this.part}`);
    const detail = this.details.get(this.name);
    if (this.part !== "logs") this.logs.close();
    this[`show_${this.part}`](detail ?? {});
  }

  head() {
    const { status, why } = this.details.get(this.name) ?? {};
    const back = h("a", { class: "back", href: "#/", "aria-label": "all runs" }, "‹");
    if (!status) { put(this.top, h("div", { class: "title" }, back, h("h1", {}, this.name))); return; }
    const left = status.eta_s === null || status.eta_s === undefined ? NONE : seconds(status.eta_s);
    const facts = [
      fact("done", share(progressOf(status))),
      fact("step", status.step === null ? NONE : count(status.step), status.total_steps ? `of ${count(status.total_steps)}` : ""),
      status.state === "running" && fact("left", left, status.eta_s_p90 ? `nine of ten: ${seconds(status.eta_s_p90)}` : ""),
      fact("loss", number(status.loss)),
      fact("attempts", count(status.attempts), status.preemptions ? `${count(status.preemptions)} preempted` : ""),
      fact("goodput", share(status.goodput), why?.ledger?.wall_s ? `of ${seconds(allocated(why.ledger))}` : ""),
      status.cost === null || status.cost === undefined ? null : fact("cost", money(status.cost)),
      fact("checkpoint", status.last_checkpoint_step === null || status.last_checkpoint_step === undefined ? NONE : `step ${count(status.last_checkpoint_step)}`),
    ];
    put(this.top, h("div", { class: "title" }, back, h("h1", {}, this.name), pill(status.state)),
      status.reason && h("p", { class: "reason" }, status.reason), status.hint && h("p", { class: "hint" }, status.hint),
      h("dl", { class: "facts" }, facts.filter(Boolean)), this.track(status));
  }

  // Stages one after another, each as far as it is.
  track(status) {
    const stages = status.stages ?? [];
    if (stages.length < 2) return null;
    return h("ol", { class: "track", "aria-label": "Stages" }, stages.map((stage) => {
      const isHere = stage.name === status.stage && !stage.is_trained && status.state !== "complete";
      const far = stage.is_trained ? 1 : isHere && status.total_steps ? status.step / status.total_steps : 0;
      const told = Object.entries(stage.metrics ?? {}).map(([key, value]) => `${key} ${number(value)}`).join(", ");
      return h("li", { class: stage.is_trained ? "done" : isHere ? "here" : "ahead", title: told }, h("span", { class: "bar" }, h("i", { style: { width: `${100 * far}%` } })),
        h("span", { class: "name" }, stage.name), h("span", { class: "soft" }, stage.is_trained ? (told || `loss ${number(stage.loss)}`) : isHere ? share(far) : "ahead"));
    }));
  }

  show_overview(detail) {
    if (!this.grid || !this.body.contains(this.grid)) {
      this.grid = h("div", { class: "overview" });
      this.compareBox = h("div", {});
      this.lower = h("div", { class: "lower" });
      this.grid.append(this.compareBox, this.curves.element, this.lower);
      put(this.body, this.grid);
    }
    put(this.compareBox, this.names.length > 1 && this.comparison());
    const timelines = this.names.map((name) => ({ timeline: this.details.get(name)?.timeline, hue: this.hue(name) })).filter(({ timeline }) => timeline);
    put(this.lower,
      timelines.length ? card("Plan and reality", gantt(timelines, detail.now ?? Date.now() / 1000)) : null,
      detail.why && h("div", { class: "halves" }, card("Where the time went", ledger(detail.why.ledger, detail.why.attempts)), card(plural(detail.why.attempts.filter((one) => !one.is_word).length, "attempt"), this.attempts(detail.why))),
      this.problems(detail));
    this.curves.draw();
  }

  problems(detail) {
    const problems = detail.problems ?? [];
    return problems.length ? card("What could not be read", h("ul", { class: "plain" }, problems.map((text) => h("li", {}, text)))) : null;
  }

  attempts(why) {
    if (!why.attempts.length) return h("p", { class: "empty" }, "None yet.");
    return h("ol", { class: "attempts", reversed: true }, [...why.attempts].reverse().map((attempt) => h("li", { class: `attempt ${attempt.ending ?? "none"} ${attempt.cause ?? ""}` },
      h("span", { class: "nr" }, String(attempt.attempt)), h("p", {}, attempt.sentence ?? `${attempt.ending ?? "ended without a word"}`),
      h("p", { class: "soft" }, [moment(attempt.began_at), attempt.job, attempt.node].filter(Boolean).join(" · ")))));
  }

  comparison() {
    const rows = this.names.map((name) => {
      const { status, why, problem } = this.details.get(name) ?? {};
      const dot = h("i", { class: "dot", vars: { "--of": `var(--line-${this.hue(name) % 8})` }, "aria-hidden": "true" });
      if (!status) return [[dot, name], problem ?? "reading …", NONE, NONE, NONE, NONE, NONE, NONE];
      const last = [...(status.stages ?? [])].reverse().find((stage) => stage.metrics);
      const told = last ? Object.entries(last.metrics).slice(0, 3).map(([key, value]) => `${key} ${number(value)}`).join(", ") : NONE;
      return [[dot, name], pill(status.state), status.stage, share(progressOf(status)), number(status.loss), told, seconds(why?.ledger?.wall_s), share(status.goodput), count(status.attempts)];
    });
    const kinds = { 3: "number", 4: "number", 6: "number", 7: "number", 8: "number" };
    return card("Side by side", table("Runs side by side", ["run", "state", "stage", "done", "loss", "evaluated", "wall clock", "goodput", "attempts"], rows, kinds));
  }

  show_machine() {
    if (!this.body.contains(this.machine.element)) put(this.body, this.machine.element);
    this.machine.show(this.curves.runs.get(this.name)?.whole);
  }

  async show_events() {
    const name = this.name;
    if (!this.eventBox || !this.body.contains(this.eventBox)) { this.eventBox = card("Events", h("p", { class: "empty" }, "reading …")); put(this.body, this.eventBox); }
    try {
      const { events, total } = await net.run(name, "events");
      if (this.part !== "events" || this.name !== name) return;
      const known = new Set(["t", "claim", "who", "kind"]);
      const rows = [...events].reverse().map((event) => [moment(event.t), String(event.claim), event.who ?? "", h("b", {}, event.kind),
        h("span", { class: "facts-line" }, Object.entries(event).filter(([key, value]) => !known.has(key) && value !== "" && value !== null).map(([key, value]) => [h("i", {}, key), ` ${typeof value === "object" && value !== null ? JSON.stringify(value) : number(value)}  `]))]);
      put(this.eventBox, h("div", { class: "head" }, h("h2", {}, "Events"), h("span", { class: "soft" }, total > events.length ? `the newest ${count(events.length)} of ${count(total)}` : plural(total, "event"))),
        rows.length ? table("Events, the newest first", ["when", "attempt", "who", "what", "told"], rows, { 0: "when", 1: "number", 3: "plain" }) : h("p", { class: "empty" }, "None yet."));
    } catch (error) { put(this.eventBox, h("p", { class: "note" }, error.message)); }
  }

  show_checkpoints(detail) {
    const found = detail.checkpoints;
    if (!found) { put(this.body, card("Checkpoints", h("p", { class: "empty" }, detail.status ? "None can be read." : "reading …"))); return; }
    const rows = found.checkpoints.map((one) => [one.name, one.stage, count(one.stage_step), one.total_steps ? count(one.total_steps) : NONE, seconds(one.age_s), bytes(one.bytes), one.state,
      [one.is_latest && "latest", one.is_parent && "where this attempt began", !one.in_lineage && "not in the line", ...(one.findings ?? []).map((finding) => finding.what ?? finding.text)].filter(Boolean).join(", ")]);
    put(this.body, card("Checkpoints", h("p", { class: "soft" }, `${plural(rows.length, "checkpoint")}, ${bytes(found.bytes)} on disk`),
      rows.length ? table("Checkpoints", ["name", "stage", "step", "of", "age", "size", "state", ""], rows, { 2: "number", 3: "number", 4: "number", 5: "number" }) : h("p", { class: "empty" }, "None yet: the first is made at step 0.")));
  }

  show_spec(detail) {
    if (!detail.status) { put(this.body, card("Spec", h("p", { class: "empty" }, "reading …"))); return; }
    const environment = Object.entries(detail.environment ?? {});
    put(this.body, h("div", { class: "halves spec" }, card("Spec", h("pre", { tabindex: 0, "aria-label": "the frozen spec" }, detail.spec ?? "cannot be read")),
      card("Environment", environment.length ? h("dl", { class: "pairs" }, environment.map(([key, value]) => h("div", {}, h("dt", {}, key.replaceAll("_", " ")), h("dd", {}, number(value))))) : h("p", { class: "empty" }, "It is written down by the first attempt."))));
  }

  show_logs() { if (!this.body.contains(this.logs.element)) put(this.body, this.logs.element); this.logs.open(this.name); }
}
