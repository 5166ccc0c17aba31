//! Results of a leak check in a dump: how the objects of each stack are lost, and facts about the
//! check.

use std::fmt;

/// Key of the label with the kind of loss of a stack's objects.
pub const LEAK_LABEL: &str = "leak";
/// Key of the label with the leak group, which is the same for all stacks whose objects are lost
/// together.
pub const LEAK_GROUP_LABEL: &str = "leak_group";

/// Kind of loss: which pointers lead to a lost object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Loss {
    /// No pointers.
    Direct,
    /// Only pointers from other members of its cycle.
    Cycle,
    /// Only pointers from other lost objects.
    Indirect,
}

impl Loss {
    const ALL: [Self; 3] = [Self::Direct, Self::Cycle, Self::Indirect];

    /// Returns the word used in labels.
    pub fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Cycle => "cycle",
            Self::Indirect => "indirect",
        }
    }

    /// Parses a word of [`Loss::word`].
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|loss| loss.word() == word)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Loss of the objects of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lost {
    /// Kind of loss; `None` in a profile that is not of a leak check.
    pub how: Option<Loss>,
    /// Leak group: shared by directly lost objects and those lost only with them. 0 if unknown.
    pub group: u32,
}

impl Lost {
    /// Encodes the loss for a dump: kind (counted from 1; 0 for `None`) and group.
    pub(crate) fn to_numbers(self) -> [u32; 2] {
        [self.how.map_or(0, |how| how as u32 + 1), self.group]
    }

    /// Decodes the numbers of [`Lost::to_numbers`]. Returns `None` for others.
    pub(crate) fn from_numbers([how, group]: [f64; 2]) -> Option<Self> {
        let integer = |number: f64| (number as u32 as f64 == number).then_some(number as u32);
        let how = integer(how)?;
        let group = integer(group)?;
        let how = match how {
            0 => None,
            number => Some(*Loss::ALL.get(number as usize - 1)?),
        };
        Some(Self { how, group })
    }
}

/// Facts about a leak check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakCheck {
    /// Estimated bytes of all live objects, lost or not.
    pub live_bytes: u64,
    /// Time for which the process was stopped, in ns; `None` if it kept running.
    pub pause_ns: Option<u64>,
    /// Number of searches for pointers.
    pub searches: u32,
    /// Bytes searched for pointers.
    pub searched_bytes: u64,
    /// Limits of the check, as sentences.
    pub notes: Vec<String>,
    /// Leaks matched by suppressions, which the profile does not contain.
    pub suppressed: Vec<Suppressed>,
}

/// Leaks matched by one suppression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressed {
    /// Estimated objects.
    pub objects: u64,
    /// Estimated bytes.
    pub bytes: u64,
    /// Template of the suppression.
    pub template: String,
}

impl LeakCheck {
    /// Returns the facts as names and values.
    pub(crate) fn to_facts(&self) -> Vec<(&'static str, String)> {
        let pause = self.pause_ns.map_or("-".to_owned(), |ns| ns.to_string());
        let live = self.live_bytes;
        let searches = self.searches;
        let searched = self.searched_bytes;
        let check = format!("{live} {pause} {searches} {searched}");
        let notes = self.notes.iter().map(|note| ("leak_note", note.clone()));
        let suppressed = self.suppressed.iter().map(|s| {
            let text = format!("{} {} {}", s.objects, s.bytes, s.template);
            ("leak_suppressed", text)
        });
        let check = std::iter::once(("leak_check", check));
        check.chain(notes).chain(suppressed).collect()
    }

    /// Parses one of these facts. Returns `None` if it is malformed.
    pub(crate) fn read_fact(known: &mut Option<Self>, name: &[u8], value: &str) -> Option<()> {
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

    /// Returns a profile with a stack that is lost in three ways, and one that is lost in one way.
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
    fn dumps_have_the_kind_of_loss_of_each_stack() {
        let profile = profile();
        let text = written(&profile);
        assert!(text.windows(21).any(|w| w == b"# mem-profiler dump 4"));
        let read = crate::read(&text, "x").expect("our own");
        assert_eq!(read.losses, profile.losses);
        assert_eq!(read.facts.leak_check, profile.facts.leak_check);
        assert_eq!(read.labels, profile.labels);
        let labels = |stack: u32| -> Vec<(String, LabelValue)> {
            let labels_of_stack = read.labels.iter().filter(|l| l.stack == stack);
            labels_of_stack
                .map(|l| (l.key.clone(), l.value.clone()))
                .collect()
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
        // A sum of both profiles keeps the kinds separate.
        let both = crate::merge::merge(&[read.clone(), read]).expect("of one kind");
        assert_eq!(both.stacks.len(), 4);
        assert_eq!(both.values_of(3), [2, 1200, 2, 1200]);
    }

    #[test]
    fn dumps_without_a_check_have_the_previous_version() {
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
