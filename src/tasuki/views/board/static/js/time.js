// Where the time went, and the plan beside what became of it.

import { h, s } from "./dom.js";
import { clock, moment, seconds, share } from "./format.js";

const PARTS = { queue: "queue", start: "start", restore: "restore", data_wait: "data wait", step: "steps", recomputed: "steps done again", validate: "validation", save: "saves", evaluate: "evaluation", handover: "handover", other: "other" };

// Of what was allocated: the queue is in the wall clock, and not in that.
export const allocated = (told) => told.wall_s - (told.parts?.queue ?? 0);
const goodput = (told) => told.goodput === null ? "" : `goodput ${share(told.goodput)} of ${seconds(allocated(told))} allocated`;

// Of a run that never was in a scheduler's queue what lies between attempts is nobody's wait.
const nameOf = (part, attempts) => part === "queue" && attempts.length && !attempts.some((one) => one.scheduler_job) ? "not running" : PARTS[part] ?? part;

export const ledger = (told, attempts) => {
  const parts = Object.entries(told?.parts ?? {}).filter(([, value]) => value >= 0.005);
  if (!parts.length || !told.wall_s) return h("p", { class: "empty" }, "Nothing to tell yet.");
  let before = 0;
  const rows = parts.map(([part, value]) => {
    const from = before;
    before += value;
    return h("tr", { class: `part ${part}` }, h("th", { scope: "row" }, nameOf(part, attempts)),
      h("td", { class: "fall", "aria-hidden": "true" }, h("i", { style: { left: `${(100 * from) / told.wall_s}%`, width: `${Math.max(0.4, (100 * value) / told.wall_s)}%` } })),
      h("td", { class: "number" }, seconds(value)), h("td", { class: "number soft" }, share(value / told.wall_s)));
  });
  return h("table", { class: "ledger" }, h("caption", { class: "visually-hidden" }, "Where every second went, over all attempts"),
    h("tbody", {}, rows), h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "wall clock"), h("td", {}, goodput(told)), h("td", { class: "number" }, seconds(told.wall_s)), h("td", {}))));
};

const ROW = 56, TOP = 30;

// Runs of other days would be specks beside each other: then each is drawn from its own beginning.
const areFarApart = (spans) => {
  const known = spans.filter(({ low, high }) => high >= low);
  const whole = Math.max(...known.map(({ high }) => high)) - Math.min(...known.map(({ low }) => low));
  return known.length > 1 && whole > 3 * known.reduce((sum, { low, high }) => sum + high - low, 0);
};

const placed = (timeline, now) => {
  const from = timeline.planned_from;
  const isKnown = (piece) => from !== null && piece.begins_s !== null && piece.ends_s !== null;
  const planned = timeline.planned.filter(isKnown).map((piece) => ({ ...piece, begin: from + piece.begins_s, end: from + piece.ends_s }));
  const actual = timeline.actual.map((piece) => ({ ...piece, begin: piece.began_at, end: piece.ended_at ?? Math.max(now, piece.began_at) }));
  const all = [...planned, ...actual];
  return { planned, actual, low: Math.min(...all.map(({ begin }) => begin)), high: Math.max(...all.map(({ end }) => end)) };
};

