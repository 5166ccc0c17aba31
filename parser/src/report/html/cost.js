// Draws the cost of allocation: CPU time of functions and of the allocator below them; if there is
// also a heap profile, what they allocate and hold.
function costTab(page, panel) {
  const { data, values } = page;
  const cost = data.cost;
  const time = (ns) => scaled(ns, [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9]]);
  panel.append(remark(`malloc, free and what they call: ${time(cost.allocator)}, ${share(cost.allocator, cost.time)} of ${time(cost.time)}.`, { id: "cost-sum" }));
  panel.append(remark(data.memory
    ? "For each function its CPU time, how much of it goes to malloc and free, and what it allocates and holds: the two profiles joined by name."
    : "For each function its CPU time, and how much of it goes to malloc and free. With a dump of the same process (mem_parser x.heap x.cpu --html) also what it allocates and holds."));
  const state = { of: "flat" };
  const ways = [
    ["flat", "Itself", "what a function does itself, and the calls of malloc and free that it makes itself"],
    ["cum", "With callees", "with all that it calls"],
  ];
  const tools = make("div", "", { class: "tools" });
  panel.append(tools);
  const amount = (td, value, whole, text) => {
    td.classList.add("weight");
    td.style.backgroundImage = "linear-gradient(var(--bar),var(--bar))";
    td.style.backgroundSize = `${whole ? Math.min(100, (Math.abs(value) / whole) * 100) : 0}% 3px`;
    td.textContent = text;
  };
  const most = (key) => Math.max(1, ...cost.cum[key].map(Math.abs));
  const whole = { time: Math.max(1, cost.time), allocator: Math.max(1, cost.allocator), bytes: most("bytes"), live: most("live") };
  const column = (key, label, title, text) => ({ key, label, title, value: (r) => r[key], cell: (td, r) => amount(td, r[key], whole[key], text(r[key])) });
  const rate = (value, unit) => (value ? `${unit(value / cost.seconds)}/s` : "0");
  const count = (value) => scaled(value, [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9]]);
  const heads = [
    column("time", "CPU time", "of the function", time),
    { key: "time%", label: "CPU%", title: "of all CPU time", soft: true, value: (r) => r.time, text: (r) => share(r.time, cost.time) },
    column("allocator", "In malloc", "in malloc, free and what they call, below this function", time),
    { key: "part", label: "In malloc%", title: "of all CPU time", soft: true, value: (r) => r.allocator, text: (r) => share(r.allocator, cost.time) },
  ];
  if (data.memory) {
    if (cost.seconds) {
      heads.push(column("bytes", "Allocated", "bytes per second of the heap's session", (v) => rate(v, bytes)));
      heads.push({ key: "objects", label: "Objects", title: "allocated per second of the heap's session", soft: true, value: (r) => r.objects, text: (r) => rate(r.objects, count) });
    } else {
      heads.push(column("bytes", "Allocated", "bytes", bytes));
      heads.push({ key: "objects", label: "Objects", title: "allocated", soft: true, value: (r) => r.objects, text: (r) => count(r.objects) });
    }
    heads.push(column("live", "Live", "bytes in use at the end", bytes));
  }
  heads.push({
    key: "name", label: "Function", words: true, value: (r) => r.name,
    cell: (td, r) => {
      const b = make("button", r.name, { type: "button", class: "link", title: "show in the flame graph" });
      b.addEventListener("click", () => page.find(literal(r.name)));
      td.append(b);
    },
  });
  const fill = sortableTable(panel, heads, "allocator", (r) => r.name);
  const draw = () => {
    const of = cost[state.of];
    const row = (name, i) => ({ name, time: of.time[i], allocator: of.allocator[i], bytes: of.bytes[i], objects: of.objects[i], live: of.live[i] });
    fill(cost.names.map(row).filter((r) => r.time || r.allocator || r.bytes || r.live), cost.left_out);
  };
  tools.append(choice("extent", ways, state.of, (way) => {
    state.of = way;
    draw();
  }));
  return draw;
}

TABS.push({ key: "cost", label: "Cost of malloc", full: false, build: costTab });
