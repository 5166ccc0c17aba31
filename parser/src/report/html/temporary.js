// Lists functions with short-lived objects.
function temporaryTab(page, panel) {
  const { temporary } = page.data;
  if (!temporary) {
    panel.append(remark("Only dumps of newer versions of this profiler count short-lived objects, and comparisons do not."));
    return () => {};
  }
  const { rows, left_out: leftOut } = temporary;
  panel.append(remark("Objects that were freed within 4 to 8 ms of their allocation, by the function that allocated them: keeping a buffer for reuse would save these allocations."));
  if (!rows.length) panel.append(remark("There were none."));
  const heads = [
    { key: "short", label: "Short-lived", title: "objects", value: (r) => r.short, text: (r) => r.short.toLocaleString("en") },
    ...(rows.some((r) => r.error) ? [{ key: "error", label: "\u00b1", title: "at 95 %", soft: true, value: (r) => r.error, text: (r) => r.error.toLocaleString("en") }] : []),
    { key: "share", label: "Of its own", title: "share of all objects that the function allocated", soft: true, value: (r) => r.share, text: (r) => share(r.share, 1, r.rough) },
    { key: "bytes", label: "Allocated", title: "bytes that the function allocated in the session, long-lived ones too", value: (r) => r.bytes, text: (r) => bytes(r.bytes) },
    { key: "lifetime", label: "Freed after", title: "mean lifetime of the objects that it freed", value: (r) => r.lifetime || 0, text: (r) => age(r.lifetime) },
    {
      key: "name", label: "Function", words: true, value: (r) => r.name,
      cell: (td, r) => {
        const b = make("button", r.name, { type: "button", class: "link", title: "show in the flame graph" });
        b.addEventListener("click", () => page.find(literal(r.name)));
        td.append(b);
      },
    },
  ];
  const fill = sortableTable(panel, heads, "short", (r) => r.name);
  return () => fill(rows, leftOut);
}

TABS.push({ key: "temporary", label: "Temporary", full: false, build: temporaryTab });
