// Draws the flame graph. Other tabs search in it by `page.find`.
function flameTab(page, panel) {
  const { data, values } = page;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "flame");
  svg.setAttribute("font-size", "12");
  svg.setAttribute("font-family", "Helvetica, Arial, 'Liberation Sans', sans-serif");
  panel.append(svg);
  const merged = data.flame.pruned;
  // How CPU time was sampled is shown above CPU time only.
  const note = () => {
    const sampled = data.sampled[values.column] ? data.sampling : [];
    const lines = sampled.map(([name, text]) => `${name}: ${text}`);
    if (merged === 1) lines.push("one branch too small to be seen is a grey frame");
    else if (merged) lines.push(`${merged} branches too small to be seen are merged into grey frames`);
    return lines;
  };
  const names = data.lost ? LOST_KINDS : KINDS;
  const graph = flameGraph(svg, data.flame, { title: note, nameOf: (kind) => names[kind] || kind });
  page.flame = graph;
  addEventListener("beforeprint", () => graph.print());
  addEventListener("afterprint", () => graph.unprint());
  page.find = (text) => {
    page.open("flame");
    graph.find(text);
  };
  const steps = () => graph.showing(values.column, values.rule);
  return Object.assign(() => finish(steps()), { steps });
}

TABS.push({ key: "flame", label: "Flame graph", full: true, build: flameTab });
