//! Reports samples whose objects are not in the range of sampled objects: because the process's
//! address space is limited, because more objects are live than there is room for, or because the
//! thread was exiting.
//!
//! The agent counts such an object as freed when it is allocated. So allocated values are right,
//! but live values are too small, and the number of short-lived objects is too large.

use profile::Profile;

/// Counter of all untracked samples.
const UNTRACKED: &str = "untracked";
/// Counter of untracked samples that jemalloc allocated outside the range.
const ELSEWHERE: &str = "untracked_elsewhere";
/// Counter of all samples.
const SAMPLES: &str = "samples";

/// Shares of all samples of a session, by cause, from 0 to 1.
#[derive(Clone, Copy)]
struct Shares {
    /// No room in the range, or no range.
    exhausted: f64,
    /// Allocated outside the range by jemalloc.
    elsewhere: f64,
}

impl Shares {
    fn sum(self) -> f64 {
        self.exhausted + self.elsewhere
    }
}

/// Minimum share of samples allocated elsewhere that is reported: nearly every program has one or
/// two such samples.
const MIN_ELSEWHERE_SHARE: f64 = 0.01;

/// Returns a remark on the dump with the largest share of untracked samples.
pub fn remark_of_all<'a>(profiles: impl Iterator<Item = &'a Profile>) -> Option<String> {
    let shares = profiles.filter_map(shares);
    let worse = |a: Shares, b: Shares| if b.sum() > a.sum() { b } else { a };
    shares.reduce(worse).map(text)
}

/// Returns a remark on a dump.
pub fn remark(profile: &Profile) -> Option<String> {
    shares(profile).map(text)
}

/// Returns the shares of untracked samples in a session; `None` if they are not worth reporting.
fn shares(profile: &Profile) -> Option<Shares> {
    // The dump of a leak check has its own remark.
    if profile.facts.leak_check.is_some() {
        return None;
    }
    let count = |name| profile.facts.counters.get(name).copied().unwrap_or(0);
    let untracked = count(UNTRACKED);
    // Guards against hostile input: a part must not be larger than the whole.
    let samples = count(SAMPLES).max(untracked).max(1) as f64;
    let elsewhere = count(ELSEWHERE).min(untracked);
    let shares = Shares {
        exhausted: (untracked - elsewhere) as f64 / samples,
        elsewhere: elsewhere as f64 / samples,
    };
    (shares.exhausted > 0.0 || shares.elsewhere >= MIN_ELSEWHERE_SHARE).then_some(shares)
}

fn percent(share: f64) -> String {
    match (share * 100.0) as u32 {
        0 => "less than 1%".to_owned(),
        percent => format!("{percent}%"),
    }
}

fn text(shares: Shares) -> String {
    let mut causes = Vec::new();
    if shares.exhausted > 0.0 {
        causes.push(format!(
            "{} of the samples have no place in the range of sampled objects (ulimit -v?)",
            percent(shares.exhausted)
        ));
    }
    if shares.elsewhere >= MIN_ELSEWHERE_SHARE {
        causes.push(format!(
            "{} of the samples were taken in threads that were ending, or are of the allocator itself",
            percent(shares.elsewhere)
        ));
    }
    format!("{}: in-use values are too small", causes.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(counters: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::default();
        let counters = counters.iter().map(|&(name, n)| (name.to_owned(), n));
        profile.facts.counters = counters.collect();
        profile
    }

    #[test]
    fn the_share_is_of_all_samples() {
        let message = |counters: &[_]| remark(&with(counters));
        assert_eq!(message(&[]), None);
        assert_eq!(message(&[("samples", 100), ("untracked", 0)]), None);
        let begins = |counters: &[_], start: &str| {
            let text = message(counters).unwrap();
            assert!(text.starts_with(start), "{text}");
        };
        begins(&[("samples", 100), ("untracked", 32)], "32% of the samples");
        begins(&[("samples", 1000), ("untracked", 1)], "less than 1% of");
        // Inconsistent counters.
        begins(&[("samples", 3), ("untracked", u64::MAX)], "100% of");
        begins(&[("untracked", 4)], "100% of");
        begins(
            &[("untracked", 1), ("untracked_elsewhere", 9)],
            "100% of the samples were taken in threads",
        );
    }

    #[test]
    fn objects_of_exiting_threads_are_reported_separately() {
        let remark_for = |untracked, elsewhere| {
            remark(&with(&[
                ("samples", 1000),
                ("untracked", untracked),
                ("untracked_elsewhere", elsewhere),
            ]))
        };
        assert_eq!(remark_for(9, 9), None, "a few");
        let text = remark_for(10, 10).unwrap();
        assert!(
            text.starts_with("1% of the samples were taken in threads that were ending"),
            "{text}"
        );
        let text = remark_for(9, 8).unwrap();
        assert!(
            text.starts_with("less than 1% of the samples have no place"),
            "{text}"
        );
        assert!(!text.contains("ending"), "{text}");
        let text = remark_for(520, 20).unwrap();
        assert!(
            text.starts_with("50% of") && text.contains("; 2% of"),
            "{text}"
        );
    }

    #[test]
    fn the_worst_of_several_dumps_is_reported() {
        let dumps = [
            with(&[("samples", 10), ("untracked", 1)]),
            with(&[("samples", 10), ("untracked", 5)]),
            with(&[]),
        ];
        assert!(remark_of_all(dumps.iter()).unwrap().starts_with("50% of"));
        assert_eq!(remark_of_all(dumps[2..].iter()), None);
    }
}
