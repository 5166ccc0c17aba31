// Source lines with values.
function sourceTab(page, panel) {
  const { data, values } = page;
  if (!data.sources.length) {
    panel.append(remark("No source lines: the program has no line information, or its source files were not found on the machine that made this page. To search other directories: mem_parser --source_path=DIRECTORY."));
    return () => {};
  }
  const list = make("div", "", { class: "list" });
  const code = make("div", "", { class: "code", tabindex: "0" });
  panel.append(make("div", "", { class: "split" }, list, code));
  let chosen = 0;
  let wanted = null;
  const value = (row, base) => (base === undefined ? row : values.weight(row, base));
  const of = (w) => ({ line: w[0], flat: value(w[1], w[3]), cum: value(w[2], w[4]) });
  page.openSource = (source, line) => {
    wanted = { source, line };
    page.tabs.get("source").stale = true;
    page.open("source");
  };
  function showCode() {
    const s = data.sources[chosen];
    const weights = new Map(s.weights[values.column].map(of).map((w) => [w.line, w]));
    const body = make("tbody");
    s.text.forEach((text, i) => {
      const w = weights.get(s.first + i);
      const cell = (v) => make("td", v ? values.signed(v) : "");
      const tr = make("tr", "", { class: w && (w.flat || w.cum) ? "warm" : "" });
      if (wanted && wanted.line === s.first + i) tr.classList.add("sought");
      tr.append(cell(w && w.flat), cell(w && w.cum), make("td", String(s.first + i), { class: "number" }), make("td", text, { class: "text" }));
      body.append(tr);
    });
    const head = make("tr");
    for (const [text, kind] of [["flat", ""], ["cum", ""], ["line", ""], ["code", "text"]]) {
      head.append(make("th", "", { class: kind }, make("span", text, { class: "plain" })));
    }
    const title = make("h2", s.name, {}, make("br"), make("small", s.file));
    code.replaceChildren(title, make("table", "", {}, make("thead", "", {}, head), body));
  }
  return () => {
    const flat = (s) => s.weights[values.column].map(of).reduce((sum, w) => sum + w.flat, 0);
    const largest = (s) => s.weights[values.column].map(of).reduce((m, w) => (Math.abs(w.cum) > Math.abs(m) ? w.cum : m), 0);
    // For a recursive function, the values of its lines do not add up to its own.
    const cum = (s) => {
      const { names, columns: held } = data.functions;
      const i = names.indexOf(s.name);
      if (i < 0 || i !== names.lastIndexOf(s.name)) return largest(s);
      const c = held[values.column];
      return values.weight(c.cum[i], c.cum_base ? c.cum_base[i] : 0);
    };
    const rank = (i) => Math.abs(flat(data.sources[i])) * 1e6 + Math.abs(largest(data.sources[i]));
    // The user's own functions come first, and of these the ones nearest to the allocations: `main`
    // leads to all of them.
    const own = (i) => Number(data.sources[i].own);
    const inner = (i) => Math.abs(value(...data.sources[i].inner[values.column]));
    const order = data.sources.map((_, i) => i).sort((a, b) => own(b) - own(a) || inner(b) - inner(a) || rank(b) - rank(a));
    chosen = wanted ? data.sources.indexOf(wanted.source) : order[0];
    list.replaceChildren(
      ...order.map((i) => {
        const s = data.sources[i];
        const b = make("button", s.name, { type: "button", "aria-pressed": String(i === chosen) });
        b.append(make("small", `flat ${values.signed(flat(s)) || 0} · cum ${values.signed(cum(s))}`));
        b.addEventListener("click", () => {
          chosen = i;
          wanted = null;
          for (const other of list.children) other.setAttribute("aria-pressed", String(other === b));
          showCode();
        });
        return b;
      })
    );
    showCode();
    const row = code.querySelector(".sought");
    if (row) row.scrollIntoView({ block: "center" });
  };
}

TABS.push({ key: "source", label: "Source", full: false, build: sourceTab });
