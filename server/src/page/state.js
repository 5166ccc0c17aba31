// State of the page, in the fragment of its address, so that links lead to it: "#/?filter=redis" is
// the list, "#/process?name=redis-server&pid=7&view=flame" is a process.

export class Address {
  constructor(path, values) {
    this.path = path;
    this.values = values;
  }
  static read() {
    const [path, query] = location.hash.slice(1).split("?");
    // Addresses of earlier versions were "#PID".
    const pid = /^\d+$/.exec(path);
    if (pid) return new Address("/process", new URLSearchParams({ pid: pid[0] }));
    return new Address(path || "/", new URLSearchParams(query || ""));
  }
  static to(path, values) {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(values)) if (value) query.set(key, value);
    return `#${path}${[...query].length ? `?${query}` : ""}`;
  }
  get(key) {
    return this.values.get(key) || "";
  }
}

// Sets a value in the address, without an entry in the browser's history.
export function remember(key, value) {
  const address = Address.read();
  if (address.get(key) === (value || "")) return;
  if (value) address.values.set(key, value);
  else address.values.delete(key);
  history.replaceState(null, "", Address.to(address.path, Object.fromEntries(address.values)));
}
