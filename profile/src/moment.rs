//! Moments of a session: how much memory was live, allocated and resident at that time, and for
//! some of them the live bytes of the heaviest stacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of moments of a profile. Writers keep far fewer.
pub const MAX_MOMENTS: usize = 4096;

/// Maximum number of stacks of a moment, for writers and for joined dumps.
pub const MAX_STACKS: usize = 200;

/// State of a session at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Time since the start of the session.
    pub at_ns: u64,
    /// Estimated bytes that were allocated in the session and are still live.
    pub live: u64,
    /// Estimated bytes allocated since the start of the session.
    pub allocated: u64,
    /// Resident memory of the process, in bytes; `None` if unknown.
    pub resident: Option<u64>,
    /// Live bytes of the heaviest stacks, in ascending order of stack; their sum is at most `live`.
    /// `None` if not recorded.
    pub stacks: Option<Vec<StackBytes>>,
}

/// Live bytes of a stack at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackBytes {
    /// Index of the stack.
    pub stack: u32,
    /// Live bytes.
    pub bytes: u64,
}

impl Moment {
    /// Returns the live bytes of the stacks that are not listed.
    pub fn unlisted_bytes(&self) -> u64 {
        let listed = self.stacks.iter().flatten().map(|held| held.bytes);
        self.live
            .saturating_sub(listed.fold(0, u64::saturating_add))
    }

    /// Returns the moment with renumbered stacks. Stacks without a new number are dropped from the
    /// list.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(u32) -> Option<u32>) -> Self {
        let renumber = |stacks: &Vec<StackBytes>| {
            let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
            for held in stacks {
                if let Some(stack) = number(held.stack) {
                    let sum = sums.entry(stack).or_default();
                    *sum = sum.saturating_add(held.bytes);
                }
            }
            let held = |(stack, bytes)| StackBytes { stack, bytes };
            sums.into_iter().map(held).collect()
        };
        Self {
            stacks: self.stacks.as_ref().map(renumber),
            ..*self
        }
    }
}

/// Returns the [`MAX_STACKS`] heaviest of `stacks`, in ascending order of stack. Drops those
/// without live bytes.
pub fn heaviest(stacks: impl Iterator<Item = StackBytes>) -> Vec<StackBytes> {
    let mut kept: Vec<StackBytes> = stacks.filter(|held| held.bytes > 0).collect();
    if kept.len() > MAX_STACKS {
        kept.select_nth_unstable_by_key(MAX_STACKS, |held| (Reverse(held.bytes), held.stack));
        kept.truncate(MAX_STACKS);
    }
    kept.sort_unstable_by_key(|held| held.stack);
    kept
}

/// Drops about half of the moments. Keeps the first, then the better of each pair: the one with the
/// session's peak, otherwise the one with stacks, otherwise the one with more live bytes. So curves
/// keep their peaks.
pub fn drop_half(moments: &mut Vec<Moment>) {
    let peak = moments.iter().map(|m| m.live).max();
    let worth = |m: &Moment| (Some(m.live) == peak, m.stacks.is_some(), m.live);
    let all = std::mem::take(moments);
    let mut all = all.into_iter();
    moments.extend(all.next());
    while let Some(early) = all.next() {
        match all.next() {
            Some(late) if worth(&late) > worth(&early) => moments.push(late),
            _ => moments.push(early),
        }
    }
}

/// Formats the fact of a moment: `NS LIVE ALLOCATED RESIDENT`.
pub(crate) fn fact_text(moment: &Moment) -> String {
    let resident = moment.resident.map_or("-".into(), |n| n.to_string());
    let Moment {
        at_ns,
        live,
        allocated,
        ..
    } = moment;
    format!("{at_ns} {live} {allocated} {resident}")
}

