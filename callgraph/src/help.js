// A box that says what keys and gestures do: `?` and a button show it; `?`, Escape and a click
// close it. Texts are written as text only.
//
// `root` is the element that gets the box, of SVG or HTML. Each of the `sections` is a heading and
// a list of rows: keys, and what they do.
class HelpBox {
  constructor(root, sections) {
    this.root = root;
    const inSvg = root.namespaceURI === "http://www.w3.org/2000/svg";
    const back = this.make("div", "", { class: "help" }, this.sheet(sections));
    this.box = back;
    if (inSvg) {
      this.box = document.createElementNS(root.namespaceURI, "foreignObject");
      this.box.setAttribute("width", "100%");
      this.box.setAttribute("height", "100%");
      this.box.append(back);
    }
    back.addEventListener("click", () => this.close());
    // The picture below neither moves nor zooms.
    for (const type of ["click", "pointerdown", "pointermove", "wheel"]) {
      this.box.addEventListener(type, (e) => e.stopPropagation());
    }
    // Captures the event before other listeners: without the box, Escape means something else.
    document.addEventListener("keydown", (e) => this.key(e), true);
  }
  make(name, text, attributes, ...children) {
    const el = document.createElementNS("http://www.w3.org/1999/xhtml", name);
    if (text) el.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
    el.append(...children);
    return el;
  }
  sheet(sections) {
    this.done = this.make("button", "Close", { type: "button", title: "Escape" });
    const row = ([keys, what]) => {
      const names = keys.split("  ").map((key) => this.make("kbd", key));
      return this.make("tr", "", {}, this.make("td", "", {}, ...names), this.make("td", what));
    };
    const parts = sections.flatMap(([heading, rows]) => [
      this.make("h2", heading),
      this.make("table", "", {}, this.make("tbody", "", {}, ...rows.map(row))),
    ]);
    const box = { class: "help-sheet", role: "dialog", "aria-label": "Keys and gestures" };
    return this.make("div", "", box, this.done, ...parts);
  }
  get shown() {
    return this.box.isConnected;
  }
  toggle() {
    if (this.shown) return this.close();
    this.before = document.activeElement;
    this.root.append(this.box);
    this.done.focus();
  }
  close() {
    if (!this.shown) return;
    this.box.remove();
    if (this.before && this.before.focus) this.before.focus();
  }
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = e.target instanceof Element && e.target.closest("input, textarea, select");
    if (!(e.key === "?" && !typing) && !(e.key === "Escape" && this.shown)) return;
    e.preventDefault();
    e.stopPropagation();
    this.toggle();
  }
}
