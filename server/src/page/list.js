// The list of processes: which one grows?
import { make, remark } from "./dom.js";
import { spark } from "./chart.js";
import { at, growthSpan, isEnded, isSampled, liveAge } from "./net.js";
import { canStart, start, stateOf, stop } from "./session.js";
import { Address, remember } from "./state.js";
import { change, duration, rate, size, sizeWithError } from "./text.js";

// Windows of growth, in the order of the server's `rss_growth`.
const WINDOWS = [["1", "1 min"], ["10", "10 min"], ["60", "1 h"], ["all", "all time"]];
const WINDOWS_MS = [60e3, 600e3, 3600e3, Infinity];
const GROUPS = [["", "not grouped"], ["name", "by name"], ["container", "by container"]];
// Age from which on a value is said to be of an earlier time, in seconds.
const OLD = 4;
// Number of rows that are shown at first, and more each time.
const STEP = 50;
// Number of rows that are shown at most, from which on others take their places: thousands would make
// the page slow.
const MOST = 100;
// Number of groups that are shown at most at the same time: each has some rows.
const MOST_GROUPS = 20;
// Number of rows of a group that are shown at least, however many groups there are.
const FEW = 5;
// Intervals between pictures of memory that changes, and of memory that does not, in ms.
const [REDRAW, REDRAW_SAME] = [5000, 60000];
// Rows out of sight are brought up to date in turn: each in one of so many updates.
const TURNS = 8;
// Time of a frame that goes into pictures of memory, in ms.
const DRAWING_MS = 6;

// Windows without room for a column of pictures: the pictures are below the names.
const narrow = matchMedia("(max-width:900px)");

const byWords = new Intl.Collator();

const COLUMNS = [
  { key: "name", label: "Process", words: true },
  { key: "growth", label: "Growth" },
  { key: "rss", label: "Resident" },
  { key: "", label: "Resident over time", kind: "wide" },
  { key: "live", label: "Live heap", kind: "mid" },
  { key: "allocating", label: "Allocating", kind: "wide" },
  { key: "state", label: "State", words: true, kind: "mid" },
];

// Sets the text of an element if it has changed: what is selected stays selected. What was set is
// kept beside the element, because reading it from there takes longer.
const texts = new WeakMap();
function put(el, text) {
  if (texts.get(el) === text) return;
  texts.set(el, text);
  el.textContent = text;
}

