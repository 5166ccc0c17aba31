//! What the dump of a check for leaks says besides the values of a profile: how the objects of each
//! stack are lost, and of the check itself.

use std::fmt;

/// Key of the label that says how the objects of a stack are lost.
pub const LEAK_LABEL: &str = "leak";
/// Key of the label with the same number on all stacks whose objects are lost together.
pub const LEAK_GROUP_LABEL: &str = "leak_group";

/// How an object is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// Nothing leads to it.
    Direct,
    /// Nothing but the other members of its cycle.
    Cycle,
    /// Only other lost objects.
    Indirect,
}

impl Loss {
    const ALL: [Self; 3] = [Self::Direct, Self::Cycle, Self::Indirect];

    /// The word for it, in labels.
    pub fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Cycle => "cycle",
            Self::Indirect => "indirect",
        }
    }

    /// The inverse of [`Loss::word`].
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|loss| loss.word() == word)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How the objects of one stack of a profile are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lost {
    /// How; `None` in a profile that is of no check.
    pub how: Option<Loss>,
    /// A number that the objects lost together have in common: those lost by themselves, and those
    /// lost only with them. 0: not known.
    pub group: u32,
}

impl Lost {
    /// As a dump has it: how, from 1 on, and the group.
    pub(crate) fn to_numbers(self) -> [u32; 2] {
        [self.how.map_or(0, |how| how as u32 + 1), self.group]
    }

    /// The inverse; `None` for numbers that no writer writes.
    pub(crate) fn from_numbers([how, group]: [f64; 2]) -> Option<Self> {
        let whole = |number: f64| (number as u32 as f64 == number).then_some(number as u32);
        let (how, group) = (whole(how)?, whole(group)?);
        let how = match how {
            0 => None,
            number => Some(*Loss::ALL.get(number as usize - 1)?),
        };
        Some(Self { how, group })
    }
}

/// A check for leaks, of what its dump says as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakCheck {
    /// Estimated bytes of all that was live, lost or not.
    pub live_bytes: u64,
    /// How long the process was stopped; `None`: it ran.
    pub pause_ns: Option<u64>,
    /// How often it was searched.
    pub searches: u32,
    /// Bytes searched for pointers.
    pub searched_bytes: u64,
    /// What the check could not see.
    pub notes: Vec<String>,
    /// Leaks that are known, which the profile does not have.
    pub suppressed: Vec<Suppressed>,
}

/// What a suppression was good for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressed {
    /// Estimated objects.
    pub objects: u64,
    /// Estimated bytes.
    pub bytes: u64,
    /// Its template.
    pub template: String,
}

