// The live page: the list of processes, and one process with its charts and its report. All of it is
// read as JSON; what comes from processes is set as text only. Needs dom.js before it.
const PERIOD = 1500;
// A report costs the server some CPU time: it is refreshed while a session runs, but not often.
const REPORT_PERIOD = 10000;
const SVG = "http://www.w3.org/2000/svg";

function size(value) {
  if (value === null || value === undefined) return "–";
  const sign = value < 0 ? "-" : "";
  let v = Math.abs(value);
  let unit = "B";
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) if (v >= 1024) [v, unit] = [v / 1024, next];
  return `${sign}${unit === "B" || v >= 100 ? Math.round(v) : v.toFixed(1)} ${unit}`;
}
function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 ? "+" : ""}${size(value)}/s`;
}
function draw(name, attributes, ...children) {
  const el = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

// Longest time between two points of one line: a page that is in the background asks once a minute.
// Nothing is known of a longer one, in which nobody asked.
const GAP = 150000;
// The points of a column of the history that are known, in a box: an array for each line.
function paths(history, column, box) {
  const { from, to, most, width, height } = box;
  const known = history.filter((p) => p[column] !== null);
  const lines = [];
  known.forEach((p, at) => {
    const x = to > from ? ((p[0] - from) / (to - from)) * width : width;
    const y = height - (p[column] / (most || 1)) * height;
    if (!at || p[0] - known[at - 1][0] > GAP) lines.push([]);
    lines[lines.length - 1].push(`${x.toFixed(1)},${y.toFixed(1)}`);
  });
  return lines.filter((points) => points.length > 1);
}
// The lines of live bytes, with the areas below them.
function areas(history, box, bottom) {
  return paths(history, 1, box).flatMap((points) => {
    const ends = [points[0].split(",")[0], points[points.length - 1].split(",")[0]];
    return [
      draw("polygon", { class: "area", points: `${ends[0]},${bottom} ${points.join(" ")} ${ends[1]},${bottom}` }),
      draw("polyline", { class: "line", points: points.join(" ") }),
    ];
  });
}
function boxOf(history, columns, width, height) {
  const values = history.flatMap((p) => columns.map((c) => p[c] || 0));
  const from = history.length ? history[0][0] : 0;
  const to = history.length ? history[history.length - 1][0] : 0;
  return { from, to, most: Math.max(1, ...values) * 1.08, width, height };
}
function spark(history) {
  const box = boxOf(history, [1], 150, 30);
  const svg = draw("svg", { class: "spark", viewBox: "0 0 150 30", preserveAspectRatio: "none", role: "img", "aria-label": "live heap of the last minutes" });
  svg.append(...areas(history, box, 30));
  return svg;
}
function chart(history, width) {
  const [height, left] = [110, 62];
  const box = boxOf(history, [1, 2], width - left - 8, height - 26);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "live heap and resident memory over time" });
  const inner = draw("g", { transform: `translate(${left},6)` });
  for (const part of [0, 0.5, 1]) {
    const y = box.height * (1 - part);
    inner.append(draw("line", { class: "grid", x1: 0, x2: box.width, y1: y, y2: y }));
    const label = draw("text", { x: -6, y: y + 4, "text-anchor": "end" });
    label.textContent = size(box.most * part);
    inner.append(label);
  }
  const ago = draw("text", { x: 0, y: box.height + 16 });
  ago.textContent = history.length > 1 ? `${Math.round((box.to - box.from) / 1000)} s ago` : "";
  const now = draw("text", { x: box.width, y: box.height + 16, "text-anchor": "end" });
  now.textContent = "now";
  const resident = paths(history, 2, box).map((points) => draw("polyline", { class: "rss", points: points.join(" ") }));
  inner.append(...areas(history, box, box.height), ...resident, ago, now);
  svg.append(inner);
  return svg;
}

// A share of the CPU time as the server reads it; nothing without a limit.
const share = (part) => (part ? `${Number((part * 100).toPrecision(6))}%` : "");
const isSampled = (row) => row.interval !== null;
function stateOf(row) {
  if (!isSampled(row)) return [row.state, ""];
  const left = row.open_end || row.seconds_left === null ? "until it is stopped" : `${Math.ceil(row.seconds_left)} s left`;
  const limits = [row.max_overhead && `at most ${share(row.max_overhead)} of CPU time`, row.thin && "thinned"];
  const more = row.ours ? ["by this server", ...limits] : [left];
  return [`${row.state}, every ${row.interval} B`, more.filter(Boolean).join(", ")];
}

class Live {
  constructor() {
    this.rows = [];
    this.interval = 1024;
    this.limit = null;
    this.thin = false;
    this.message = "";
    this.sort = "live_bytes";
    this.view = null;
    addEventListener("hashchange", () => this.open());
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
    this.poll().then(() => this.open());
    setInterval(() => document.hidden || this.poll(), PERIOD);
  }
  async poll() {
    try {
      const answer = await fetch("/api/processes");
      if (!answer.ok) throw new Error(await answer.text());
      const { processes, interval, max_overhead: limit, thin } = await answer.json();
      this.rows = processes;
      this.interval = interval;
      this.limit = limit;
      this.thin = thin;
      this.lost = "";
    } catch (error) {
      this.lost = `no answer: ${error.message}`;
    }
    if (this.view) this.view.refresh();
  }
  // Starts or stops a session, and says what the server says.
  async act(what, pid, values) {
    const query = new URLSearchParams({ pid, ...values });
    try {
      const answer = await fetch(`/api/${what}?${query}`, { method: "POST", headers: { "X-Mem-Profiler": "1" } });
      this.message = answer.ok ? "" : (await answer.text()).trim();
    } catch (error) {
      this.message = `no answer: ${error.message}`;
    }
    // The list is read at most once a second.
    setTimeout(() => this.poll(), 1000);
    if (this.view) this.view.refresh();
  }
  open() {
    const pid = Number(location.hash.slice(1));
    if (this.view && this.view.end) this.view.end();
    document.body.replaceChildren();
    this.message = "";
    this.view = pid ? new One(this, pid) : new All(this);
    this.view.refresh();
  }
  // The fields of a session and its button.
  controls(pid, seconds) {
    const interval = make("input", "", { name: "interval", value: String(this.interval), "aria-label": "bytes between samples", inputmode: "numeric" });
    const length = make("input", "", { name: "seconds", value: seconds, placeholder: "no end", "aria-label": "seconds" });
    const limit = make("input", "", { name: "max_overhead", value: share(this.limit), placeholder: "no limit", "aria-label": "limit on the share of CPU time" });
    if (this.limit) limit.title = `this server's limit is ${share(this.limit)}: only a lower one changes anything`;
    const thin = make("input", "", { name: "thin", type: "checkbox" });
    thin.checked = thin.disabled = this.thin;
    const form = make("form", "", {}, make("label", "every ", {}, interval, "bytes"), make("label", "for ", {}, length, "s"), make("label", "at most ", {}, limit, "of CPU"), make("label", "thinned ", {}, thin));
    const start = make("button", "Start", { type: "submit", class: "start" });
    const stop = make("button", "Stop", { type: "button", class: "stop" });
    form.append(start, stop);
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      const values = { interval: interval.value };
      if (limit.value.trim()) values.max_overhead = limit.value.trim();
      if (thin.checked) values.thin = "1";
      if (length.value.trim()) values.seconds = length.value.trim();
      this.act("start", pid, values);
    });
    stop.addEventListener("click", () => this.act("stop", pid, {}));
    return { form, start, stop, fields: [interval, length, limit, thin].map((field) => field.parentNode) };
  }
}

