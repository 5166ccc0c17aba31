// Makes an element. Names can contain anything: text is set as text only.
function make(name, text, attributes, ...children) {
  const el = document.createElement(name);
  if (text) el.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) el.setAttribute(key, value);
  el.append(...children);
  return el;
}
const remark = (text, attributes) => make("p", text, { class: "say", ...attributes });
function age(ms) {
  if (ms === null) return "–";
  // The agent's clock does not resolve times below its tick.
  if (ms < 4) return "< 4 ms";
  const units = [["ms", 1], ["s", 1e3], ["min", 6e4], ["h", 3.6e6], ["d", 8.64e7]];
  let [unit, factor] = units[0];
  for (const [name, f] of units) if (ms / f >= 1) [unit, factor] = [name, f];
  const value = ms / factor;
  return `${value >= 100 || factor === 1 ? Math.round(value) : value.toFixed(1)} ${unit}`;
}
const ageWithError = (row) => (row.age_error ? `${age(row.age)} ± ${age(row.age_error)}` : age(row.age));
const bytes = (value) => scaled(value, [["B", 1], ["KiB", 1024], ["MiB", 1048576], ["GiB", 1073741824], ["TiB", 1099511627776]]);
