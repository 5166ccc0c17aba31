// The call graph, in an iframe so that its styles and scripts are separate. A browser prints only the
// visible part of an iframe, so a copy of the whole picture is printed instead.
function graphOnPaper(picture) {
  const svg = new DOMParser().parseFromString(picture, "image/svg+xml").documentElement;
  for (const script of svg.querySelectorAll("script")) script.remove();
  const { width, height } = svg.viewBox.baseVal;
  const maxHeight = height > 3 * width ? "none" : "var(--sheet)"; // as in paper.rs
  Object.assign(svg.style, { display: "block", width: "100%", height: "auto", maxWidth: `${width}px`, maxHeight });
  const host = make("div", "", { class: "on-paper" });
  host.attachShadow({ mode: "open" }).append(svg);
  return host;
}

function graphTab(page, panel) {
  const { data, values } = page;
  let graphs = null;
  let shown = "";
  let copy = null;
  addEventListener("beforeprint", () => {
    if (panel.hidden || !shown) return;
    copy = graphOnPaper(shown);
    panel.append(copy);
  });
  addEventListener("afterprint", () => copy && copy.remove());
  return () => {
    graphs = graphs || page.read("graphs");
    const pictures = graphs[values.column];
    const picture = values.isChange() && data.compared ? pictures.change : pictures.now;
    panel.replaceChildren();
    shown = "";
    if (!picture || values.rule === "base") {
      const why = values.rule === "base" && picture ? "There is no call graph of the base; open its dump by itself." : "Nothing to show: the profile has no samples in this view.";
      panel.append(remark(why, { style: "padding:14px" }));
      return;
    }
    const frame = make("iframe", "", { title: "call graph", sandbox: "allow-scripts" });
    frame.srcdoc =
      '<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">' +
      "<style>html,body{margin:0;height:100%;overflow:hidden}</style>" + picture;
    panel.append(frame);
    shown = picture;
  };
}

TABS.push({ key: "graph", label: "Call graph", full: true, build: graphTab });