// The list.
class All {
  constructor(live) {
    this.live = live;
    document.title = "mem_profiler";
    this.sum = make("span", "", { class: "sum", role: "status" });
    this.said = make("span", "", { class: "said", role: "alert" });
    const header = make("header", "", {}, make("h1", "mem_profiler"), this.sum, this.said);
    this.body = make("tbody");
    const head = make("tr");
    for (const [text, key, kind] of [["Process", "name", "left"], ["State", "state", "left"], ["Live heap", "live_bytes"], ["", "", "wide"], ["Growth", "growth_per_second"], ["Allocating", "alloc_per_second", "wide"], ["RSS", "rss_bytes", "mid"], ["", ""]]) {
      const th = make("th", "", { class: kind || "", scope: "col" });
      if (key) {
        const b = make("button", text, { type: "button" });
        b.addEventListener("click", () => {
          live.sort = key;
          this.refresh();
        });
        th.append(b);
        th.dataset.key = key;
      }
      head.append(th);
    }
    this.head = head;
    const table = make("table", "", { id: "processes" }, make("thead", "", {}, head), this.body);
    const say = remark("A click on a name shows the process's flame graph, call graph and tables. An idle process costs nothing until its session is started.");
    document.body.append(header, make("main", "", {}, make("section", "", { class: "tab" }, say, table)));
  }
  refresh() {
    const { live } = this;
    const rows = [...live.rows];
    const text = (row) => String(row[live.sort] || "");
    const byText = ["name", "state"].includes(live.sort);
    rows.sort((a, b) => (byText ? text(a).localeCompare(text(b)) : (b[live.sort] || 0) - (a[live.sort] || 0)) || a.pid - b.pid);
    for (const th of this.head.children) {
      if (th.dataset.key === live.sort) th.setAttribute("aria-sort", byText ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    const sampled = rows.filter(isSampled).length;
    this.sum.textContent = live.lost || `${rows.length} ${rows.length === 1 ? "process" : "processes"}, ${sampled} sampled`;
    this.said.textContent = live.message;
    const focused = document.activeElement && document.activeElement.dataset.pid;
    this.body.replaceChildren(...rows.map((row) => this.row(row)));
    if (focused) for (const b of this.body.querySelectorAll("button")) if (b.dataset.pid === focused) b.focus();
    if (!rows.length) this.body.append(make("tr", "", {}, make("td", "No process of yours carries the agent: start one with mem_profiler run, or with LD_PRELOAD=libmem_agent.so.", { class: "nothing", colspan: "8" })));
  }
  row(row) {
    const [state, more] = stateOf(row);
    const about = row.live_source === "samples" && row.live_bytes !== null ? "~" : "";
    const b = make("button", isSampled(row) ? "Stop" : "Start", { type: "button", "data-pid": String(row.pid) });
    b.addEventListener("click", () => this.live.act(isSampled(row) ? "stop" : "start", row.pid, {}));
    const growth = row.growth_per_second || 0;
    return make("tr", "", {},
      make("td", "", { class: "name" }, make("a", row.name, { href: `#${row.pid}` }), make("small", [row.pid, row.user, row.container].filter(Boolean).join(" · "))),
      make("td", state, { class: "state" }, make("small", more)),
      make("td", `${about}${size(row.live_bytes)}`),
      make("td", "", { class: "wide" }, spark(row.history)),
      make("td", rate(row.growth_per_second), { class: growth > 0 ? "more" : growth < 0 ? "less" : "" }),
      make("td", row.alloc_per_second === null ? "–" : `${size(row.alloc_per_second)}/s`, { class: "wide" }),
      make("td", size(row.rss_bytes), { class: "mid" }),
      make("td", "", {}, b));
  }
}

// One process.
class One {
  constructor(live, pid) {
    this.live = live;
    this.pid = pid;
    this.title = make("h1", String(pid));
    this.said = make("span", "", { class: "said", role: "alert" });
    this.controls = live.controls(pid, "60");
    this.follow = make("button", "Following", { type: "button", "aria-pressed": "true", id: "follow", title: "refresh the report while the session runs" });
    this.follow.addEventListener("click", () => {
      const on = this.follow.getAttribute("aria-pressed") !== "true";
      this.follow.setAttribute("aria-pressed", String(on));
      this.follow.textContent = on ? "Following" : "Held";
    });
    const header = make("header", "", { class: "of-one" }, make("a", "All processes", { class: "button", href: "#" }), this.title, this.controls.form, this.follow, this.said);
    this.keys = make("p", "", { class: "keys" });
    this.plot = make("div", "");
    this.main = make("main");
    document.body.append(header, make("div", "", { class: "charts" }, this.plot, this.keys), this.main);
    this.timer = setInterval(() => this.renew(), REPORT_PERIOD);
  }
  end() {
    clearInterval(this.timer);
  }
  row() {
    return this.live.rows.find((row) => row.pid === this.pid);
  }
  refresh() {
    const row = this.row();
    if (!row) {
      this.said.textContent = this.live.lost || "this process is gone";
      return;
    }
    const title = `${row.name} (${row.pid})`;
    this.title.textContent = title;
    this.title.title = title;
    document.title = title;
    this.said.textContent = this.live.lost || this.live.message;
    const sampled = isSampled(row);
    for (const el of [this.controls.start, ...this.controls.fields]) el.hidden = sampled;
    this.controls.stop.hidden = this.follow.hidden = !sampled;
    const [state, more] = stateOf(row);
    const growth = row.growth_per_second === null ? "" : `, ${rate(row.growth_per_second)}`;
    this.keys.replaceChildren(
      make("span", `live ${row.live_source === "samples" ? "~" : ""}${size(row.live_bytes)}${growth}`, { class: "live" }),
      make("span", `resident ${size(row.rss_bytes)}`, { class: "rss" }),
      make("span", [state, more, `${row.samples} samples`].filter(Boolean).join(", ")));
    this.plot.replaceChildren(chart(row.history, Math.max(320, this.plot.clientWidth || 1000)));
    const shown = this.main.querySelector("iframe");
    if (!shown && row.samples > 0) this.load();
    else if (!shown) {
      const next = sampled ? "the process has allocated too little since its session began." : "start a session.";
      this.main.replaceChildren(make("section", "", { class: "tab" }, remark(`Nothing was sampled yet: ${next}`)));
    }
  }
  // Refreshes the report while there is something new to show and somebody follows.
  renew() {
    const row = this.row();
    const follows = this.follow.getAttribute("aria-pressed") === "true";
    if (row && isSampled(row) && follows && !document.hidden) this.load();
  }
  // Loads a report beside the one that is shown, and puts it in its place when it is there: the
  // same tab is open.
  load() {
    if (this.main.querySelector("iframe.next")) return;
    const old = this.main.querySelector("iframe.report");
    let tab = "";
    try {
      tab = old ? old.contentWindow.location.hash : "";
    } catch {
      tab = "";
    }
    const frame = make("iframe", "", { class: "report next", src: `/report?pid=${this.pid}${tab}`, title: "report" });
    frame.addEventListener("load", () => {
      for (const el of [...this.main.children]) if (el !== frame) el.remove();
      frame.classList.remove("next");
    });
    this.main.append(frame);
  }
}

new Live();
