"use strict";
// Formats a number with a unit, like the tables. `scales`: names and factors of units, smallest first.
function scaled(value, scales) {
  let [unit, factor] = scales[0];
  for (const [name, f] of scales) if (Math.abs(value) / f >= 1) [unit, factor] = [name, f];
  const text = (value / factor).toFixed(2).replace(/\.00$/, "");
  if (Number(text) === 0) return "0";
  return unit ? `${text} ${unit}` : text;
}
function share(value, whole, isRough) {
  const part = whole ? Math.abs(value / whole) * 100 : 0;
  // Marks a share of few samples.
  const mark = isRough ? "~" : "";
  if (part >= 99.95 && part <= 100.05) return `${mark}100%`;
  return `${mark}${part >= 1 ? part.toFixed(2) : String(Number(part.toPrecision(2)))}%`;
}
// Half-width of the 95 % confidence interval, computed like that of the tables.
// `whole`: the known sum that the value is a part of, if any.
function halfWidth(value, variance, whole) {
  if (!(variance > 0)) return 0;
  const one = Math.min(value ? variance / Math.abs(value) : Infinity, Math.sqrt(variance));
  const rest = whole ? Math.max(0, 1 - Math.abs(value) / whole) : 1;
  return 1.959964 * Math.sqrt(variance * rest + 1.920729 * one * one);
}
