// Regular expressions in linear time. The browser's own engine backtracks: it takes hours for some
// patterns, and blocks the page meanwhile. A pattern matches anywhere in a name, ignoring case. As
// for the options of mem_parser, there is neither look-around nor a reference to groups.
const MAX_STEPS = 2000; // instructions of a pattern
const MAX_STATES = 2000; // cached states of the automaton
const MAX_SEARCH = 300; // ms for all names

const isDigit = (c) => c >= 48 && c <= 57;
const isWord = (c) => isDigit(c) || (c >= 97 && c <= 122) || (c >= 65 && c <= 90) || c === 95;
const isSpace = (c) => c === 32 || (c >= 9 && c <= 13) || c === 160 || c === 0x2028 || c === 0x2029 || c === 0xfeff;
const not = (test) => (c) => !test(c);
const CLASSES = { d: isDigit, D: not(isDigit), w: isWord, W: not(isWord), s: isSpace, S: not(isSpace) };
const CONTROLS = { n: 10, r: 13, t: 9, f: 12, v: 11, 0: 0 };
// Kinds of what is before or after a character.
const [EDGE, WORD, OTHER] = [0, 1, 2];
const kindOf = (c) => (c < 0 ? EDGE : isWord(c) ? WORD : OTHER);
const ASSERTIONS = {
  "^": (before) => before === EDGE,
  $: (before, after) => after === EDGE,
  b: (before, after) => (before === WORD) !== (after === WORD),
  B: (before, after) => (before === WORD) === (after === WORD),
};

class PatternParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }
  parse() {
    const all = this.alternatives();
    if (this.at < this.text.length) throw new Error("a ) without a (");
    return all;
  }
  takes(text) {
    if (!this.text.startsWith(text, this.at)) return false;
    this.at += text.length;
    return true;
  }
  alternatives() {
    const list = [this.sequence()];
    while (this.takes("|")) list.push(this.sequence());
    return { any: list };
  }
  sequence() {
    const list = [];
    while (this.at < this.text.length && !"|)".includes(this.text[this.at])) list.push(this.repeated());
    return { all: list };
  }
  repeated() {
    let node = this.atom();
    for (;;) {
      const found = /^(?:[*+?]|\{(\d+)(,(\d*))?\})/.exec(this.text.slice(this.at, this.at + 24));
      if (!found) return node;
      this.at += found[0].length;
      // Ignores laziness: only whether a pattern matches is of interest.
      this.takes("?");
      const [sign, first, comma, last] = found;
      const least = first === undefined ? Number(sign === "+") : Number(first);
      const most = first === undefined ? (sign === "?" ? 1 : Infinity) : !comma ? least : last ? Number(last) : Infinity;
      if (most < least) throw new Error("a repetition with more at least than at most");
      node = { repeat: node, least, most };
    }
  }
  atom() {
    const c = this.text[this.at++];
    if (c === "(") return this.group();
    if (c === "[") return this.set();
    if (c === ".") return { test: (code) => code !== 10 };
    if (c === "^" || c === "$") return { assert: ASSERTIONS[c] };
    if (c === "\\") return this.escape();
    if ("*+?".includes(c)) throw new Error("nothing to repeat");
    return this.letter(c.toLowerCase().charCodeAt(0));
  }
  letter(code) {
    return { test: (other) => other === code };
  }
  group() {
    if (this.takes("?") && !this.takes(":")) {
      const name = /^P?<[A-Za-z_]\w*>/.exec(this.text.slice(this.at));
      if (!name) throw new Error("look-around is not supported");
      this.at += name[0].length;
    }
    const inside = this.alternatives();
    if (!this.takes(")")) throw new Error("a ( without a )");
    return inside;
  }
  escape() {
    const c = this.text[this.at];
    if (c === "b" || c === "B") {
      this.at++;
      return { assert: ASSERTIONS[c] };
    }
    const { test, code } = this.escaped();
    return test ? { test } : this.letter(String.fromCharCode(code).toLowerCase().charCodeAt(0));
  }
  // The class or the character after a backslash.
  escaped() {
    const c = this.text[this.at++];
    if (c === undefined) throw new Error("a \\ at the end");
    if (CLASSES[c]) return { test: CLASSES[c] };
    if (/[1-9kpPc]/.test(c)) throw new Error(`\\${c} is not supported`);
    const hex = /^(?:x([0-9a-f]{2})|u([0-9a-f]{4}))/i.exec(this.text.slice(this.at - 1, this.at + 4));
    if (!hex) return { code: c in CONTROLS ? CONTROLS[c] : c.charCodeAt(0) };
    this.at += hex[0].length - 1;
    return { code: parseInt(hex[1] || hex[2], 16) };
  }
  set() {
    const isNot = this.takes("^");
    const tests = [];
    const member = () => {
      const c = this.text[this.at++];
      if (c === undefined) throw new Error("a [ without a ]");
      if (c === "\\" && this.takes("b")) return { code: 8 };
      return c === "\\" ? this.escaped() : { code: c.charCodeAt(0) };
    };
    while (!this.takes("]")) {
      const first = member();
      const isRange = first.code !== undefined && this.text[this.at] === "-" && !["]", undefined].includes(this.text[this.at + 1]);
      if (!isRange) {
        tests.push(first.test || ((c) => c === first.code));
        continue;
      }
      this.at++;
      const last = member();
      if (last.code === undefined || last.code < first.code) throw new Error("a range without an end");
      tests.push((c) => c >= first.code && c <= last.code);
    }
    const has = (c) => tests.some((test) => test(c));
    // Names are searched in lower case.
    const upper = (c) => String.fromCharCode(c).toUpperCase().charCodeAt(0);
    const test = (c) => has(c) || has(upper(c));
    return { test: isNot ? not(test) : test };
  }
}

