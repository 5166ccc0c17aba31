//! Profiles of resident memory by the stacks that touched it first. In files, they are ordinary
//! profiles in pprof's format, with facts about process and session in comments.

use std::io::{self, Write};

use crate::builder::LocationId;
use crate::cpu::{CpuBuilder, Frame};
use crate::dump::facts::{Writer, fact};
use crate::marker::marker_at;
use crate::pprof;
use crate::profile::{Facts, Format, Function, Label, LabelValue, Line, Mapping, Profile};
use crate::sampling;
use crate::value_type::ValueType;

/// Key of the label with the kind of mapping.
pub const KIND_LABEL: &str = "kind";
/// Key of the label with the mapping's name.
pub const MAPPING_LABEL: &str = "mapping";
/// Start of a comment with a fact.
const FACT: &str = "mem-profiler fact: ";

/// Memory of a stack, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Resident memory.
    pub resident: u64,
    /// Memory that is swapped out.
    pub swapped: u64,
    /// Memory that was touched during the session, whether it still exists or not.
    pub touched: u64,
}

/// Kind and name of the mapping with the memory of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappingLabels {
    /// Kind of mapping; empty if the memory no longer exists.
    pub kind: String,
    /// Name of the mapping; empty if it has none.
    pub mapping: String,
}

/// Builds a profile of resident memory.
pub struct RssBuilder {
    /// Builds stacks and locations.
    stacks: CpuBuilder,
    rows: Vec<(Bytes, MappingLabels)>,
}

impl RssBuilder {
    /// Creates a builder of an empty profile.
    pub fn new() -> Self {
        Self {
            stacks: CpuBuilder::new(sampling::Sampling::default()),
            rows: Vec::new(),
        }
    }

    /// Sets the facts.
    pub fn facts(&mut self, facts: Facts) {
        self.stacks.facts(facts);
    }

    /// Adds a module of the process.
    pub fn module(&mut self, module: Mapping) {
        self.stacks.module(module);
    }

    /// Returns the builder of locations.
    pub fn frames(&mut self) -> &mut CpuBuilder {
        &mut self.stacks
    }

    /// Adds a stack, innermost first, with its memory and its thread. See [`CpuBuilder::stack`].
    pub fn stack(
        &mut self,
        locations: &[LocationId],
        bytes: Bytes,
        place: &MappingLabels,
        thread: u32,
    ) {
        self.stacks.stack(locations, 0, 0, thread);
        self.rows.push((bytes, place.clone()));
    }

    /// Adds memory without a stack, under a pseudo-frame.
    pub fn without_stack(&mut self, frame: Frame<'_>, bytes: Bytes, place: &MappingLabels) {
        let location = self.stacks.location(frame);
        self.stack(&[location], bytes, place, 0);
    }

    /// Returns the profile.
    pub fn finish(self) -> Profile {
        let mut profile = self.stacks.finish();
        profile.format = Format::Pprof;
        profile.sample_types = ["resident", "swapped", "touched"]
            .map(|kind| ValueType::new(kind, "bytes"))
            .to_vec();
        profile.default_type = 0;
        profile.period = 0;
        profile.period_type = None;
        profile.facts.cpu = None;
        profile.values.clear();
        let value = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut threads = std::mem::take(&mut profile.labels).into_iter().peekable();
        for (stack, (bytes, place)) in self.rows.into_iter().enumerate() {
            let Bytes {
                resident,
                swapped,
                touched,
            } = bytes;
            profile
                .values
                .extend([resident, swapped, touched].map(value));
            let stack = stack as u32;
            profile.labels.extend(std::iter::from_fn(|| {
                threads.next_if(|label| label.stack == stack)
            }));
            for (key, text) in [(KIND_LABEL, place.kind), (MAPPING_LABEL, place.mapping)] {
                if !text.is_empty() {
                    profile.labels.push(Label {
                        stack,
                        key: key.to_owned(),
                        value: LabelValue::Text(text),
                    });
                }
            }
        }
        name_markers(&mut profile);
        profile
    }
}

impl Default for RssBuilder {
    fn default() -> Self {
        Self::new()
    }
}

/// Names pseudo-frames, for readers that do not know their addresses.
fn name_markers(profile: &mut Profile) {
    for location in &mut profile.locations {
        let Some(marker) = marker_at(location.address) else {
            continue;
        };
        location.first_line = profile.lines.len() as u32;
        location.line_count = 1;
        profile.lines.push(Line {
            function: profile.functions.len() as u32,
            ..Line::default()
        });
        profile.functions.push(Function {
            name: marker.name.to_owned(),
            ..Function::default()
        });
    }
}