/// Formats the fact of a moment's stacks: `INDEX:BYTES …`.
pub(crate) fn stacks_fact_text(stacks: &[StackBytes]) -> String {
    let words: Vec<String> = stacks
        .iter()
        .map(|held| format!("{}:{}", held.stack, held.bytes))
        .collect();
    words.join(" ")
}

/// Parses the fact of a moment. Moments must be in ascending order of time.
pub(crate) fn read_fact(moments: &mut Vec<Moment>, value: &[u8]) -> Option<()> {
    let mut words = std::str::from_utf8(value).ok()?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let at_ns = number()?;
    let live = number()?;
    let allocated = number()?;
    let resident = match words.next()? {
        "-" => None,
        bytes => Some(bytes.parse().ok()?),
    };
    let in_order = moments.last().is_none_or(|last| last.at_ns < at_ns);
    if words.next().is_some() || !in_order || moments.len() == MAX_MOMENTS {
        return None;
    }
    moments.push(Moment {
        at_ns,
        live,
        allocated,
        resident,
        stacks: None,
    });
    Some(())
}

/// Parses the fact of the last moment's stacks, which are indices into a profile of `count` stacks.
pub(crate) fn read_stacks_fact(moments: &mut [Moment], count: usize, value: &[u8]) -> Option<()> {
    let moment = moments.last_mut().filter(|m| m.stacks.is_none())?;
    let text = std::str::from_utf8(value).ok()?;
    let mut stacks: Vec<StackBytes> = Vec::new();
    let mut left = moment.live;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let (stack, bytes) = word.split_once(':')?;
        let stack = stack.parse::<u32>().ok()?;
        let bytes = bytes.parse::<u64>().ok()?;
        let in_order = stacks.last().is_none_or(|last| last.stack < stack);
        if !in_order || stack as usize >= count {
            return None;
        }
        left = left.checked_sub(bytes)?;
        stacks.push(StackBytes { stack, bytes });
    }
    moment.stacks = Some(stacks);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64, live: u64, stacks: Option<&[(u32, u64)]>) -> Moment {
        let held = |&(stack, bytes): &(u32, u64)| StackBytes { stack, bytes };
        Moment {
            at_ns: ns,
            live,
            stacks: stacks.map(|all| all.iter().map(held).collect()),
            ..Moment::default()
        }
    }

    #[test]
    fn thinning_keeps_first_moment_peak_and_moments_with_stacks() {
        let mut moments: Vec<Moment> = (0..9).map(|ns| at(ns, 10 + ns % 2, None)).collect();
        moments[3] = at(3, 50, None);
        moments[4] = at(4, 5, Some(&[]));
        moments[6] = at(6, 1, Some(&[]));
        drop_half(&mut moments);
        let kept: Vec<u64> = moments.iter().map(|m| m.at_ns).collect();
        assert_eq!(kept, [0, 1, 3, 6, 7]);
        for _ in 0..5 {
            drop_half(&mut moments);
        }
        assert_eq!(moments.len(), 2);
        assert_eq!(moments[1].live, 50);
    }

    #[test]
    fn stacks_that_no_longer_exist_join_the_rest() {
        let moment = at(1, 100, Some(&[(0, 10), (1, 20), (2, 30)]));
        assert_eq!(moment.unlisted_bytes(), 40);
        let number = |stack| (stack > 0).then_some(7);
        let renumbered = moment.renumbered(number);
        assert_eq!(renumbered, at(1, 100, Some(&[(7, 50)])));
        assert_eq!(renumbered.unlisted_bytes(), 50);
    }

    #[test]
    fn the_heaviest_stacks_are_kept_in_their_order() {
        let stacks = (0..1000).map(|stack| StackBytes {
            stack,
            bytes: u64::from(stack % 500),
        });
        let kept = heaviest(stacks);
        assert_eq!(kept.len(), MAX_STACKS);
        assert!(kept.iter().all(|held| held.bytes >= 400));
        assert!(kept.is_sorted_by_key(|held| held.stack));
    }
}
