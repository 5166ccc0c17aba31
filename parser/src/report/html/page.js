// The page around the flame graph: tabs, tables, source, allocator. All of the profile is read
// from JSON and written with textContent.
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("profile");
  const columns = data.flame.columns;
  const RULES = data.compared
    ? [
        ["change", "Change", "what is more or less than in the base"],
        ["larger", "Now, change coloured", "as wide as the larger of before and now, coloured by the change"],
        ["now", "Now", "without the base"],
        ["base", "Base", "what there was before"],
      ]
    : [["now", "Now", ""]];
  const KINDS = {
    inuse_space: "In-use bytes", inuse_objects: "In-use objects",
    alloc_space: "Allocated bytes", alloc_objects: "Allocated objects",
  };
  // A profile without a base may still hold values below zero: another's comparison.
  const signs = columns.some((c) => c.minus);
  const at = { column: data.column, rule: data.compared || signs ? "change" : "now", tab: "" };

  function make(name, text, attributes, ...children) {
    const el = document.createElement(name);
    if (text) el.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
    el.append(...children);
    return el;
  }
  const column = () => columns[at.column];
  const total = () => column().totals[at.rule];
  const number = (value) => scaled(value, column().scales);
  const isChange = () => (data.compared || signs) && (at.rule === "change" || at.rule === "larger");
  const signed = (value) => (isChange() && value > 0 ? "+" : "") + number(value);
  const weight = (plus, minus) => {
    if (at.rule === "now") return plus;
    return at.rule === "base" ? minus : plus - minus;
  };

  // --- header: what is shown
  const header = make("header", "", {}, make("h1", data.title, { title: data.title }));
  function choice(label, options, chosen, act) {
    const group = make("span", "", { class: "group", role: "group", "aria-label": label });
    const press = (key) => {
      for (const b of group.children) b.setAttribute("aria-pressed", String(b.dataset.key === String(key)));
    };
    for (const [key, text, title] of options) {
      const b = make("button", text, { type: "button", "data-key": key, title: title || "" });
      b.addEventListener("click", () => {
        press(key);
        act(key);
        refresh();
      });
      group.append(b);
    }
    press(chosen);
    return group;
  }
  const order = ["inuse_space", "inuse_objects", "alloc_space", "alloc_objects"];
  const rank = (c) => (order.includes(c.kind) ? order.indexOf(c.kind) : order.length);
  const kinds = columns.map((c, i) => [i, KINDS[c.kind] || c.kind, rank(c)]).sort((a, b) => a[2] - b[2]);
  header.append(choice("value", kinds.map(([i, text]) => [i, text]), at.column, (i) => { at.column = Number(i); }));
  if (data.compared) header.append(choice("comparison", RULES, at.rule, (rule) => { at.rule = rule; }));
  const sum = make("span", "", { class: "sum", role: "status" });
  header.append(sum);

  // --- tabs
  const nav = make("nav", "", { role: "tablist" });
  const main = make("main");
  const tabs = new Map();
  function tab(key, label, full, build) {
    const b = make("button", label, { type: "button", role: "tab", id: `to-${key}`, "aria-controls": key });
    const panel = make("section", "", { id: key, class: full ? "tab full" : "tab", role: "tabpanel", "aria-labelledby": `to-${key}` });
    panel.hidden = true;
    b.addEventListener("click", () => open(key));
    nav.append(b);
    main.append(panel);
    tabs.set(key, { button: b, panel, show: build(panel), stale: true });
  }
  function open(key) {
    at.tab = key;
    for (const [name, t] of tabs) {
      t.panel.hidden = name !== key;
      t.button.setAttribute("aria-selected", String(name === key));
      t.button.tabIndex = name === key ? 0 : -1;
    }
    const t = tabs.get(key);
    if (t.stale) t.show();
    t.stale = false;
    history.replaceState(null, "", `#${key}`);
  }
  nav.addEventListener("keydown", (e) => {
    const keys = [...tabs.keys()];
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    e.stopPropagation();
    const next = keys[(keys.indexOf(at.tab) + by + keys.length) % keys.length];
    open(next);
    tabs.get(next).button.focus();
  });
  function refresh() {
    for (const t of tabs.values()) t.stale = true;
    const { plus, minus } = column();
    const all = plus.reduce((s, p, i) => s + weight(p, minus ? minus[i] : 0), 0);
    sum.textContent = `${signed(all)} shown` + (isChange() ? `, 100% is ${number(total())}` : "");
    open(at.tab);
  }

  // --- flame graph
  tab("flame", "Flame graph", true, (panel) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "flame");
    svg.setAttribute("font-size", "12");
    svg.setAttribute("font-family", "Helvetica, Arial, 'Liberation Sans', sans-serif");
    panel.append(svg);
    const merged = data.flame.pruned;
    const note = merged ? [`${merged} branches too small to be seen are merged into grey frames`] : [];
    const graph = flameGraph(svg, data.flame, { title: note });
    let attached = false;
    tabs.find = (text) => {
      open("flame");
      graph.find(text);
    };
    return () => {
      if (!attached) graph.attach();
      attached = true;
      graph.show(at.column, at.rule);
    };
  });

  // --- call graph: its own document, so that neither styles nor scripts meet
  tab("graph", "Call graph", true, (panel) => {
    let graphs = null;
    return () => {
      graphs = graphs || read("graphs");
      const pictures = graphs[at.column];
      const picture = isChange() && data.compared ? pictures.change : pictures.now;
      panel.replaceChildren();
      if (!picture || at.rule === "base") {
        const why = at.rule === "base" && picture ? "There is no call graph of the base; open its dump by itself." : "Nothing to show: the profile has no samples in this view.";
        panel.append(make("p", why, { class: "say", style: "padding:14px" }));
        return;
      }
      const frame = make("iframe", "", { title: "call graph", sandbox: "allow-scripts" });
      frame.srcdoc =
        '<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">' +
        "<style>html,body{margin:0;height:100%;overflow:hidden}</style>" + picture;
      panel.append(frame);
    };
  });

  // --- tables that sort
  // columns: {key, label, title, text(row), value(row), cell(td, row)}
  function table(panel, heads, first, search) {
    const sort = { key: first, down: true };
    const PAGE = 300;
    let rows = [];
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
        filter = field.value ? new RegExp(field.value, "i") : null;
      } catch (error) {
        field.setCustomValidity("not a pattern");
        field.reportValidity();
        return;
      }
      shown = PAGE;
      draw();
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
      head.el = make("th", "", { scope: "col", class: head.words ? "text" : "" }, b);
      line.append(head.el);
    }
    function draw() {
      const head = heads.find((h) => h.key === sort.key);
      const size = (row) => (head.words ? head.value(row) : Math.abs(head.value(row)));
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
            const td = make("td", "", { class: h.words ? "text" : h.soft ? "part" : "" });
            if (h.cell) h.cell(td, row);
            else td.textContent = h.text(row);
            tr.append(td);
          }
          return tr;
        })
      );
      more.hidden = found.length <= shown;
      count.textContent = `${found.length} of ${rows.length}`;
    }
    return (list) => {
      rows = list;
      draw();
    };
  }
  function bar(td, value, whole) {
    td.classList.add("weight");
    const part = whole ? Math.min(100, (Math.abs(value) / whole) * 100) : 0;
    td.style.backgroundImage = "linear-gradient(var(--bar),var(--bar))";
    td.style.backgroundSize = `${part}% 3px`;
    td.textContent = signed(value);
    if (isChange() && value) td.classList.add(value > 0 ? "more" : "less");
  }
  const literal = (name) => `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;

  // --- functions
  tab("functions", "Functions", false, (panel) => {
    const f = data.functions;
    panel.append(make("p", "Flat is what a function allocated itself, cum with all that it called.", { class: "say" }));
    const sized = (key, label, title) => [
      {
        key, label, title, value: (r) => r[key],
        cell: (td, r) => {
          bar(td, r[key], total());
          if (r[`${key}Off`]) td.title = `± ${number(r[`${key}Off`])} at 95 %`;
        },
      },
      { key: `${key}%`, label: `${label}%`, title: `${title}, of everything`, soft: true, value: (r) => r[key], text: (r) => share(r[key], total()) },
    ];
    const name = {
      key: "name", label: "Function", words: true, value: (r) => r.name,
      cell: (td, r) => {
        const b = make("button", r.name, { type: "button", class: "link", title: "show in the flame graph" });
        b.addEventListener("click", () => tabs.find(literal(r.name)));
        td.append(b);
      },
    };
    const heads = [...sized("flat", "Flat", "itself"), ...sized("cum", "Cum", "with what it called"), name];
    const fill = table(panel, heads, "flat", (r) => r.name);
    if (f.left_out) panel.append(make("p", `${f.left_out} smaller functions are left out.`, { class: "say" }));
    return () => {
      const c = f.columns[at.column];
      const of = (key, i) => weight(c[key][i], c[`${key}_base`] ? c[`${key}_base`][i] : 0);
      // Variances are those of both sides of a comparison together.
      const both = !data.compared || isChange();
      const off = (key, i) => (both && c[`${key}_variance`] ? halfWidth(of(key, i), c[`${key}_variance`][i]) : 0);
      const rows = f.names.map((name, i) => ({
        name, flat: of("flat", i), cum: of("cum", i), flatOff: off("flat", i), cumOff: off("cum", i),
      }));
      fill(rows.filter((r) => r.flat || r.cum));
    };
  });

  // --- source
  tab("source", "Source", false, (panel) => {
    if (!data.sources.length) {
      panel.append(make("p", "No source lines: the program has no line information, or its source files were not found on the machine that made this page. --source_path names folders to search.", { class: "say" }));
      return () => {};
    }
    const list = make("div", "", { class: "list" });
    const code = make("div", "", { class: "code", tabindex: "0" });
    panel.append(make("div", "", { class: "split" }, list, code));
    let chosen = 0;
    const value = (row, base) => (base === undefined ? row : weight(row, base));
    const of = (w) => ({ line: w[0], flat: value(w[1], w[3]), cum: value(w[2], w[4]) });
    function showCode() {
      const s = data.sources[chosen];
      const weights = new Map(s.weights[at.column].map(of).map((w) => [w.line, w]));
      const body = make("tbody");
      s.text.forEach((text, i) => {
        const w = weights.get(s.first + i);
        const cell = (v) => make("td", v ? signed(v) : "");
        const tr = make("tr", "", { class: w && (w.flat || w.cum) ? "warm" : "" });
        tr.append(cell(w && w.flat), cell(w && w.cum), make("td", String(s.first + i), { class: "number" }), make("td", text, { class: "text" }));
        body.append(tr);
      });
      const head = make("tr");
      for (const [text, kind] of [["flat", ""], ["cum", ""], ["line", ""], ["", "text"]]) {
        head.append(make("th", "", { class: kind }, make("span", text, { class: "plain" })));
      }
      const title = make("h2", s.name, {}, make("br"), make("small", s.file));
      code.replaceChildren(title, make("table", "", {}, make("thead", "", {}, head), body));
    }
    return () => {
      const flat = (s) => s.weights[at.column].map(of).reduce((sum, w) => sum + w.flat, 0);
      const largest = (s) => s.weights[at.column].map(of).reduce((m, w) => (Math.abs(w.cum) > Math.abs(m) ? w.cum : m), 0);
      // The lines' values do not add up to the function's where it calls itself.
      const cum = (s) => {
        const { names, columns: held } = data.functions;
        const i = names.indexOf(s.name);
        if (i < 0 || i !== names.lastIndexOf(s.name)) return largest(s);
        const c = held[at.column];
        return weight(c.cum[i], c.cum_base ? c.cum_base[i] : 0);
      };
      const rank = (i) => Math.abs(flat(data.sources[i])) * 1e6 + Math.abs(largest(data.sources[i]));
      const order = data.sources.map((_, i) => i).sort((a, b) => rank(b) - rank(a));
      chosen = order[0];
      list.replaceChildren(
        ...order.map((i) => {
          const s = data.sources[i];
          const b = make("button", s.name, { type: "button", "aria-pressed": String(i === chosen) });
          b.append(make("small", `flat ${signed(flat(s)) || 0} · cum ${signed(cum(s))}`));
          b.addEventListener("click", () => {
            chosen = i;
            for (const other of list.children) other.setAttribute("aria-pressed", String(other === b));
            showCode();
          });
          return b;
        })
      );
      showCode();
    };
  });

  // --- leak suspects
  function age(ms) {
    if (ms === null) return "–";
    const units = [["ms", 1], ["s", 1e3], ["min", 6e4], ["h", 3.6e6], ["d", 8.64e7]];
    let [unit, factor] = units[0];
    for (const [name, f] of units) if (ms / f >= 1) [unit, factor] = [name, f];
    const value = ms / factor;
    return `${value >= 100 || factor === 1 ? Math.round(value) : value.toFixed(1)} ${unit}`;
  }
  tab("leaks", "Leak suspects", false, (panel) => {
    const { rows, duration } = data.suspects;
    if (!rows) {
      panel.append(make("p", "This profile holds no values in use: only heap profiles have suspects.", { class: "say" }));
      return () => {};
    }
    const grown = rows.some((r) => r.growth);
    const how = grown
      ? "The score is the growth since the base that is proven at 95 %, less the more of what a stack allocates is freed, and less the younger its live objects are beside what the freed ones lived to. More dumps of one session tell steady growth from growth that has ended: mem_parser --leaks."
      : "The score is the live bytes, less the more of what a stack allocates is freed, and less the younger its live objects are beside what the freed ones lived to. A cache that fills looks like a leak until it is full: compare with an earlier dump of the session (--base) to see what keeps growing.";
    panel.append(make("p", `Stacks whose objects stay, worst first. ${how}`, { class: "say" }));
    if (rows.some((r) => r.age === null)) {
      panel.append(make("p", "This profile holds no ages of objects; only this profiler's own dumps do.", { class: "say" }));
    }
    const bytes = (v) => scaled(v, [["B", 1], ["kB", 1024], ["MB", 1048576], ["GB", 1073741824], ["TB", 1099511627776]]);
    const heads = [
      { key: "score", label: "Score", title: grown ? "proven growth × kept × age" : "live bytes × kept × age", value: (r) => r.score + r.plain * 1e-9, text: (r) => bytes(r.score) },
      { key: "bytes", label: "Live bytes", title: "± at 95 %", value: (r) => r.bytes, text: (r) => `${bytes(r.bytes)} ± ${bytes(r.error)}` },
      { key: "objects", label: "Objects", value: (r) => r.objects, text: (r) => String(r.objects) },
      { key: "samples", label: "Samples", title: "live samples: few of them say little", soft: true, value: (r) => r.samples, text: (r) => (r.samples === null ? "–" : String(r.samples)) },
      { key: "kept", label: "Kept", title: "live share of the bytes it allocated", value: (r) => r.kept, text: (r) => share(r.kept, 1) },
      { key: "age", label: "Mean age", title: "of live objects", value: (r) => r.age, text: (r) => age(r.age) },
      { key: "lifetime", label: "Freed after", title: "mean lifetime of freed objects", value: (r) => (r.lifetime === null ? Infinity : r.lifetime), text: (r) => (r.age === null ? "–" : r.lifetime === null ? "never" : age(r.lifetime)) },
    ];
    if (grown) {
      const rate = (r) => (r.growth ? r.growth.rate : 0);
      heads.push({ key: "growth", label: "Growth/min", title: "since the base, ± at 95 %", value: rate, text: (r) => (r.growth ? `${bytes(r.growth.rate * 60)} ± ${bytes(r.growth.error * 60)}` : "–") });
    } else if (duration) {
      heads.push({ key: "growth", label: "Growth/min", title: "live bytes by the length of the session", value: (r) => r.bytes, text: (r) => bytes((r.bytes / duration) * 60) });
    }
    heads.push({
      key: "stack", label: "Stack", words: true, value: (r) => r.stack[0] || "",
      cell: (td, r) => {
        const list = make("ol");
        for (const name of r.stack) list.append(make("li", name));
        if (r.more) list.append(make("li", `and ${r.more} more`));
        td.append(make("details", "", {}, make("summary", r.stack.slice(0, 3).join(" ← ") || "no frames"), list));
      },
    });
    const fill = table(panel, heads, "score", (r) => r.stack.join("\n"));
    return () => fill(rows);
  });

  // --- allocator
  tab("allocator", "Allocator", false, (panel) => {
    const bytes = (v) => scaled(v, [["B", 1], ["kB", 1024], ["MB", 1048576], ["GB", 1073741824], ["TB", 1099511627776]]);
    if (!data.allocator) {
      panel.append(make("p", "The dump holds no figures of the allocator.", { class: "say" }));
      return () => {};
    }
    const figures = new Map(data.allocator.figures);
    const get = (key) => figures.get(key) || 0;
    const [allocated, active, resident] = ["allocated", "active", "resident"].map(get);
    const [metadata, retained] = ["metadata", "retained"].map(get);
    const sampled = Math.max(0, Math.min(data.allocator.sampled || 0, allocated || Infinity));
    const less = (a, b) => Math.max(0, a - b);
    const parts = [
      ["Live, seen in this session", sampled, "what the samples say was allocated since profiling began and is in use"],
      ["Live, older or not seen", less(allocated, sampled), "allocated before the session, or by what is not profiled"],
      ["Fragmentation", less(active, allocated), "free space in pages that hold live objects, and rounding to size classes"],
      ["Metadata", metadata, "the allocator's own"],
      ["Dirty pages", less(resident, active + metadata), "free, but not yet given back to the system"],
      ["Retained", retained, "given back to the system, addresses kept: not resident"],
    ];
    const whole = parts.reduce((sum, p) => sum + p[1], 0);
    panel.append(make("p", "Where the allocator's memory is, by its own figures at the time of the dump. All but the retained part is resident.", { class: "say" }));
    const stacked = make("div", "", { class: "stacked" });
    const body = make("tbody");
    parts.forEach(([label, value, why], i) => {
      const piece = make("div", "", { class: `k${i}`, title: `${label}: ${bytes(value)}` });
      piece.style.flexGrow = String(whole ? value / whole : 0);
      if (value) stacked.append(piece);
      const name = make("td", "", { class: "text" }, make("span", "", { class: `swatch k${i}` }), make("b", label), make("span", ` – ${why}`));
      body.append(make("tr", "", {}, make("td", bytes(value)), make("td", share(value, whole), { class: "part" }), name));
    });
    const all = make("tbody");
    for (const [key, value] of data.allocator.figures) {
      all.append(make("tr", "", {}, make("td", bytes(value)), make("td", String(value), { class: "part" }), make("td", key, { class: "text" })));
    }
    panel.append(stacked, make("table", "", { class: "narrow" }, body), make("h3", "The figures themselves"), make("table", "", { class: "narrow" }, all));
    return () => {};
  });

  // --- the dump itself
  tab("about", "About", false, (panel) => {
    const body = make("tbody");
    for (const [key, value] of data.about) {
      body.append(make("tr", "", {}, make("td", key, { class: "part", style: "text-align:left" }), make("td", value, { class: "text" })));
    }
    panel.append(make("table", "", { class: "narrow" }, body));
    return () => {};
  });

  document.body.append(header, nav, main);
  const wanted = location.hash.slice(1);
  at.tab = tabs.has(wanted) ? wanted : "flame";
  refresh();
})();