impl LeakCheck {
    /// The facts, each with its name and value.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let pause = self.pause_ns.map_or("-".to_owned(), |ns| ns.to_string());
        let (live, searches, searched) = (self.live_bytes, self.searches, self.searched_bytes);
        let check = format!("{live} {pause} {searches} {searched}");
        let notes = self.notes.iter().map(|note| ("leak_note", note.clone()));
        let suppressed = self.suppressed.iter().map(|s| {
            let text = format!("{} {} {}", s.objects, s.bytes, s.template);
            ("leak_suppressed", text)
        });
        let check = std::iter::once(("leak_check", check));
        check.chain(notes).chain(suppressed).collect()
    }

    /// Takes one of these facts; `None`: malformed.
    pub(crate) fn read(known: &mut Option<Self>, name: &[u8], value: &str) -> Option<()> {
        if name == b"leak_check" {
            let mut words = value.split(' ');
            let mut word = || words.next();
            let check = Self {
                live_bytes: word()?.parse().ok()?,
                pause_ns: match word()? {
                    "-" => None,
                    ns => Some(ns.parse().ok()?),
                },
                searches: word()?.parse().ok()?,
                searched_bytes: word()?.parse().ok()?,
                ..Self::default()
            };
            *known = Some(check);
            return Some(());
        }
        let check = known.as_mut()?;
        match name {
            b"leak_note" => check.notes.push(value.to_owned()),
            _ => {
                let mut words = value.splitn(3, ' ');
                let mut word = || words.next();
                check.suppressed.push(Suppressed {
                    objects: word()?.parse().ok()?,
                    bytes: word()?.parse().ok()?,
                    template: word()?.to_owned(),
                });
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Detail, Facts, LabelValue, ProfileBuilder, dump};

    fn lost(how: Loss, group: u32) -> Lost {
        let how = Some(how);
        Lost { how, group }
    }

    /// A stack lost in three ways, and one in one.
    fn profile() -> crate::Profile {
        let detail = |bytes: f64| Detail {
            alloc_samples: 1,
            alloc_objects: 1.0,
            alloc_bytes: bytes,
            ..Detail::default()
        };
        let mut builder = ProfileBuilder::new(1);
        for (address, bytes, lost) in [
            (0x1001, 64.0, lost(Loss::Direct, 7)),
            (0x1001, 65.0, lost(Loss::Cycle, 8)),
            (0x1001, 66.0, lost(Loss::Indirect, 0)),
            (0x2001, 600.0, lost(Loss::Indirect, 7)),
        ] {
            builder.stack([address], &detail(bytes));
            builder.lost(lost);
        }
        builder.facts(Facts {
            leak_check: Some(LeakCheck {
                live_bytes: 1000,
                pause_ns: Some(5),
                searches: 1,
                searched_bytes: 4096,
                notes: vec!["a\nnote \u{202e}".to_owned()],
                suppressed: vec![Suppressed {
                    objects: 2,
                    bytes: 300,
                    template: "leak * of".to_owned(),
                }],
            }),
            ..Facts::default()
        });
        builder.finish()
    }

    fn written(profile: &crate::Profile) -> Vec<u8> {
        let mut text = Vec::new();
        dump::write(profile, &mut text).expect("a heap profile");
        text
    }

    #[test]
    fn a_dump_says_how_each_stack_is_lost() {
        let profile = profile();
        let text = written(&profile);
        assert!(text.windows(21).any(|w| w == b"# mem-profiler dump 4"));
        let read = crate::read(&text, "x").expect("our own");
        assert_eq!(read.losses, profile.losses);
        assert_eq!(read.facts.leak_check, profile.facts.leak_check);
        assert_eq!(read.labels, profile.labels);
        let labels = |stack: u32| -> Vec<(String, LabelValue)> {
            let own = read.labels.iter().filter(|l| l.stack == stack);
            own.map(|l| (l.key.clone(), l.value.clone())).collect()
        };
        let how = |word: &str| ("leak".to_owned(), LabelValue::Text(word.to_owned()));
        let group = |n| {
            (
                "leak_group".to_owned(),
                LabelValue::Number(n, String::new()),
            )
        };
        assert_eq!(labels(0), [how("direct"), group(7)]);
        assert_eq!(labels(1), [how("cycle"), group(8)]);
        assert_eq!(labels(2), [how("indirect")]);
        assert_eq!(labels(3), [how("indirect"), group(7)]);
        // A sum of both keeps them apart.
        let both = crate::merge::merge(&[read.clone(), read]).expect("of one kind");
        assert_eq!(both.stacks.len(), 4);
        assert_eq!(both.values_of(3), [2, 1200, 2, 1200]);
    }

    #[test]
    fn dumps_of_no_check_are_of_the_version_before() {
        let mut plain = profile();
        plain.losses.clear();
        plain.facts.leak_check = None;
        let text = written(&plain);
        assert!(text.windows(21).any(|w| w == b"# mem-profiler dump 3"));
        assert_eq!(crate::read(&text, "x").expect("our own").losses, []);
    }

    #[test]
    fn damaged_losses_are_refused() {
        let text = String::from_utf8(written(&profile())).expect("text");
        assert!(text.contains(" 1 7\n"), "{text}");
        for (from, to) in [
            (" 1 7\n", " 4 7\n"),
            (" 1 7\n", " 1.5 7\n"),
            (" 1 7\n", " 1 -7\n"),
            (" 1 7\n", " 1 4294967296\n"),
            (" 1 7\n", " 1 7 0\n"),
            ("dump 4", "dump 3"),
            ("leak_check 1000 5 1 4096", "leak_check 1000 5 1"),
            ("leak_check 1000", "leak_check -1"),
            ("leak_suppressed 2 300", "leak_suppressed 2 x"),
            ("# leak_check 1000 5 1 4096\n", ""),
        ] {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text, "{from:?}");
            let read = crate::read(damaged.as_bytes(), "x");
            assert!(read.is_err(), "{from:?}, {to:?}");
        }
    }
}
