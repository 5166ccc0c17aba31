"use strict";
// Makes the picture a map: drag and wheel move it, hovering a box shows its callers and callees,
// a click centres it, the search field marks names. Everything of the profile is read as text
// (textContent, data attributes) and written back as text only.
(function () {
  const NS = "http://www.w3.org/2000/svg";
  const HTML = "http://www.w3.org/1999/xhtml";
  const script = document.currentScript;
  const root = (script && script.closest("svg")) || document.documentElement;
  const view = root.querySelector(".view");
  const natural = { w: root.viewBox.baseVal.width, h: root.viewBox.baseVal.height };
  const alone = root === document.documentElement;

  // --- the graph, as the picture states it
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

  // --- pan and zoom: one transform of the view
  const at = { x: 0, y: 0, k: 1 };
  let moved = false; // whether the user has chosen a place, which a resize must not undo
  const box = () => root.getBoundingClientRect();
  function apply() {
    view.setAttribute("transform", `translate(${at.x} ${at.y}) scale(${at.k})`);
  }
  function fit() {
    const b = box();
    at.k = Math.min(b.width / natural.w, b.height / natural.h);
    // A tall picture is read from its top at a readable size, not shrunk to a thread.
    at.k = Math.min(1.5, Math.max(at.k, Math.min(0.75, b.width / natural.w)));
    at.x = Math.max(0, (b.width - natural.w * at.k) / 2);
    at.y = Math.max(0, (b.height - natural.h * at.k) / 2);
    moved = false;
    apply();
  }
  function whole() {
    const b = box();
    at.k = Math.min(b.width / natural.w, b.height / natural.h);
    at.x = (b.width - natural.w * at.k) / 2;
    at.y = (b.height - natural.h * at.k) / 2;
    moved = true;
    apply();
  }
  function zoom(factor, x, y) {
    const b = box();
    if (x === undefined) [x, y] = [b.width / 2, b.height / 2];
    const k = Math.min(12, Math.max(0.02, at.k * factor));
    at.x = x - ((x - at.x) * k) / at.k;
    at.y = y - ((y - at.y) * k) / at.k;
    at.k = k;
    moved = true;
    apply();
  }
  let flight = 0;
  function centre(node) {
    const r = node.el.querySelector("rect").getBBox();
    const b = box();
    const k = Math.max(at.k, 0.8);
    const to = { x: b.width / 2 - (r.x + r.width / 2) * k, y: b.height / 2 - (r.y + r.height / 2) * k, k };
    const from = { ...at };
    const start = performance.now();
    const mine = ++flight;
    moved = true;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    (function step(now) {
      if (mine !== flight) return;
      const t = still ? 1 : Math.min(1, Math.max(0, (now - start) / 220));
      const s = t * t * (3 - 2 * t);
      for (const key of ["x", "y", "k"]) at[key] = from[key] + (to[key] - from[key]) * s;
      apply();
      if (t < 1) requestAnimationFrame(step);
    })(start);
  }

  // --- highlight: a box with its arrows and what they lead to, or one arrow with both ends
  let pinned = null;
  let lit = [];
  function light(elements, self) {
    for (const el of lit) el.classList.remove("on", "self", "in", "out");
    lit = elements.map((e) => e[0]);
    for (const [el, ...marks] of elements) el.classList.add("on", ...marks);
    root.classList.toggle("focus", lit.length > 0);
    if (self) self.classList.add("self");
  }
  function lightNode(node) {
    const all = [[node.el]];
    for (const e of node.edges) {
      const out = e.from === node;
      all.push([e.el, out ? "out" : "in"], [(out ? e.to : e.from).el]);
    }
    light(all, node.el);
  }
  function restore() {
    if (pinned) lightNode(pinned);
    else light([], null);
  }
  for (const node of nodes.values()) {
    node.el.addEventListener("pointerenter", () => !drag && lightNode(node));
    node.el.addEventListener("pointerleave", () => !drag && restore());
  }
  for (const edge of edges) {
    edge.el.addEventListener("pointerenter", () => {
      if (!drag) light([[edge.el], [edge.from.el], [edge.to.el]], null);
    });
    edge.el.addEventListener("pointerleave", () => !drag && restore());
  }

  // --- pointers: one drags, two pinch
  const pointers = new Map();
  let drag = null;
  root.addEventListener("pointerdown", (e) => {
    if (e.button !== 0 || (hud && hud.contains(e.target))) return;
    flight++;
    pointers.set(e.pointerId, e);
    drag = { x: e.clientX, y: e.clientY, far: false, target: e.target };
  });
  root.addEventListener("pointermove", (e) => {
    const before = pointers.get(e.pointerId);
    if (!before) return;
    if (pointers.size === 2) {
      const [other] = [...pointers.values()].filter((p) => p.pointerId !== e.pointerId);
      const d = (p) => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY);
      const b = box();
      if (d(before) > 0) {
        zoom(d(e) / d(before), (e.clientX + other.clientX) / 2 - b.left, (e.clientY + other.clientY) / 2 - b.top);
      }
    } else if (drag) {
      if (!drag.far && Math.hypot(e.clientX - drag.x, e.clientY - drag.y) > 4) {
        drag.far = true;
        root.setPointerCapture(e.pointerId);
        root.classList.add("grab");
      }
      if (drag.far) {
        at.x += e.clientX - before.clientX;
        at.y += e.clientY - before.clientY;
        moved = true;
        apply();
      }
    }
    if (!drag || drag.far || pointers.size === 2) pointers.set(e.pointerId, e);
  });
  function release(e) {
    if (!pointers.delete(e.pointerId)) return;
    root.classList.remove("grab");
    const was = drag;
    drag = null;
    if (!was || was.far || e.type === "pointercancel") return;
    const el = was.target.closest(".node");
    pinned = el ? nodes.get(el.dataset.node) : null;
    restore();
    if (pinned) centre(pinned);
  }
  root.addEventListener("pointerup", release);
  root.addEventListener("pointercancel", release);
  root.addEventListener("wheel", (e) => {
    if (hud && hud.contains(e.target)) return;
    e.preventDefault();
    flight++;
    const b = box();
    const unit = e.deltaMode === 1 ? 16 : e.deltaMode === 2 ? b.height : 1;
    if (e.shiftKey) {
      at.x -= (e.deltaX || e.deltaY) * unit;
      moved = true;
      apply();
    } else {
      zoom(Math.exp((-e.deltaY * unit) / 400), e.clientX - b.left, e.clientY - b.top);
    }
  }, { passive: false });

  // --- search
  let hits = [];
  let current = -1;
  function search(pattern) {
    for (const n of nodes.values()) n.el.classList.remove("hit");
    hits = [];
    current = -1;
    field.removeAttribute("data-bad");
    if (pattern) {
      let expression;
      try {
        expression = new RegExp(pattern, "i");
      } catch (error) {
        field.setAttribute("data-bad", "");
        count.textContent = "not a pattern";
        root.classList.remove("seek");
        return;
      }
      hits = [...nodes.values()].filter((n) => expression.test(n.text));
      hits.sort((a, b) => b.cum - a.cum); // Enter visits the heaviest first
      for (const n of hits) n.el.classList.add("hit");
    }
    root.classList.toggle("seek", pattern !== "");
    const flat = 100 * Math.min(1, hits.reduce((sum, n) => sum + n.flat, 0));
    count.textContent = pattern ? `${hits.length} of ${nodes.size}, flat ${flat.toFixed(1)}%` : "";
  }
  function next(by) {
    if (!hits.length) return;
    current = (current + by + hits.length) % hits.length;
    count.textContent = `${current + 1} / ${hits.length}`;
    centre(hits[current]);
  }

  // --- buttons and search field, at a fixed place of the window
  function html(name, text, attributes) {
    const el = document.createElementNS(HTML, name);
    el.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
    return el;
  }
  const hud = document.createElementNS(NS, "foreignObject");
  hud.setAttribute("class", "hud");
  hud.setAttribute("width", "520");
  hud.setAttribute("height", "44");
  const bar = html("div", "", { class: "bar" });
  const field = html("input", "", { type: "text", placeholder: "search (regex)", "aria-label": "search", spellcheck: "false" });
  const count = html("span", "", { class: "count", role: "status" });
  const button = (text, label, action) => {
    const el = html("button", text, { type: "button", title: label, "aria-label": label });
    el.addEventListener("click", action);
    bar.append(el);
  };
  bar.append(count, field);
  button("−", "zoom out (-)", () => zoom(1 / 1.3));
  button("+", "zoom in (+)", () => zoom(1.3));
  button("1:1", "start view (0)", fit);
  button("all", "whole picture (a)", whole);
  hud.append(bar);
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (e) => {
    e.stopPropagation();
    if (e.key === "Enter") next(e.shiftKey ? -1 : 1);
    if (e.key === "Escape") {
      field.value = "";
      search("");
      field.blur();
    }
  });
  document.addEventListener("keydown", (e) => {
    const typing = e.target instanceof Element && e.target.closest("input, textarea, select");
    if (typing || e.ctrlKey || e.metaKey || e.altKey || !root.getClientRects().length) return;
    const step = 60;
    const actions = {
      "/": () => field.focus(),
      Escape: () => { pinned = null; restore(); },
      "+": () => zoom(1.3),
      "=": () => zoom(1.3),
      "-": () => zoom(1 / 1.3),
      0: fit,
      a: whole,
    };
    if (alone) {
      const pan = (dx, dy) => () => { at.x += dx; at.y += dy; moved = true; apply(); };
      Object.assign(actions, {
        ArrowLeft: pan(step, 0), ArrowRight: pan(-step, 0), ArrowUp: pan(0, step), ArrowDown: pan(0, -step),
      });
    }
    const action = actions[e.key];
    if (action) {
      e.preventDefault();
      action();
    }
  });

  // --- on screen the picture fills its place; on paper it is the plain picture again
  const paper = root.querySelector(".paper");
  function live() {
    root.classList.add("live");
    root.removeAttribute("viewBox");
    root.setAttribute("width", "100%");
    root.setAttribute("height", "100%");
    paper.setAttribute("width", "100%");
    paper.setAttribute("height", "100%");
    root.append(hud);
    place();
    apply();
  }
  function plain() {
    root.classList.remove("live", "focus", "seek");
    hud.remove();
    root.setAttribute("viewBox", `0 0 ${natural.w} ${natural.h}`);
    root.setAttribute("width", natural.w);
    root.setAttribute("height", natural.h);
    paper.setAttribute("width", natural.w);
    paper.setAttribute("height", natural.h);
    view.removeAttribute("transform");
  }
  function place() {
    hud.setAttribute("x", Math.max(0, box().width - 530));
    hud.setAttribute("y", "8");
    if (!moved) fit();
  }
  addEventListener("resize", place);
  addEventListener("beforeprint", plain);
  addEventListener("afterprint", () => { live(); search(field.value); restore(); });
  live();
  fit();
})();
