// Memory over time: curves of live and resident memory and of the allocation rate, and a table of
// the live bytes at the chosen moment.
const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 31536000];
const TIME_UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 0.001]];

// Formats a time in the unit that suits `size`, which is the axis's step or the time itself.
function timeText(seconds, size) {
  const [unit, factor] = TIME_UNITS.find(([, f]) => size >= f) || TIME_UNITS[4];
  const value = Number((seconds / factor).toPrecision(size === seconds ? 3 : 6));
  return seconds ? `${value} ${unit}` : "0";
}
// Returns the marks of an axis of bytes: round values, up to the first that is at least `most`.
function byteMarks(most) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(most, 1)) / Math.log(1024)));
  const rough = most / unit / 5;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const step = Math.max([1, 2, 2.5, 5, 10].find((s) => s * power >= rough) * power * unit, 1);
  const marks = [0];
  while (marks[marks.length - 1] < most) marks.push(marks[marks.length - 1] + step);
  return marks;
}

// The two charts. Calls `pick(i)` with the index of the chosen table.
class TimelineChart {
  constructor(timeline, panel, pick) {
    this.timeline = timeline;
    this.pick = pick;
    this.chosen = 0;
    this.shown = { live: true, resident: true };
    this.svg = this.shape("svg", { tabindex: "0", role: "slider", "aria-label": "moment", "aria-valuemin": "0" });
    this.svg.addEventListener("click", (e) => this.choose(this.nearestTable(this.timeAt(e))));
    this.svg.addEventListener("pointermove", (e) => this.hover(this.nearestPoint(this.timeAt(e))));
    this.svg.addEventListener("pointerleave", () => this.hover(-1));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    this.says = make("p", "", { class: "moment", role: "status" });
    panel.append(make("div", "", { class: "timeline" }, this.svg), this.says);
    window.addEventListener("resize", () => this.draw());
  }
  shape(name, attributes, text) {
    const el = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
    if (text) el.textContent = text;
    return el;
  }
  timeAt(e) {
    const box = this.svg.getBoundingClientRect();
    return ((e.clientX - box.left - this.left) / this.inner) * this.length;
  }
  // Index of the item nearest to a time.
  nearest(items, seconds, time) {
    let best = 0;
    items.forEach((item, i) => {
      if (Math.abs(time(item) - seconds) < Math.abs(time(items[best]) - seconds)) best = i;
    });
    return best;
  }
  nearestPoint(time) {
    return this.nearest(this.timeline.points, time, (p) => p[0]);
  }
  nearestTable(time) {
    return this.nearest(this.timeline.tables, time, (t) => this.timeline.points[t.at][0]);
  }
  key(e) {
    const last = this.timeline.tables.length - 1;
    const to = { ArrowLeft: this.chosen - 1, ArrowRight: this.chosen + 1, Home: 0, End: last }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    this.choose(Math.max(0, Math.min(last, to)));
  }
  choose(i) {
    this.chosen = i;
    this.draw();
    this.pick(i);
  }
  toggle(key) {
    this.shown[key] = !this.shown[key];
    this.draw();
  }
  x(seconds) {
    return this.left + (seconds / this.length) * this.inner;
  }
  draw() {
    const width = this.svg.parentNode.clientWidth;
    if (!width) return;
    const { points } = this.timeline;
    const height = Math.max(180, Math.min(320, window.innerHeight * 0.32));
    [this.left, this.inner] = [78, width - 78 - 16];
    this.length = points[points.length - 1][0] || 1e-3;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height + 116}`);
    this.svg.setAttribute("height", height + 116);
    this.svg.replaceChildren();
    this.memory(20, height);
    this.rates(height + 30, 54);
    this.times(20, height + 84);
    this.cursor = this.shape("line", { class: "hover", y1: 20, y2: height + 84, visibility: "hidden" });
    this.svg.append(this.cursor);
    this.hover(-1);
  }
  add(name, attributes, text) {
    this.svg.append(this.shape(name, attributes, text));
  }
  // Draws a chart's axis between two heights. Returns a function that maps values to heights.
  values(top, bottom, most, format, marks) {
    const high = marks[marks.length - 1] || 1;
    const y = (value) => bottom - (value / high) * (bottom - top);
    for (const mark of marks) {
      this.add("line", { class: mark ? "grid" : "axis", x1: this.left, x2: this.left + this.inner, y1: y(mark), y2: y(mark) });
      this.add("text", { x: this.left - 8, y: y(mark) + 4, "text-anchor": "end" }, format(mark));
    }
    return y;
  }
  memory(top, bottom) {
    const { points, tables } = this.timeline;
    const { live, resident } = this.shown;
    const most = points.reduce((m, p) => Math.max(m, live ? p[1] : 0, resident ? p[3] || 0 : 0), 1);
    const y = this.values(top, bottom, most, bytes, byteMarks(most));
    this.add("text", { class: "title", x: this.left, y: top - 8 }, "Memory");
    const line = (key) => points.filter((p) => p[key] !== null).map((p) => `${this.x(p[0]).toFixed(1)},${y(p[key]).toFixed(1)}`).join(" ");
    if (live) {
      this.add("polygon", { class: "area", points: `${this.x(points[0][0])},${bottom} ${line(1)} ${this.x(this.length)},${bottom}` });
      this.add("polyline", { class: "live", points: line(1) });
    }
    if (resident) this.add("polyline", { class: "resident", points: line(3) });
    const at = points[tables.length ? tables[this.chosen].at : 0];
    if (tables.length) this.add("line", { class: "cursor", x1: this.x(at[0]), x2: this.x(at[0]), y1: top, y2: bottom + 84 });
    if (!live) return;
    tables.forEach((t, i) => {
      const p = points[t.at];
      const picked = i === this.chosen;
      this.add("circle", { class: picked ? "picked" : "known", cx: this.x(p[0]), cy: y(p[1]), r: picked ? 5 : 3 });
    });
  }
  // Bytes allocated per second between the previous point and this one.
  rate(i) {
    const [from, to] = [this.timeline.points[i - 1], this.timeline.points[i]];
    return from && to[0] > from[0] ? Math.max(0, to[2] - from[2]) / (to[0] - from[0]) : 0;
  }
  rates(top, height) {
    const { points } = this.timeline;
    const rates = points.map((_, i) => this.rate(i));
    const most = Math.max(1, ...rates);
    const bottom = top + height;
    const y = this.values(top, bottom, most, (v) => (v ? `${bytes(v)}/s` : "0"), [0, byteMarks(most).pop()]);
    this.add("text", { class: "title", x: this.left, y: top - 8 }, "Allocation rate");
    const steps = points.slice(1).map((p, i) => `H${this.x(points[i][0]).toFixed(1)}V${y(rates[i + 1]).toFixed(1)}H${this.x(p[0]).toFixed(1)}`);
    this.add("path", { class: "rate", d: `M${this.left},${bottom}${steps.join("")}V${bottom}Z` });
  }
  times(top, bottom) {
    const step = TIME_STEPS.find((s) => this.length / s <= Math.max(2, this.inner / 90)) || this.length;
    for (let at = 0; at <= this.length * 1.0001; at += step) {
      const x = this.x(at);
      this.add("line", { class: "grid", x1: x, x2: x, y1: bottom, y2: bottom + 5 });
      this.add("text", { x, y: bottom + 18, "text-anchor": "middle" }, timeText(at, step));
    }
    this.add("line", { class: "grid", x1: this.left, x2: this.left, y1: top, y2: bottom });
  }
  // Shows the values of a point; -1: of the chosen moment.
  hover(i) {
    const { points, tables } = this.timeline;
    const known = tables.length ? tables[this.chosen].at : points.length - 1;
    const at = i < 0 ? known : i;
    const [seconds, live, allocated, resident] = points[at];
    this.cursor.setAttribute("visibility", i < 0 ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(seconds));
    const off = (this.timeline.errors || [])[at];
    const text = [`${bytes(live)}${off ? ` \u00b1${bytes(off)}` : ""} live`, resident === null ? "" : `${bytes(resident)} resident`, `${bytes(allocated)} allocated so far`, `${bytes(this.rate(at))}/s`];
    this.says.replaceChildren(make("b", `${timeText(seconds, seconds)} after the start: `), text.filter((t) => t).join(", "));
    if (i >= 0) return;
    this.svg.setAttribute("aria-valuemax", Math.max(0, tables.length - 1));
    this.svg.setAttribute("aria-valuenow", this.chosen);
    this.svg.setAttribute("aria-valuetext", this.says.textContent);
  }
}

// Returns the rows of both tables for a moment: live bytes then, and at the end.
function rowsAt(timeline, table) {
  const then = new Map(table.held || timeline.stacks.map((s, i) => [i, s.end]));
  // Variances of the live bytes at the moment and at the end, and of the change. Objects that are live
  // at both times contribute no error to the change, and the others cannot exceed the bytes freed in
  // the session. A table without stacks stands for the end.
  const variances = (s, held) => {
    if (!s.variance) return { thenVariance: 0, endVariance: 0, changeVariance: 0 };
    const lost = Math.min(held, s.freed || 0);
    const gained = Math.min(s.end, Math.max(0, s.end - held + lost));
    const end = s.end_variance || 0;
    const changed = s.variance * lost + (s.end ? (end * gained) / s.end : 0);
    return table.held
      ? { thenVariance: s.variance * held, endVariance: end, changeVariance: changed }
      : { thenVariance: end, endVariance: end, changeVariance: 0 };
  };
  const stacks = timeline.stacks.map((s, i) => ({
    frames: s.frames, own: s.own === undefined ? s.frames[0] : s.own, then: then.get(i) || 0, end: s.end, ...variances(s, then.get(i) || 0),
  }));
  const functions = timeline.names.map((name) => ({ name, then: 0, end: 0, cum: 0, link: true, thenVariance: 0, endVariance: 0, changeVariance: 0, cumVariance: 0 }));
  for (const s of stacks) {
    if (s.own === undefined) continue;
    for (const key of ["then", "end", "thenVariance", "endVariance", "changeVariance"]) functions[s.own][key] += s[key];
    for (const f of new Set(s.frames)) {
      functions[f].cum += s.then;
      functions[f].cumVariance += s.thenVariance;
    }
  }
  const ofRest = variances({ ...timeline.rest_errors, end: timeline.rest }, table.rest);
  const rest = { then: table.rest, end: timeline.rest, cum: table.rest, name: "(smaller stacks)", frames: null, ...ofRest, cumVariance: ofRest.thenVariance };
  const holds = (r) => r.then || r.end || r.cum;
  return { functions: [...functions, rest].filter(holds), stacks: [...stacks, rest].filter(holds) };
}

// The column with the sampling error of another column, if there is any. `from`: the amount that it comes from.
function timeError(isSampled, key, from) {
  if (!isSampled) return [];
  const off = (r) => halfWidth(from(r), r[`${key}Variance`]);
  return [{ key: `${key}Off`, label: "\u00b1", title: "95 % confidence", soft: true, value: off, text: (r) => bytes(off(r)) }];
}

// The columns that both tables have.
function timeHeads(whole, isSampled) {
  const change = (r) => r.end - r.then;
  return [
    { key: "then", label: "Then", title: "held at the moment that is chosen", value: (r) => r.then, text: (r) => bytes(r.then) },
    ...timeError(isSampled, "then", (r) => r.then),
    { key: "share", label: "Then%", title: "of all that was live then", soft: true, value: (r) => r.then, text: (r) => share(r.then, whole()) },
    { key: "end", label: "At the end", title: "held when the dump was taken", value: (r) => r.end, text: (r) => bytes(r.end) },
    ...timeError(isSampled, "end", (r) => r.end),
    {
      key: "change", label: "Change", title: "from then to the end", value: change,
      cell: (td, r) => {
        td.textContent = (change(r) > 0 ? "+" : "") + bytes(change(r));
        if (change(r)) td.classList.add(change(r) > 0 ? "more" : "less");
      },
    },
    ...timeError(isSampled, "change", (r) => r.then + r.end),
  ];
}

function timeTab(page, panel) {
  const timeline = page.data.time;
  if (timeline.why) {
    panel.append(remark(`${timeline.why[0].toUpperCase()}${timeline.why.slice(1)}.`));
    return () => {};
  }
  panel.append(remark("Live is what was allocated in this session and not freed yet; resident is all memory of the process. A circle is a moment at which it is known what each stack held: click near one, or use the arrow keys."));
  if (page.data.compared) panel.append(remark(OF_THE_DUMP));
  const tools = make("div", "", { class: "tools" });
  panel.append(tools);
  let whole = 0;
  let fill = () => {};
  const chart = new TimelineChart(timeline, panel, (i) => fill(i));
  const key = (name, text) => {
    const b = make("button", text, { type: "button", class: `key ${name}`, "aria-pressed": String(chart.shown[name]) });
    b.addEventListener("click", () => {
      chart.toggle(name);
      b.setAttribute("aria-pressed", String(chart.shown[name]));
    });
    return b;
  };
  // Hides resident memory at first if the live memory that was seen would be a flat line beside it.
  const most = (column) => timeline.points.reduce((m, p) => Math.max(m, p[column] || 0), 0);
  chart.shown.resident = most(3) > 0 && most(1) * 20 >= most(3);
  tools.append(key("live", "Live"), most(3) ? key("resident", "Resident") : "");
  if (!timeline.tables.length) {
    panel.append(remark("The dump has no moment with the values of stacks."));
    return () => chart.draw();
  }
  const isSampled = Boolean(timeline.errors);
  const heads = timeHeads(() => whole, isSampled);
  const cum = { key: "cum", label: "Cum then", title: "with what it called, at that moment", soft: true, value: (r) => r.cum, text: (r) => bytes(r.cum) };
  const name = {
    key: "name", label: "Function", words: true, value: (r) => r.name,
    cell: (td, r) => {
      if (!r.link) return td.append(r.name);
      const b = make("button", r.name, { type: "button", class: "link", title: "show in the flame graph" });
      b.addEventListener("click", () => page.find(literal(r.name)));
      td.append(b);
    },
  };
  const names = (r) => (r.frames ? r.frames.map((f) => timeline.names[f]) : [r.name]);
  // From the function that owns the stack on.
  const fromOwn = (r) => names(r).slice(r.frames ? Math.max(0, r.frames.indexOf(r.own)) : 0);
  const stack = {
    key: "stack", label: "Stack", words: true, value: (r) => fromOwn(r)[0] || "",
    cell: (td, r) => {
      const list = make("ol");
      for (const frame of names(r)) list.append(make("li", frame));
      td.append(make("details", "", {}, make("summary", fromOwn(r).slice(0, 3).join(" ← ") || "no frames"), list));
    },
  };
  const parts = { functions: make("div"), stacks: make("div", "", { hidden: "" }) };
  tools.append(choice("rows", [["functions", "Functions"], ["stacks", "Stacks"]], "functions", (chosen) => {
    for (const [part, el] of Object.entries(parts)) el.hidden = part !== chosen;
  }));
  panel.append(...Object.values(parts));
  if (timeline.filtered) panel.append(remark("The filters leave out stacks from the table; the curves are of the whole process."));
  const functions = sortableTable(parts.functions, [...heads, cum, ...timeError(isSampled, "cum", (r) => r.cum), name], "then", (r) => r.name);
  const stacks = sortableTable(parts.stacks, [...heads, stack], "then", (r) => names(r).join("\n"));
  fill = (i) => {
    const table = timeline.tables[i];
    whole = timeline.points[table.at][1];
    const rows = rowsAt(timeline, table);
    functions(rows.functions);
    stacks(rows.stacks);
  };
  // Shows the peak first. If the end is nearly as high, shows the middle of the session, to see growth.
  const live = (t) => timeline.points[t.at][1];
  const [duration, last] = timeline.points[timeline.points.length - 1];
  timeline.tables.forEach((t, i) => {
    if (live(t) > live(timeline.tables[chart.chosen])) chart.chosen = i;
  });
  if (live(timeline.tables[chart.chosen]) <= last * 1.05) chart.chosen = chart.nearestTable(duration / 2);
  return () => chart.choose(chart.chosen);
}

TABS.push({ key: "time", label: "Time", full: false, build: timeTab });
