// Draws a histogram of object sizes, of all objects or of one function's.
function sizesTab(page, panel) {
  const { data, values } = page;
  const sizes = data.sizes;
  if (!sizes) {
    panel.append(remark("Only dumps of newer versions of this profiler tell sizes apart, and comparisons do not."));
    return () => {};
  }
  panel.append(remark("Objects by the requested size. Short-lived ones were freed within 4 to 8 ms of their allocation."));
  const pick = make("select", "", { id: "sized", "aria-label": "function" });
  const body = make("tbody");
  const head = make("tr", "", {}, make("th", "Size", { scope: "col" }), make("th", "", { scope: "col" }), make("th", "± at 95 %", { scope: "col", class: "part" }), make("th", "Share", { scope: "col", class: "part" }), make("th", "Short-lived", { scope: "col", class: "part" }), make("th", "Part of the largest", { scope: "col", class: "text" }));
  panel.append(make("div", "", { class: "tools" }, pick), make("table", "", { class: "sizes" }, make("thead", "", {}, head), body));
  if (sizes.left_out) panel.append(remark(`${sizes.left_out} smaller functions are left out of the list.`));
  const largest = (rows) => rows.reduce((most, r) => Math.max(most, Math.abs(r.values[values.column])), 0);
  const total = (rows) => rows.reduce((sum, r) => sum + r.values[values.column], 0);
  function draw() {
    const chosen = pick.value === "" ? null : sizes.functions[Number(pick.value)];
    const rows = chosen ? chosen.sizes : sizes.all;
    const [most, whole] = [largest(rows), total(rows)];
    const { kind } = values.columns[values.column];
    head.children[1].textContent = KINDS[kind] || kind;
    const first = rows.length ? rows[0].class : 0;
    const last = rows.length ? rows[rows.length - 1].class : -1;
    const known = new Map(rows.map((r) => [r.class, r]));
    body.replaceChildren();
    for (let c = first; c <= last; c++) {
      const r = known.get(c);
      if (!r) continue;
      const value = r.values[values.column];
      const bar = make("div", "", { class: "bar" });
      bar.style.width = `${most ? (Math.abs(value) / most) * 100 : 0}%`;
      if (value) bar.style.minWidth = "1px";
      body.append(make("tr", "", {}, make("td", r.name), make("td", values.signed(value)), make("td", r.errors[values.column] ? `± ${values.number(r.errors[values.column])}` : "", { class: "part" }), make("td", share(value, whole), { class: "part" }), make("td", share(r.short, 1, r.rough), { class: "part" }), make("td", "", { class: "text wide" }, bar)));
    }
    if (!rows.length) body.append(make("tr", "", {}, make("td", "nothing", { colspan: "6" })));
  }
  pick.addEventListener("change", draw);
  return () => {
    const before = pick.value;
    const order = sizes.functions.map((f, i) => [i, total(f.sizes)]).filter(([, sum]) => sum);
    order.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
    pick.replaceChildren(make("option", "all functions", { value: "" }));
    for (const [i, sum] of order) {
      pick.append(make("option", `${values.signed(sum)}  ${sizes.functions[i].name}`, { value: String(i) }));
    }
    pick.value = before;
    if (pick.selectedIndex < 0) pick.value = "";
    draw();
  };
}

TABS.push({ key: "sizes", label: "Sizes", full: false, build: sizesTab });
