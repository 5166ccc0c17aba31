// Requests to the server, and the list of processes, which is updated with what has changed.

// Interval between requests for the list, in ms.
const POLL_INTERVAL_MS = 1500;
// Maximum number of points of a process's outline. A longer one loses every second point.
const MAX_OUTLINE = 120;

// Returns an address at the server, without a name and password from the page's own address: the
// browser sends these by itself, and would refuse a request whose address has them.
export const at = (path, values) => `${location.origin}${path}${values ? `?${new URLSearchParams(values)}` : ""}`;

// Returns the parsed answer. Throws an error with the server's message.
export async function ask(path, values, options) {
  let answer;
  try {
    answer = await fetch(at(path, values), options);
  } catch (error) {
    throw new Error(`no answer from the server: ${error.message}`);
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

export const post = (path, values, body) => ask(path, values, { method: "POST", headers: { "X-Mem-Profiler": "1" }, body });

export class Processes {
  // `changed` is called after each answer.
  constructor(changed) {
    this.rows = new Map();
    this.version = null;
    this.settings = { interval: 1024, max_overhead: null, thin: false };
    this.lost = "";
    this.received = false;
    this.changed = changed;
    this.timer = 0;
    this.running = null;
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
    this.poll();
  }
  // Requests the list, and again after a while unless the page is hidden.
  poll() {
    clearTimeout(this.timer);
    this.running = this.running || this.read().finally(() => {
      this.running = null;
      if (!document.hidden) this.timer = setTimeout(() => this.poll(), POLL_INTERVAL_MS);
    });
    return this.running;
  }
  async read() {
    try {
      this.merge(await ask("/api/processes", this.version === null ? null : { since: this.version }));
      this.lost = "";
    } catch (error) {
      this.lost = error.message;
    }
    this.changed();
  }
  merge(list) {
    const before = this.rows;
    if (list.whole) this.rows = new Map();
    for (const id of list.gone) this.rows.delete(id);
    for (const row of list.processes) {
      const known = before.get(row.id);
      row.outline = row.outline || (known ? known.outline : []);
      // From here on, the page advances the values that change as time passes.
      row.received = performance.now();
      this.rows.set(row.id, row);
    }
    // Rows that were not sent have not changed.
    for (const row of this.rows.values()) {
      const last = row.outline[row.outline.length - 1];
      if (last && last[0] >= list.now) continue;
      row.outline.push([list.now, row.live_bytes, row.rss_bytes]);
      if (row.outline.length > MAX_OUTLINE) row.outline = row.outline.filter((_, i, all) => (all.length - 1 - i) % 2 === 0);
    }
    this.version = list.version;
    this.now = list.now;
    this.received = true;
    this.settings = { interval: list.interval, max_overhead: list.max_overhead, thin: list.thin };
  }
  // Returns the process with this pid, or else the only one with this name.
  find(pid, name) {
    const all = [...this.rows.values()];
    const same = all.filter((row) => row.pid === Number(pid) && (!name || row.name === name));
    const living = same.find((row) => !isEnded(row));
    if (living || same.length) return living || same[same.length - 1];
    const named = all.filter((row) => name && row.name === name && !isEnded(row));
    return named.length === 1 ? named[0] : null;
  }
}

export const isEnded = (row) => row.state.startsWith("dead");
export const isSampled = (row) => row.interval !== null;
// Seconds since the row was received.
const passed = (row) => (performance.now() - row.received) / 1000;
export const growthSpan = (row, window) => row.rss_growth_ms[window] + passed(row) * 1000;
export const liveAge = (row) => (row.live_age_seconds === null ? null : row.live_age_seconds + passed(row));
export const secondsLeft = (row) => (row.seconds_left === null ? null : Math.max(0, row.seconds_left - passed(row)));
