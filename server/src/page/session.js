// Sessions: their description, and the form that starts one.
import { make } from "./dom.js";
import { isEnded, isSampled, post, secondsLeft } from "./net.js";
import { duration, share, size } from "./text.js";

// Returns the state of a process, and details about it.
export function stateOf(row) {
  if (!isSampled(row)) return [row.state, ""];
  const left = row.open_end || row.seconds_left === null ? "until it is stopped" : `${duration(secondsLeft(row) * 1000)} left`;
  const limits = [row.max_overhead && `at most ${share(row.max_overhead)} of CPU time`, row.thin && "thinned"];
  const owner = row.ours ? "by this server" : row.unattended ? "its controller is gone" : "by another program";
  // A limited session may have a large interval.
  const interval = row.interval < 100000 ? `${row.interval} B` : size(row.interval);
  return [`${row.state}, every ${interval}`, [owner, left, ...limits].filter(Boolean).join(", ")];
}

const title = (row) => `${row.name} (${row.pid})`;

// Stops a session. Asks the user first if another program has started it.
export async function stop(row) {
  const values = { pid: row.pid };
  if (!row.ours) {
    const owner = row.unattended ? "The program that started this session is gone. End it" : "Another program started this session and waits for its profile. End it early";
    if (!confirm(`${title(row)}: ${owner}?`)) return;
    values.others = "1";
  }
  await post("/api/stop", values);
}

export const start = (row, values) => post("/api/start", { pid: row.pid, ...values });

export const canStart = (row) => !isEnded(row) && !row.state.startsWith("not sampled");

// The fields of a new session.
export class Fields {
  constructor(submit) {
    const field = (name, label, more) => make("input", "", { name, "aria-label": label, ...more });
    this.interval = field("interval", "mean bytes between samples", { inputmode: "numeric" });
    this.seconds = field("seconds", "length of the session in seconds; empty: until it is stopped", { placeholder: "no end" });
    this.limit = field("max_overhead", "limit on the share of CPU time", { placeholder: "no limit" });
    this.thin = field("thin", "take fewer samples of objects that are freed at once", { type: "checkbox" });
    this.start = make("button", "Start", { type: "submit", class: "start" });
    this.form = make("form", "", {},
      make("label", "every ", {}, this.interval, " bytes"),
      make("label", "for ", {}, this.seconds, " s"),
      make("label", "at most ", {}, this.limit, " of CPU"),
      make("label", "thinned ", {}, this.thin),
      this.start);
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      submit(this.values());
    });
    this.known = false;
  }
  // Fills in the server's defaults, once.
  fill({ interval, max_overhead: limit, thin }) {
    if (this.known) return;
    this.known = true;
    this.interval.value = String(interval);
    this.limit.value = share(limit);
    if (limit) this.limit.title = `this server's limit is ${share(limit)}`;
    this.thin.checked = this.thin.disabled = thin;
  }
  values() {
    const values = { interval: this.interval.value };
    if (this.limit.value.trim()) values.max_overhead = this.limit.value.trim();
    if (this.thin.checked) values.thin = "1";
    if (this.seconds.value.trim()) values.seconds = this.seconds.value.trim();
    return values;
  }
}
