//! A program's own account of its allocations, compared with a dump.
//!
//! Programs print a line per site: `site NAME OBJECTS BYTES LIVE_OBJECTS LIVE_BYTES`, followed by
//! the variances of the four estimates if they know the interval.

use std::collections::BTreeMap;

use crate::code::Sum;

/// The totals that a program keeps of one allocation site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Objects and bytes allocated, objects and bytes live.
    pub values: [f64; 4],
    /// Variance that Poisson sampling gives each estimate of these.
    pub variances: [f64; 4],
}

/// Kind of the values.
pub const COLUMNS: [&str; 4] = [
    "objects allocated",
    "bytes allocated",
    "live objects",
    "live bytes",
];

/// Reads the totals that a program prints.
pub fn expected(lines: &[String]) -> BTreeMap<String, Site> {
    let site = |line: &String| {
        let mut fields = line.strip_prefix("site ")?.split(' ');
        let name = fields.next()?.to_owned();
        let mut numbers = fields.map(|f| f.parse::<f64>().expect("a number"));
        let values = std::array::from_fn(|_| numbers.next().expect("four values"));
        let variances = std::array::from_fn(|_| numbers.next().unwrap_or(0.0));
        Some((name, Site { values, variances }))
    };
    lines.iter().filter_map(site).collect()
}

/// Returns the four values from a dump.
pub fn estimates(sum: &Sum) -> [f64; 4] {
    let d = &sum.detail;
    [
        d.alloc_objects,
        d.alloc_bytes,
        d.live_objects(),
        d.live_bytes(),
    ]
}

/// Checks that the values of every site are exactly the program's own.
pub fn assert_exact(expected: &BTreeMap<String, Site>, sums: &BTreeMap<String, Sum>) {
    assert!(!expected.is_empty(), "no totals to compare with");
    for (name, site) in expected {
        let found = sums.get(name).map(estimates).unwrap_or_default();
        assert_eq!(
            found, site.values,
            "{name}: {COLUMNS:?} as counted, and in truth"
        );
    }
}

/// Checks that every estimate lies within six standard errors of the truth, and that
/// there were enough samples for that to mean something.
pub fn assert_close(expected: &BTreeMap<String, Site>, sums: &BTreeMap<String, Sum>) {
    assert!(!expected.is_empty(), "no totals to compare with");
    for (name, site) in expected {
        let found = sums.get(name).map(estimates).unwrap_or_default();
        for column in 0..4 {
            let (truth, error) = (site.values[column], site.variances[column].sqrt());
            let off = (found[column] - truth).abs();
            // The dump's own fixed point: a millionth.
            let allowed = 6.0 * error + truth * 1e-6;
            assert!(
                error < truth * 0.1,
                "{name}: too little to tell: {error} of {truth}"
            );
            assert!(
                off <= allowed,
                "{name}, {}: {} counted, {truth} in truth: off by {off}, allowed {allowed}",
                COLUMNS[column],
                found[column]
            );
        }
    }
}
