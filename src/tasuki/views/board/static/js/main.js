// What is looked at stands in the address (#/run/NAME/PART?with=OTHER); the rest follows from it.

import { $, h, put } from "./dom.js";
import { List } from "./list.js";
import { ask, News } from "./net.js";
import { PARTS, RunView } from "./run.js";

let known = -1; // the number of the last change of the list
const compared = () => new URLSearchParams(location.hash.split("?")[1] ?? "").getAll("with");
const where = () => {
  const [, name = "", part = ""] = location.hash.split("?")[0].replace(/^#\//, "/").split("/").slice(1).map(decodeURIComponent);
  return { name: name || null, part: PARTS.includes(part) ? part : "overview" };
};
const go = (name, part = "overview", others = []) => {
  const more = new URLSearchParams(others.map((other) => ["with", other])).toString();
  location.hash = name ? `#/run/${encodeURIComponent(name)}${part === "overview" ? "" : `/${part}`}${more ? `?${more}` : ""}` : "#/";
};

const list = new List({
  onOpen: (name) => go(name),
  onCompare: (names) => {
    const { name, part } = where();
    const first = names.includes(name) ? name : (names[0] ?? null);
    go(first, part, names.filter((one) => one !== first));
  },
});
const view = new RunView($("#main"), { onLook: (isForced) => news.look(isForced) });

const news = new News({
  wants: (isWhole = false) => {
    const query = new URLSearchParams();
    for (const name of view.names) if (view.curves.has(name)) { query.append("look", name); query.append("at", isWhole ? view.curves.reached(name) : 0); }
    if (view.logs.isOpen && view.logs.file) { query.append("log", view.logs.name); query.append("file", view.logs.file); if (isWhole) query.append("end", view.logs.end); }
    if (isWhole) query.append("number", known);
    return query;
  },
  on: {
    runs: ({ number, rows, gone }) => { known = number; list.take(rows, gone); for (const row of rows) view.row(row); },
    changed: (told) => view.changed(told),
    curves: (told) => view.grown(told),
    log: (piece) => view.logs.add(piece),
  },
  onState: (state) => { const mark = $("#live"); mark.className = state; $("span", mark).textContent = { live: "live", away: "not connected" }[state]; if (state === "away") check(); },
});

// Why the stream broke: the board ended, or was started anew with another key.
const check = async () => { try { await ask("/api/runs"); } catch (error) { if (error.status === 401) $("#live span").textContent = "started anew: open its new address"; } };

const show = async () => {
  const { name, part } = where();
  const others = compared().filter((other) => other !== name);
  document.body.classList.toggle("has-run", Boolean(name));
  list.showCompared(name ? [name, ...others] : [], name);
  if (!name) { view.names = []; view.logs.close(); welcome(); news.look(); document.title = "tasuki board"; return; }
  document.title = `${name} · tasuki board`;
  list.goTo(name);
  await view.open([name, ...others].slice(0, 8), part);
};

const welcome = () => put($("#main"), h("div", { class: "welcome" }, h("h1", {}, list.rows.size ? "Choose a run" : "No runs yet"),
  h("p", {}, list.rows.size ? "Its curves, attempts, times, logs and checkpoints are shown here while it runs. Tick several to see them side by side." : "As soon as `tasuki run` or `tasuki submit` begins one in this folder, it is shown here.")));

// -- keys -------------------------------------------------------------------------------------------

const isTyping = (target) => target.matches?.("input:not([type=checkbox]), select, textarea");
const keys = {
  j: () => list.move(1), ArrowDown: () => list.move(1), k: () => list.move(-1), ArrowUp: () => list.move(-1),
  "/": () => $("#filter").focus(), "?": () => $("#help").showModal(), t: () => switchTheme(), x: () => list.here() && list.compare(list.here()),
  l: () => view.curves.turnLog(), s: () => view.curves.set({ x: view.curves.state.x === "step" ? "time" : "step", range: null }), 0: () => view.curves.set({ range: null }),
  Escape: () => { if (view.curves.state.range) view.curves.set({ range: null }); else if (where().name) go(null); },
};
PARTS.forEach((part, at) => { keys[at + 1] = () => view.name && go(view.name, part, compared()); });

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("#help").open) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape" && event.target.id === "filter") { event.target.value = ""; list.choose(); event.target.blur(); }
    if (event.target.id === "filter" && ["Enter", "ArrowDown"].includes(event.key)) { event.preventDefault(); event.key === "Enter" && list.here() ? go(list.here()) : list.move(0); }
    return;
  }
  const isArrow = event.key.startsWith("Arrow");
  if (isArrow && !event.target.closest?.("#list")) { turnTabs(event); return; }
  if (event.key === "Enter" && event.target === document.body && list.here()) { go(list.here()); return; }
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

const turnTabs = (event) => {
  if (event.target.getAttribute?.("role") !== "tab") return;
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const next = PARTS[(PARTS.indexOf(view.part) + by + PARTS.length) % PARTS.length];
  go(view.name, next, compared());
  requestAnimationFrame(() => $(`#tab-${next}`)?.focus());
};

// -- begin ------------------------------------------------------------------------------------------

$("#theme").addEventListener("click", () => switchTheme());
$("#keys").addEventListener("click", () => $("#help").showModal());
addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => news.look());
if (location.search) history.replaceState(null, "", location.pathname + location.hash); // the key is in the cookie by now

try {
  const { title, number, rows } = await ask("/api/runs");
  $("#title").textContent = title;
  known = number;
  list.take(rows);
  performance.mark("runs-shown");
} catch (error) {
  put($("#main"), h("p", { class: "note" }, error.message));
}
await show();
performance.mark("ready");
