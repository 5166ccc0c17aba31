// Draws a tree of frames into an SVG element and navigates in it. Creates elements only for the
// frames on the screen. Names are written as text only.
//
// `data` is described in data.rs. `options.title`: lines above the frames, or a function that
// returns them. The graph is shown once attached; `show(column, rule)` selects the widths.
//
// `Canvas` draws a `FlameModel`, with `Narrow` for the frames without a label; `Search` marks frames;
// `Tip` describes a frame; `Controls` is the bar above the frames; `FlameGraph` connects them and moves
// through the tree. The listeners for pointer and keys follow.
const flameGraph = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const HTML = "http://www.w3.org/1999/xhtml";
  const ROW = 18;
  const TOP = 62;
  const UNKNOWN = 0.0005; // minimum share of the whole for a remark that it was not searched
  const EDGE = 10;
  const BOXES = 2000; // number of frames that are drawn in one step
  const LABELLED = 24; // minimum width of a frame with a label
  const PAPER = 960; // width when printed, before it is scaled to the sheet
  const HIGHEST = 3; // maximum ratio of height to width that is legible on one sheet

  const svg = (name, attributes) => element(NS, name, "", attributes);
  const html = (name, text, attributes) => element(HTML, name, text, attributes);
  function element(space, name, text, attributes) {
    const el = document.createElementNS(space, name);
    if (text) el.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
    return el;
  }

  // Frames too narrow for a label. There may be thousands, and an element for each would take most of
  // the time of a search, so all of a row and a colour are one path.
  class Narrow {
    constructor() {
      this.layer = svg("g");
      // The frame under the pointer.
      this.over = svg("rect", { class: "over", visibility: "hidden" });
      this.clear();
    }
    clear() {
      this.boxes = [];
      this.layer.replaceChildren(this.over);
      this.point(-1);
    }
    add(i, marks, { x, y, width, height }) {
      // Twice as fast as toFixed.
      const tenths = (value) => Math.round(value * 10) / 10;
      const w = tenths(width);
      const outline = `M${tenths(x)} ${tenths(y)}h${w}v${height}h${-w}z`;
      this.boxes.push({ i, marks, x, y, width, height, outline });
    }
    draw(hits) {
      const outlines = new Map();
      for (const { i, marks, y, outline } of this.boxes) {
        const of = `${y} ${marks}${hits && hits.marked[i] ? " hit" : ""}`;
        outlines.set(of, (outlines.get(of) || "") + outline);
      }
      const paths = [...outlines].map(([of, d]) => svg("path", { class: of.slice(of.indexOf(" ") + 1), d }));
      this.layer.replaceChildren(...paths, this.over);
    }
    // Returns the frame nearest to a point, because some events have only whole pixels. A distance
    // in rows counts more than one within a row.
    at(x, y) {
      const beyond = (value, from, length) => Math.max(from - value, value - from - length, 0);
      let [found, least] = [-1, Infinity];
      for (const box of this.boxes) {
        const distance = beyond(x, box.x, box.width) + beyond(y, box.y, box.height) * 100;
        if (distance < least) [found, least] = [box.i, distance];
      }
      return found;
    }
    // Outlines a frame. Removes the outline for -1, and for a frame that is not narrow.
    point(i) {
      const box = i < 0 ? undefined : this.boxes.find((b) => b.i === i);
      this.over.setAttribute("visibility", box ? "visible" : "hidden");
      if (box) for (const key of ["x", "y", "width", "height"]) this.over.setAttribute(key, box[key]);
    }
  }

  class Canvas {
    constructor(root, model) {
      this.root = root;
      this.model = model;
      this.layer = svg("g", { class: "frames" });
      this.narrow = new Narrow();
      this.thumb = svg("rect", { class: "thumb", width: 5, rx: 2 });
      this.pen = html("canvas").getContext("2d");
      this.pen.font = "12px " + (root.getAttribute("font-family") || "sans-serif");
      this.widths = new Map(); // widths of letters
      this.size = { w: 0, h: 0 };
      this.high = 0; // height of all rows shown, from the root to the deepest callee
      this.begun = 0; // number of drawings
      this.onPaper = false; // all rows are drawn, regardless of the window's size
    }
    // Height of the visible part of the rows.
    get room() {
      return this.size.h - TOP - EDGE;
    }
    // `hits`: results of a search, or null.
    draw(hits) {
      finish(this.drawing(hits));
    }
    // Draws in steps, unless another drawing begins meanwhile.
    *drawing(hits) {
      const { model, layer } = this;
      const begun = ++this.begun;
      let boxes = 0;
      const { tree } = model;
      const b = this.root.getBoundingClientRect();
      this.drawn = b;
      this.size = { w: this.onPaper ? PAPER : Math.max(120, b.width), h: Math.max(TOP + 4 * ROW, b.height) };
      layer.replaceChildren();
      this.narrow.clear();
      if (!tree.width[0]) return this.empty();
      let deep = tree.depth[model.zoom];
      while (tree.rows[deep + 1] && this.visible(tree.rows[deep + 1]).length) deep++;
      this.high = (deep + 1) * ROW;
      if (this.onPaper) this.size.h = TOP + this.high + EDGE;
      model.scroll = Math.max(0, Math.min(model.scroll, this.high - this.room));
      const onScreen = (depth) => this.yOf(depth) > TOP - ROW / 4 && this.yOf(depth) < this.size.h;
      for (let i = model.zoom; i !== 0; ) {
        i = tree.parent[i];
        if (onScreen(tree.depth[i])) this.box(i, true, hits);
      }
      for (let depth = tree.depth[model.zoom]; depth <= deep; depth++) {
        if (!onScreen(depth)) continue;
        for (const i of this.visible(tree.rows[depth])) {
          this.box(i, false, hits);
          if (++boxes % BOXES) continue;
          yield;
          if (begun !== this.begun) return;
        }
      }
      yield;
      if (begun !== this.begun) return;
      this.narrow.draw(hits);
      layer.prepend(this.narrow.layer);
      this.drawThumb();
    }
    empty() {
      const text = svg("text", { x: EDGE, y: TOP + 20 });
      text.textContent = "Nothing to show: the profile has no samples in this view.";
      this.layer.append(text);
    }
    // The frames of a row inside the zoomed one; a row is ordered by x.
    visible(row) {
      const { tree, zoom } = this.model;
      const [from, to] = [tree.x[zoom], tree.x[zoom] + tree.width[zoom]];
      let [low, top] = [0, row.length];
      while (low < top) {
        const middle = (low + top) >> 1;
        if (tree.x[row[middle]] + tree.width[row[middle]] / 2 < from) low = middle + 1;
        else top = middle;
      }
      const out = [];
      const least = (0.4 / (this.size.w - 2 * EDGE)) * tree.width[zoom];
      for (; low < row.length && tree.x[row[low]] < to; low++) {
        if (tree.width[row[low]] >= least) out.push(row[low]);
      }
      return out;
    }
    yOf(depth) {
      const { down, scroll } = this.model;
      if (down) return TOP + depth * ROW - scroll;
      return TOP + Math.min(this.room, this.high) - (depth + 1) * ROW + scroll;
    }
    // Draws a frame. A caller of the zoomed frame (`under`) is as wide as the picture.
    box(i, under, hits) {
      const { tree, zoom, pick } = this.model;
      const scale = (this.size.w - 2 * EDGE) / tree.width[zoom];
      const x = under ? EDGE : EDGE + (tree.x[i] - tree.x[zoom]) * scale;
      const w = under ? this.size.w - 2 * EDGE : tree.width[i] * scale;
      const y = this.yOf(tree.depth[i]);
      const marks = `frame ${this.model.tint(i)}${under ? " under" : ""}${i === pick ? " pick" : ""}`;
      const of = { class: marks + (hits && hits.marked[i] ? " hit" : ""), "data-i": i };
      const place = { x, y, width: Math.max(0.4, w - 0.6), height: ROW - 1 };
      if (w <= LABELLED && i !== pick) return this.narrow.add(i, marks, place);
      const g = svg("g", of);
      g.append(svg("rect", place));
      const label = this.fit(this.model.nameOf(i), w - 7);
      if (label) {
        const text = svg("text", { x: x + 3.5, y: y + ROW * 0.7 });
        text.textContent = label;
        g.append(text);
      }
      this.layer.append(g);
    }
    // Marks the results of a search among the frames that are drawn.
    mark(hits) {
      this.narrow.draw(hits);
      for (const el of this.layer.querySelectorAll("[data-i]")) {
        const i = Number(el.getAttribute("data-i"));
        const found = Boolean(hits && hits.marked[i]);
        if (el.classList.contains("hit") !== found) el.classList.toggle("hit", found);
      }
    }
    letter(c) {
      if (!this.widths.has(c)) this.widths.set(c, this.pen.measureText(c).width);
      return this.widths.get(c);
    }
    // Shortens a text to a width, with an ellipsis.
    fit(text, space) {
      let used = 0;
      let shown = "";
      let fits = ""; // longest start that leaves room for the ellipsis
      for (const c of text) {
        used += this.letter(c);
        if (used > space) return [...fits].length >= 3 ? fits + "…" : "";
        shown += c;
        if (used + this.letter("…") <= space) fits = shown;
      }
      return text;
    }
    drawThumb() {
      const { room, high, thumb } = this;
      const { down, scroll } = this.model;
      const part = room / high;
      thumb.setAttribute("visibility", part < 1 ? "visible" : "hidden");
      thumb.setAttribute("x", this.size.w - 7);
      const free = room * (1 - Math.min(1, part));
      const way = part < 1 ? scroll / (high - room) : 0;
      thumb.setAttribute("y", TOP + free * (down ? way : 1 - way));
      thumb.setAttribute("height", Math.max(20, room * Math.min(1, part)));
    }
    // Returns the frame under the pointer, or -1.
    frameAt(e) {
      const el = e.target instanceof Element && e.target.closest(".frame");
      if (!el || !this.layer.contains(el)) return -1;
      if (el.hasAttribute("data-i")) return Number(el.getAttribute("data-i"));
      const b = this.root.getBoundingClientRect();
      return this.narrow.at(e.clientX - b.left, e.clientY - b.top);
    }
  }

  // Finds frames by pattern, and sums their stacks.
  class Search {
    constructor(root, model) {
      this.root = root;
      this.model = model;
      this.pattern = null;
      this.names = null;
      this.hits = null;
      this.count = html("span", "", { class: "count", role: "status" });
      this.field = html("input", "", {
        type: "text", placeholder: "search (regex)", "aria-label": "search", spellcheck: "false", title: "search (/)",
      });
    }
    set(text) {
      this.field.removeAttribute("data-bad");
      try {
        this.pattern = text ? new Pattern(text) : null;
      } catch (error) {
        this.refuse(error);
        return;
      }
      this.match();
    }
    refuse(error) {
      this.pattern = null;
      this.match();
      this.field.setAttribute("data-bad", "");
      this.count.textContent = `not a pattern: ${error.message}`;
    }
    // Searches the current tree.
    match() {
      this.hits = null;
      this.count.textContent = "";
      this.root.classList.toggle("seek", Boolean(this.pattern));
      if (!this.pattern) return;
      const { tree, data } = this.model;
      // Each name is compared once, however many frames and stacks have it.
      this.names = this.names || [...data.names, ...(data.unseen ? data.unseen.names : [])].map((name) => name.toLowerCase());
      this.pattern.begin();
      let found;
      try {
        found = this.names.map((name) => this.pattern.testLower(name));
      } catch (error) {
        this.refuse(error);
        return;
      }
      const marked = new Uint8Array(tree.parent.length);
      let frames = 0;
      for (let i = 1; i < marked.length; i++) {
        if (tree.name[i] < 0 || !found[tree.name[i]] || !tree.width[i]) continue;
        marked[i] = 1;
        frames++;
      }
      const { sum, unknown } = this.model.matched(found);
      this.hits = { marked };
      this.count.textContent = `${share(sum, tree.width[0])} matched, ${frames} frame${frames === 1 ? "" : "s"}`;
      if (unknown > tree.width[0] * UNKNOWN) this.count.textContent += `, up to ${share(unknown, tree.width[0])} more in frames too small to be named`;
    }
  }

  // Describes a frame, next to the pointer.
  class Tip {
    constructor(root, model) {
      this.root = root;
      this.model = model;
      this.box = svg("foreignObject", { class: "tipbox", x: 0, y: 0 });
      this.text = html("div", "", { class: "flame-tip", role: "status" });
      this.box.append(this.text);
    }
    show(i, x, y, size) {
      const said = [this.model.placeOf(i), ...this.model.describe(i)].filter((line) => line);
      const lines = said.map((line) => html("div", line));
      this.text.replaceChildren(html("b", this.model.nameOf(i)), ...lines);
      this.root.append(this.box);
      const b = this.text.getBoundingClientRect();
      const k = this.text.offsetWidth ? b.width / this.text.offsetWidth : 1;
      const [w, h] = [b.width / k, b.height / k];
      this.text.style.marginLeft = `${Math.max(4, Math.min(x + 14, size.w - w - 8))}px`;
      this.text.style.marginTop = `${Math.max(4, y + 18 + h > size.h ? y - h - 10 : y + 18)}px`;
    }
    hide() {
      this.box.remove();
    }
  }

  class Controls {
    constructor(search) {
      this.hud = svg("foreignObject", { class: "hud", x: 0, y: 0, height: TOP });
      this.bar = html("div", "", { class: "flame-bar" });
      this.what = html("span", "", { class: "what" });
      this.note = html("div", "", { class: "flame-note" });
      this.bar.append(this.what, search.count, search.field);
      this.hud.append(this.bar, this.note);
    }
    button(text, label, action) {
      const el = html("button", text, { type: "button", title: label });
      el.addEventListener("click", action);
      this.bar.append(el);
      return el;
    }
    caption(model, lines, name) {
      this.what.replaceChildren(html("b", model.signed(model.tree.sum[0])), ` ${name(model.column.kind)}`);
      this.what.title = lines.join("\n");
      // A selection that fits on one line; the tooltip has all lines.
      const first = /^(File|Dump|Engine|Samples|Kernel|Filter|Merged|Colours|[0-9])/;
      this.note.textContent = lines.filter((line) => first.test(line)).join("  ·  ");
      this.note.title = lines.join("\n");
    }
  }

  class FlameGraph {
    constructor(root, data, options) {
      this.root = root;
      const title = (options && options.title) || [];
      this.title = typeof title === "function" ? title : () => title;
      this.nameOf = (options && options.nameOf) || ((kind) => kind);
      this.model = new FlameModel(data);
      this.canvas = new Canvas(root, this.model);
      this.search = new Search(root, this.model);
      this.tip = new Tip(root, this.model);
      this.controls = new Controls(this.search);
      const button = (...parts) => this.controls.button(...parts);
      this.turns = {
        down: button("Root on top", "callers above what they call (i)", () => this.turn("down")),
        inverted: button("Callees first", "allocating functions at the root, their callers on them (v)", () => this.turn("inverted")),
      };
      this.pointed = -1;
      this.whole = button("Reset", "show everything (Escape)", () => this.reset());
      if (options && options.help) button("?", "keys and gestures (?)", options.help);
      this.press();
    }
    press() {
      for (const [key, el] of Object.entries(this.turns)) el.setAttribute("aria-pressed", String(this.model[key]));
    }
    draw() {
      finish(this.drawing());
    }
    *drawing() {
      const { model, canvas } = this;
      const seen = canvas.onPaper || this.root.getClientRects().length;
      if (!canvas.layer.isConnected || !seen) return;
      yield* canvas.drawing(this.search.hits);
      const { w, h } = canvas.size;
      for (const [el, height] of [[this.controls.hud, TOP], [this.tip.box, h]]) {
        el.setAttribute("width", w);
        el.setAttribute("height", height);
      }
      this.whole.disabled = model.zoom === 0 && model.scroll === 0;
    }
    // Draws again if the element's size has changed.
    fill() {
      const b = this.root.getBoundingClientRect();
      const { drawn } = this.canvas;
      // The first drawing is done in steps (see `showing`).
      if (!drawn) return;
      if (drawn.width !== b.width || drawn.height !== b.height) this.draw();
    }
    rebuild() {
      this.model.rebuild();
      this.search.match();
    }
    // Chooses what the widths stand for.
    choose(index, rule) {
      const { model } = this;
      if (model.index === index && model.rule === rule) return;
      const zoom = model.zoom ? model.pathKeys()[model.zoom] : 0;
      model.index = index;
      model.rule = rule;
      this.rebuild();
      // Stays at the same frame if this column has it.
      const frame = zoom ? model.pathKeys().indexOf(zoom) : -1;
      if (frame > 0 && model.tree.width[frame]) model.zoom = frame;
    }
    *showing(index, rule) {
      if (!this.canvas.layer.isConnected) this.attach();
      this.choose(index, rule);
      yield* this.model.building();
      yield;
      this.caption();
      yield* this.drawing();
    }
    find(text) {
      this.search.set(text);
      this.canvas.mark(this.search.hits);
    }
    clearSearch() {
      this.search.field.value = "";
      this.find("");
      this.search.field.blur();
    }

    // --- moving
    zoom(i) {
      const { model, canvas } = this;
      const below = model.tree.depth[i] * ROW; // distance from the root's edge
      model.zoom = i;
      model.pick = -1;
      model.scroll = below > canvas.size.h - TOP - 6 * ROW ? below - 3 * ROW : 0;
      this.tip.hide();
      this.draw();
    }
    reset() {
      this.zoom(0);
    }
    pick(i) {
      if (i === undefined || i < 0) return;
      const { model, canvas } = this;
      model.pick = i;
      const below = model.tree.depth[i] * ROW;
      model.scroll = Math.max(Math.min(model.scroll, below), below + ROW - canvas.room);
      this.draw();
      const el = canvas.layer.querySelector("rect.pick, .pick rect");
      if (!el) return;
      const [x, y, w] = ["x", "y", "width"].map((key) => Number(el.getAttribute(key)));
      this.tip.show(i, x + Math.min(w / 2, 60), y, canvas.size);
    }
    unpick() {
      this.model.pick = -1;
      this.tip.hide();
      this.draw();
    }
    step(way) {
      const { model, canvas } = this;
      if (model.pick < 0) return this.pick(model.zoom);
      const i = model.pick;
      const { parent, depth, rows, callees } = model.tree;
      const row = depth[i] >= depth[model.zoom] ? canvas.visible(rows[depth[i]]) : [i];
      const seen = new Set(way === "callee" ? canvas.visible(rows[depth[i] + 1] || []) : []);
      const moves = {
        caller: () => (i === 0 ? i : parent[i]),
        callee: () => callees(i).find((c) => seen.has(c) || model.isBelow(model.zoom, c)),
        left: () => row[row.indexOf(i) - 1],
        right: () => row[row.indexOf(i) + 1],
      };
      this.pick(moves[way]());
    }
    turn(what) {
      const { model } = this;
      model[what] = !model[what];
      model.scroll = 0;
      this.tip.hide();
      if (what === "inverted") this.rebuild();
      this.press();
      this.draw();
    }
    // Copies the name of the frame chosen by keys, or else of the one under the pointer.
    async copy() {
      const i = this.model.pick >= 0 ? this.model.pick : this.pointed;
      if (i < 0) return;
      const { count } = this.search;
      try {
        await navigator.clipboard.writeText(this.model.nameOf(i));
        count.textContent = "name copied";
      } catch {
        count.textContent = "the browser does not permit copying";
      }
    }
    // Returns the state for a link; empty strings for defaults.
    state() {
      const { model, search } = this;
      const zoom = model.zoom ? model.pathKeys()[model.zoom].toString(36) : "";
      return { find: search.field.value, zoom, down: model.down ? "1" : "", callees: model.inverted ? "1" : "" };
    }
    restore({ find, zoom, down, callees }) {
      const { model } = this;
      if (Boolean(down) !== model.down) this.turn("down");
      if (Boolean(callees) !== model.inverted) this.turn("inverted");
      if (find) {
        this.search.field.value = find;
        this.find(find);
      }
      const frame = zoom ? model.pathKeys().indexOf(parseInt(zoom, 36)) : -1;
      if (frame > 0 && model.tree.width[frame]) this.zoom(frame);
    }
    // Scrolls by a number of pixels; negative: upwards on the screen.
    scrollBy(pixels) {
      this.model.scroll += pixels * (this.model.down ? 1 : -1);
      this.draw();
    }

    attach() {
      this.root.classList.add("live");
      this.root.append(this.canvas.layer, this.canvas.thumb, this.controls.hud);
    }
    caption() {
      this.controls.caption(this.model, this.title(), this.nameOf);
    }
    // Draws for printing, including the rows outside the screen; `viewBox` scales to the sheet.
    print() {
      const { canvas, model, root } = this;
      if (!canvas.layer.isConnected) return;
      this.before = model.scroll;
      canvas.onPaper = true;
      this.tip.hide();
      this.draw();
      const { w, h } = canvas.size;
      root.setAttribute("viewBox", `0 0 ${w} ${h}`);
      root.classList.toggle("long", h > HIGHEST * w);
    }
    unprint() {
      const { canvas, model, root } = this;
      if (!canvas.onPaper) return;
      canvas.onPaper = false;
      root.removeAttribute("viewBox");
      model.scroll = this.before;
      this.draw();
    }
    detach() {
      const { canvas, controls, tip } = this;
      for (const el of [canvas.layer, canvas.thumb, controls.hud, tip.box]) el.remove();
      this.root.classList.remove("live", "seek");
    }
  }

  function listenToField(graph) {
    const { field } = graph.search;
    field.addEventListener("input", () => graph.find(field.value));
    field.addEventListener("keydown", (e) => {
      e.stopPropagation();
      if (e.key === "Escape") graph.clearSearch();
    });
  }

  function listenToPointer(graph) {
    const { root, model, canvas, tip } = graph;
    root.addEventListener("click", (e) => {
      const i = canvas.frameAt(e);
      if (i >= 0 && !model.isFew(i)) graph.zoom(i === model.zoom && i !== 0 ? model.tree.parent[i] : i);
    });
    root.addEventListener("pointermove", (e) => {
      const i = canvas.frameAt(e);
      graph.pointed = i;
      canvas.narrow.point(i);
      const b = root.getBoundingClientRect();
      if (i >= 0) tip.show(i, e.clientX - b.left, e.clientY - b.top, canvas.size);
      else tip.hide();
    });
    root.addEventListener("pointerleave", () => {
      graph.pointed = -1;
      canvas.narrow.point(-1);
      tip.hide();
    });
    root.addEventListener("wheel", (e) => {
      const { room } = canvas;
      if (canvas.high <= room || e.ctrlKey) return;
      e.preventDefault();
      const unit = e.deltaMode === 1 ? ROW : e.deltaMode === 2 ? room : 1;
      tip.hide();
      graph.scrollBy(e.deltaY * unit);
    }, { passive: false });
  }

  // Returns the current action of each key.
  function keys(graph) {
    const { model, canvas } = graph;
    const vertical = (up) => graph.step(up === model.down ? "caller" : "callee");
    const page = (by) => graph.scrollBy(by * (canvas.size.h - TOP - 3 * ROW));
    const actions = {
      "/": () => graph.search.field.focus(),
      Escape: () => (model.pick >= 0 ? graph.unpick() : graph.reset()),
      0: () => graph.reset(),
      i: () => graph.turn("down"),
      v: () => graph.turn("inverted"),
      c: () => graph.copy(),
      Backspace: () => graph.zoom(model.tree.parent[model.zoom]),
      ArrowUp: () => vertical(true),
      ArrowDown: () => vertical(false),
      ArrowLeft: () => graph.step("left"),
      ArrowRight: () => graph.step("right"),
      PageUp: () => page(-1),
      PageDown: () => page(1),
    };
    if (model.pick >= 0) actions.Enter = () => { if (!model.isFew(model.pick)) graph.zoom(model.pick); };
    return actions;
  }

  function listenToKeys(graph) {
    document.addEventListener("keydown", (e) => {
      const on = (selector) => e.target instanceof Element && e.target.closest(selector);
      if (on("input, textarea, select") || e.ctrlKey || e.metaKey || e.altKey) return;
      if (!graph.canvas.layer.isConnected || !graph.root.getClientRects().length) return;
      if (on("button") && e.key === "Enter") return;
      const action = keys(graph)[e.key];
      if (action) {
        e.preventDefault();
        action();
      }
    });
  }

  return (root, data, options) => {
    const graph = new FlameGraph(root, data, options);
    listenToField(graph);
    listenToPointer(graph);
    listenToKeys(graph);
    // Also covers a tab that is opened after the window was resized.
    new ResizeObserver(() => graph.fill()).observe(root);
    return {
      attach() {
        graph.attach();
        graph.caption();
      },
      draw: () => graph.draw(),
      detach: () => graph.detach(),
      print: () => graph.print(),
      unprint: () => graph.unprint(),
      show: (column, rule) => finish(graph.showing(column, rule)),
      showing: (column, rule) => graph.showing(column, rule),
      state: () => graph.state(),
      restore: (state) => graph.restore(state),
      find(text) {
        graph.search.field.value = text;
        graph.find(text);
      },
    };
  };
})();
