//! Samples whose objects have no place in the range of sampled objects: because the address space
//! of the process is limited, or more is live than there is room for.
//!
//! The agent counts such an object as freed as soon as it is allocated. So what was allocated is
//! right, but what is in use is too small, and more seems to be freed at once than is.

use heap_format::Profile;

/// Names of counters in dumps.
const UNTRACKED: &str = "untracked";
const SAMPLES: &str = "samples";

/// What there is to say of these dumps; of several, of the one with the largest share.
pub fn remark_of_all<'a>(profiles: impl Iterator<Item = &'a Profile>) -> Option<String> {
    let shares = profiles.filter_map(share);
    shares.reduce(f64::max).map(text)
}

/// What there is to say of this dump.
pub fn remark(profile: &Profile) -> Option<String> {
    share(profile).map(text)
}

/// The share of such samples among all of the session; `None` if there is none.
fn share(profile: &Profile) -> Option<f64> {
    // The dump of a check for leaks has a remark of its own.
    if profile.facts.leak_check.is_some() {
        return None;
    }
    let count = |name| profile.facts.counters.get(name).copied().unwrap_or(0);
    let untracked = count(UNTRACKED);
    // Whoever wrote the file, a part is not more than the whole.
    let samples = count(SAMPLES).max(untracked);
    (untracked > 0).then(|| untracked as f64 / samples as f64)
}

fn text(share: f64) -> String {
    let percent = match (share * 100.0) as u32 {
        0 => "less than 1%".to_owned(),
        percent => format!("{percent}%"),
    };
    format!(
        "{percent} of the samples have no place in the range of sampled objects (the address space \
         is limited, as by ulimit -v, or used up, or several threads took their first samples at \
         once): they count as freed at once, so the in-use values are too small; the allocated \
         values are right"
    )
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
        let said = |counters: &[_]| remark(&with(counters));
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[("samples", 100), ("untracked", 0)]), None);
        let begins = |counters: &[_], start: &str| {
            let text = said(counters).unwrap();
            assert!(text.starts_with(start), "{text}");
        };
        begins(&[("samples", 100), ("untracked", 32)], "32% of the samples");
        begins(&[("samples", 1000), ("untracked", 1)], "less than 1% of");
        // Of files that are wrong.
        begins(&[("samples", 3), ("untracked", u64::MAX)], "100% of");
        begins(&[("untracked", 4)], "100% of");
    }

    #[test]
    fn of_several_dumps_the_worst_is_told() {
        let dumps = [
            with(&[("samples", 10), ("untracked", 1)]),
            with(&[("samples", 10), ("untracked", 5)]),
            with(&[]),
        ];
        assert!(remark_of_all(dumps.iter()).unwrap().starts_with("50% of"));
        assert_eq!(remark_of_all(dumps[2..].iter()), None);
    }
}
