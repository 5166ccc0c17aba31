// Draws the result of a leak check, largest losses first.
const LOSSES = {
  direct: ["Direct", "nothing leads to it"],
  cycle: ["Cycle", "only members of a ring lead to each other"],
  indirect: ["Indirect", "other lost objects lead to it"],
};

function lostTab(page, panel) {
  const check = page.data.lost;
  const { rows } = check;
  const sum = (key) => rows.reduce((total, r) => total + r[key], 0);
  const since = check.duration === null ? "" : ` of what it allocated in ${age(check.duration * 1e3)}`;
  const how = check.pause_ms === null
    ? `The process was not stopped: only what each of ${check.searches} searches did not reach is here.`
    : `The process was stopped for ${check.pause_ms} ms; ${bytes(check.searched)} were searched for pointers.`;
  panel.append(remark(`Objects that no pointer led to any more, so that nothing can free them${since}: ${bytes(sum("bytes") + sum("kept_bytes"))}, while ${bytes(check.live)} was live. ${how}`));
  for (const note of check.notes) panel.append(remark(note, { class: "say note" }));
  if (check.left_out) panel.append(remark(`These are the largest ${rows.length}; the others are in the other views.`));
  const size = (value, error) => (error ? `${bytes(value)} ± ${bytes(error)}` : bytes(value));
  const names = (list, stack, more) => {
    for (const name of stack) list.append(make("li", name));
    if (more) list.append(make("li", `and ${more} more`));
    return list;
  };
  const heads = [
    { key: "all", label: "Lost in all", title: "what is lost with it included", value: (r) => r.bytes + r.kept_bytes, text: (r) => bytes(r.bytes + r.kept_bytes) },
    { key: "bytes", label: "By itself", title: "± at 95 %", value: (r) => r.bytes, text: (r) => size(r.bytes, r.error) },
    { key: "objects", label: "Objects", value: (r) => r.objects, text: (r) => r.objects.toLocaleString("en") },
    { key: "kept", label: "Only with it", title: "other objects that are lost since only these lead to them; ± at 95 %", soft: true, value: (r) => r.kept_bytes, text: (r) => (r.kept_objects ? `${size(r.kept_bytes, r.kept_error)} in ${r.kept_objects.toLocaleString("en")}` : "–") },
    { key: "age", label: "Mean age", value: (r) => r.age || 0, soft: true, text: (r) => ageWithError(r) },
    { key: "how", label: "How", words: true, narrow: true, value: (r) => r.how, cell: (td, r) => td.append(make("span", LOSSES[r.how][0], { title: LOSSES[r.how][1] })) },
  ];
  if (rows.some((r) => r.site)) heads.push(siteColumn(page));
  heads.push({
    key: "stack", label: "Stack", words: true, value: ownNames,
    cell: (td, r) => {
      td.append(make("details", "", {}, make("summary", ownNames(r) || "no frames"), names(make("ol"), r.stack, r.more)));
      if (!r.members.length) return;
      const list = make("ul");
      for (const m of r.members) {
        const title = `${size(m.bytes, m.error)} in ${m.objects.toLocaleString("en")}, ${LOSSES[m.how][0].toLowerCase()}: ${m.stack.slice(0, 3).join(" ← ")}`;
        list.append(make("li", "", {}, make("details", "", {}, make("summary", title), names(make("ol"), m.stack, 0))));
      }
      if (r.members_left_out) list.append(make("li", `and ${r.members_left_out} more stacks`));
      const count = r.members.length + r.members_left_out;
      td.append(make("details", "", { class: "with" }, make("summary", `lost with it: ${count} ${count === 1 ? "stack" : "stacks"}`), list));
    },
  });
  const all = (r) => [...r.stack, ...r.members.flatMap((m) => m.stack)].join("\n");
  const fill = sortableTable(panel, heads, "all", all);
  if (check.suppressed.length) {
    panel.append(make("h2", "Suppressed"));
    panel.append(remark("Known leaks, by the suppression that matches them. No view includes them."));
    const line = (s) => make("tr", "", {}, make("td", bytes(s.bytes)), make("td", s.objects.toLocaleString("en")), make("td", s.template, { class: "text" }));
    const head = make("tr", "", {}, make("th", "Bytes", { scope: "col" }), make("th", "Objects", { scope: "col" }), make("th", "Suppression", { scope: "col", class: "text" }));
    panel.append(make("table", "", {}, make("thead", "", {}, head), make("tbody", "", {}, ...check.suppressed.map(line))));
  }
  return () => fill(rows, check.left_out);
}

TABS.push({ key: "lost", label: "Leaks", full: false, build: lostTab, when: (data) => data.lost !== null });
