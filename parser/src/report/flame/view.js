// Draws a tree of frames into an SVG element and lets people walk through it. Of the tree only
// what is on the screen becomes elements. Names are written as text only.
//
// `data` is what data.rs describes. `options.title`: lines shown above the frames. The graph is
// shown once attached; `show(column, rule)` selects what the widths are.
function flameGraph(root, data, options) {
  const NS = "http://www.w3.org/2000/svg";
  const HTML = "http://www.w3.org/1999/xhtml";
  const ROW = 18;
  const TOP = 62;
  const EDGE = 10;
  const STEPS = 8; // of the colours of a change

  const svg = (name, attributes) => element(NS, name, "", attributes);
  const html = (name, text, attributes) => element(HTML, name, text, attributes);
  function element(space, name, text, attributes) {
    const el = document.createElementNS(space, name);
    if (text) el.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
    return el;
  }

  // --- numbers, as the tables print them
  const at = { column: 0, rule: data.rule, down: false, inverted: false, zoom: 0, scroll: 0, pick: -1 };
  const column = () => data.columns[at.column];
  const compared = () => Boolean(column().minus) && (at.rule === "change" || at.rule === "larger");
  const number = (value) => scaled(value, column().scales);
  // What 100 % is, under the rule of how wide a frame is.
  const total = () => column().totals[at.rule];
  const signed = (value) => (compared() && value > 0 ? "+" : "") + number(value);

  // --- the tree as it is shown
  let tree = null;
  function rebuild() {
    const { own, net } = weigh(column(), at.rule);
    tree = at.inverted ? invert(data, own, net) : lay(data.parent, data.name, own, net);
    at.zoom = 0;
    at.scroll = 0;
    at.pick = -1;
    match();
  }
  const nameOf = (i) => {
    const name = tree.name[i];
    return name === ALL ? "all" : name === FEW ? "smaller frames" : data.names[name];
  };
  function tint(i) {
    if (compared()) {
      const part = tree.width[i] ? Math.min(1, Math.abs(tree.sum[i]) / tree.width[i]) : 0;
      const step = Math.round(Math.sqrt(part) * STEPS);
      return step === 0 ? "g" : (tree.sum[i] < 0 ? "m" : "p") + step;
    }
    return tree.name[i] < 0 ? "g" : data.tints[tree.name[i]];
  }

  // --- drawing
  const layer = svg("g", { class: "frames" });
  const thumb = svg("rect", { class: "thumb", width: 5, rx: 2 });
  const pen = html("canvas").getContext("2d");
  pen.font = "12px " + (root.getAttribute("font-family") || "sans-serif");
  const widths = new Map();
  function letter(c) {
    if (!widths.has(c)) widths.set(c, pen.measureText(c).width);
    return widths.get(c);
  }
  function fit(text, space) {
    let used = 0;
    let shown = "";
    let fits = ""; // what leaves room for the dots
    for (const c of text) {
      used += letter(c);
      if (used > space) return [...fits].length >= 3 ? fits + "…" : "";
      shown += c;
      if (used + letter("…") <= space) fits = shown;
    }
    return text;
  }
  let size = { w: 0, h: 0 };
  let high = 0; // height of all rows of what is zoomed to
  function isBelow(i, top) {
    while (tree.depth[i] > tree.depth[top]) i = tree.parent[i];
    return i === top;
  }
  function visible(row) {
    // The frames of a row inside the zoomed one; a row is ordered by x.
    const [from, to] = [tree.x[at.zoom], tree.x[at.zoom] + tree.width[at.zoom]];
    let [low, top] = [0, row.length];
    while (low < top) {
      const middle = (low + top) >> 1;
      if (tree.x[row[middle]] + tree.width[row[middle]] / 2 < from) low = middle + 1;
      else top = middle;
    }
    const out = [];
    const least = (0.4 / (size.w - 2 * EDGE)) * tree.width[at.zoom];
    for (; low < row.length && tree.x[row[low]] < to; low++) {
      if (tree.width[row[low]] >= least) out.push(row[low]);
    }
    return out;
  }
  function yOf(depth) {
    const room = size.h - TOP - EDGE;
    if (at.down) return TOP + depth * ROW - at.scroll;
    return TOP + Math.min(room, high) - (depth + 1) * ROW + at.scroll;
  }
  function box(i, under) {
    const scale = (size.w - 2 * EDGE) / tree.width[at.zoom];
    const x = under ? EDGE : EDGE + (tree.x[i] - tree.x[at.zoom]) * scale;
    const w = under ? size.w - 2 * EDGE : tree.width[i] * scale;
    const y = yOf(tree.depth[i]);
    const marks = `frame ${tint(i)}${under ? " under" : ""}${i === at.pick ? " pick" : ""}`;
    const g = svg("g", { class: marks + (hits && hits.marked[i] ? " hit" : ""), "data-i": i });
    g.append(svg("rect", { x, y, width: Math.max(0.4, w - 0.6), height: ROW - 1 }));
    const label = w > 24 ? fit(nameOf(i), w - 7) : "";
    if (label) {
      const text = svg("text", { x: x + 3.5, y: y + ROW * 0.7 });
      text.textContent = label;
      g.append(text);
    }
    layer.append(g);
  }
  function draw() {
    if (!layer.isConnected) return;
    const b = root.getBoundingClientRect();
    size = { w: Math.max(120, b.width), h: Math.max(TOP + 4 * ROW, b.height) };
    layer.replaceChildren();
    if (!tree.width[0]) return empty();
    let deep = tree.depth[at.zoom];
    while (tree.rows[deep + 1] && visible(tree.rows[deep + 1]).length) deep++;
    high = (deep + 1) * ROW;
    const room = size.h - TOP - EDGE;
    at.scroll = Math.max(0, Math.min(at.scroll, high - room));
    const onScreen = (depth) => yOf(depth) > TOP - ROW && yOf(depth) < size.h;
    for (let i = at.zoom; i !== 0; ) {
      i = tree.parent[i];
      if (onScreen(tree.depth[i])) box(i, true);
    }
    for (let depth = tree.depth[at.zoom]; depth <= deep; depth++) {
      if (onScreen(depth)) for (const i of visible(tree.rows[depth])) box(i, false);
    }
    const part = room / high;
    thumb.setAttribute("visibility", part < 1 ? "visible" : "hidden");
    thumb.setAttribute("x", size.w - 7);
    const free = room * (1 - Math.min(1, part));
    const way = part < 1 ? at.scroll / (high - room) : 0;
    thumb.setAttribute("y", TOP + free * (at.down ? way : 1 - way));
    thumb.setAttribute("height", Math.max(20, room * Math.min(1, part)));
    for (const [el, w, h] of [[hud, size.w, TOP], [tipbox, size.w, size.h]]) {
      el.setAttribute("width", w);
      el.setAttribute("height", h);
    }
    buttons.whole.disabled = at.zoom === 0 && at.scroll === 0;
  }
  function empty() {
    const text = svg("text", { x: EDGE, y: TOP + 20 });
    text.textContent = "Nothing to show: the profile has no samples in this view.";
    layer.append(text);
    hud.setAttribute("width", size.w);
    hud.setAttribute("height", TOP);
  }

  // --- search: frames by pattern, and what they hold together
  let pattern = null;
  let hits = null;
  function match() {
    hits = null;
    count.textContent = "";
    root.classList.toggle("seek", Boolean(pattern));
    if (!pattern) return;
    const found = data.names.map((name) => pattern.test(name));
    const marked = new Uint8Array(tree.parent.length);
    const covered = new Uint8Array(tree.parent.length);
    let [sum, frames] = [0, 0];
    for (let i = 1; i < marked.length; i++) {
      // What a match called is counted with it, and once.
      covered[i] = covered[tree.parent[i]];
      if (tree.name[i] < 0 || !found[tree.name[i]] || !tree.width[i]) continue;
      marked[i] = 1;
      frames++;
      if (!covered[i]) sum += tree.width[i];
      covered[i] = 1;
    }
    hits = { marked, sum, frames };
    count.textContent = `${share(sum, tree.width[0])} matched, ${frames} frame${frames === 1 ? "" : "s"}`;
  }
  function search(text) {
    pattern = null;
    field.removeAttribute("data-bad");
    let bad = false;
    try {
      pattern = text ? new RegExp(text, "i") : null;
    } catch (error) {
      bad = true;
      field.setAttribute("data-bad", "");
    }
    match();
    if (bad) count.textContent = "not a pattern";
    draw();
  }

  // --- what a frame is, beside the pointer
  const tipbox = svg("foreignObject", { class: "tipbox", x: 0, y: 0 });
  const tip = html("div", "", { class: "flame-tip", role: "status" });
  tipbox.append(tip);
  function describe(i) {
    const lines = [];
    lines.push(`${signed(tree.sum[i])} (${share(tree.sum[i], total())} of ${number(total())})`);
    if (compared() && at.rule === "larger") lines.push(beforeAndAfter(i));
    if (!at.inverted && tree.net[i] && tree.net[i] !== tree.sum[i]) {
      lines.push(`itself ${signed(tree.net[i])} (${share(tree.net[i], total())})`);
    }
    if (i !== 0 && tree.parent[i] !== 0) {
      const whole = tree.width[tree.parent[i]];
      lines.push(`${share(tree.width[i], whole)} of ${at.inverted ? "what is above it" : "its caller"}`);
    }
    const off = error(i);
    if (off) lines.push(`± ${number(off)} at 95 %`);
    if (tree.name[i] === FEW) lines.push("each too small to be shown by itself");
    return lines;
  }
  // How far a value may be off. Variances are those of both sides of a comparison together.
  function error(i) {
    const own = column().variance;
    const oneSide = Boolean(column().minus) && (at.rule === "now" || at.rule === "base");
    if (!own || at.inverted || oneSide) return 0;
    if (!tree.variance) {
      tree.variance = Float64Array.from(own);
      for (let f = own.length - 1; f > 0; f--) tree.variance[tree.parent[f]] += tree.variance[f];
    }
    return halfWidth(tree.sum[i], tree.variance[i]);
  }
  // With the larger one as width, neither before nor now can be told from it.
  function beforeAndAfter(i) {
    if (at.inverted) return `${share(tree.sum[i], tree.width[i])} changed`;
    if (!tree.before) {
      tree.before = Float64Array.from(column().minus);
      for (let f = tree.before.length - 1; f > 0; f--) tree.before[tree.parent[f]] += tree.before[f];
    }
    return `now ${number(tree.before[i] + tree.sum[i])}, before ${number(tree.before[i])}`;
  }
  function showTip(i, x, y) {
    tip.replaceChildren(html("b", nameOf(i)), ...describe(i).map((line) => html("div", line)));
    root.append(tipbox);
    const b = tip.getBoundingClientRect();
    const k = tip.offsetWidth ? b.width / tip.offsetWidth : 1;
    const [w, h] = [b.width / k, b.height / k];
    tip.style.marginLeft = `${Math.max(4, Math.min(x + 14, size.w - w - 8))}px`;
    tip.style.marginTop = `${Math.max(4, y + 18 + h > size.h ? y - h - 10 : y + 18)}px`;
  }
  const hideTip = () => tipbox.remove();

  // --- moving
  function zoom(i) {
    at.zoom = i;
    at.pick = -1;
    if (tree.depth[i] * ROW > size.h - TOP - 6 * ROW) at.scroll = tree.depth[i] * ROW - 3 * ROW;
    else at.scroll = 0;
    hideTip();
    draw();
  }
  function reset() {
    zoom(0);
  }
  function pick(i) {
    if (i === undefined || i < 0) return;
    at.pick = i;
    const room = size.h - TOP - EDGE;
    const below = tree.depth[i] * ROW; // from the root's edge
    at.scroll = Math.max(Math.min(at.scroll, below), below + ROW - room);
    draw();
    const el = layer.querySelector(".pick rect");
    if (!el) return;
    const w = Number(el.getAttribute("width"));
    showTip(i, Number(el.getAttribute("x")) + Math.min(w / 2, 60), Number(el.getAttribute("y")));
  }
  function step(way) {
    const i = at.pick < 0 ? at.zoom : at.pick;
    if (at.pick < 0) return pick(i);
    const row = tree.depth[i] >= tree.depth[at.zoom] ? visible(tree.rows[tree.depth[i]]) : [i];
    const seen = new Set(way === "callee" ? visible(tree.rows[tree.depth[i] + 1] || []) : []);
    const moves = {
      caller: () => (i === 0 ? i : tree.parent[i]),
      callee: () => (tree.callees[i] || []).find((c) => seen.has(c) || isBelow(at.zoom, c)),
      left: () => row[row.indexOf(i) - 1],
      right: () => row[row.indexOf(i) + 1],
    };
    pick(moves[way]());
  }
  function turn(what) {
    at[what] = !at[what];
    at.scroll = 0;
    hideTip();
    if (what === "inverted") rebuild();
    press();
    draw();
  }

  // --- controls
  const hud = svg("foreignObject", { class: "hud", x: 0, y: 0, height: TOP });
  const bar = html("div", "", { class: "flame-bar" });
  const what = html("span", "", { class: "what" });
  const note = html("div", "", { class: "flame-note" });
  const count = html("span", "", { class: "count", role: "status" });
  const field = html("input", "", {
    type: "text", placeholder: "search (regex)", "aria-label": "search", spellcheck: "false", title: "search (/)",
  });
  const buttons = {};
  bar.append(what);
  function button(key, text, label, action) {
    const el = html("button", text, { type: "button", title: label });
    el.addEventListener("click", action);
    buttons[key] = el;
    bar.append(el);
  }
  bar.append(count, field);
  button("down", "Root on top", "callers above what they call (i)", () => turn("down"));
  button("inverted", "Callees first", "allocating functions at the root, their callers on them (v)", () => turn("inverted"));
  button("whole", "Reset", "show everything (Escape)", reset);
  hud.append(bar, note);
  function press() {
    for (const key of ["down", "inverted"]) buttons[key].setAttribute("aria-pressed", String(at[key]));
  }
  function caption() {
    const lines = (options && options.title) || [];
    what.replaceChildren(html("b", signed(tree.sum[0])), ` ${column().kind}`);
    what.title = lines.join("\n");
    // What fits on a line; all of them are in its tooltip.
    const first = /^(File|Dump|Filter|Merged|Colours|[0-9])/;
    note.textContent = lines.filter((line) => first.test(line)).join("  ·  ");
    note.title = lines.join("\n");
  }
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (e) => {
    e.stopPropagation();
    if (e.key !== "Escape") return;
    field.value = "";
    search("");
    field.blur();
  });
  const frameAt = (e) => {
    const g = e.target instanceof Element && e.target.closest(".frame");
    return g && layer.contains(g) ? Number(g.getAttribute("data-i")) : -1;
  };
  root.addEventListener("click", (e) => {
    const i = frameAt(e);
    if (i >= 0 && tree.name[i] !== FEW) zoom(i === at.zoom && i !== 0 ? tree.parent[i] : i);
  });
  root.addEventListener("pointermove", (e) => {
    const i = frameAt(e);
    const b = root.getBoundingClientRect();
    if (i >= 0) showTip(i, e.clientX - b.left, e.clientY - b.top);
    else hideTip();
  });
  root.addEventListener("pointerleave", hideTip);
  root.addEventListener("wheel", (e) => {
    const room = size.h - TOP - EDGE;
    if (high <= room || e.ctrlKey) return;
    e.preventDefault();
    const unit = e.deltaMode === 1 ? ROW : e.deltaMode === 2 ? room : 1;
    at.scroll += e.deltaY * unit * (at.down ? 1 : -1);
    hideTip();
    draw();
  }, { passive: false });
  document.addEventListener("keydown", (e) => {
    const typing = e.target instanceof Element && e.target.closest("input, textarea, select");
    if (typing || e.ctrlKey || e.metaKey || e.altKey || !layer.getClientRects || !layer.isConnected) return;
    if (!root.getClientRects().length) return;
    const vertical = (up) => step(up === at.down ? "caller" : "callee");
    const page = (by) => { at.scroll += by * (size.h - TOP - 3 * ROW) * (at.down ? 1 : -1); draw(); };
    const actions = {
      "/": () => field.focus(),
      Escape: () => { if (at.pick >= 0) { at.pick = -1; hideTip(); draw(); } else reset(); },
      0: reset,
      i: () => turn("down"),
      v: () => turn("inverted"),
      Backspace: () => zoom(tree.parent[at.zoom]),
      ArrowUp: () => vertical(true),
      ArrowDown: () => vertical(false),
      ArrowLeft: () => step("left"),
      ArrowRight: () => step("right"),
      PageUp: () => page(-1),
      PageDown: () => page(1),
    };
    if (at.pick >= 0) actions.Enter = () => { if (tree.name[at.pick] !== FEW) zoom(at.pick); };
    const onButton = e.target instanceof Element && e.target.closest("button") && e.key === "Enter";
    const action = !onButton && actions[e.key];
    if (action) {
      e.preventDefault();
      action();
    }
  });
  addEventListener("resize", draw);
  rebuild();
  press();

  return {
    attach() {
      root.classList.add("live");
      root.append(layer, thumb, hud);
      caption();
      draw();
    },
    detach() {
      for (const el of [layer, thumb, hud, tipbox]) el.remove();
      root.classList.remove("live", "seek");
    },
    show(index, rule) {
      at.column = index;
      at.rule = rule;
      rebuild();
      caption();
      draw();
    },
    find(text) {
      field.value = text;
      search(text);
    },
    redraw: draw,
  };
}
