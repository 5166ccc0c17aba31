// Rows of the list: a process, and the sums of a group. Rows are updated in place.
import { make } from "./dom.js";
import { spark } from "./chart.js";
import { growthSpan, isEnded, isSampled, liveAge } from "./net.js";
import { canStart, stateOf } from "./session.js";
import { Address } from "./state.js";
import { change, duration, rate, size, sizeWithError } from "./text.js";

// Spans of the windows of growth, in the order of the server's `rss_growth`, in ms.
const WINDOWS_MS = [60e3, 600e3, 3600e3, Infinity];
// Minimum age, in seconds, of a value whose age is shown.
const MIN_SHOWN_AGE_S = 4;
// Intervals between redraws of a sparkline in ms: if the resident memory has changed, and if not.
const [REDRAW, REDRAW_SAME] = [5000, 60000];
// Rows out of sight are updated in turn: each once in this many updates.
const TURNS = 8;

// Matches windows without room for a column of sparklines, which are then below the names.
export const narrow = matchMedia("(max-width:900px)");

// Sets the text of an element if it has changed, so that a selection in it survives. The last text
// of each element is cached, because reading it from the element takes longer.
const texts = new WeakMap();
export function put(el, text) {
  if (texts.get(el) === text) return;
  texts.set(el, text);
  el.textContent = text;
}

// The row of one process.
export class Row {
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
  // Sets the process's current data. `place`: index of the row from the top.
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
  // Writes the values that change as time passes.
  age() {
    const { row, window } = this;
    put(this.grown, row.rss_growth[window] === null ? "" : `in ${duration(Math.min(WINDOWS_MS[window], growthSpan(row, window)))}`);
    const age = liveAge(row);
    const old = row.live_bytes !== null && age > MIN_SHOWN_AGE_S && !isEnded(row) ? `${duration(age * 1000)} ago` : "";
    put(this.liveMore, old || rate(row.growth_per_second));
    const [state, more] = stateOf(row);
    put(this.state, state);
    put(this.more, more);
  }
  // Returns true if the sparkline is to be redrawn.
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
export class Group {
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
