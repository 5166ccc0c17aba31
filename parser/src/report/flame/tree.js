// The tree as shown: callers first, or inverted. `data` is described in data.rs.
const ALL = -1; // names of the root and of merged small frames
const FEW = -2;
const STEP = 4000; // number of frames that are placed in one step

// Returns the width (`own`) and the value (`net`) of each frame itself, in a column under a rule.
function weigh({ plus, minus }, rule) {
  const size = plus.length;
  const own = new Float64Array(size);
  const net = new Float64Array(size);
  for (let i = 0; i < size; i++) {
    const less = minus ? minus[i] : 0;
    net[i] = plus[i] - less;
    if (rule === "larger") own[i] = Math.max(plus[i], less);
    else if (rule === "change") own[i] = Math.abs(net[i]);
    else own[i] = net[i] = rule === "base" ? less : plus[i];
  }
  return { own, net };
}
// Returns a function that returns the callees of a frame, without those of width 0. All callees are
// in one array: with an array for each of tens of thousands of frames, these would take most of the
// time.
function calleesOf(parent, width) {
  const size = parent.length;
  const ends = new Int32Array(size + 1);
  for (let i = 1; i < size; i++) if (width[i] > 0) ends[parent[i] + 1]++;
  for (let i = 0; i < size; i++) ends[i + 1] += ends[i];
  const next = ends.slice();
  const all = new Int32Array(ends[size]);
  for (let i = 1; i < size; i++) if (width[i] > 0) all[next[parent[i]]++] = i;
  return (i) => all.subarray(ends[i], ends[i + 1]);
}
// Sorts a list in place. Most lists are short.
function sortInPlace(list, compare) {
  if (list.length > 16) {
    list.sort(compare);
    return;
  }
  for (let i = 1; i < list.length; i++) {
    const item = list[i];
    let at = i;
    for (; at > 0 && compare(list[at - 1], item) > 0; at--) list[at] = list[at - 1];
    list[at] = item;
  }
}
// Runs a function with steps to its end.
function finish(steps) {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}
// Sums over callees, sorts callees by width and places them. Callers come before their callees.
const lay = (...tree) => finish(laying(...tree));
function* laying(parent, name, own, net) {
  const size = parent.length;
  const [width, sum] = [Float64Array.from(own), Float64Array.from(net)];
  for (let i = size - 1; i > 0; i--) {
    width[parent[i]] += width[i];
    sum[parent[i]] += sum[i];
  }
  yield;
  const callees = calleesOf(parent, width);
  yield;
  const x = new Float64Array(size);
  const depth = new Int32Array(size);
  const rows = [[0]];
  const queue = [0];
  for (let next = 0; next < queue.length; next++) {
    const caller = queue[next];
    const list = callees(caller);
    sortInPlace(list, (a, b) => (name[a] === FEW) - (name[b] === FEW) || width[b] - width[a] || a - b);
    let edge = x[caller];
    for (const i of list) {
      x[i] = edge;
      edge += width[i];
      depth[i] = depth[caller] + 1;
      (rows[depth[i]] = rows[depth[i]] || []).push(i);
      queue.push(i);
    }
    if (next % STEP === STEP - 1) yield;
  }
  return { parent, name, own, net, width, sum, x, depth, rows, callees };
}
// Builds the inverted tree: leaves at the root, callers above. Follows all stacks from their leaves,
// level by level. Does not descend into parts that are too small to be seen.
function invert(data, own, net) {
  const from = Int32Array.from(own, (_, i) => i);
  const out = { parent: [0], name: [ALL], own: [0], net: [0] };
  const push = (parent, name) => {
    out.parent.push(parent);
    out.name.push(name);
    out.own.push(0);
    out.net.push(0);
    return out.parent.length - 1;
  };
  const add = (i, w, d) => { out.own[i] += w; out.net[i] += d; };
  const least = own.reduce((a, b) => a + b, 0) * data.limit;
  const work = [[0, [...from].filter((i) => own[i] > 0)]];
  while (work.length) {
    const [node, list] = work.pop();
    const parts = new Map();
    for (const i of list) {
      if (from[i] === 0) add(node, own[i], net[i]);
      else if (parts.has(data.name[from[i]])) parts.get(data.name[from[i]]).push(i);
      else parts.set(data.name[from[i]], [i]);
    }
    let few = -1;
    for (const [name, part] of parts) {
      if (name === FEW || part.reduce((sum, i) => sum + own[i], 0) < least) {
        if (few < 0) few = push(node, FEW);
        for (const i of part) add(few, own[i], net[i]);
        continue;
      }
      const child = push(node, name);
      for (const i of part) from[i] = data.parent[from[i]];
      work.push([child, part]);
    }
  }
  return lay(out.parent, out.name, out.own, out.net);
}