/// Writes a profile built by [`RssBuilder`].
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let mut text = Vec::new();
    let mut writer = Writer { buffer: &mut text };
    let mut without_threads = profile.without_stacks();
    without_threads.facts.threads.clear();
    without_threads.comments.clear();
    writer.origin(&without_threads);
    writer.session(&without_threads);
    let mut whole = profile.clone();
    let lines = text.split(|byte| *byte == b'\n');
    let facts = lines.filter_map(|line| line.strip_prefix(b"# "));
    let comment = |fact: &[u8]| format!("{FACT}{}", String::from_utf8_lossy(fact));
    whole.comments.extend(facts.map(comment));
    pprof::write(&whole, out)
}

/// Moves the facts in a profile's comments to its facts. Ignores malformed ones, since any program
/// may have written the comments.
pub(crate) fn take_facts(profile: &mut Profile) {
    let facts = &mut profile.facts;
    profile.comments.retain(|comment| {
        let Some(text) = comment.strip_prefix(FACT) else {
            return true;
        };
        if let Some((name, value)) = text.split_once(' ')
            && !name.as_bytes().starts_with(sampling::PREFIX)
        {
            let _ = fact(facts, name.as_bytes(), value.as_bytes());
        }
        false
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{THREAD_LABEL, Thread};
    use crate::read;

    fn example() -> Profile {
        let mut builder = RssBuilder::new();
        let thread = |tid| Thread {
            tid,
            name: format!("worker {tid}"),
        };
        builder.facts(Facts {
            pid: Some(7),
            process: Some("new\nline \\".into()),
            exe: Some("/bin/x y".into()),
            command_line: vec!["x y".into(), String::new()],
            threads: vec![thread(1), thread(2)],
            start_unix_ns: Some(5),
            duration_ns: Some(6),
            ..Facts::default()
        });
        builder.module(Mapping {
            start: 0x1000,
            end: 0x2000,
            path: "/bin/x y".into(),
            ..Mapping::default()
        });
        let frames = [
            Frame::Kernel("copy_to_iter"),
            Frame::User(0x1234),
            Frame::Truncated,
        ];
        let stack = frames.map(|frame| builder.frames().location(frame));
        let heap = MappingLabels {
            kind: "heap".into(),
            mapping: "[heap]".into(),
        };
        let bytes = Bytes {
            resident: 4096,
            swapped: 8192,
            touched: 1 << 20,
        };
        builder.stack(&stack, bytes, &heap, 2);
        builder.without_stack(Frame::ResidentBefore, bytes, &MappingLabels::default());
        builder.finish()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let profile = example();
        let mut bytes = Vec::new();
        write(&profile, &mut bytes).expect("room");
        let back = read(&bytes, "x.rss").expect("a profile");
        assert_eq!(back.sample_types, profile.sample_types);
        assert_eq!(back.default_type, 0);
        assert_eq!(back.values, [4096, 8192, 1 << 20, 4096, 8192, 1 << 20]);
        assert_eq!(back.labels, profile.labels);
        let keys: Vec<&str> = back.labels.iter().map(|label| &label.key[..]).collect();
        assert_eq!(
            keys,
            [THREAD_LABEL, KIND_LABEL, MAPPING_LABEL, THREAD_LABEL]
        );
        assert_eq!(back.facts.threads, []);
        let facts = Facts {
            threads: Vec::new(),
            ..profile.facts.clone()
        };
        assert_eq!(back.facts, facts);
        assert!(back.comments.is_empty());
        let names = |location: u32| {
            let lines = back.lines_of(&back.locations[location as usize]);
            let name = |line: &Line| back.functions[line.function as usize].name.clone();
            lines.iter().map(name).collect::<Vec<_>>()
        };
        let frames: Vec<_> = back
            .stacks
            .get(0)
            .iter()
            .map(|frame| names(*frame))
            .collect();
        assert_eq!(
            frames,
            [
                vec!["copy_to_iter".to_owned()],
                vec![],
                vec!["[truncated]".to_owned()]
            ]
        );
        assert!(back.is_kernel_location(&back.locations[0]));
        assert!(back.facts.cpu.is_none());
    }

    #[test]
    fn comments_of_others_are_kept_and_malformed_facts_ignored() {
        let mut profile = example();
        profile.comments = vec![
            "pid 8".into(),
            format!("{FACT}pid 99999999999999999999"),
            format!("{FACT}cpu_engine x"),
            format!("{FACT}pid"),
            FACT.into(),
        ];
        take_facts(&mut profile);
        assert_eq!(profile.comments, ["pid 8"]);
        assert_eq!(profile.facts.pid, Some(7));
        assert!(profile.facts.cpu.is_none());
    }
}
