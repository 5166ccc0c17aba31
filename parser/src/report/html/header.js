// The header: title, and the buttons that choose column and comparison. `refresh` redraws.
const RULES = [
  ["change", "Change", "what is more or less than in the base"],
  ["larger", "Now, change coloured", "as wide as the larger of before and now, coloured by the change"],
  ["now", "Now", "without the base"],
  ["base", "Base", "what there was before"],
];
const KINDS = {
  inuse_space: "Live bytes", inuse_objects: "Live objects",
  alloc_space: "Allocated bytes", alloc_objects: "Allocated objects",
  cpu: "CPU time", wall: "Wall time", offcpu: "Time off CPU", samples: "Samples",
};
// Remark on tabs that do not depend on the chosen comparison.
const OF_THE_DUMP = "Amounts and ages here are those of the dump, not of the base, whatever is chosen above.";
// Names of the columns of a leak check.
const LOST_KINDS = { inuse_space: "Lost bytes", inuse_objects: "Lost objects" };

// A group of buttons, one of which is pressed.
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
    });
    group.append(b);
  }
  press(chosen);
  return group;
}

function makeHeader({ title, lost }, values, refresh) {
  const header = make("header", "", {}, make("h1", title, { title }));
  const names = lost ? LOST_KINDS : KINDS;
  const order = Object.keys(KINDS);
  const rank = (c) => (order.includes(c.kind) ? order.indexOf(c.kind) : order.length);
  const kinds = values.columns.map((c, i) => [i, names[c.kind] || c.kind, rank(c)]).sort((a, b) => a[2] - b[2]);
  header.append(choice("value", kinds.map(([i, text]) => [i, text]), values.column, (i) => {
    values.column = Number(i);
    refresh();
  }));
  if (values.compared) {
    header.append(choice("comparison", RULES, values.rule, (rule) => {
      values.rule = rule;
      refresh();
    }));
  }
  return header;
}
