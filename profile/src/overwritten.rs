//! Reports writes outside of objects, as recorded in a dump.

use std::collections::BTreeMap;

use crate::profile::Profile;

/// Counts of sampled objects whose headers the program had overwritten, from the counters of a
/// dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overwritten {
    /// Headers overwritten by writes before their object (underruns).
    pub before: u64,
    /// Headers overwritten by writes past the end of the preceding object (overruns).
    pub past_end: u64,
    /// Freed objects of both kinds that are still counted as live.
    pub uncounted: u64,
    /// Frees of objects that were not live.
    pub freed_twice: u64,
}

impl Overwritten {
    /// Reads the counters of a dump.
    #[must_use]
    pub fn from_counters(counters: &BTreeMap<String, u64>) -> Self {
        let count = |name| counters.get(name).copied().unwrap_or(0);
        Self {
            before: count("overwritten_before"),
            past_end: count("overwritten_behind"),
            uncounted: count("overwritten_uncounted"),
            freed_twice: count("freed_twice"),
        }
    }

    /// Returns a remark, or `None` if nothing was overwritten. `stacks` has the functions that
    /// allocated some of the objects, innermost first.
    #[must_use]
    pub fn remark(self, stacks: &[Vec<String>]) -> Option<String> {
        let mut parts = Vec::new();
        let objects = |count: u64| match count {
            1 => "1 sampled object".to_owned(),
            count => format!("{count} sampled objects"),
        };
        if self.before > 0 {
            let mut text = format!(
                "the program writes before its objects: the bytes before {} were overwritten",
                objects(self.before)
            );
            if !stacks.is_empty() {
                let stacks: Vec<String> = stacks.iter().map(|stack| stack.join(" < ")).collect();
                text += &format!(", allocated in {}", stacks.join("; in "));
            }
            parts.push(text);
        }
        if self.past_end > 0 {
            parts.push(format!(
                "the program writes outside its objects, probably behind some: the header of {} was overwritten from \
                 its far end",
                objects(self.past_end)
            ));
        }
        if self.uncounted > 0 {
            parts.push(format!(
                "{} of them are counted as in use, though they were freed",
                self.uncounted
            ));
        }
        if self.freed_twice > 0 {
            parts.push(format!(
                "the program frees what is no object, or no longer one: {} such frees of sampled memory had no effect",
                self.freed_twice
            ));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Maximum number of stacks of overwritten objects in a dump.
pub const MAX_OVERWRITTEN: usize = 16;
/// Maximum number of frames of such a stack in a dump.
pub const MAX_FRAMES: usize = 64;
/// Maximum number of frames of a stack in a remark.
const MAX_REMARK_FRAMES: usize = 4;

/// Returns the remark for a dump, with the functions that it has names for.
#[must_use]
pub fn remark(profile: &Profile) -> Option<String> {
    let stacks = profile.facts.overwritten_stacks.iter();
    let stacks: Vec<Vec<String>> = stacks.map(|stack| functions(profile, stack)).collect();
    Overwritten::from_counters(&profile.facts.counters).remark(&stacks)
}

/// Returns the innermost functions of a stack, or their addresses.
fn functions(profile: &Profile, stack: &[u64]) -> Vec<String> {
    let mut names = Vec::new();
    for address in stack {
        let known = profile
            .locations
            .iter()
            .find(|location| location.address == *address);
        let lines = known.map_or(0..0, |known| {
            let first = known.first_line as usize;
            first..first.saturating_add(known.line_count as usize)
        });
        let before = names.len();
        for line in profile.lines.get(lines).unwrap_or_default() {
            let function = profile.functions.get(line.function as usize);
            names.extend(function.map(|function| function.name.clone()));
        }
        if names.len() == before {
            names.push(format!("{address:#x}"));
        }
        if names.len() >= MAX_REMARK_FRAMES {
            break;
        }
    }
    names.truncate(MAX_REMARK_FRAMES);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_described() {
        let remark = |counters: &[(&str, u64)]| {
            let counters = counters
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            Overwritten::from_counters(&counters.collect())
                .remark(&[vec!["f".into(), "main".into()]])
        };
        assert_eq!(remark(&[("samples", 9), ("overwritten_before", 0)]), None);
        let text = remark(&[("overwritten_before", 3)]).unwrap();
        assert!(
            text.starts_with("the program writes before its objects"),
            "{text}"
        );
        assert!(
            text.contains("3 sampled objects") && text.contains("in f < main"),
            "{text}"
        );
        let text = remark(&[("overwritten_behind", 1), ("freed_twice", 2)]).unwrap();
        assert!(
            text.contains("probably behind") && text.contains("2 such frees"),
            "{text}"
        );
        assert!(!text.contains("main"), "{text}");
    }
}
