//! Moments of a session: what was live, allocated and resident then, and at some of them what
//! each of the heaviest stacks held.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of moments of a profile. Writers keep far fewer.
pub const MOST: usize = 4096;

/// Maximum number of stacks that are kept of a moment, by writers and where dumps are joined.
pub const STACKS: usize = 200;

/// A session at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Time since the start of the session.
    pub at_ns: u64,
    /// Estimated bytes allocated in the session and live then.
    pub live: u64,
    /// Estimated bytes allocated until then.
    pub allocated: u64,
    /// Resident memory of the process, if known.
    pub resident: Option<u64>,
    /// What the heaviest stacks held, if it was recorded: in ascending order of stack, together
    /// no more than `live`.
    pub stacks: Option<Vec<Held>>,
}

/// What a stack held at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Index of the stack.
    pub stack: u32,
    /// Bytes live.
    pub bytes: u64,
}

impl Moment {
    /// What the stacks held that are not listed.
    pub fn rest(&self) -> u64 {
        let listed = self.stacks.iter().flatten().map(|held| held.bytes);
        self.live
            .saturating_sub(listed.fold(0, u64::saturating_add))
    }

    /// The same moment where stacks have other numbers; those without one join the rest.
    #[must_use]
    pub fn renumbered(&self, number: impl Fn(u32) -> Option<u32>) -> Self {
        let renumber = |stacks: &Vec<Held>| {
            let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
            for held in stacks {
                if let Some(stack) = number(held.stack) {
                    let sum = sums.entry(stack).or_default();
                    *sum = sum.saturating_add(held.bytes);
                }
            }
            let held = |(stack, bytes)| Held { stack, bytes };
            sums.into_iter().map(held).collect()
        };
        Self {
            stacks: self.stacks.as_ref().map(renumber),
            ..*self
        }
    }
}

/// The heaviest [`STACKS`] of these, in ascending order of stack; without those that hold nothing.
pub fn heaviest(stacks: impl Iterator<Item = Held>) -> Vec<Held> {
    let mut kept: Vec<Held> = stacks.filter(|held| held.bytes > 0).collect();
    if kept.len() > STACKS {
        kept.select_nth_unstable_by_key(STACKS, |held| (Reverse(held.bytes), held.stack));
        kept.truncate(STACKS);
    }
    kept.sort_unstable_by_key(|held| held.stack);
    kept
}

/// Leaves out about half: of each two the one that says less. The first stays, and so does the
/// one with most live bytes; one with stacks counts for more than one without, and a higher one
/// for more than a lower one, so that a curve keeps its peaks.
pub fn thin(moments: &mut Vec<Moment>) {
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

/// The fact of a moment: `NS LIVE ALLOCATED RESIDENT`.
pub(crate) fn text(moment: &Moment) -> String {
    let resident = moment.resident.map_or("-".into(), |n| n.to_string());
    let Moment {
        at_ns,
        live,
        allocated,
        ..
    } = moment;
    format!("{at_ns} {live} {allocated} {resident}")
}

/// The fact of a moment's stacks: `INDEX:BYTES …`.
pub(crate) fn stacks_text(stacks: &[Held]) -> String {
    let words: Vec<String> = stacks
        .iter()
        .map(|held| format!("{}:{}", held.stack, held.bytes))
        .collect();
    words.join(" ")
}

/// Takes the fact of a moment. Moments are in ascending order of time.
pub(crate) fn read(moments: &mut Vec<Moment>, value: &[u8]) -> Option<()> {
    let mut words = std::str::from_utf8(value).ok()?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (at_ns, live, allocated) = (number()?, number()?, number()?);
    let resident = match words.next()? {
        "-" => None,
        bytes => Some(bytes.parse().ok()?),
    };
    let in_order = moments.last().is_none_or(|last| last.at_ns < at_ns);
    if words.next().is_some() || !in_order || moments.len() == MOST {
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

/// Takes the fact of the stacks of the last moment, which refer to a profile of `count` stacks.
pub(crate) fn read_stacks(moments: &mut [Moment], count: usize, value: &[u8]) -> Option<()> {
    let moment = moments.last_mut().filter(|m| m.stacks.is_none())?;
    let text = std::str::from_utf8(value).ok()?;
    let mut stacks: Vec<Held> = Vec::new();
    let mut left = moment.live;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let (stack, bytes) = word.split_once(':')?;
        let (stack, bytes) = (stack.parse::<u32>().ok()?, bytes.parse::<u64>().ok()?);
        let in_order = stacks.last().is_none_or(|last| last.stack < stack);
        if !in_order || stack as usize >= count {
            return None;
        }
        left = left.checked_sub(bytes)?;
        stacks.push(Held { stack, bytes });
    }
    moment.stacks = Some(stacks);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64, live: u64, stacks: Option<&[(u32, u64)]>) -> Moment {
        let held = |&(stack, bytes): &(u32, u64)| Held { stack, bytes };
        Moment {
            at_ns: ns,
            live,
            stacks: stacks.map(|all| all.iter().map(held).collect()),
            ..Moment::default()
        }
    }

    #[test]
    fn thinning_keeps_the_first_the_peak_and_those_with_stacks() {
        let mut moments: Vec<Moment> = (0..9).map(|ns| at(ns, 10 + ns % 2, None)).collect();
        moments[3] = at(3, 50, None);
        moments[4] = at(4, 5, Some(&[]));
        moments[6] = at(6, 1, Some(&[]));
        thin(&mut moments);
        let kept: Vec<u64> = moments.iter().map(|m| m.at_ns).collect();
        assert_eq!(kept, [0, 1, 3, 6, 7]);
        for _ in 0..5 {
            thin(&mut moments);
        }
        assert_eq!(moments.len(), 2);
        assert_eq!(moments[1].live, 50);
    }

    #[test]
    fn stacks_that_are_gone_join_the_rest() {
        let moment = at(1, 100, Some(&[(0, 10), (1, 20), (2, 30)]));
        assert_eq!(moment.rest(), 40);
        let number = |stack| (stack > 0).then_some(7);
        let renumbered = moment.renumbered(number);
        assert_eq!(renumbered, at(1, 100, Some(&[(7, 50)])));
        assert_eq!(renumbered.rest(), 50);
    }

    #[test]
    fn the_heaviest_stacks_are_kept_in_their_order() {
        let stacks = (0..1000).map(|stack| Held {
            stack,
            bytes: u64::from(stack % 500),
        });
        let kept = heaviest(stacks);
        assert_eq!(kept.len(), STACKS);
        assert!(kept.iter().all(|held| held.bytes >= 400));
        assert!(kept.is_sorted_by_key(|held| held.stack));
    }
}
