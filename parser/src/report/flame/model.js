// Which frames of a tree are shown, and the text about each frame. Does not touch the page.
// `data` is described in data.rs.
const STEPS = 8; // number of colours of a change

// Sums `own` over each frame and its callees. Callers come before their callees.
function summed(own, parent) {
  const sums = Float64Array.from(own);
  for (let i = sums.length - 1; i > 0; i--) sums[parent[i]] += sums[i];
  return sums;
}

class FlameModel {
  constructor(data) {
    this.data = data;
    this.index = 0; // column
    this.rule = data.rule;
    this.down = false;
    this.inverted = false;
    this.rebuild();
  }
  // The tree is built when it is needed: the first choice of a column comes before.
  rebuild() {
    this.built = null;
    this.zoom = 0;
    this.scroll = 0;
    this.pick = -1;
  }
  get tree() {
    if (!this.built) finish(this.building());
    return this.built;
  }
  // Builds the tree in steps.
  *building() {
    if (this.built) return;
    const { own, net } = weigh(this.column, this.rule);
    const { parent, name } = this.data;
    this.own = own;
    yield;
    this.built = this.inverted ? invert(this.data, own, net) : yield* laying(parent, name, own, net);
  }
  get column() {
    return this.data.columns[this.index];
  }
  get compared() {
    return Boolean(this.column.minus) && (this.rule === "change" || this.rule === "larger");
  }
  // The value that is 100 %, which depends on the rule for the widths of frames.
  get total() {
    return this.column.totals[this.rule];
  }

  // --- numbers, as the tables print them
  number(value) {
    return scaled(value, this.column.scales);
  }
  signed(value) {
    return (this.compared && value > 0 ? "+" : "") + this.number(value);
  }

  // --- a frame
  isFew(i) {
    return this.tree.name[i] === FEW;
  }
  isBelow(i, top) {
    while (this.tree.depth[i] > this.tree.depth[top]) i = this.tree.parent[i];
    return i === top;
  }
  nameOf(i) {
    const name = this.tree.name[i];
    return name === ALL ? "all" : name === FEW ? "smaller frames" : this.data.names[name];
  }
  // Hashes of each frame's name and those of its callers: equal paths are equal in all profiles.
  pathKeys() {
    const { parent, depth } = this.tree;
    const keys = new Uint32Array(depth.length);
    for (let i = 1; i < keys.length; i++) {
      let key = Math.imul(keys[parent[i]] ^ 0x9e3779b9, 0x01000193);
      for (const letter of this.nameOf(i)) key = Math.imul(key ^ letter.codePointAt(0), 0x01000193);
      keys[i] = key;
    }
    return keys;
  }
  // File and line, where known.
  placeOf(i) {
    const { places } = this.data;
    return (places && places[this.tree.name[i]]) || "";
  }
  tint(i) {
    const { name, sum, width } = this.tree;
    if (!this.compared) return name[i] < 0 ? "g" : this.data.tints[name[i]];
    const part = width[i] ? Math.min(1, Math.abs(sum[i]) / width[i]) : 0;
    const step = Math.round(Math.sqrt(part) * STEPS);
    return step === 0 ? "g" : (sum[i] < 0 ? "m" : "p") + step;
  }
  describe(i) {
    const { parent, width, sum, net } = this.tree;
    const lines = [`${this.signed(sum[i])} (${share(sum[i], this.total)} of ${this.number(this.total)})`];
    if (this.compared && this.rule === "larger") lines.push(this.beforeAndAfter(i));
    if (!this.inverted && net[i] && net[i] !== sum[i]) {
      lines.push(`itself ${this.signed(net[i])} (${share(net[i], this.total)})`);
    }
    if (i !== 0 && parent[i] !== 0) {
      const part = share(width[i], width[parent[i]]);
      lines.push(`${part} of ${this.inverted ? "what is above it" : "its caller"}`);
    }
    const off = this.error(i);
    if (off) lines.push(`± ${this.number(off)} at 95 %`);
    if (this.isFew(i)) lines.push("each too small to be shown by itself");
    return lines;
  }
  // Sums the stacks with a matching frame, as --focus does; `found` has a flag for each name. Includes
  // stacks of merged frames. `unknown` is the sum of those whose names are not known.
  matched(found) {
    const { own } = this;
    const { parent, name, unseen } = this.data;
    const covered = new Uint8Array(parent.length);
    let [sum, unknown] = [0, 0];
    for (let i = 1; i < parent.length; i++) {
      covered[i] = covered[parent[i]] || (name[i] >= 0 && found[name[i]]) ? 1 : 0;
      if (covered[i]) sum += own[i];
      else if (name[i] === FEW) unknown += own[i];
    }
    if (!unseen) return { sum, unknown };
    const weights = weigh(unseen.columns[this.index], this.rule).own;
    unseen.frame.forEach((frame, i) => {
      if (covered[frame]) return;
      unknown -= weights[i];
      if (unseen.held[i].some((number) => found[number])) sum += weights[i];
    });
    return { sum, unknown: Math.max(0, unknown) };
  }
  // Half-width of the confidence interval of a value; in a comparison, of its change.
  error(i) {
    const own = this.column.variance;
    const oneSide = Boolean(this.column.minus) && (this.rule === "now" || this.rule === "base");
    if (!own || this.inverted || oneSide) return 0;
    const { tree } = this;
    tree.variance = tree.variance || summed(own, tree.parent);
    const { turnover } = this.column;
    tree.turnover = tree.turnover || (turnover ? summed(turnover, tree.parent) : tree.sum);
    return halfWidth(tree.turnover[i], tree.variance[i], this.column.whole);
  }
  // Both values of a comparison: the width shows only the larger one.
  beforeAndAfter(i) {
    const { tree } = this;
    if (this.inverted) return `${share(tree.sum[i], tree.width[i])} changed`;
    tree.before = tree.before || summed(this.column.minus, tree.parent);
    const before = tree.before[i];
    return `now ${this.number(before + tree.sum[i])}, before ${this.number(before)}`;
  }
}
