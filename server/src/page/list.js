// The list of processes: which one grows?
import { make, remark } from "./dom.js";
import { at, isEnded, isSampled } from "./net.js";
import { Group, Row, narrow, put } from "./row.js";
import { start, stop } from "./session.js";
import { remember } from "./state.js";

// Windows of growth, in the order of the server's `rss_growth`.
const WINDOWS = [["1", "1 min"], ["10", "10 min"], ["60", "1 h"], ["all", "all time"]];
const GROUPS = [["", "not grouped"], ["name", "by name"], ["container", "by container"]];
// Number of rows shown at first, and added by each "Show more".
const STEP = 50;
// Maximum number of rows on the page. More are shown on further pages, since thousands of rows would
// make the page slow.
const MAX_ROWS = 100;
// Maximum number of rows created in one animation frame. The rest follow in the next ones.
const MAX_CREATED = 16;
// Maximum number of groups on the page.
const MAX_GROUPS = 20;
// Minimum number of rows shown of each group.
const MIN_GROUP_ROWS = 5;
// Maximum time per animation frame for drawing sparklines, in ms.
const DRAWING_MS = 6;

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

export class List {
  constructor(processes, address) {
    this.processes = processes;
    // Rows of the processes that are shown or selected, by the process's id.
    this.rows = new Map();
    this.groups = new Map();
    // Selected rows.
    this.chosen = new Set();
    this.most = STEP;
    // Number of processes or groups on the pages before this one.
    this.skipped = Math.max(0, Math.floor(Number(address.get("skip")) || 0));
    if (this.skipped) this.most = MAX_ROWS;
    this.number = 0;
    this.turn = 0;
    this.groupCount = 0;
    // Rows that are not created yet, and the animation frame that creates the next ones.
    this.rest = [];
    this.making = 0;
    // Indices of the first and last row in sight.
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
      this.most = Math.min(MAX_ROWS, this.most + STEP);
      this.refresh(true);
    });
    this.further.className = "further";
    this.earlier = button(`Previous ${MAX_ROWS}`, () => this.leaf(-1));
    this.later = button(`Next ${MAX_ROWS}`, () => this.leaf(1));
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
  // Shows the rows after the first `count`.
  skip(count) {
    this.skipped = count;
    remember("skip", count ? String(count) : "");
    this.refresh(true);
  }
  // Shows the previous (-1) or next (1) page, scrolled to its top.
  leaf(by) {
    const room = this.group ? MAX_GROUPS : MAX_ROWS;
    this.skip(Math.max(0, this.skipped + by * room));
    this.table.scrollIntoView();
  }
  picked() {
    return [...this.chosen].filter((r) => r.el.isConnected);
  }
  // Returns the number of rows on the page.
  shown() {
    return [...this.rows.values()].filter((r) => r.el.isConnected).length;
  }
  select() {
    const picked = this.picked();
    this.starts.hidden = !picked.some((r) => !isSampled(r.row));
    this.stops.hidden = !picked.some((r) => isSampled(r.row));
  }
  // Starts sessions of the processes that have none, and stops the others'.
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
  // Returns the processes that match the filter.
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
  // Determines which rows are in the window, or less than its height away from it.
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
  // Updates the list. If `now`, sorts it even under the pointer or the focus.
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
    this.offer(matching.length, this.shown() + this.rest.filter(({ row }) => row).length);
    this.select();
    this.drawSoon();
  }
  // Goes back to the last page if this one is beyond it: processes end, and filters change.
  limitSkipped(count, room) {
    if (this.skipped < count || !this.processes.received) return;
    this.skipped = Math.floor(Math.max(0, count - 1) / room) * room;
  }
  // Offers the rows that are not shown.
  offer(count, shown) {
    const units = this.group ? this.groupCount : count;
    const room = this.group ? MAX_GROUPS : MAX_ROWS;
    const isAtFirst = !this.skipped && !this.group;
    this.further.hidden = !isAtFirst || shown >= count || this.most >= MAX_ROWS;
    put(this.further, `Show more: these are ${shown} of ${count}`);
    this.earlier.hidden = !this.skipped;
    this.later.hidden = !this.further.hidden || this.skipped + room >= units;
    for (const [el, way] of [[this.earlier, "Previous"], [this.later, "Next"]]) put(el, `${way} ${room}`);
    const last = Math.min(units, this.skipped + room);
    put(this.which, this.earlier.hidden && this.later.hidden ? "" : `${this.group ? "groups " : ""}${this.skipped + 1} to ${last} of ${units}`);
  }
  // Sorts the rows. Those already in place are not moved.
  show(matching) {
    const rows = this.ordered(matching);
    if (!this.group) this.limitSkipped(rows.length, MAX_ROWS);
    const places = this.group ? this.grouped(rows) : rows.slice(this.skipped, this.skipped + this.most).map((row, place) => ({ row, place }));
    this.rest = places;
    const wanted = new Set(this.next());
    for (const el of [...this.body.children]) if (!wanted.has(el)) el.remove();
    let next = this.body.firstElementChild;
    for (const el of wanted) {
      if (el === next) next = next.nextElementSibling;
      else this.body.insertBefore(el, next);
    }
  }
  // Returns the elements of the next rows: as many as can be created in this animation frame. The
  // rest follow.
  next() {
    let made = 0;
    const isLate = ({ row }) => row && !this.rows.has(row.id) && ++made > MAX_CREATED;
    const late = this.rest.findIndex(isLate);
    const now = late < 0 ? this.rest : this.rest.slice(0, late);
    this.rest = this.rest.slice(now.length);
    const elements = now.map(({ row, place, el }) => el || this.rowOf(row, place).el);
    if (!this.rest.length) this.forget(elements);
    else if (!this.making) this.making = requestAnimationFrame(() => this.add());
    return elements;
  }
  // Forgets the rows that are no longer shown: they are made again if they come back.
  forget(next) {
    const kept = new Set(next);
    for (const [id, r] of this.rows) if (!r.el.isConnected && !kept.has(r.el) && !this.chosen.has(r)) this.rows.delete(id);
  }
  // Creates and adds the next rows.
  add() {
    this.making = 0;
    const known = this.processes.rows;
    this.rest = this.rest.filter(({ row }) => !row || known.has(row.id)).map((at) => (at.row ? { ...at, row: known.get(at.row.id) } : at));
    this.body.append(...this.next());
    if (this.rest.length) return;
    this.look();
    this.drawSoon();
  }
  // Updates the list without moving rows; new processes are added at the end.
  keep(matching) {
    let room = this.most - this.shown();
    for (const row of matching) {
      const known = this.rows.get(row.id);
      if (known && known.el.isConnected) known.update(row, this.window, known.place);
      else if (!this.rest.length && !this.skipped && room-- > 0) this.body.append(this.rowOf(row, this.body.children.length).el);
    }
  }
  // Returns the rows by group, after a row with the group's sums. Groups are in the order of their
  // first rows.
  grouped(rows) {
    const groups = new Map();
    for (const row of rows) {
      const name = row[this.group] || "(none)";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
    }
    this.groupCount = groups.size;
    this.limitSkipped(groups.size, MAX_GROUPS);
    const names = [...groups.keys()].slice(this.skipped, this.skipped + MAX_GROUPS);
    const each = Math.max(MIN_GROUP_ROWS, Math.floor(this.most / Math.max(1, names.length)));
    let place = 0;
    return names.flatMap((name) => {
      const members = groups.get(name);
      const shown = members.slice(0, each);
      if (!this.groups.has(name)) this.groups.set(name, new Group());
      const group = this.groups.get(name);
      group.update(name, members, shown.length, this.window);
      place++;
      return [{ el: group.el }, ...shown.map((row) => ({ row, place: place++ }))];
    });
  }
  drawSoon() {
    this.drawing = this.drawing || requestAnimationFrame(() => this.draw());
  }
  // Draws the sparklines that are due, over several animation frames, once all rows are created.
  draw() {
    const begun = performance.now();
    this.drawing = 0;
    if (this.rest.length) return;
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
    cancelAnimationFrame(this.making);
    document.removeEventListener("scroll", this.scrolled, { capture: true });
    narrow.removeEventListener("change", this.redraw);
  }
}
