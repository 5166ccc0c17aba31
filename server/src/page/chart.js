// Charts of memory over time. A line ends where nothing was measured.
import { make } from "./dom.js";
import { clock, duration, size } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
// Points that are farther apart are not joined: multiple of the median distance of points, but at
// least this time in ms.
const GAP_FACTOR = 4;
const MIN_GAP_MS = 45000;
// Minimum number of successive points without a value that interrupt a line.
const MIN_MISSED = 2;
// Columns of a point.
const [TIME, LIVE, RSS] = [0, 1, 2];

export function draw(name, attributes, ...children) {
  const el = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

// Returns the maximum time between two points that a line joins.
function longestStep(points) {
  const steps = points.slice(1).map((p, i) => p[TIME] - points[i][TIME]).sort((a, b) => a - b);
  return Math.max(MIN_GAP_MS, GAP_FACTOR * (steps[steps.length >> 1] || 0));
}

// Returns the known points of a column: for each line, a list of "x,y".
export function lines(points, column, x, y) {
  const longest = longestStep(points);
  const all = [];
  let [last, missed] = [null, 0];
  for (const p of points) {
    if (p[column] === null) {
      missed++;
      continue;
    }
    if (!last || missed >= MIN_MISSED || p[TIME] - last[TIME] > longest) all.push([]);
    all[all.length - 1].push(`${x(p[TIME]).toFixed(1)},${y(p[column]).toFixed(1)}`);
    [last, missed] = [p, 0];
  }
  return all.filter((line) => line.length > 1);
}

function scale(from, to, length) {
  return (value) => (to > from ? ((value - from) / (to - from)) * length : length);
}

const ends = (points) => [points.length ? points[0][TIME] : 0, points.length ? points[points.length - 1][TIME] : 0];

// Returns a sparkline of the resident memory.
export function spark(points) {
  const [width, height] = [150, 30];
  const svg = draw("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" });
  const values = points.map((p) => p[RSS]).filter((v) => v !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  // Scales to the range of the values, but to at least 2 % of the highest, so that noise stays small.
  const room = Math.max((high - low) * 1.1, high * 0.02, 1);
  const y = (value) => height - 2 - ((value - low) / room) * (height - 4);
  const x = scale(...ends(points), width);
  for (const line of lines(points, RSS, x, y)) {
    const [first, last] = [line[0].split(",")[0], line[line.length - 1].split(",")[0]];
    svg.append(draw("polygon", { class: "area", points: `${first},${height} ${line.join(" ")} ${last},${height}` }));
    svg.append(draw("polyline", { class: "line", points: line.join(" ") }));
  }
  const [from, to] = ends(points);
  const text = values.length > 1 ? `resident memory of the last ${duration(to - from)}: from ${size(values[0])} to ${size(values[values.length - 1])}` : "resident memory: one moment only";
  svg.setAttribute("aria-label", text);
  const title = draw("title", {});
  title.textContent = text;
  svg.append(title);
  return svg;
}

// The chart of one process. The pointer and the arrow keys select a point, whose values are shown. A
// click calls `choose(snapshot)` with the nearest snapshot.
export class Chart {
  constructor(choose) {
    this.choose = choose;
    this.height = 130;
    this.left = 70;
    this.points = [];
    this.snapshots = [];
    this.chosen = [];
    this.at = -1;
    this.svg = draw("svg", { class: "chart", tabindex: "0", role: "slider", "aria-label": "memory over time", "aria-valuemin": "0", "aria-valuenow": "0" });
    this.says = make("p", "", { class: "says", role: "status" });
    this.el = make("div", "", {}, this.svg, this.says);
    this.svg.addEventListener("pointermove", (e) => this.point(e));
    this.svg.addEventListener("pointerleave", () => this.read(-1));
    this.svg.addEventListener("click", (e) => this.click(e));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.el);
  }
  show(data, chosen) {
    this.points = data.points;
    this.sessions = data.sessions;
    this.snapshots = data.snapshots;
    this.chosen = chosen;
    this.el.hidden = !this.points.length;
    this.draw();
  }
  draw() {
    const width = Math.max(220, this.el.clientWidth);
    this.height = width < 500 ? 100 : 130;
    if (!this.points.length || !this.el.clientWidth) return;
    const { left, height, svg, points } = this;
    const [inner, bottom] = [width - left - 10, height - 22];
    const [from, to] = ends(points);
    this.x = scale(from, to, inner);
    const most = points.reduce((m, p) => Math.max(m, p[LIVE] || 0, p[RSS] || 0), 1) * 1.08;
    const y = (value) => bottom - (value / most) * (bottom - 8);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    const inside = draw("g", { transform: `translate(${left},0)` });
    for (const session of this.sessions) {
      const [x1, x2] = [session.from, session.to || to].map((t) => this.x(Math.min(to, Math.max(from, t))));
      const band = draw("rect", { class: "session", x: x1, y: 8, width: Math.max(1, x2 - x1), height: bottom - 8 });
      band.append(draw("title", {}, `sampled from ${clock(session.from)}${session.to ? ` to ${clock(session.to)}` : ""}, every ${session.interval} B`));
      inside.append(band);
    }
    for (const part of [0, 0.5, 1]) {
      const at = bottom - (bottom - 8) * part;
      inside.append(draw("line", { class: "grid", x1: 0, x2: inner, y1: at, y2: at }));
      inside.append(draw("text", { x: -6, y: at + 4, "text-anchor": "end" }, size(most * part)));
    }
    // Clock times are whole seconds.
    const count = Math.max(1, Math.min(Math.floor(inner / 130), Math.floor((to - from) / 1000)));
    for (let i = 0; i <= count; i++) {
      const anchor = i === 0 ? "start" : i === count ? "end" : "middle";
      inside.append(draw("text", { x: (inner * i) / count, y: height - 6, "text-anchor": anchor }, clock(from + ((to - from) * i) / count)));
    }
    for (const [column, name] of [[RSS, "rss"], [LIVE, "live"]]) {
      for (const line of lines(points, column, this.x, y)) inside.append(draw("polyline", { class: name, points: line.join(" ") }));
    }
    for (const snapshot of this.snapshots) {
      if (snapshot.at < from) continue;
      const at = this.x(Math.min(to, snapshot.at));
      const kind = `moment${snapshot.is_mark ? " mark" : ""}${this.chosen.includes(snapshot.id) ? " picked" : ""}`;
      inside.append(draw("line", { class: kind, x1: at, x2: at, y1: snapshot.is_mark ? 8 : bottom - 10, y2: bottom }));
    }
    this.cursor = draw("line", { class: "cursor", y1: 8, y2: bottom, visibility: "hidden" });
    inside.append(this.cursor);
    svg.replaceChildren(inside);
    svg.setAttribute("aria-valuemax", String(points.length - 1));
    this.read(this.at);
  }
  timeOf(e) {
    const box = this.svg.getBoundingClientRect();
    const [from, to] = ends(this.points);
    const part = (e.clientX - box.left - this.left) / Math.max(1, box.width - this.left - 10);
    return from + Math.min(1, Math.max(0, part)) * (to - from);
  }
  nearest(list, time, of) {
    let best = -1;
    list.forEach((item, i) => {
      if (best < 0 || Math.abs(of(item) - time) < Math.abs(of(list[best]) - time)) best = i;
    });
    return best;
  }
  point(e) {
    if (this.points.length) this.read(this.nearest(this.points, this.timeOf(e), (p) => p[TIME]));
  }
  click(e) {
    const best = this.nearest(this.snapshots, this.timeOf(e), (s) => s.at);
    if (best >= 0) this.choose(this.snapshots[best]);
  }
  key(e) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (e.key === "Enter" && this.at >= 0 && this.snapshots.length) {
      this.choose(this.snapshots[this.nearest(this.snapshots, this.points[this.at][TIME], (s) => s.at)]);
    }
    if (!by || !this.points.length) return;
    e.preventDefault();
    const start = this.at < 0 ? this.points.length - 1 : this.at;
    this.read(Math.min(this.points.length - 1, Math.max(0, start + by)));
  }
  // Shows the values of a point, or of the latest one for -1.
  read(i) {
    this.at = i < this.points.length ? i : -1;
    const point = this.points[this.at < 0 ? this.points.length - 1 : this.at];
    if (!point || !this.cursor) return;
    this.cursor.setAttribute("visibility", this.at < 0 ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(point[TIME]));
    const values = [point[RSS] === null ? "" : `${size(point[RSS])} resident`, point[LIVE] === null ? "" : `${size(point[LIVE])} live`];
    const nearest = this.at < 0 ? -1 : this.nearest(this.snapshots, point[TIME], (s) => s.at);
    const hint = nearest < 0 ? "; click a moment in the chart to see what has changed since" : `; a click shows what has changed since ${clock(this.snapshots[nearest].at)}`;
    const offer = this.snapshots.length ? hint : "";
    const text = `${clock(point[TIME])}: ${values.filter(Boolean).join(", ") || "nothing known"}${offer}`;
    if (this.says.textContent !== text) this.says.textContent = text;
    this.svg.setAttribute("aria-valuenow", String(this.at < 0 ? this.points.length - 1 : this.at));
    this.svg.setAttribute("aria-valuetext", text);
  }
}
