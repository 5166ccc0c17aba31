// Elements. Names can hold anything: text is set as text only.
function make(name, text, attributes, ...children) {
  const el = document.createElement(name);
  if (text) el.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
  el.append(...children);
  return el;
}
const remark = (text, attributes) => make("p", text, { class: "say", ...attributes });
const bytes = (value) => scaled(value, [["B", 1], ["KiB", 1024], ["MiB", 1048576], ["GiB", 1073741824], ["TiB", 1099511627776]]);
