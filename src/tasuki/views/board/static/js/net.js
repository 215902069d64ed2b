// Questions to the board, and the one stream of news.

export class Refused extends Error {
  constructor(status, message, hint = "") { super(message); this.status = status; this.hint = hint; }
}

export const ask = async (path, parameters = {}, signal) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
  const answer = await fetch(`${path}${query.size ? `?${query}` : ""}`, { signal, credentials: "same-origin" });
  if (answer.ok) return answer.json();
  const text = await answer.text();
  if (answer.headers.get("content-type")?.startsWith("application/json")) {
    const { error, hint } = JSON.parse(text);
    throw new Refused(answer.status, error, hint);
  }
  throw new Refused(answer.status, text.trim() || `the board answered ${answer.status}`);
};

export const run = (name, what = "", parameters = {}, signal) =>
  ask(`/api/runs/${encodeURIComponent(name)}${what && `/${what}`}`, parameters, signal);

// Reopened whenever something else is looked at; a page that nobody sees has none.
export class News {
  constructor({ wants, on, onState }) { Object.assign(this, { wants, on, onState, source: null, key: null }); }

  look(isForced = false) {
    const query = this.wants();
    const key = document.hidden ? null : query.toString();
    if (key === this.key && !isForced) return;
    this.close();
    this.key = key;
    if (document.hidden) return;
    const source = new EventSource(`/api/stream?${this.wants(true)}`);
    source.onopen = () => this.onState("live");
    source.onerror = () => {
      this.onState("away");
      // A stream that is asked again must say what is known by now, not what was known then.
      source.close();
      if (this.source === source) this.retry = setTimeout(() => this.look(true), 2000);
    };
    for (const [kind, take] of Object.entries(this.on)) {
      source.addEventListener(kind, (event) => { if (this.source === source) take(JSON.parse(event.data)); });
    }
    this.source = source;
  }

  close() { clearTimeout(this.retry); this.source?.close(); this.source = null; this.key = null; }
}
