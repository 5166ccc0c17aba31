// The chosen column and comparison, and how values are formatted for them.
class Values {
  constructor(data) {
    this.columns = data.flame.columns;
    this.compared = data.compared;
    // A profile without a base may have negative values: another tool's comparison.
    this.signs = this.columns.some((c) => c.minus);
    this.column = data.column;
    this.rule = this.compared || this.signs ? "change" : "now";
  }
  isChange() {
    return (this.compared || this.signs) && (this.rule === "change" || this.rule === "larger");
  }
  // The value that is 100 %.
  total() {
    return this.columns[this.column].totals[this.rule];
  }
  number(value) {
    return scaled(value, this.columns[this.column].scales);
  }
  signed(value) {
    return (this.isChange() && value > 0 ? "+" : "") + this.number(value);
  }
  // Returns the value for the chosen comparison; `plus` is the value now, `minus` that of the base.
  weight(plus, minus) {
    if (this.rule === "now") return plus;
    return this.rule === "base" ? minus : plus - minus;
  }
  sum() {
    const { plus, minus } = this.columns[this.column];
    return plus.reduce((sum, p, i) => sum + this.weight(p, minus ? minus[i] : 0), 0);
  }
}
