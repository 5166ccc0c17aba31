// Draws the allocator's statistics.
function allocatorTab(page, panel) {
  const { data } = page;
  if (!data.allocator) {
    panel.append(remark("The dump has no figures of the allocator."));
    return () => {};
  }
  if (data.compared) panel.append(remark(OF_THE_DUMP));
  const { sampled, error, rounding, taken, apart, resident } = data.allocator;
  const figures = new Map(data.allocator.figures);
  const get = (key) => figures.get(key) || 0;
  const [allocated, active, counted] = ["allocated", "active", "resident"].map(get);
  const [metadata, retained] = ["metadata", "retained"].map(get);
  const less = (a, b) => Math.max(0, a - b);
  const seen = `${bytes(sampled || 0)} ± ${bytes(error)}`;
  // The estimate is a part of the statistics only if both are of one moment and it is small enough.
  const fits = !apart && sampled !== null && sampled >= 0 && sampled <= allocated;
  const lost = Math.max(0, Math.min(rounding, allocated - sampled));
  const live = fits
    ? [
        ["Live, seen in this session", sampled, `± ${bytes(error)}: by the samples, allocated since profiling began and in use`],
        ["Live, rounding up", lost, "of what was seen, to the allocator's size classes, those sampled with their headers: an estimate from mean sizes"],
        ["Live, other", less(allocated, sampled + lost), "allocated before the session, or not profiled, or freed and kept in a thread's cache; and what the two estimates above are too small by"],
      ]
    : [["Live objects", allocated, "in use, each rounded up to its size class"]];
  const parts = [
    ...live,
    ["Fragmentation", less(active, allocated), "free space in pages that hold live objects"],
    ["Metadata", metadata, "the allocator's own"],
    ["Dirty pages", less(counted, active + metadata), "free, but not yet given back to the system"],
    ["Retained", retained, "given back to the system, addresses kept: not resident"],
  ];
  const whole = parts.reduce((sum, p) => sum + p[1], 0);
  panel.append(remark(`Where the allocator's memory is, by its own figures${taken ? `, which are of ${taken}` : ""}.`));
  if (apart && sampled !== null) panel.append(remark(`By the samples, ${seen} were allocated in the session and in use at their moment, which is another one.`));
  else if (!fits && sampled > 0) panel.append(remark(`By the samples, all of the live objects were allocated in the session: ${seen}.`));
  panel.append(remark(`The allocator counts pages that were never touched, which are not resident. ${resident === null ? "How much of this was resident is not in the dump." : `By the kernel, ${bytes(resident)} of the heap were resident when the dump was written.`}`));
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
  panel.append(stacked, make("table", "", { class: "narrow" }, body), make("h2", "The figures themselves"), make("table", "", { class: "narrow" }, all));
  return () => {};
}

TABS.push({ key: "allocator", label: "Allocator", full: false, build: allocatorTab });