// The row of one process. It is made once and changed in place.
class Row {
  constructor(list, row, number) {
    this.list = list;
    this.number = number;
    this.pick = make("input", "", { type: "checkbox" });
    this.pick.addEventListener("change", () => {
      if (this.pick.checked) list.chosen.add(this);
      else list.chosen.delete(this);
      list.select();
    });
    this.link = make("a", row.name, { href: Address.to("/process", { name: row.name, pid: String(row.pid) }) });
    this.about = make("small");
    this.command = make("small", "", { class: "command" });
    this.below = make("span");
    this.growth = make("td");
    this.grown = make("small");
    this.rss = make("td");
    this.limit = make("small");
    this.trend = make("td", "", { class: "wide" });
    this.live = make("td", "", { class: "mid" });
    this.liveMore = make("small");
    this.allocating = make("td", "", { class: "wide" });
    this.state = make("span");
    this.more = make("small");
    this.act = make("button", "", { type: "button" });
    this.act.addEventListener("click", () => list.act([this]));
    this.el = make("tr", "", {},
      make("td", "", { class: "pick" }, this.pick),
      make("td", "", { class: "name" }, this.link, this.about, this.command, this.below),
      this.growth, this.rss, this.trend, this.live, this.allocating,
      make("td", "", { class: "state mid" }, this.state, this.more),
      make("td", "", {}, this.act));
    this.texts = [this.growth, this.rss, this.live].map((td) => td.appendChild(make("span")));
    this.growth.append(this.grown);
    this.rss.append(this.limit);
    this.live.append(this.liveMore);
    this.drawn = 0;
  }
  // Takes over the process as it is now. `place`: number of the row from above.
  update(row, window, place) {
    this.row = row;
    this.window = window;
    this.place = place;
    const isDue = !this.written || (this.number + this.list.turn) % TURNS === 0;
    if (isDue || this.list.isSeen(this)) this.write();
  }
  // Writes what has changed.
  write() {
    const { row, window } = this;
    if (this.written === row && this.writtenWindow === window) return this.age();
    [this.written, this.writtenWindow] = [row, window];
    const title = `${row.name} (${row.pid})`;
    this.pick.setAttribute("aria-label", `select ${title}`);
    put(this.about, [row.pid, row.user, row.container].filter(Boolean).join(" · "));
    put(this.command, row.command);
    this.link.title = row.command ? `${title}: ${row.command}` : title;
    const bytes = row.rss_growth[window];
    put(this.texts[0], change(bytes));
    this.growth.className = bytes > 0 ? "more" : bytes < 0 ? "less" : "";
    put(this.texts[1], size(row.rss_bytes));
    put(this.limit, row.group_limit ? `${Math.round((100 * row.group_bytes) / row.group_limit)} % of ${size(row.group_limit)} are used` : "");
    const estimated = row.live_source === "samples" && row.live_bytes !== null;
    put(this.texts[2], estimated ? sizeWithError(row.live_bytes, row.session_live_error) : size(row.live_bytes));
    put(this.allocating, row.alloc_per_second === null ? "–" : `${size(row.alloc_per_second)}/s`);
    this.age();
    put(this.act, isSampled(row) ? "Stop" : "Start");
    this.act.setAttribute("aria-label", `${isSampled(row) ? "Stop" : "Start"} sampling ${title}`);
    this.act.hidden = !canStart(row);
    this.pick.disabled = !canStart(row);
  }
  // Writes what passes by itself.
  age() {
    const { row, window } = this;
    put(this.grown, row.rss_growth[window] === null ? "" : `in ${duration(Math.min(WINDOWS_MS[window], growthSpan(row, window)))}`);
    const age = liveAge(row);
    const old = row.live_bytes !== null && age > OLD && !isEnded(row) ? `${duration(age * 1000)} ago` : "";
    put(this.liveMore, old || rate(row.growth_per_second));
    const [state, more] = stateOf(row);
    put(this.state, state);
    put(this.more, more);
  }
  // True if the picture of the memory lacks what has come since.
  isStale() {
    const { outline, rss_bytes: rss } = this.row;
    if (!this.drawn || this.isBelow !== narrow.matches) return true;
    if (!this.list.isSeen(this)) return false;
    const since = outline.length ? outline[outline.length - 1][0] - this.drawn : 0;
    return since >= (rss === this.drawnRss ? REDRAW_SAME : REDRAW);
  }
  draw() {
    const { outline } = this.row;
    this.drawn = outline.length ? outline[outline.length - 1][0] : 1;
    this.drawnRss = this.row.rss_bytes;
    this.isBelow = narrow.matches;
    const [place, other] = this.isBelow ? [this.below, this.trend] : [this.trend, this.below];
    place.replaceChildren(spark(outline));
    other.replaceChildren();
  }
}

// The row above those of a group, with their sums.
class Group {
  constructor() {
    this.name = make("bdi");
    this.count = make("span");
    this.growth = make("td");
    this.rss = make("td");
    this.live = make("td", "", { class: "mid" });
    this.el = make("tr", "", { class: "of-group" }, make("td"), make("th", "", { scope: "rowgroup", class: "left" }, this.name, this.count), this.growth, this.rss,
      make("td", "", { class: "wide" }), this.live, make("td", "", { class: "wide" }), make("td", "", { class: "mid" }), make("td"));
  }
  update(name, rows, shown, window) {
    const known = (value) => rows.map(value).filter((part) => part !== null);
    const sum = (value) => (known(value).length ? known(value).reduce((total, part) => total + part, 0) : null);
    const growth = sum((row) => row.rss_growth[window]);
    put(this.name, name);
    put(this.count, `: ${rows.length}${shown < rows.length ? `, the first ${shown} are shown` : ""}`);
    put(this.growth, change(growth));
    this.growth.className = growth > 0 ? "more" : growth < 0 ? "less" : "";
    put(this.rss, size(sum((row) => row.rss_bytes)));
    put(this.live, size(sum((row) => row.live_bytes)));
  }
}

