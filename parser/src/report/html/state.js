// Keeps the state of the page in its address, after "#", so that a link or a new page of the same
// process shows it again: "#functions?value=alloc_space&filter=parse". Unknown parts are ignored.
const STATE_DELAY = 200; // ms after the last event

class PageState {
  constructor(page) {
    this.page = page;
    this.timer = 0;
    const [tab, query] = location.hash.slice(1).split("?");
    this.tab = tab;
    this.wanted = new URLSearchParams(query || "");
  }
  // Sets the column and the comparison, before anything is drawn.
  choose(values) {
    const column = values.columns.findIndex((c) => c.kind === this.wanted.get("value"));
    if (column >= 0) values.column = column;
    const rule = RULES.find(([key]) => key === this.wanted.get("rule"));
    if (rule && values.compared) values.rule = rule[0];
  }
  // Restores the state of the open tab, which was drawn before; then follows what the user does.
  restore() {
    const { page, wanted } = this;
    page.flame.restore(Object.fromEntries(wanted));
    const panel = this.panel();
    const field = panel.querySelector(".tools input[type=text]");
    if (field && wanted.get("filter")) {
      field.value = wanted.get("filter");
      field.dispatchEvent(new Event("input"));
    }
    const head = [...panel.querySelectorAll("th button")].find((b) => b.textContent === wanted.get("sort"));
    const order = () => head.closest("th").getAttribute("aria-sort");
    if (head && order() !== wanted.get("order")) head.click();
    if (head && order() !== wanted.get("order")) head.click();
    panel.scrollTop = Number(wanted.get("scroll")) || 0;
    for (const event of ["input", "click", "keyup", "scroll", "wheel"]) {
      document.addEventListener(event, () => this.soon(), { capture: true, passive: true });
    }
    this.write();
  }
  panel() {
    return this.page.tabs.get(this.page.shown).panel;
  }
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), STATE_DELAY);
  }
  write() {
    const { page } = this;
    const { values } = page;
    const state = {};
    if (values.column !== page.data.column) state.value = values.columns[values.column].kind;
    if (values.compared && values.rule !== "change") state.rule = values.rule;
    Object.assign(state, page.flame.state());
    const panel = this.panel();
    const field = panel.querySelector(".tools input[type=text]");
    if (field) state.filter = field.value;
    const sorted = panel.querySelector("th[aria-sort] button");
    if (sorted && page.sorted[page.shown] !== this.order(sorted)) {
      state.sort = sorted.textContent;
      state.order = sorted.closest("th").getAttribute("aria-sort");
    }
    if (panel.scrollTop) state.scroll = String(Math.round(panel.scrollTop));
    const query = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
    const text = query.toString();
    // In an iframe, the address must be more than a tab's name: while it loads, a browser scrolls the
    // outer page to the element of that name.
    const inFrame = window.parent !== window;
    history.replaceState(null, "", `#${page.shown}${text || inFrame ? `?${text}` : ""}`);
  }
  order(button) {
    return `${button.textContent} ${button.closest("th").getAttribute("aria-sort")}`;
  }
  // Returns the order of a tab's table when the tab is first opened.
  initial(panel) {
    const sorted = panel.querySelector("th[aria-sort] button");
    return sorted ? this.order(sorted) : "";
  }
}