// One row per stage: the plan above, each attempt below it.
export const gantt = (timelines, now) => {
  const rows = [], several = timelines.length > 1;
  let low = Infinity, high = -Infinity;
  const spans = timelines.map(({ timeline }) => placed(timeline, now)), isApart = areFarApart(spans);
  timelines.forEach(({ timeline, hue }, number) => {
    const { planned, actual, low: begin, high: end } = spans[number], shift = isApart && end >= begin ? begin : 0;
    const moved = (piece) => ({ ...piece, begin: piece.begin - shift, end: piece.end - shift });
    const stages = [...new Set([...planned, ...actual].map((piece) => `${piece.experiment}\n${piece.stage}`))];
    for (const key of stages) {
      const [experiment, stage] = key.split("\n");
      const own = (piece) => piece.experiment === experiment && String(piece.stage) === stage;
      rows.push({ name: several ? `${experiment} ${stage}` : stage, hue, planned: planned.filter(own).map(moved), actual: actual.filter(own).map(moved) });
    }
    for (const time of [begin - shift, end - shift, isApart ? null : timeline.deadline_at]) if (Number.isFinite(time)) { low = Math.min(low, time); high = Math.max(high, time); }
  });
  if (!rows.length || !(high > low)) return h("p", { class: "empty" }, "Nothing has begun yet.");
  const at = (time) => (100 * (time - low)) / (high - low);
  const height = TOP + rows.length * ROW + 4, parts = [];
  const num = Math.max(2, Math.min(7, Math.floor(innerWidth / 170)));
  for (let tick = 0; tick <= num; tick += 1) {
    const x = (100 * tick) / num, time = low + ((high - low) * tick) / num;
    parts.push(s("line", { class: "tick", x1: `${x}%`, x2: `${x}%`, y1: TOP - 8, y2: height }),
      s("text", { class: "time", x: `${x}%`, y: 14, "text-anchor": tick === 0 ? "start" : tick === num ? "end" : "middle" }, isApart ? seconds(time) : high - low < 172800 ? clock(time, high - low < 1200) : moment(time)));
  }
  const bar = (kind, begin, end, y, tall, words, extra = {}) => s("rect", { class: kind, x: `${at(begin)}%`, y, width: `${Math.max(0.25, at(end) - at(begin))}%`, height: tall, rx: 3, ...extra }, s("title", {}, words));
  rows.forEach((row, index) => {
    const y = TOP + index * ROW;
    parts.push(s("text", { class: "job", x: 0, y: y + 13 }, row.name));
    for (const piece of row.planned) {
      parts.push(bar(`planned c${row.hue % 8}`, piece.begin, piece.end, y + 20, 9, `planned: ${piece.kind} ${piece.stage}, ${seconds(piece.end - piece.begin)}`));
    }
    for (const piece of row.actual) {
      const how = piece.is_running ? "running" : `${piece.ending ?? "ended without a word"}${piece.cause && piece.cause !== "none" ? `: ${piece.cause}` : ""}`;
      const bad = !piece.is_running && !["done", "complete"].includes(piece.ending);
      parts.push(bar(`actual c${row.hue % 8} ${piece.kind} ${piece.is_running ? "running" : ""}`, piece.begin, piece.end, y + 32, 15, `attempt ${piece.attempt}: ${piece.kind} ${piece.stage}, ${seconds(piece.end - piece.begin)}, ${how}`));
      if (bad) parts.push(s("rect", { class: `stop ${piece.cause ?? "other"}`, x: `${at(piece.end)}%`, y: y + 29, width: 3, height: 21, rx: 1.5 }, s("title", {}, how)));
    }
  });
  const line = (time, kind, word) => parts.push(s("line", { class: kind, x1: `${at(time)}%`, x2: `${at(time)}%`, y1: TOP - 8, y2: height }, s("title", {}, word)));
  if (!isApart && timelines.some(({ timeline }) => timeline.actual.some((piece) => piece.is_running)) && now <= high) line(now, "now", "now");
  for (const { timeline } of timelines) if (timeline.deadline_at && !isApart) line(timeline.deadline_at, "deadline", `deadline ${moment(timeline.deadline_at)}`);
  const said = rows.map((row) => `${row.name}: ${row.actual.length} attempt${row.actual.length === 1 ? "" : "s"}`).join("; ");
  return h("div", { class: "gantt" }, s("svg", { height, width: "100%", role: "img", "aria-label": `Planned and real times. ${said}` }, parts),
    h("p", { class: "key" }, h("i", { class: "planned" }), "planned", h("i", { class: "actual" }), "real", h("i", { class: "stop" }), "cut short", isApart && h("span", { class: "apart" }, "each run from its own beginning")));
};
