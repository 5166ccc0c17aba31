"use strict";
// Numbers as the tables print them. `scales`: names and factors of units, smallest first.
function scaled(value, scales) {
  let [unit, factor] = scales[0];
  for (const [name, f] of scales) if (Math.abs(value) / f >= 1) [unit, factor] = [name, f];
  const text = (value / factor).toFixed(2).replace(/\.00$/, "");
  return Number(text) === 0 ? "0" : text + unit;
}
function share(value, whole) {
  const part = whole ? Math.abs(value / whole) * 100 : 0;
  if (part >= 99.95 && part <= 100.05) return "100%";
  return (part >= 1 ? part.toFixed(2) : String(Number(part.toPrecision(2)))) + "%";
}
