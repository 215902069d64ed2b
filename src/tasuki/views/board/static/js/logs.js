// A log: its end, and whatever is added; earlier pieces when asked for.

import { h } from "./dom.js";
import { bytes } from "./format.js";
import * as net from "./net.js";

const MOST = 600_000; // characters that stay on the page

export class LogView {
  constructor({ onLook }) {
    Object.assign(this, { onLook, name: null, file: null, start: 0, end: 0 });
    this.choice = h("select", { "aria-label": "Which log", onchange: () => this.read(this.choice.value) });
    this.follow = h("input", { type: "checkbox", checked: true, onchange: () => this.toEnd() });
    this.earlier = h("button", { type: "button", onclick: () => this.readEarlier() }, "earlier lines");
    this.size = h("span", { class: "soft" });
    this.text = h("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "what the run printed", "aria-live": "off" });
    this.text.addEventListener("scroll", () => { const isAtEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 24; if (!isAtEnd && this.follow.checked && this.isMoved) this.follow.checked = false; this.isMoved = true; });
    this.element = h("section", { class: "card logs", "aria-label": "Logs" },
      h("div", { class: "head" }, h("h2", {}, "Logs"), h("div", { class: "tools" }, this.choice, h("label", {}, this.follow, "follow"), this.size)), this.earlier, this.text);
  }

  get isOpen() { return this.name !== null; }

  async open(name) { if (this.name === name) return; this.name = name; await this.read(null); }

  close() { this.name = null; this.file = null; }

  async read(file) {
    const name = this.name;
    try {
      const piece = await net.run(name, "log", { file });
      if (this.name !== name) return;
      this.choice.replaceChildren(...piece.files.map((one) => h("option", { value: one.file, selected: one.file === piece.file }, one.words)));
      this.choice.hidden = !piece.files.length;
      Object.assign(this, { file: piece.file, start: piece.start, end: piece.end });
      this.text.textContent = piece.text || (piece.files.length ? "" : "Nothing was printed yet.");
      this.tell(piece);
      this.follow.checked = true;
      this.toEnd();
      this.onLook();
    } catch (error) { this.text.textContent = error.message; }
  }

  async readEarlier() {
    const { name, file } = this;
    const before = this.start, height = this.text.scrollHeight;
    const piece = await net.run(name, "log", { file, end: before });
    if (this.name !== name || this.file !== file) return;
    this.start = piece.start;
    this.follow.checked = false;
    this.text.prepend(piece.text);
    this.text.scrollTop = this.text.scrollHeight - height;
    this.tell(piece);
  }

  add(piece) {
    if (piece.file !== this.file || piece.start !== this.end) return;
    this.end = piece.end;
    this.text.append(piece.text);
    while (this.text.textContent.length > MOST && this.text.childNodes.length > 1) { this.text.firstChild.remove(); this.isCut = true; }
    this.tell(piece);
    if (this.follow.checked) this.toEnd();
  }

  tell(piece) { this.size.textContent = bytes(piece.size); this.earlier.hidden = this.start <= 0; }

  toEnd() { if (this.follow.checked) { this.isMoved = false; this.text.scrollTop = this.text.scrollHeight; } }
}
