// Lists facts about the dump.
function aboutTab(page, panel) {
  const { data } = page;
  const body = make("tbody");
  for (const [key, value] of data.about) {
    body.append(make("tr", "", {}, make("td", key, { class: "label" }), make("td", value, { class: "text" })));
  }
  panel.append(make("table", "", { class: "narrow" }, body));
  return () => {};
}

TABS.push({ key: "about", label: "About", full: false, build: aboutTab });
