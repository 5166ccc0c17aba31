// The allocator's own figures.
function allocatorTab(page, panel) {
  const { data } = page;
  if (!data.allocator) {
    panel.append(remark("The dump has no figures of the allocator."));
    return () => {};
  }
  const figures = new Map(data.allocator.figures);
  const get = (key) => figures.get(key) || 0;
  const [allocated, active, resident] = ["allocated", "active", "resident"].map(get);
  const [metadata, retained] = ["metadata", "retained"].map(get);
  const sampled = Math.max(0, Math.min(data.allocator.sampled || 0, allocated || Infinity));
  const less = (a, b) => Math.max(0, a - b);
  const rounding = Math.max(0, Math.min(data.allocator.rounding || 0, allocated - sampled));
  const parts = [
    ["Live, seen in this session", sampled, "what the samples say was allocated since profiling began and is in use"],
    ["Live, rounding up", rounding, "of what was seen, to the allocator's size classes, by its mean sizes"],
    ["Live, older or not seen", less(allocated, sampled + rounding), "allocated before the session, or by what is not profiled; and what the two above are too small by"],
    ["Fragmentation", less(active, allocated), "free space in pages that hold live objects"],
    ["Metadata", metadata, "the allocator's own"],
    ["Dirty pages", less(resident, active + metadata), "free, but not yet given back to the system"],
    ["Retained", retained, "given back to the system, addresses kept: not resident"],
  ];
  const whole = parts.reduce((sum, p) => sum + p[1], 0);
  panel.append(remark("Where the allocator's memory is, by its own figures at the time of the dump. All but the retained part is resident."));
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
    all.append(make("tr", "", {}, make("td", bytes(value)), make("td", `${value} B`, { class: "part" }), make("td", key, { class: "text" })));
  }
  panel.append(stacked, make("table", "", { class: "narrow" }, body), make("h3", "The figures themselves"), make("table", "", { class: "narrow" }, all));
  return () => {};
}

TABS.push({ key: "allocator", label: "Allocator", full: false, build: allocatorTab });