export class List {
  constructor(processes, address) {
    this.processes = processes;
    // Of the processes that are or were shown, by their keys.
    this.rows = new Map();
    this.groups = new Map();
    // Those that are selected.
    this.chosen = new Set();
    this.most = STEP;
    // Number of processes, or groups, before those that are shown.
    this.skipped = Math.max(0, Math.floor(Number(address.get("skip")) || 0));
    if (this.skipped) this.most = MOST;
    this.number = 0;
    this.turn = 0;
    this.groupsShown = 0;
    this.groupCount = 0;
    // Numbers of the rows that are in sight.
    [this.first, this.last] = [0, STEP];
    this.sort = address.get("sort") || "growth";
    this.window = Math.max(0, WINDOWS.findIndex(([key]) => key === (address.get("window") || "10")));
    this.group = address.get("group");
    this.failed = "";
    document.title = "mem_profiler";
    this.sum = make("span", "", { class: "sum", role: "status" });
    this.said = make("span", "", { class: "said", role: "alert" });
    this.filter = make("input", "", { type: "search", id: "filter", placeholder: "filter", "aria-label": "show only processes with this in name, command, user or container", value: address.get("filter") });
    this.filter.addEventListener("input", () => {
      remember("filter", this.filter.value);
      this.skip(0);
    });
    const windows = this.choice("growth over", WINDOWS, WINDOWS[this.window][0], (key) => {
      this.window = WINDOWS.findIndex(([k]) => k === key);
      remember("window", key);
    });
    const groups = this.choice("group", GROUPS, this.group, (key) => {
      this.group = key;
      remember("group", key);
    });
    this.starts = make("button", "Start selected", { type: "button" });
    this.stops = make("button", "Stop selected", { type: "button" });
    this.starts.addEventListener("click", () => this.act(this.picked().filter((r) => !isSampled(r.row))));
    this.stops.addEventListener("click", () => this.act(this.picked().filter((r) => isSampled(r.row))));
    const tools = make("div", "", { class: "tools", role: "search" }, this.filter, make("label", "growth over ", {}, windows), groups, this.starts, this.stops);
    const header = make("header", "", {}, make("h1", "mem_profiler"), this.sum, this.said);
    this.body = make("tbody");
    this.heads = new Map();
    const head = make("tr", "", {}, make("th", "", { class: "pick", scope: "col" }, make("span", "select", { class: "hidden-text" })));
    for (const { key, label, kind, words } of COLUMNS) {
      const th = make("th", "", { class: `${kind || ""} ${words ? "left" : ""}`.trim(), scope: "col" });
      if (key) {
        const b = make("button", label, { type: "button" });
        b.addEventListener("click", () => {
          this.sort = key;
          remember("sort", key);
          this.skip(0);
        });
        th.append(b);
        this.heads.set(key, th);
      } else th.append(make("span", label, { class: "plain" }));
      head.append(th);
    }
    head.append(make("th", "", { scope: "col" }, make("span", "start or stop", { class: "hidden-text" })));
    const table = make("table", "", { id: "processes" }, make("thead", "", {}, head), this.body);
    this.table = table;
    this.nothing = remark("");
    const button = (text, act) => {
      const b = make("button", text, { type: "button" });
      b.addEventListener("click", act);
      return b;
    };
    this.further = button("", () => {
      this.most = Math.min(MOST, this.most + STEP);
      this.refresh(true);
    });
    this.further.className = "further";
    this.earlier = button(`Previous ${MOST}`, () => this.leaf(-1));
    this.later = button(`Next ${MOST}`, () => this.leaf(1));
    this.which = make("span", "", { role: "status" });
    this.pages = make("div", "", { class: "pages tools" }, this.earlier, this.further, this.later, this.which);
    const say = remark("The process that has grown most is first. A click on a name shows where its memory is; an idle process costs nothing until its session is started.");
    document.body.append(header, make("main", "", {}, make("section", "", { class: "tab" }, say, tools, table, this.nothing, this.pages,
      make("p", "", { class: "say" }, "Without a script, or for other programs: ", make("a", "/debug/pprof/", { href: at("/debug/pprof/") })))));
    this.redraw = () => this.drawSoon();
    narrow.addEventListener("change", this.redraw);
    this.scrolled = () => {
      this.look();
      for (const r of this.rows.values()) if (r.el.isConnected && this.isSeen(r)) r.write();
      this.drawSoon();
    };
    document.addEventListener("scroll", this.scrolled, { capture: true, passive: true });
    // Rows must not move under the pointer, nor under the focus.
    this.held = false;
    this.drawing = 0;
    table.addEventListener("pointerenter", () => (this.held = true));
    table.addEventListener("pointerleave", () => {
      this.held = false;
      this.refresh();
    });
    this.refresh(true);
  }
  choice(label, options, chosen, act) {
    const select = make("select", "", { "aria-label": label });
    for (const [key, text] of options) select.append(make("option", text, { value: key }));
    select.value = chosen;
    select.addEventListener("change", () => {
      act(select.value);
      this.skip(0);
    });
    return select;
  }
  // Shows the rows after so many others.
  skip(count) {
    this.skipped = count;
    remember("skip", count ? String(count) : "");
    this.refresh(true);
  }
  // Shows the previous or the next rows, from their beginning.
  leaf(by) {
    const room = this.group ? MOST_GROUPS : MOST;
    this.skip(Math.max(0, this.skipped + by * room));
    this.table.scrollIntoView();
  }
  picked() {
    return [...this.chosen].filter((r) => r.el.isConnected);
  }
  select() {
    const picked = this.picked();
    this.starts.hidden = !picked.some((r) => !isSampled(r.row));
    this.stops.hidden = !picked.some((r) => isSampled(r.row));
  }
  // Starts the sessions of rows that have none, and stops the others.
  async act(rows) {
    this.failed = "";
    for (const { row } of rows) {
      try {
        await (isSampled(row) ? stop(row) : start(row, {}));
      } catch (error) {
        this.failed = error.message;
      }
    }
    this.refresh();
    // The server reads the list at most once a second.
    setTimeout(() => this.processes.poll(), 1000);
  }
  // The processes that the filter lets through.
  matching() {
    const all = [...this.processes.rows.values()];
    const sought = this.filter.value.trim().toLowerCase();
    if (!sought) return all;
    const text = (row) => {
      row.text = row.text || [row.name, row.command, row.user, row.container || "", String(row.pid)].join("\n").toLowerCase();
      return row.text;
    };
    return all.filter((row) => text(row).includes(sought));
  }
  value(row) {
    switch (this.sort) {
      case "growth": return row.rss_growth[this.window] === null ? -Infinity : row.rss_growth[this.window];
      case "rss": return row.rss_bytes || 0;
      case "live": return row.live_bytes || 0;
      case "allocating": return row.alloc_per_second || 0;
      default: return String(row[this.sort]);
    }
  }
  ordered(rows) {
    const byText = ["name", "state"].includes(this.sort);
    const keyed = rows.map((row) => ({ row, value: this.value(row), ended: isEnded(row) }));
    const compare = byText ? (a, b) => byWords.compare(a.value, b.value) : (a, b) => (a.value === b.value ? 0 : b.value > a.value ? 1 : -1);
    keyed.sort((a, b) => a.ended - b.ended || compare(a, b) || a.row.pid - b.row.pid);
    return keyed.map(({ row }) => row);
  }
  // Finds out which rows are in the window, or less than its height from it.
  look() {
    const { top, height } = this.body.getBoundingClientRect();
    const each = height / Math.max(1, this.body.children.length);
    [this.first, this.last] = each ? [(-top - innerHeight) / each, (2 * innerHeight - top) / each] : [0, STEP];
  }
  isSeen(r) {
    return r.place >= this.first && r.place <= this.last;
  }
  rowOf(row, place) {
    if (!this.rows.has(row.id)) this.rows.set(row.id, new Row(this, row, this.number++));
    const r = this.rows.get(row.id);
    r.update(row, this.window, place);
    return r;
  }
  // `now`: also the order, whatever the pointer is at.
  refresh(now) {
    const { processes } = this;
    const all = processes.rows;
    const matching = this.matching();
    this.turn++;
    this.look();
    for (const [id, r] of this.rows) {
      if (all.has(id)) continue;
      r.el.remove();
      this.rows.delete(id);
      this.chosen.delete(r);
    }
    const free = !this.held && !this.body.contains(document.activeElement);
    if (now || free) this.show(matching);
    else this.keep(matching);
    const shown = this.body.children.length - this.groupsShown;
    for (const [key, th] of this.heads) {
      if (key === this.sort) th.setAttribute("aria-sort", ["name", "state"].includes(key) ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    }
    let [sampled, ended] = [0, 0];
    for (const row of all.values()) {
      if (isSampled(row)) sampled++;
      if (isEnded(row)) ended++;
    }
    const living = all.size - ended;
    const counted = [`${living} ${living === 1 ? "process" : "processes"}`, `${sampled} sampled`];
    if (ended) counted.push(`${ended} ended with a profile`);
    if (matching.length < all.size) counted.push(`${matching.length} match`);
    put(this.sum, processes.lost || counted.join(", "));
    put(this.said, this.failed);
    this.nothing.hidden = matching.length > 0 || !processes.received;
    put(this.nothing, all.size ? "No process matches the filter." : "No process of yours carries the agent: start one with mem_profiler run, or with LD_PRELOAD=libmem_agent.so.");
    this.offer(matching.length, shown);
    this.select();
    this.drawSoon();
  }
  // Goes back to the last rows that there are: processes end, and filters change.
  limitSkipped(count, room) {
    if (this.skipped < count || !this.processes.received) return;
    this.skipped = Math.floor(Math.max(0, count - 1) / room) * room;
  }
  // Offers the rows that are not shown.
  offer(count, shown) {
    const units = this.group ? this.groupCount : count;
    const room = this.group ? MOST_GROUPS : MOST;
    const isAtFirst = !this.skipped && !this.group;
    this.further.hidden = !isAtFirst || shown >= count || this.most >= MOST;
    put(this.further, `Show more: these are ${shown} of ${count}`);
    this.earlier.hidden = !this.skipped;
    this.later.hidden = !this.further.hidden || this.skipped + room >= units;
    for (const [el, way] of [[this.earlier, "Previous"], [this.later, "Next"]]) put(el, `${way} ${room}`);
    const last = Math.min(units, this.skipped + room);
    put(this.which, this.earlier.hidden && this.later.hidden ? "" : `${this.group ? "groups " : ""}${this.skipped + 1} to ${last} of ${units}`);
  }
  // Puts the rows in order; those that are in their place stay as they are.
  show(matching) {
    const rows = this.ordered(matching);
    this.groupsShown = 0;
    if (!this.group) this.limitSkipped(rows.length, MOST);
    const order = this.group ? this.grouped(rows) : rows.slice(this.skipped, this.skipped + this.most).map((row, i) => this.rowOf(row, i).el);
    const wanted = new Set(order);
    for (const el of [...this.body.children]) if (!wanted.has(el)) el.remove();
    let next = this.body.firstElementChild;
    for (const el of order) {
      if (el === next) next = next.nextElementSibling;
      else this.body.insertBefore(el, next);
    }
  }
  // Leaves the rows in their places; new processes are added at the end.
  keep(matching) {
    let room = this.most;
    for (const r of this.rows.values()) if (r.el.isConnected) room--;
    for (const row of matching) {
      const known = this.rows.get(row.id);
      if (known && known.el.isConnected) known.update(row, this.window, known.place);
      else if (!this.skipped && room-- > 0) this.body.append(this.rowOf(row, this.body.children.length).el);
    }
  }
  // The rows below a row for each group, with its sums. Groups are in the order of their first rows.
  grouped(rows) {
    const groups = new Map();
    for (const row of rows) {
      const name = row[this.group] || "(none)";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
    }
    this.groupCount = groups.size;
    this.limitSkipped(groups.size, MOST_GROUPS);
    const names = [...groups.keys()].slice(this.skipped, this.skipped + MOST_GROUPS);
    this.groupsShown = names.length;
    const each = Math.max(FEW, Math.floor(this.most / Math.max(1, names.length)));
    let place = 0;
    return names.flatMap((name) => {
      const members = groups.get(name);
      const shown = members.slice(0, each);
      if (!this.groups.has(name)) this.groups.set(name, new Group());
      const group = this.groups.get(name);
      group.update(name, members, shown.length, this.window);
      place++;
      return [group.el, ...shown.map((row) => this.rowOf(row, place++).el)];
    });
  }
  drawSoon() {
    this.drawing = this.drawing || requestAnimationFrame(() => this.draw());
  }
  // Draws the memory of the rows that lack it, and the rest in the next frame.
  draw() {
    const begun = performance.now();
    this.drawing = 0;
    for (const r of this.rows.values()) {
      if (!r.el.isConnected || !r.isStale()) continue;
      if (performance.now() - begun > DRAWING_MS) {
        this.drawing = requestAnimationFrame(() => this.draw());
        return;
      }
      r.draw();
    }
  }
  end() {
    cancelAnimationFrame(this.drawing);
    document.removeEventListener("scroll", this.scrolled, { capture: true });
    narrow.removeEventListener("change", this.redraw);
  }
}