class Pattern {
  // Throws an error that says why `text` is not a pattern.
  constructor(text) {
    // Most patterns have no special characters.
    this.plain = /^[\w\s:<>,&~'"!@#%=;/-]*$/.test(text) ? text.toLowerCase() : null;
    this.program = [];
    this.emit(new PatternParser(text).parse());
    this.push({ matched: true });
    this.seen = new Uint32Array(this.program.length);
    this.round = 0;
    this.forget();
    this.begin();
  }
  // Begins a search, and its time limit.
  begin() {
    this.end = performance.now() + MAX_SEARCH;
    this.left = 100;
  }
  test(name) {
    return this.testLower(name.toLowerCase());
  }
  // As `test`, for a name that is in lower case already.
  testLower(text) {
    if (!this.left--) {
      this.left = 100;
      if (performance.now() > this.end) throw new Error("this pattern takes too long");
    }
    if (this.plain !== null) return text.includes(this.plain);
    let state = this.first;
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      state = state.next[code] || this.step(state, code);
      if (state === true) return true;
    }
    return (state.end || this.step(state, -1)) === true;
  }
  push(instruction) {
    if (this.program.length >= MAX_STEPS) throw new Error("this pattern is too long");
    return this.program.push(instruction) - 1;
  }
  emit(node) {
    const { program } = this;
    if (node.all) for (const part of node.all) this.emit(part);
    else if (node.any) {
      const ends = [];
      node.any.forEach((part, i) => {
        const isLast = i === node.any.length - 1;
        const fork = isLast ? -1 : this.push({ to: [program.length + 1] });
        this.emit(part);
        if (isLast) return;
        ends.push(this.push({ to: [] }));
        program[fork].to.push(program.length);
      });
      for (const end of ends) program[end].to.push(program.length);
    } else if (node.repeat) {
      for (let i = 0; i < node.least; i++) this.emit(node.repeat);
      const forks = [];
      const isEndless = node.most === Infinity;
      for (let i = node.least; i < (isEndless ? node.least + 1 : node.most); i++) {
        forks.push(this.push({ to: [program.length + 1] }));
        this.emit(node.repeat);
      }
      if (isEndless) this.push({ to: [forks[0]] });
      for (const fork of forks) program[fork].to.push(program.length);
    } else this.push(node);
  }
  // --- states: the instructions the program may be at, and the kind of the character before
  forget() {
    this.states = new Map();
    this.first = this.state([], EDGE);
  }
  state(places, before) {
    const key = `${before}:${places}`;
    if (!this.states.has(key)) this.states.set(key, { places, before, next: [], end: null });
    return this.states.get(key);
  }
  // Returns the state after a character (-1: after the end), or true if the pattern has matched.
  step(state, code) {
    const after = kindOf(code);
    const places = [];
    const work = [0, ...state.places];
    this.round++;
    let next = null;
    while (work.length) {
      const place = work.pop();
      if (this.seen[place] === this.round) continue;
      this.seen[place] = this.round;
      const { test, assert, to, matched } = this.program[place];
      if (matched) next = true;
      else if (to) work.push(...to);
      else if (assert) {
        if (assert(state.before, after)) work.push(place + 1);
      } else if (code >= 0 && test(code)) places.push(place + 1);
    }
    if (!next) {
      if (this.states.size >= MAX_STATES) this.forget();
      next = this.state(places.sort((a, b) => a - b), after);
    }
    if (code < 0) state.end = next;
    else state.next[code] = next;
    return next;
  }
}
