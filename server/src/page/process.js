// One process: its memory over time, its session, and the report of what it holds.
import { make, remark } from "./dom.js";
import { Chart } from "./chart.js";
import { ask, at, growthSpan, isEnded, isSampled, liveAge, post } from "./net.js";
import { Fields, canStart, start, stateOf, stop } from "./session.js";
import { Address, remember } from "./state.js";
import { change, clock, duration, rate, size, sizeWithError } from "./text.js";

// Interval between requests for the history, in ms.
const HISTORY_PERIOD = 3000;
// A report costs the server some CPU time: it is made again while a session runs, but not often.
const REPORT_PERIOD = 10000;
// Time for which a message is shown, in ms.
const NOTICE_MS = 8000;
// Window of the growth that is shown: index among the server's windows, and length in ms.
const [SHOWN_WINDOW, SHOWN_WINDOW_MS] = [1, 600000];
// Number of processes of the same name that are offered for comparison.
const MAX_OTHERS = 20;
// Length of a CPU profile, in seconds.
const CPU_SECONDS = 10;
// Minimum growth of the resident memory for a hint: as a share of it, and in bytes.
const [MIN_SHARE, MIN_BYTES] = [0.2, 16 << 20];

function put(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

// The report, in an iframe. A new report is loaded in a second, hidden iframe. When it is complete,
// it replaces the one shown, with the same tab, search and zoom. An error never replaces a report.
class Report {
  constructor(view, failed) {
    this.el = make("div", "", { class: "report-place" });
    this.view = view;
    this.failed = failed;
    this.time = "";
  }
  get shown() {
    return this.el.querySelector("iframe:not(.next)");
  }
  // Returns the fragment of the shown report's address: its tab and what is chosen in it.
  state() {
    try {
      return this.shown ? this.shown.contentWindow.location.hash.slice(1).replace(/\?$/, "") : this.view;
    } catch {
      return this.view;
    }
  }
  isLoading() {
    return Boolean(this.el.querySelector("iframe.next"));
  }
  load(path, values) {
    if (this.isLoading()) return;
    const frame = make("iframe", "", { class: "report next", title: "report" });
    frame.addEventListener("load", () => this.loaded(frame));
    // The fragment must not be the id of an element: browsers would scroll to it, moving this page.
    const state = this.state();
    frame.src = `${at(path, values)}${state && `#${state}${state.includes("?") ? "" : "?"}`}`;
    this.el.append(frame);
  }
  // Cancels loading.
  stop() {
    for (const frame of this.el.querySelectorAll("iframe.next")) frame.remove();
  }
  loaded(frame) {
    if (!frame.classList.contains("next")) return;
    const page = frame.contentDocument;
    // An answer that is not a report is an error message of the server.
    if (!page || !page.getElementById("profile")) {
      this.failed(page && page.body ? page.body.textContent.trim() : "the report could not be loaded");
      frame.remove();
      return;
    }
    // A large report is drawn in steps, between which this page stays responsive.
    if (page.body.dataset.complete === undefined) page.addEventListener("complete", () => this.swap(frame, page));
    else this.swap(frame, page);
  }
  swap(frame, page) {
    if (!frame.classList.contains("next")) return;
    const focused = this.shown && this.shown === document.activeElement;
    for (const el of [...this.el.children]) if (el !== frame) el.remove();
    frame.classList.remove("next");
    this.time = new Date(page.lastModified);
    if (focused) frame.focus();
    this.failed("");
  }
}

export class Process {
  constructor(processes, address) {
    this.processes = processes;
    this.pid = Number(address.get("pid"));
    this.name = address.get("name");
    // Base of the comparison: id of a snapshot, "u1" for an upload, or "p12" for process 12.
    this.from = address.get("from");
    this.to = Number(address.get("to")) || 0;
    this.failed = "";
    this.notice = "";
    this.sampled = false;
    // True once the history was requested.
    this.charted = false;
    this.snapshots = [];
    this.uploads = [];
    this.title = make("h1", this.name || String(this.pid));
    this.said = make("p", "", { class: "said", role: "alert" });
    this.fields = new Fields((values) => this.act(() => start(this.row(), values)));
    this.stopped = make("button", "Stop", { type: "button", class: "stop" });
    this.stopped.addEventListener("click", () => this.act(() => stop(this.row())));
    this.follow = make("button", "Following", { type: "button", "aria-pressed": "true", id: "follow", title: "make the report anew while the session runs" });
    this.follow.addEventListener("click", () => {
      const on = this.follow.getAttribute("aria-pressed") !== "true";
      this.follow.setAttribute("aria-pressed", String(on));
      put(this.follow, on ? "Following" : "Held");
    });
    const header = make("header", "", { class: "of-one" }, make("a", "All processes", { class: "button", href: "#/" }), this.title, this.fields.form, this.stopped, this.follow);
    this.keys = make("p", "", { class: "keys" });
    this.facts = { rss: make("span", "", { class: "rss" }), live: make("span", "", { class: "live" }), state: make("span"), limit: make("span") };
    this.keys.append(...Object.values(this.facts));
    this.chart = new Chart((snapshot) => this.compare(String(snapshot.id), this.to > snapshot.id ? this.to : 0));
    this.report = new Report(address.get("view"), (message) => {
      this.failed = message;
      this.refresh();
    });
    this.same = make("p", "", { class: "of", hidden: "" });
    this.nothing = remark("");
    this.says = make("p", "", { class: "of", role: "status" });
    const top = make("section", "", { class: "charts", "aria-label": "memory over time" }, this.keys, this.said, this.same, this.chart.el, this.tools(), this.says);
    document.body.append(header, make("main", "", { class: "of-one" }, top, this.nothing, this.report.el));
    this.timers = [setInterval(() => document.hidden || this.readHistory(), HISTORY_PERIOD), setInterval(() => this.renew(), REPORT_PERIOD), setInterval(() => this.keepView(), 500)];
    this.refresh();
  }
  // What can be done with the process.
  tools() {
    const button = (text, title, act) => {
      const b = make("button", text, { type: "button", title });
      b.addEventListener("click", act);
      return b;
    };
    this.mark = button("Mark", "remember this moment, to see what changes after it", () => this.act(async () => {
      const mark = await post("/api/mark", { pid: this.row().pid });
      await this.readHistory();
      this.compare(String(mark.id), 0);
    }));
    this.since = make("select", "", { "aria-label": "show what has changed since" });
    this.until = make("select", "", { "aria-label": "show what there was at" });
    for (const el of [this.since, this.until]) el.addEventListener("change", () => this.compare(this.since.value, Number(this.until.value)));
    this.file = make("input", "", { type: "file", hidden: "", "aria-label": "profile to compare with" });
    this.file.addEventListener("change", () => this.act(() => this.send()));
    this.other = button("Compare with a file…", "a dump or another profile, from which on changes are shown", () => this.file.click());
    this.link = button("Copy link", "the address of what is shown here", () => this.copy());
    this.forget = button("Recover", "save the profile that the process has left, and remove it from the machine", () => this.act(() => this.recover()));
    this.again = button("Refresh", "make the report anew", () => this.load());
    this.cpu = button("CPU time", `where the CPU time of the next ${CPU_SECONDS} seconds goes`, () => this.sample(""));
    this.both = button("CPU and heap", `the CPU time of the next ${CPU_SECONDS} seconds beside the heap`, () => this.sample("1"));
    const link = (text, title) => make("a", text, { class: "button", title });
    this.lost = link("Lost objects", "objects that no pointer leads to; the process stops for a moment");
    this.lost.target = "_blank";
    this.dump = link("Dump", "the profile as a file, for mem_parser");
    this.proto = link("pprof", "the profile as a file, for go tool pprof");
    this.page = link("Page", "this report as one file");
    for (const el of [this.dump, this.proto, this.page]) el.download = "";
    this.moments = make("span", "", { class: "moments" }, make("label", "changes since ", {}, this.since), make("label", "until ", {}, this.until));
    this.downloads = make("span", "", { class: "downloads" }, make("span", "Download:"), this.dump, this.proto, this.page);
    return make("div", "", { class: "tools" },
      this.moments, this.mark, this.other, this.file, this.again, this.link, this.cpu, this.both, this.lost, this.downloads, this.forget);
  }
  // Uploads a file to compare the report with, compressed.
  async send() {
    const [file] = this.file.files;
    if (!file) return;
    this.file.value = "";
    const packed = file.stream().pipeThrough(new CompressionStream("gzip"));
    const body = await new Response(packed).blob();
    const upload = await post("/api/upload", { name: file.name }, body);
    this.uploads.push(upload);
    this.compare(`u${upload.id}`, 0);
  }
  // Saves the profile of an ended process. Removes it from the machine only after the download.
  async recover() {
    const answer = await fetch(this.dump.href);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const url = URL.createObjectURL(await answer.blob());
    const name = /filename="([^"]*)"/.exec(answer.headers.get("Content-Disposition") || "");
    const save = make("a", "", { href: url, download: name ? name[1] : "profile.heap" });
    save.click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
    await post("/api/forget", { pid: this.row().pid });
    this.note("The profile is among your downloads, and is removed from the machine");
  }
  async copy() {
    const address = `${location.origin}${location.pathname}${location.hash}`;
    try {
      await navigator.clipboard.writeText(address);
    } catch {
      // Browsers permit the clipboard only on localhost and over TLS.
      const field = make("textarea", address);
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
    this.note(`The link is copied${isLocal ? "; it leads here on this machine only: to others, send the file of “Page”" : ""}`);
  }
  // Shows a message for a while.
  note(text) {
    this.notice = text;
    this.until_ms = Date.now() + NOTICE_MS;
    this.refresh();
  }
  row() {
    return this.processes.find(this.pid, this.name);
  }
  async act(work) {
    this.failed = "";
    this.refresh();
    try {
      if (this.row()) await work();
    } catch (error) {
      this.failed = error.message;
    }
    this.refresh();
    // The server reads the list at most once a second.
    setTimeout(() => this.processes.poll(), 1000);
  }
  async readHistory() {
    const row = this.row();
    if (!row) return;
    try {
      const history = await ask("/api/history", { pid: row.pid });
      if (history.id !== row.id) return;
      this.snapshots = history.snapshots;
      this.uploads = history.uploads;
      this.chart.show(history, [Number(this.from), this.to]);
      this.fill();
    } catch (error) {
      // A lost server is reported by the list, which is requested more often.
      if (!this.processes.lost && !this.failed) this.failed = error.message;
    }
  }
  // Fills in the choices of moments and profiles to compare.
  fill() {
    const ago = (at) => (this.processes.now > at ? `, ${duration(this.processes.now - at)} ago` : "");
    const moments = this.snapshots.map((s) => [String(s.id), `${clock(s.at)}${s.is_mark ? " (mark)" : ""}`]);
    const past = moments.map(([id, text], i) => [id, `${text}${ago(this.snapshots[i].at)}`]);
    const sent = this.uploads.map((u) => [`u${u.id}`, `${u.name}, sent ${clock(u.at)}`]);
    const others = [...this.processes.rows.values()].filter((row) => row.name === this.name && row.pid !== this.pid && row.samples > 0);
    const profiles = others.slice(0, MAX_OTHERS).map((row) => [`p${row.pid}`, `${row.name} (${row.pid})${isEnded(row) ? ", ended" : ""}`]);
    const set = (select, first, chosen, list) => {
      const options = [["", first], ...list];
      if (chosen && !options.some(([id]) => id === chosen)) options.push([chosen, "(not kept)"]);
      const texts = JSON.stringify(options);
      if (select.dataset.options !== texts && document.activeElement !== select) {
        select.dataset.options = texts;
        select.replaceChildren(...options.map(([id, text]) => make("option", text, { value: id })));
      }
      select.value = chosen;
    };
    set(this.since, "the session's start", this.from, [...past, ...sent, ...profiles]);
    set(this.until, "now", this.to ? String(this.to) : "", moments);
  }
  // Shows what has changed since a moment or another profile (`from`; "": the session's start) until
  // a moment (`to`; 0: now).
  compare(from, to) {
    [this.from, this.to] = to && to <= Number(from) ? [from, 0] : [from, to];
    remember("from", this.from);
    remember("to", this.to ? String(this.to) : "");
    this.fill();
    this.report.stop();
    this.load();
  }
  values() {
    const values = { pid: this.row().pid };
    if (this.from) values.from = this.from;
    if (this.to) values.to = this.to;
    return values;
  }
  load() {
    if (this.row()) this.report.load("/report", this.values());
  }
  // Shows where CPU time goes.
  sample(heap) {
    const row = this.row();
    if (!row) return;
    this.report.stop();
    this.report.load("/report/cpu", { pid: row.pid, seconds: CPU_SECONDS, heap });
    this.notice = `sampling CPU time until ${clock(Date.now() + CPU_SECONDS * 1000)}`;
    this.until_ms = Date.now() + CPU_SECONDS * 1000;
    if (this.follow.getAttribute("aria-pressed") === "true") this.follow.click();
    this.refresh();
  }
  // Reloads the report if the session runs and the user follows it.
  renew() {
    const row = this.row();
    const follows = this.follow.getAttribute("aria-pressed") === "true";
    if (row && isSampled(row) && follows && !this.to && !document.hidden) this.load();
  }
  keepView() {
    if (this.report.shown) remember("view", this.report.state());
    if (this.notice && Date.now() > this.until_ms) {
      this.notice = this.report.isLoading() ? "the report is being made" : "";
      this.refresh();
    }
  }
  refresh() {
    const { processes } = this;
    const row = this.row();
    put(this.said, processes.lost || this.failed);
    this.said.hidden = !this.said.textContent;
    if (!row) {
      this.missing();
      return;
    }
    if (row.pid !== this.pid || row.name !== this.name) {
      [this.pid, this.name] = [row.pid, row.name];
      remember("pid", String(row.pid));
      remember("name", row.name);
    }
    const title = `${row.name} (${row.pid})`;
    // A name that is written from right to left must not turn the number around.
    if (this.title.textContent !== title) this.title.replaceChildren(make("bdi", row.name), ` (${row.pid})`);
    this.title.title = row.command ? `${title}: ${row.command}` : title;
    document.title = title;
    if (!this.charted) this.readHistory();
    this.charted = true;
    const sampled = isSampled(row);
    this.fields.fill(processes.settings);
    this.fields.form.hidden = sampled || !canStart(row);
    this.stopped.hidden = this.follow.hidden = !sampled;
    this.mark.hidden = !sampled;
    for (const el of [this.cpu, this.both, this.lost]) el.hidden = isEnded(row);
    const has = row.samples > 0;
    for (const el of [this.moments, this.other, this.again, this.downloads]) el.hidden = !has;
    for (const el of [this.both, this.lost]) el.classList.toggle("gone", !has);
    this.proto.classList.toggle("gone", !sampled);
    this.forget.hidden = !(isEnded(row) && row.samples);
    if (isEnded(row)) this.offer();
    this.links(row);
    this.tell(row, sampled);
    // When a session begins or ends, the report is reloaded.
    const turned = this.sampled !== sampled && this.report.shown;
    this.sampled = sampled;
    if (has && (turned || !this.report.shown) && !this.report.isLoading() && !this.failed) this.load();
    const next = sampled ? "the process has allocated too little since its session began." : "press Start. What is allocated from then on is shown here, by function and line.";
    this.nothing.hidden = has || Boolean(this.report.shown) || this.report.isLoading();
    put(this.nothing, `Nothing was sampled yet: ${next}`);
  }
  // Shows that the process is gone, or that several have its name.
  missing() {
    for (const el of [this.fields.form, this.stopped, this.follow, this.moments, this.mark, this.other, this.again, this.cpu, this.both, this.lost, this.downloads, this.forget]) el.hidden = true;
    this.chart.el.hidden = !this.chart.points.length;
    if (!this.processes.received) return;
    this.offer();
    const several = !this.pid && !this.same.hidden && "Several processes have this name.";
    put(this.said, this.processes.lost || several || `${this.name || "The process"}${this.pid ? ` (${this.pid})` : ""} has ended, and has left no profile.`);
    this.said.hidden = false;
  }
  // Links to the living processes of the same name.
  offer() {
    const same = [...this.processes.rows.values()].filter((row) => row.name === this.name && !isEnded(row));
    const texts = JSON.stringify(same.map((row) => row.id));
    if (this.same.dataset.ids === texts) return;
    this.same.dataset.ids = texts;
    const links = same.slice(0, 20).map((row) => make("a", `${row.name} (${row.pid})`, { class: "button", href: Address.to("/process", { name: row.name, pid: String(row.pid) }) }));
    this.same.replaceChildren("Of the same name: ", ...links.flatMap((link) => [link, " "]));
    this.same.hidden = !links.length;
  }
  links(row) {
    this.lost.href = at("/report/lost", { pid: row.pid });
    this.dump.href = at("/dump", { pid: row.pid, ...(this.to ? { at: this.to } : {}) });
    this.proto.href = at(`/p/${row.pid}/debug/pprof/heap`);
    this.page.href = at("/report", { ...this.values(), download: "1" });
  }
  tell(row, sampled) {
    const age = liveAge(row);
    const old = isEnded(row) ? " at its end" : age > 4 ? ` ${duration(age * 1000)} ago` : "";
    const growing = rate(row.growth_per_second) && `, ${rate(row.growth_per_second)}`;
    const grown = row.rss_growth[SHOWN_WINDOW];
    const since = grown && `, ${change(grown)} in ${duration(Math.min(SHOWN_WINDOW_MS, growthSpan(row, SHOWN_WINDOW)))}`;
    put(this.facts.rss, isEnded(row) ? "" : `resident ${size(row.rss_bytes)}${since || ""}`);
    put(this.facts.live, row.live_bytes === null ? "live heap not known" : `live ${row.live_source === "samples" ? sizeWithError(row.live_bytes, row.session_live_error) : size(row.live_bytes)}${old}${old ? "" : growing}`);
    put(this.facts.state, [...stateOf(row), row.samples ? `${row.samples} samples` : ""].filter(Boolean).join(", "));
    put(this.facts.limit, row.group_limit ? `its group uses ${size(row.group_bytes)} of ${size(row.group_limit)}` : "");
    const all = row.rss_growth[3];
    const grows = all > Math.max(MIN_BYTES, row.rss_bytes * MIN_SHARE);
    const python = grows && row.python && row.live_bytes !== null && row.live_bytes < row.rss_bytes / 2;
    const hint = python ? "Most of what Python's own allocator holds is in no sample: start the program with PYTHONMALLOC=malloc to see all of it. " : "";
    const written = this.report.time instanceof Date ? this.report.time.getTime() : NaN;
    const moment = isEnded(row) ? "The report is of what the process has left at its end" : `The report is as of ${clock(written)}`;
    const time = Number.isNaN(written) ? "" : moment;
    const { processes } = this;
    const whole = row.live_bytes !== null && row.live_source !== "samples" && row.session_live_bytes <= row.live_bytes ? `, of ${size(row.live_bytes)} live` : "";
    const held = row.session_since ? ` At ${clock(processes.now)}, ${sizeWithError(row.session_live_bytes, row.session_live_error)} that were allocated since ${clock(row.session_since)} were in use${whole}.` : "";
    const part = this.from || this.to ? this.changed() : ": what was allocated in the session and was in use";
    put(this.says, [this.notice && `${this.notice}. `, hint, time && `${time}${part}.`, held].filter(Boolean).join(""));
  }
  changed() {
    if (this.from.startsWith("u") || this.from.startsWith("p")) return ": what is more or less than in the other profile";
    return ": what changed between the moments chosen";
  }
  end() {
    this.timers.forEach(clearInterval);
  }
}
