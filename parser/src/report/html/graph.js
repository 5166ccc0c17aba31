// The call graph: its own document, so that neither styles nor scripts meet.
function graphTab(page, panel) {
  const { data, values } = page;
  let graphs = null;
  return () => {
    graphs = graphs || page.read("graphs");
    const pictures = graphs[values.column];
    const picture = values.isChange() && data.compared ? pictures.change : pictures.now;
    panel.replaceChildren();
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
  };
}

TABS.push({ key: "graph", label: "Call graph", full: true, build: graphTab });
