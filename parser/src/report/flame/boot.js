// Starts the graph in a standalone picture: it fills the window. When printed, it is the plain
// picture again.
(function () {
  const root = document.currentScript.closest("svg");
  const plain = root.querySelector(".plain");
  const paper = root.querySelector(".paper");
  const natural = { viewBox: root.getAttribute("viewBox") };
  for (const key of ["width", "height"]) natural[key] = root.getAttribute(key);
  const data = JSON.parse(root.querySelector(".data").textContent);
  const heads = [...plain.querySelectorAll(".head text")].map((line) => line.textContent);
  const help = new HelpBox(root, [FLAME_KEYS]);
  const graph = flameGraph(root, data, { title: heads, help: () => help.toggle() });
  function live() {
    plain.remove();
    root.removeAttribute("viewBox");
    for (const el of [root, paper]) {
      el.setAttribute("width", "100%");
      el.setAttribute("height", "100%");
    }
    graph.attach();
    graph.draw();
  }
  addEventListener("beforeprint", () => {
    help.close();
    graph.detach();
    root.setAttribute("viewBox", natural.viewBox);
    for (const el of [root, paper]) {
      el.setAttribute("width", natural.width);
      el.setAttribute("height", natural.height);
    }
    paper.after(plain);
  });
  addEventListener("afterprint", live);
  live();
})();
