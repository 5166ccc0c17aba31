// Formats values.

export function size(value) {
  if (value === null || value === undefined) return "–";
  const sign = value < 0 ? "-" : "";
  let v = Math.abs(value);
  let unit = "B";
  for (const next of ["KiB", "MiB", "GiB", "TiB"]) if (v >= 1024) [v, unit] = [v / 1024, next];
  return `${sign}${unit === "B" || v >= 100 ? Math.round(v) : v.toFixed(1)} ${unit}`;
}

// Formats an estimate, with its error at 95 % if that is known.
export function sizeWithError(value, error) {
  if (value === null || value === undefined) return size(value);
  return error === null || error === undefined ? `~${size(value)}` : `${size(value)} ± ${size(error)}`;
}

export function change(value) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 ? "+" : ""}${size(value)}`;
}

// Formats a rate of growth; "" if it is unknown or 0.
export const rate = (value) => (value && Math.round(value) ? `${change(value)}/s` : "");

export function duration(ms) {
  const s = Math.round(ms / 1000);
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
}

// Formats a time of day, with the date if it is not today.
export function clock(ms) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString([], { hour12: false });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}

// Formats a share of the CPU time as the server parses it; "" without a limit.
export const share = (part) => (part ? `${Number((part * 100).toPrecision(6))}%` : "");
