// Lists threads, and the largest functions of each.
function threadsTab(page, panel) {
  const { data, values } = page;
  const threads = data.threads;
  if (!threads) {
    panel.append(remark("The dump does not tell threads apart; only those of newer versions of this profiler do."));
    return () => {};
  }
  panel.append(remark(data.memory
    ? "By the thread that allocated, under the last name that it had; an object counts there, whichever thread frees it. For the other views of one thread: mem_parser --tagfocus thread=NAME."
    : "By the name of the thread. For the other views of one thread: mem_parser --tagfocus thread=NAME."));
  const value = (r) => values.weight(r.values[values.column], r.base ? r.base[values.column] : 0);
  const isOneSide = () => data.compared && !values.isChange();
  const error = (r) => (isOneSide() ? 0 : r.errors[values.column]);
  const heads = [
    { key: "value", label: "Value", title: "in the chosen column", value, cell: (td, r) => bar(values, td, value(r), values.total()) },
    { key: "error", label: "±", title: "at 95 %", soft: true, value: error, text: (r) => (error(r) ? values.number(error(r)) : "") },
    { key: "share", label: "Share", soft: true, value, text: (r) => share(value(r), values.total()) },
    ...(data.memory ? [{ key: "short", label: "Short-lived", title: data.compared ? "share of its objects, without those of the base, that were freed within 4 to 8 ms" : "share of its objects that were freed within 4 to 8 ms", soft: true, value: (r) => r.short, text: (r) => share(r.short, 1, r.rough) }] : []),
    { key: "name", label: "Thread", words: true, narrow: true, value: (r) => r.name, text: (r) => r.name },
    {
      key: "functions", label: "Most by", words: true, value: (r) => (r.functions[0] || { name: "" }).name,
      cell: (td, r) => {
        const own = r.functions.filter((f) => value(f)).sort((a, b) => Math.abs(value(b)) - Math.abs(value(a)));
        const list = make("ol");
        for (const f of own) list.append(make("li", `${values.signed(value(f))}  ${f.name}`));
        if (r.left_out) list.append(make("li", `and ${r.left_out} more`));
        td.append(make("details", "", {}, make("summary", own.length ? own[0].name : "nothing"), list));
      },
    },
  ];
  const fill = sortableTable(panel, heads, "value", (r) => r.name);
  return () => fill(threads);
}

TABS.push({ key: "threads", label: "Threads", full: false, build: threadsTab });
