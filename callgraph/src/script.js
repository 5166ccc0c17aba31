// Makes the picture a map: drag and wheel move it, hovering a box shows its callers and callees,
// a click centres it, the search field marks names. Everything of the profile is read as text
// (textContent, data attributes) and written back as text only.
//
// The parts: `readGraph` takes the graph from the picture; `Camera` moves and zooms it;
// `Highlight` shows what belongs to a box or an arrow; `Search` marks boxes by name; `Bar` holds
// the buttons and the search field; `Page` is the picture on the screen and on paper; then come
// the listeners to the pointer and to the keys.
(function () {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const HTML = "http://www.w3.org/1999/xhtml";
  const READABLE = 0.75; // minimum scale of a view of some boxes
  const SMALL = 0.4; // minimum scale of the start view, for a legend that is far from the root
  const MARGIN = 16; // around the boxes of a view
  const BAR = { width: 540, height: 44, edge: 8 }; // in a wide window; a narrow one wraps it

  function html(name, text, attributes) {
    const el = document.createElementNS(HTML, name);
    el.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
    return el;
  }

  // Reads nodes and edges from the picture's elements.
  function readGraph(root) {
    const nodes = new Map();
    for (const el of root.querySelectorAll(".node")) {
      const title = el.querySelector("title");
      const [flat, cum] = [Number(el.dataset.flat), Number(el.dataset.cum)];
      nodes.set(el.dataset.node, { el, text: title ? title.textContent : "", flat, cum, edges: [] });
    }
    const edges = [];
    for (const el of root.querySelectorAll(".edge")) {
      const edge = { el, from: nodes.get(el.dataset.from), to: nodes.get(el.dataset.to) };
      edges.push(edge);
      edge.from.edges.push(edge);
      if (edge.to !== edge.from) edge.to.edges.push(edge);
    }
    return { nodes, edges };
  }

  function union(a, b) {
    return {
      left: Math.min(a.left, b.left), top: Math.min(a.top, b.top),
      right: Math.max(a.right, b.right), bottom: Math.max(a.bottom, b.bottom),
    };
  }

  // Pans and zooms by one transform of the view: `at`, with the scale `k`.
  class Camera {
    constructor(root, natural, nodes) {
      this.root = root;
      this.nodes = nodes;
      this.view = root.querySelector(".view");
      this.natural = natural;
      this.at = { x: 0, y: 0, k: 1 };
      this.moved = false; // whether the user has chosen a view, which a resize must not undo
      this.top = BAR.edge + BAR.height; // what the bar covers
      this.flight = 0; // number of the latest flight; those before it have ended
    }
    get window() {
      return this.root.getBoundingClientRect();
    }
    apply() {
      const { x, y, k } = this.at;
      this.view.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    }
    // Shows the whole picture if it is readable at that scale. Otherwise shows the legend, the root,
    // and as many of the heaviest boxes as are readable together with them.
    start() {
      this.show([...this.legend(), ...this.rootBox()], SMALL);
    }
    // Shows where the memory is: the heaviest boxes.
    heavy() {
      this.show([], READABLE);
      this.moved = true;
    }
    legend() {
      const legend = this.view.querySelector(".legend rect");
      return legend ? [this.box(legend)] : [];
    }
    // Returns the area of the heaviest box that no other box calls.
    rootBox() {
      const roots = [...this.nodes.values()].filter((node) => !node.edges.some((e) => e.to === node && e.from !== node));
      const [first] = (roots.length ? roots : [...this.nodes.values()]).sort((a, b) => b.cum - a.cum);
      return first ? [this.box(first.el.querySelector("rect"))] : [];
    }
    box(rect) {
      const r = rect.getBBox();
      return { left: r.x, top: r.y, right: r.x + r.width, bottom: r.y + r.height };
    }
    // Shows these areas, and the heaviest boxes that fit beside them, at a scale of at least `least`.
    show(areas, least) {
      const { at, natural, window: b } = this;
      const fit = (w, h) => Math.min((b.width - 2 * MARGIN) / w, (b.height - this.top - MARGIN) / h);
      const all = Math.min(b.width / natural.w, b.height / natural.h) >= READABLE;
      const first = areas.reduce((one, other) => (one ? union(one, other) : other), null);
      const area = all ? { left: 0, top: 0, right: natural.w, bottom: natural.h } : this.heaviest(fit, first);
      const k = fit(area.right - area.left, area.bottom - area.top);
      at.k = Math.min(all ? 1.5 : 1, Math.max(least, k));
      // Moves the middle of the area to the middle of the window, but shows nothing beyond the
      // picture's edges.
      const place = (low, high, size, from, to) => {
        const free = to - from - size * at.k;
        if (free >= 0) return from + free / 2;
        return Math.min(from, Math.max(from + free, (from + to) / 2 - ((low + high) / 2) * at.k));
      };
      at.x = place(area.left, area.right, natural.w, 0, b.width);
      at.y = place(area.top, area.bottom, natural.h, all ? 0 : this.top, b.height);
      this.moved = false;
      this.apply();
    }
    // Returns the area of `area`, if there is one, and as many of the boxes with the largest flat
    // values as are readable together with it.
    heaviest(fit, area) {
      const order = [...this.nodes.values()].sort((a, b) => b.flat - a.flat || b.cum - a.cum);
      for (const node of order) {
        if (area && !node.flat) break;
        const own = this.box(node.el.querySelector("rect"));
        const grown = area ? union(area, own) : own;
        if (!area || fit(grown.right - grown.left, grown.bottom - grown.top) >= READABLE) area = grown;
      }
      return area || { left: 0, top: 0, right: this.natural.w, bottom: this.natural.h };
    }
    whole() {
      const { at, natural, window: b } = this;
      at.k = Math.min(b.width / natural.w, b.height / natural.h);
      at.x = (b.width - natural.w * at.k) / 2;
      at.y = (b.height - natural.h * at.k) / 2;
      this.moved = true;
      this.apply();
    }
    pan(dx, dy) {
      this.at.x += dx;
      this.at.y += dy;
      this.moved = true;
      this.apply();
    }
    // Zooms around a point of the window; without one, around its middle.
    zoom(factor, x, y) {
      const { at, window: b } = this;
      if (x === undefined) [x, y] = [b.width / 2, b.height / 2];
      const k = Math.min(12, Math.max(0.02, at.k * factor));
      at.x = x - ((x - at.x) * k) / at.k;
      at.y = y - ((y - at.y) * k) / at.k;
      at.k = k;
      this.moved = true;
      this.apply();
    }
    stop() {
      this.flight++;
    }
    // Flies to a box.
    centre(node) {
      const { at, window: b } = this;
      const r = node.el.querySelector("rect").getBBox();
      const k = Math.max(at.k, 0.8);
      const to = { x: b.width / 2 - (r.x + r.width / 2) * k, y: b.height / 2 - (r.y + r.height / 2) * k, k };
      const from = { ...at };
      const start = performance.now();
      const mine = ++this.flight;
      this.moved = true;
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const step = (now) => {
        if (mine !== this.flight) return;
        const t = still ? 1 : Math.min(1, Math.max(0, (now - start) / 220));
        const s = t * t * (3 - 2 * t);
        for (const key of ["x", "y", "k"]) at[key] = from[key] + (to[key] - from[key]) * s;
        this.apply();
        if (t < 1) requestAnimationFrame(step);
      };
      step(start);
    }
  }

  // Highlights a box with its arrows and the boxes at their other ends, or an arrow with both ends.
  class Highlight {
    constructor(root) {
      this.root = root;
      this.pinned = null;
      this.lit = [];
    }
    light(elements, self) {
      for (const el of this.lit) el.classList.remove("on", "self", "in", "out");
      this.lit = elements.map((e) => e[0]);
      for (const [el, ...marks] of elements) el.classList.add("on", ...marks);
      this.root.classList.toggle("focus", this.lit.length > 0);
      if (self) self.classList.add("self");
    }
    node(node) {
      const all = [[node.el]];
      for (const e of node.edges) {
        const out = e.from === node;
        all.push([e.el, out ? "out" : "in"], [(out ? e.to : e.from).el]);
      }
      this.light(all, node.el);
    }
    edge(edge) {
      this.light([[edge.el], [edge.from.el], [edge.to.el]], null);
    }
    pin(node) {
      this.pinned = node;
      this.restore();
    }
    restore() {
      if (this.pinned) this.node(this.pinned);
      else this.light([], null);
    }
  }

  class Search {
    constructor(root, nodes, camera) {
      this.root = root;
      this.nodes = nodes;
      this.camera = camera;
      this.hits = [];
      this.current = -1;
      this.field = html("input", "", { type: "text", placeholder: "search (regex)", "aria-label": "search", spellcheck: "false" });
      this.count = html("span", "", { class: "count", role: "status" });
      this.field.addEventListener("input", () => this.run());
      this.field.addEventListener("keydown", (e) => this.key(e));
    }
    run() {
      const pattern = this.field.value;
      for (const n of this.nodes.values()) n.el.classList.remove("hit");
      this.hits = [];
      this.current = -1;
      this.field.removeAttribute("data-bad");
      if (pattern) {
        let expression;
        try {
          expression = new RegExp(pattern, "i");
        } catch (error) {
          this.field.setAttribute("data-bad", "");
          this.count.textContent = "not a pattern";
          this.root.classList.remove("seek");
          return;
        }
        this.hits = [...this.nodes.values()].filter((n) => expression.test(n.text));
        this.hits.sort((a, b) => b.cum - a.cum); // Enter visits the heaviest first
        for (const n of this.hits) n.el.classList.add("hit");
      }
      this.root.classList.toggle("seek", pattern !== "");
      const flat = 100 * Math.min(1, this.hits.reduce((sum, n) => sum + n.flat, 0));
      this.count.textContent = pattern ? `${this.hits.length} of ${this.nodes.size}, flat ${flat.toFixed(1)}%` : "";
    }
    next(by) {
      const { hits } = this;
      if (!hits.length) return;
      this.current = (this.current + by + hits.length) % hits.length;
      this.count.textContent = `${this.current + 1} / ${hits.length}`;
      this.camera.centre(hits[this.current]);
    }
    key(e) {
      e.stopPropagation();
      if (e.key === "Enter") this.next(e.shiftKey ? -1 : 1);
      if (e.key === "Escape") {
        this.field.value = "";
        this.run();
        this.field.blur();
      }
    }
  }

  // Buttons and search field, at a fixed position in the window.
  class Bar {
    constructor(search, camera, help) {
      this.hud = document.createElementNS(NS, "foreignObject");
      this.hud.setAttribute("class", "hud");
      const bar = html("div", "", { class: "bar" });
      const button = (text, label, action) => {
        const el = html("button", text, { type: "button", title: label, "aria-label": label });
        el.addEventListener("click", action);
        bar.append(el);
      };
      bar.append(search.count, search.field);
      button("−", "zoom out (-)", () => camera.zoom(1 / 1.3));
      button("+", "zoom in (+)", () => camera.zoom(1.3));
      button("start", "start view: legend and root (0)", () => camera.start());
      button("all", "whole picture (a)", () => camera.whole());
      button("?", "keys and gestures (?)", () => help.toggle());
      this.hud.append(bar);
      this.bar = bar;
      this.camera = camera;
      // The number of hits may wrap the bar.
      search.field.addEventListener("input", () => this.fit());
    }
    place(width) {
      const w = Math.max(0, Math.min(BAR.width, width - 2 * BAR.edge));
      const set = (name, value) => this.hud.setAttribute(name, value);
      set("width", w);
      set("x", width - w - BAR.edge);
      set("y", BAR.edge);
      this.fit();
    }
    fit() {
      const height = Math.max(BAR.height, this.bar.offsetHeight);
      this.hud.setAttribute("height", height);
      this.camera.top = BAR.edge + height;
    }
    holds(e) {
      return this.hud.contains(e.target);
    }
  }

  // On the screen the picture fills its space; on paper it is the plain picture again.
  class Page {
    constructor(root, natural, camera, bar, help) {
      this.root = root;
      this.natural = natural;
      this.camera = camera;
      this.bar = bar;
      this.help = help;
      this.paper = root.querySelector(".paper");
    }
    resize(width, height) {
      for (const el of [this.root, this.paper]) {
        el.setAttribute("width", width);
        el.setAttribute("height", height);
      }
    }
    isLive() {
      return this.root.classList.contains("live");
    }
    live() {
      this.root.classList.add("live");
      this.root.removeAttribute("viewBox");
      this.resize("100%", "100%");
      this.root.append(this.bar.hud);
      this.place();
      this.camera.apply();
    }
    plain() {
      const { w, h } = this.natural;
      this.root.classList.remove("live", "focus", "seek");
      this.bar.hud.remove();
      this.help.close();
      this.root.setAttribute("viewBox", `0 0 ${w} ${h}`);
      this.resize(w, h);
      this.camera.view.removeAttribute("transform");
    }
    place() {
      this.bar.place(this.camera.window.width);
      if (!this.camera.moved) this.camera.start();
    }
  }

  // One pointer drags, two pinch.
  class Pointers {
    constructor(root, camera, bar, click) {
      this.root = root;
      this.camera = camera;
      this.bar = bar;
      this.click = click; // called with the element that was clicked
      this.down = new Map();
      this.drag = null;
      root.addEventListener("pointerdown", (e) => this.press(e));
      root.addEventListener("pointermove", (e) => this.move(e));
      root.addEventListener("pointerup", (e) => this.release(e));
      root.addEventListener("pointercancel", (e) => this.release(e));
      root.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    }
    press(e) {
      if (e.button !== 0 || this.bar.holds(e)) return;
      this.camera.stop();
      this.down.set(e.pointerId, e);
      this.drag = { x: e.clientX, y: e.clientY, far: false, target: e.target };
    }
    move(e) {
      const before = this.down.get(e.pointerId);
      if (!before) return;
      const pinches = this.down.size === 2;
      if (pinches) this.pinch(before, e);
      else if (this.drag) this.pull(before, e);
      if (!this.drag || this.drag.far || pinches) this.down.set(e.pointerId, e);
    }
    pinch(before, e) {
      const [other] = [...this.down.values()].filter((p) => p.pointerId !== e.pointerId);
      const d = (p) => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY);
      if (d(before) <= 0) return;
      const b = this.camera.window;
      const [x, y] = [(e.clientX + other.clientX) / 2 - b.left, (e.clientY + other.clientY) / 2 - b.top];
      this.camera.zoom(d(e) / d(before), x, y);
    }
    pull(before, e) {
      const { drag } = this;
      if (!drag.far && Math.hypot(e.clientX - drag.x, e.clientY - drag.y) > 4) {
        drag.far = true;
        this.root.setPointerCapture(e.pointerId);
        this.root.classList.add("grab");
      }
      if (drag.far) this.camera.pan(e.clientX - before.clientX, e.clientY - before.clientY);
    }
    release(e) {
      if (!this.down.delete(e.pointerId)) return;
      this.root.classList.remove("grab");
      const was = this.drag;
      this.drag = null;
      if (was && !was.far && e.type !== "pointercancel") this.click(was.target);
    }
    wheel(e) {
      if (this.bar.holds(e)) return;
      e.preventDefault();
      this.camera.stop();
      const b = this.camera.window;
      const unit = e.deltaMode === 1 ? 16 : e.deltaMode === 2 ? b.height : 1;
      if (e.shiftKey) this.camera.pan(-(e.deltaX || e.deltaY) * unit, 0);
      else this.camera.zoom(Math.exp((-e.deltaY * unit) / 400), e.clientX - b.left, e.clientY - b.top);
    }
  }

  function listenToHover(graph, highlight, pointers) {
    const unlessDragged = (action) => () => { if (!pointers.drag) action(); };
    const listen = (el, light) => {
      el.addEventListener("pointerenter", unlessDragged(light));
      el.addEventListener("pointerleave", unlessDragged(() => highlight.restore()));
    };
    for (const node of graph.nodes.values()) listen(node.el, () => highlight.node(node));
    for (const edge of graph.edges) listen(edge.el, () => highlight.edge(edge));
  }

  // `alone`: the picture is the whole document, so that the arrow keys are its own.
  function listenToKeys(root, camera, highlight, search, alone) {
    const actions = {
      "/": () => search.field.focus(),
      Escape: () => highlight.pin(null),
      "+": () => camera.zoom(1.3),
      "=": () => camera.zoom(1.3),
      "-": () => camera.zoom(1 / 1.3),
      0: () => camera.start(),
      m: () => camera.heavy(),
      a: () => camera.whole(),
    };
    if (alone) {
      const step = 60;
      Object.assign(actions, {
        ArrowLeft: () => camera.pan(step, 0),
        ArrowRight: () => camera.pan(-step, 0),
        ArrowUp: () => camera.pan(0, step),
        ArrowDown: () => camera.pan(0, -step),
      });
    }
    document.addEventListener("keydown", (e) => {
      const typing = e.target instanceof Element && e.target.closest("input, textarea, select");
      if (typing || e.ctrlKey || e.metaKey || e.altKey || !root.getClientRects().length) return;
      const action = actions[e.key];
      if (action) {
        e.preventDefault();
        action();
      }
    });
  }

  const script = document.currentScript;
  const root = (script && script.closest("svg")) || document.documentElement;
  const natural = { w: root.viewBox.baseVal.width, h: root.viewBox.baseVal.height };
  const graph = readGraph(root);
  const camera = new Camera(root, natural, graph.nodes);
  const highlight = new Highlight(root);
  const search = new Search(root, graph.nodes, camera);
  const help = new HelpBox(root, [GRAPH_KEYS]);
  const bar = new Bar(search, camera, help);
  const page = new Page(root, natural, camera, bar, help);
  const pointers = new Pointers(root, camera, bar, (target) => {
    const el = target.closest(".node");
    highlight.pin(el ? graph.nodes.get(el.dataset.node) : null);
    if (highlight.pinned) camera.centre(highlight.pinned);
  });
  listenToHover(graph, highlight, pointers);
  listenToKeys(root, camera, highlight, search, root === document.documentElement);
  addEventListener("resize", () => page.place());
  // A frame that is still hidden gets its size later, without an event.
  new ResizeObserver(() => page.isLive() && page.place()).observe(root);
  addEventListener("beforeprint", () => page.plain());
  addEventListener("afterprint", () => { page.live(); search.run(); highlight.restore(); });
  page.live();
  camera.start();
})();
