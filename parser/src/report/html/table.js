// A table that sorts and filters. Each of `heads` is a column: {key, label, title, words, narrow, soft,
// value(row), text(row) or cell(td, row)}. `first` is the key of the column to sort by, `search(row)`
// returns the text to filter by. Returns a function that fills in rows, given the rows and the number
// of those that are left out.
function sortableTable(panel, heads, first, search) {
  const sort = { key: first, down: true };
  const PAGE = 300;
  let rows = [];
  let beside = 0;
  let shown = PAGE;
  let filter = null;
  const field = make("input", "", { type: "text", placeholder: "filter (regex)", "aria-label": "filter", spellcheck: "false" });
  const count = make("span", "", { class: "count", role: "status" });
  const body = make("tbody");
  const line = make("tr");
  const more = make("button", "Show more", { type: "button" });
  const grid = make("table", "", {}, make("thead", "", {}, line), body);
  panel.append(make("div", "", { class: "tools" }, field, count), grid, more);
  field.addEventListener("input", () => {
    field.setCustomValidity("");
    try {
      filter = field.value ? new Pattern(field.value) : null;
      shown = PAGE;
      draw();
    } catch (error) {
      filter = null;
      field.setCustomValidity(`not a pattern: ${error.message}`);
      field.reportValidity();
    }
  });
  more.addEventListener("click", () => {
    shown += PAGE;
    draw();
  });
  for (const head of heads) {
    const b = make("button", head.label, { type: "button", title: head.title || "" });
    b.addEventListener("click", () => {
      sort.down = sort.key === head.key ? !sort.down : !head.words;
      sort.key = head.key;
      draw();
    });
    head.el = make("th", "", { scope: "col", class: head.words ? head.narrow ? "text narrow" : "text" : head.soft ? "part" : "" }, b);
    line.append(head.el);
  }
  function draw() {
    const head = heads.find((h) => h.key === sort.key);
    const size = (row) => (head.words ? head.value(row) : Math.abs(head.value(row)));
    if (filter) filter.begin();
    const found = filter ? rows.filter((row) => filter.test(search(row))) : [...rows];
    found.sort((a, b) => {
      const [x, y] = [size(a), size(b)];
      return (x < y ? 1 : x > y ? -1 : 0) * (sort.down ? 1 : -1);
    });
    for (const h of heads) {
      if (h.key === sort.key) h.el.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
      else h.el.removeAttribute("aria-sort");
    }
    body.replaceChildren(
      ...found.slice(0, shown).map((row) => {
        const tr = make("tr");
        for (const h of heads) {
          const td = make("td", "", { class: h.words ? h.narrow ? "text narrow" : "text" : h.soft ? "part" : "" });
          if (h.cell) h.cell(td, row);
          else td.textContent = h.text(row);
          tr.append(td);
        }
        return tr;
      })
    );
    if (!found.length) {
      const why = rows.length ? "No row matches the filter." : "Nothing to show: the profile has no samples in this view.";
      body.append(make("tr", "", {}, make("td", why, { class: "nothing", colspan: String(heads.length) })));
    }
    more.hidden = found.length <= shown;
    const number = (n) => n.toLocaleString("en");
    const all = beside ? `the first ${number(rows.length)}; ${number(rows.length + beside)} in all` : number(rows.length);
    count.textContent = `${number(found.length)} of ${all}`;
  }
  return (list, leftOut) => {
    rows = list;
    beside = leftOut || 0;
    draw();
  };
}
// The first functions of a row's stack, from the user's own on.
function ownNames(r) {
  const own = r.site ? Math.max(0, r.stack.indexOf(r.site.name)) : 0;
  return r.stack.slice(own, own + 3).join(" ← ");
}

// The column of the user's own line that allocates. A click opens its source, if the page has it.
function siteColumn(page) {
  const cell = (td, r) => {
    if (!r.site) return td.append("–");
    const title = `${r.site.name}\n${r.site.file}:${r.site.line}`;
    const source = page.data.sources.find((s) => s.name === r.site.name && s.file === r.site.file);
    if (!source) return td.append(make("span", r.site.short, { title }));
    const link = make("button", r.site.short, { type: "button", class: "link", title });
    link.addEventListener("click", () => page.openSource(source, r.site.line));
    td.append(link);
  };
  return { key: "site", label: "Where", title: "the innermost line that is not of a standard library", words: true, narrow: true, value: (r) => (r.site ? r.site.short : ""), cell };
}
