"""What a test suite says about each of its tests: outcomes by name, out of its output."""

import re
import xml.etree.ElementTree

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Results(dict):
    """Outcomes by name. A name that comes again is numbered."""

    def note(self, name, outcome):
        name = re.sub(r"0x[0-9a-f]+", "0x…", name)
        numbered, n = name, 1
        while numbered in self:
            n += 1
            numbered = f"{name} #{n}"
        self[numbered] = outcome


def _by_line(pattern, outcome):
    """A reader of lines that match; `outcome` makes name and outcome of a match."""
    compiled = re.compile(pattern)

    def read(text):
        results = Results()
        for line in ESCAPES.sub("", text).splitlines():
            match = compiled.search(line)
            if match:
                results.note(*outcome(match))
        return results

    return read


# `ok 3 - name # SKIP why`
tap = _by_line(
    r"^\s*(not ok|ok) (\d+)\b(?:[^#]*)(?:# (\w+))?",
    lambda m: (m[2], " ".join(filter(None, (m[1], m[3])))),
)
# `++++ string-1.2 PASSED`, `==== string-1.2 FAILED`, `++++ string-1.2 SKIPPED: why`
tcl = _by_line(r"^(?:\+\+\+\+|====) (\S+) .*?(PASSED|FAILED|SKIPPED)", lambda m: (m[1], m[2]))
# `[ok]: EXPIRE with GT option (0 ms)`; sizes in names are random ones.
redis = _by_line(
    r"^\[(ok|err|exception|ignore|skip|timeout)\]: (.*?)(?: \(\d+ ms\))?$",
    lambda m: (re.sub(r"\d+", "n", m[2]), m[1]),
)
# `PASSED<tab>…/Zend/tests/closures/bug80929.phpt`
php = _by_line(r"^([A-Z&]+)\t.*?/(\w+/tests/.*)$", lambda m: (m[2], m[1]))
# `--- PASS: TestThreads (0.00s)`
go = _by_line(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", lambda m: (m[2], m[1]))
# `     boolean                      ... ok           48 ms`, `test boolean ... FAILED`
postgres = _by_line(r"^(?:test |\s+)(\S+)\s+\.\.\. (ok|FAILED|failed \(ignored\))", lambda m: (m[1], m[2]))
# `name: what came out`
lines = _by_line(r"^([^:]+): (.*)$", lambda m: (m[1], m[2]))
# `result: 77`; what else a program says of itself differs from run to run.
exit_code = _by_line(r"^(result): (\d+)$", lambda m: (m[1], m[2]))
# `stress-ng: fail: …`; metrics and times are not results.
stress = _by_line(r"stress-ng: (fail|error): +\[\d+\] (.*)$", lambda m: (m[1], m[2]))


def ruby(text):
    """test-unit: names as they run, and a list of those that did not pass."""
    results = Results()
    for name in re.findall(r"^\[ *\d+/\d+\] (\S+) = ", text, re.M):
        results.setdefault(name, "passed")
    for outcome, name in re.findall(r"^ *\d+\) (\w+):\n(\S+)", text, re.M):
        results[name.rstrip(":")] = outcome
    return results


def junit(text):
    """What regrtest writes: a testcase each, and what went wrong in it."""
    results = Results()
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        wrong = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
        results.note(case.get("name"), " ".join(wrong) or case.get("result", "completed"))
    return results
