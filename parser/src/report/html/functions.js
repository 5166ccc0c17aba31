// The table of functions.
// A pattern that matches this name only.
const literal = (name) => `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;

// A value with a bar below it, as long as its share of the whole.
function bar(values, td, value, whole) {
  td.classList.add("weight");
  const part = whole ? Math.min(100, (Math.abs(value) / whole) * 100) : 0;
  td.style.backgroundImage = "linear-gradient(var(--bar),var(--bar))";
  td.style.backgroundSize = `${part}% 3px`;
  td.textContent = values.signed(value);
  if (values.isChange() && value) td.classList.add(value > 0 ? "more" : "less");
}

function functionsTab(page, panel) {
  const { data, values } = page;
  const f = data.functions;
  panel.append(remark(data.memory
    ? "Flat is what a function allocated itself, cum includes all that it called."
    : "Flat is the function itself, cum includes all that it called."));
  const own = make("div", "", { class: "own" });
  panel.append(own);
  const fillOwn = () => {
    // In a comparison, the lines are those of the change.
    const lines = data.compared && values.rule !== "change" ? [] : f.own[values.column] || [];
    const rows = lines.map((line) => make("li", `${values.signed(line.value)} (${share(line.value, values.total())})  ${line.text}`, { title: line.full }));
    own.replaceChildren(...(rows.length ? [remark("In your own code, by the line that led there:"), make("ul", "", {}, ...rows)] : []));
  };
  const isSampled = f.columns.some((c) => c.cum_variance);
  const sized = (key, label, title) => [
    {
      key, label, title, value: (r) => r[key],
      cell: (td, r) => {
        bar(values, td, r[key], values.total());
        if (r[`${key}Off`]) td.title = `± ${values.number(r[`${key}Off`])} at 95 %`;
      },
    },
    ...(isSampled ? [{
      key: `${key}Off`, label: "\u00b1", title: "at 95 %", soft: true, value: (r) => r[`${key}Off`],
      text: (r) => (r[`${key}Off`] ? values.number(r[`${key}Off`]) : ""),
    }] : []),
    { key: `${key}%`, label: `${label}%`, title: `${title}, of everything`, soft: true, value: (r) => r[key], text: (r) => share(r[key], values.total()) },
  ];
  const name = {
    key: "name", label: "Function", words: true, value: (r) => r.name,
    cell: (td, r) => {
      const b = make("button", r.name, { type: "button", class: "link" });
      const part = (key) => `${key} ${values.signed(r[key])} (${share(r[key], values.total())})`;
      const lines = [r.name, r.place, `${part("flat")}, ${part("cum")}`, "click: show in the flame graph"];
      td.title = lines.filter((line) => line).join("\n");
      b.addEventListener("click", () => page.find(literal(r.name)));
      td.append(b);
    },
  };
  const heads = [...sized("flat", "Flat", "itself"), ...sized("cum", "Cum", "with what it called"), name];
  const fill = sortableTable(panel, heads, "flat", (r) => r.name);
  return () => {
    const c = f.columns[values.column];
    const of = (key, i) => values.weight(c[key][i], c[`${key}_base`] ? c[`${key}_base`][i] : 0);
    // Variances in a comparison are those of the changes.
    const both = !data.compared || values.isChange();
    const off = (key, i) => (both && c[`${key}_variance`] ? halfWidth((c[`${key}_turnover`] || [])[i] || of(key, i), c[`${key}_variance`][i], c.whole) : 0);
    const rows = f.names.map((name, i) => ({
      name, place: (f.places && f.places[i]) || "", flat: of("flat", i), cum: of("cum", i), flatOff: off("flat", i), cumOff: off("cum", i),
    }));
    fillOwn();
    fill(rows.filter((r) => r.flat || r.cum), f.left_out);
  };
}

TABS.push({ key: "functions", label: "Functions", full: false, build: functionsTab });
