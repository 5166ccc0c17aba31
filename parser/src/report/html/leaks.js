// Leak suspects, worst first.
function leaksTab(page, panel) {
  const { data } = page;
  const { rows, untracked, left_out: leftOut } = data.suspects;
  if (!rows) {
    panel.append(remark("This profile holds no values in use: only heap profiles have suspects."));
    return () => {};
  }
  const grown = rows.some((r) => r.growth);
  const how = grown
    ? "The score is the growth since the base that is certain at 95 %, reduced by the share of a stack's allocations that is freed, and by how young its live objects are compared with the age that the freed ones reached. More dumps of one session tell steady growth from growth that has ended."
    : "The score is the live bytes, reduced by the share of a stack's allocations that is freed, and by how young its live objects are compared with the age that the freed ones reached. A cache that fills looks like a leak until it is full: compare with an earlier moment of the session to see what keeps growing.";
  panel.append(remark(`Stacks whose objects are kept, worst first. ${how}`));
  if (data.compared) panel.append(remark(OF_THE_DUMP));
  if (untracked) panel.append(remark(`Of this dump, ${untracked}.`));
  if (rows.some((r) => r.age === null)) {
    panel.append(remark("This profile holds no ages of objects; only this profiler's own dumps do."));
  }
  const heads = [
    { key: "score", label: "Score", title: grown ? "proven growth × kept × age" : "live bytes × kept × age", value: (r) => r.score + r.plain * 1e-9, text: (r) => bytes(r.score) },
    { key: "bytes", label: "Live bytes", title: "± at 95 %", value: (r) => r.bytes, text: (r) => `${bytes(r.bytes)} ± ${bytes(r.error)}` },
    { key: "objects", label: "Objects", soft: true, value: (r) => r.objects, text: (r) => String(r.objects) },
    { key: "samples", label: "Samples", title: "live samples: few of them say little", soft: true, value: (r) => r.samples, text: (r) => (r.samples === null ? "–" : String(r.samples)) },
    { key: "kept", label: "Kept", title: "live share of the bytes it allocated", soft: true, value: (r) => r.kept, text: (r) => share(r.kept, 1, r.rough) },
    { key: "age", label: "Mean age", title: "of live objects, ± at 95 %; none if there are too few samples", soft: true, value: (r) => r.age, text: (r) => ageWithError(r) },
    { key: "lifetime", label: "Freed after", title: "mean lifetime of freed objects", soft: true, value: (r) => (r.lifetime === null ? Infinity : r.lifetime), text: (r) => (r.age === null ? "–" : r.lifetime === null ? "never" : age(r.lifetime)) },
  ];
  if (grown) {
    const rate = (r) => (r.growth ? r.growth.rate : 0);
    heads.push({ key: "growth", label: "Growth/min", title: "since the base, ± at 95 %", value: rate, text: (r) => (r.growth ? `${bytes(r.growth.rate * 60)} ± ${bytes(r.growth.error * 60)}` : "–") });
  }
  if (rows.some((r) => r.site)) {
    heads.push(siteColumn(page));
  }
  heads.push({
    key: "stack", label: "Stack", words: true, value: ownNames,
    cell: (td, r) => {
      const list = make("ol");
      for (const name of r.stack) list.append(make("li", name));
      if (r.more) list.append(make("li", `and ${r.more} more`));
      td.append(make("details", "", {}, make("summary", ownNames(r) || "no frames"), list));
    },
  });
  const fill = sortableTable(panel, heads, "score", (r) => r.stack.join("\n"));
  return () => fill(rows, leftOut);
}

// A leak check has certain results instead of suspects.
TABS.push({ key: "leaks", label: "Leak suspects", full: false, build: leaksTab, when: (data) => data.lost === null });
