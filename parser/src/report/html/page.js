// The page around the tabs. The script of each tab adds it to TABS. The profile is read from JSON.
//
// A tab is {key, label, full, build, when}. `when(data)`, if present, returns whether the tab is shown
// for these data. `build(page, panel)` fills the panel and returns a function that draws what depends
// on the chosen column and comparison; its `steps`, if present, does the same in steps. `full` panels
// have no margins.
const TABS = [];

// Help on the keys of the page itself; keys are separated by two spaces.
const PAGE_KEYS = ["Page", [
  ["click", "on a tab, a value or a comparison: show it; on the head of a column: sort by it"],
  ["←  →", "on a tab: go to the one beside it"],
  ["click", "on a function: find it in the flame graph; on the line of a suspect: open its source"],
  ["←  →", "on the chart of memory over time: go to another moment; a click goes to the nearest"],
  ["?", "this box; Escape closes it"],
]];

class Page {
  constructor() {
    this.data = this.read("profile");
    this.values = new Values(this.data);
    this.state = new PageState(this);
    this.state.choose(this.values);
    this.sorted = {};
    this.tabs = new Map();
    this.shown = "";
    this.list = make("div", "", { role: "tablist", "aria-label": "views of the profile" });
    this.nav = make("nav", "", { "aria-label": "views" }, this.list);
    this.main = make("main");
    this.sum = make("span", "", { class: "sum", role: "status" });
    const header = makeHeader(this.data, this.values, () => this.refresh());
    const help = new HelpBox(document.body, [PAGE_KEYS, FLAME_KEYS, GRAPH_KEYS]);
    const ask = make("button", "?", { type: "button", id: "ask", title: "keys and gestures (?)", "aria-label": "keys and gestures" });
    ask.addEventListener("click", () => help.toggle());
    // The line that answers most questions, before any tab is opened.
    this.most = make("button", "", { type: "button", class: "link most" });
    this.most.addEventListener("click", () => this.open(this.tabs.has("source") ? "source" : "functions"));
    header.append(this.sum, this.most, ask);
    this.nav.addEventListener("keydown", (e) => this.step(e));
    document.body.append(header, this.nav, this.main);
    if (this.data.note) this.nav.before(remark(this.data.note, { class: "say page" }));
  }
  // Completes the page, in steps that are short even if the profile is large.
  *steps() {
    for (const tab of TABS) {
      if (tab.when && !tab.when(this.data)) continue;
      yield;
      this.add(tab);
    }
    const { tab } = this.state;
    this.shown = this.tabs.has(tab) ? tab : this.tabs.keys().next().value;
    yield;
    this.select(this.shown);
    const first = this.tabs.get(this.shown);
    if (first.show.steps) {
      yield* first.show.steps();
      first.stale = false;
      yield;
    }
    this.say();
    this.open(this.shown);
    yield;
    this.state.restore();
  }
  read(id) {
    return JSON.parse(document.getElementById(id).textContent);
  }
  add({ key, label, full, build }) {
    const button = make("button", label, { type: "button", role: "tab", id: `to-${key}`, "aria-controls": key });
    const panel = make("section", "", { id: key, class: full ? "tab full" : "tab", role: "tabpanel", "aria-labelledby": `to-${key}` });
    // Only an element with a tab index can be scrolled by keys.
    if (!full) panel.tabIndex = 0;
    panel.hidden = true;
    button.addEventListener("click", () => this.open(key));
    this.list.append(button);
    this.main.append(panel);
    this.tabs.set(key, { button, panel, show: build(this, panel), stale: true });
  }
  open(key) {
    this.select(key);
    const t = this.tabs.get(key);
    if (t.stale) t.show();
    t.stale = false;
    if (!(key in this.sorted)) this.sorted[key] = this.state.initial(t.panel);
    this.state.soon();
  }
  select(key) {
    this.shown = key;
    for (const [name, t] of this.tabs) {
      t.panel.hidden = name !== key;
      t.button.setAttribute("aria-selected", String(name === key));
      t.button.tabIndex = name === key ? 0 : -1;
    }
  }
  // Handles the arrow keys: opens the next or the previous tab.
  step(e) {
    const keys = [...this.tabs.keys()];
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    e.stopPropagation();
    const next = keys[(keys.indexOf(this.shown) + by + keys.length) % keys.length];
    this.open(next);
    this.tabs.get(next).button.focus();
  }
  // Draws again after another column or comparison was chosen.
  refresh() {
    for (const t of this.tabs.values()) t.stale = true;
    this.say();
    this.open(this.shown);
  }
  // Says what is shown.
  say() {
    const { values } = this;
    const whole = values.isChange() ? `, 100% is ${values.number(values.total())}` : "";
    this.sum.textContent = `${values.signed(values.sum())} shown${whole}`;
    const line = this.largest();
    this.most.hidden = !line;
    if (!line) return;
    this.most.textContent = `most: ${line.text} (${share(line.value, values.total())})`;
    this.most.title = `${line.full}\nclick: the source, or the functions`;
  }
  // The line of the user's own code with the largest value, or else the function; undefined if all
  // values are 0.
  largest() {
    const { values, data } = this;
    const { own, names, places, columns } = data.functions;
    const isOfRule = !data.compared || values.rule === "change";
    const [line] = (isOfRule && own[values.column]) || [];
    if (line) return line;
    const { flat, flat_base: base } = columns[values.column];
    const value = (i) => values.weight(flat[i], base ? base[i] : 0);
    let best = -1;
    names.forEach((_, i) => {
      if (value(i) && (best < 0 || Math.abs(value(i)) > Math.abs(value(best)))) best = i;
    });
    if (best < 0) return undefined;
    const place = (places && places[best]) || "";
    const text = `${names[best]} ${place.slice(place.lastIndexOf("/") + 1)}`;
    return { value: value(best), text: text.trim(), full: `${names[best]} ${place}`.trim() };
  }
}
