//! Reads jemalloc's own `heap_v2` text.

use std::io::Read;

use crate::builder::push_addresses;
use crate::error::Fault;
use crate::heap_text::is_maps_sentinel;
use crate::intern::Interner;
use crate::lines::Lines;
use crate::maps;
use crate::profile::{Format, Profile};
use crate::scale::unsample;
use crate::scan::Scan;
use crate::value_type::{ValueType, heap_sample_types};

/// First bytes of the file.
pub(crate) const START: &[u8] = b"heap_v2/";

/// Reads a whole file.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let Some(first) = lines.next()? else {
        return Err(Fault::whole("is empty"));
    };
    let period = first
        .text
        .strip_prefix(START)
        .filter(|_| first.complete)
        .and_then(|text| {
            let mut scan = Scan::new(text);
            scan.int().filter(|_| scan.rest().is_empty())
        })
        .filter(|&period| period > 0)
        .ok_or_else(|| Fault::here("is not a complete \u{201c}heap_v2/INTERVAL\u{201d} header"))?;
    let mut reader = Reader {
        profile: empty_profile(period),
        interner: Interner::new(),
        scratch: Vec::new(),
        has_allocated: None,
        awaits_values: false,
    };
    reader.read_contexts(lines)?;
    Ok(reader.finish())
}

fn empty_profile(period: i64) -> Profile {
    Profile {
        format: Format::Jemalloc,
        period,
        period_type: Some(ValueType::new("space", "bytes")),
        drop_frames: crate::frames::FOREIGN_ALLOCATOR_FRAMES.clone(),
        keep_frames: crate::frames::ALLOCATOR_KEEP.into(),
        ..Profile::default()
    }
}

struct Reader {
    profile: Profile,
    interner: Interner,
    scratch: Vec<u64>,
    /// Set if the file has accumulated values. `None` until the totals are read.
    has_allocated: Option<bool>,
    /// Set until the values of the last stack have been read.
    awaits_values: bool,
}

impl Reader {
    /// Reads everything after the first line.
    fn read_contexts<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<(), Fault> {
        while let Some(line) = lines.next()? {
            let text = line.text.trim_ascii();
            if is_maps_sentinel(text) {
                self.check_last_stack_is_complete()?;
                return self.read_maps(lines);
            }
            if !line.complete {
                break;
            }
            match text {
                [] => {}
                [b'@', stack @ ..] => self.read_stack(stack)?,
                [b't', b'*', b':', values @ ..] => self.read_values(values)?,
                // The values of one thread, which are included in those of `t*`.
                [b't', b'0'..=b'9', ..] => {}
                _ => return Err(Fault::here("is neither a stack nor its values")),
            }
        }
        Err(Fault::here(
            "the file ends before \u{201c}MAPPED_LIBRARIES:\u{201d}: it was cut off; copy the dump again",
        ))
    }

    fn check_last_stack_is_complete(&self) -> Result<(), Fault> {
        if self.awaits_values {
            return Err(Fault::here(
                "the stack before it has no \u{201c}t*:\u{201d} values",
            ));
        }
        Ok(())
    }

    fn read_stack(&mut self, stack: &[u8]) -> Result<(), Fault> {
        self.check_last_stack_is_complete()?;
        if self.has_allocated.is_none() {
            return Err(Fault::here(
                "a stack comes before the \u{201c}t*:\u{201d} totals",
            ));
        }
        let mut scan = Scan::new(stack);
        push_addresses(
            &mut self.profile,
            &mut self.interner,
            &mut self.scratch,
            &mut scan,
        )
        .ok_or_else(|| Fault::here("holds a malformed address"))?;
        self.profile.stacks.close();
        self.awaits_values = true;
        Ok(())
    }

    /// Reads the totals of the file, or the values of the last stack.
    fn read_values(&mut self, text: &[u8]) -> Result<(), Fault> {
        let [objects, bytes, all_objects, all_bytes] =
            parse_counts(text).ok_or_else(|| Fault::here("holds malformed values"))?;
        let Some(has_allocated) = self.has_allocated else {
            self.has_allocated = Some((all_objects, all_bytes) != (0, 0));
            return Ok(());
        };
        if !std::mem::take(&mut self.awaits_values) {
            return Err(Fault::here("gives values without a stack before it"));
        }
        let period = self.profile.period;
        let size = bytes
            .checked_div(objects)
            .or(all_bytes.checked_div(all_objects));
        self.profile.block_sizes.push(size.unwrap_or(0));
        if has_allocated {
            let (objects, bytes) = unsample(all_objects, all_bytes, period);
            self.profile.values.extend([objects, bytes]);
        }
        let (objects, bytes) = unsample(objects, bytes, period);
        self.profile.values.extend([objects, bytes]);
        Ok(())
    }

    fn read_maps<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<(), Fault> {
        let text = &mut self.profile.facts.maps_text;
        while let Some(line) = lines.next()? {
            text.extend_from_slice(line.text);
            text.push(b'\n');
        }
        Ok(())
    }

    fn finish(self) -> Profile {
        let mut profile = self.profile;
        let types = heap_sample_types();
        let has_allocated = self.has_allocated == Some(true);
        profile.sample_types = if has_allocated {
            types
        } else {
            types[2..].to_vec()
        };
        profile.default_type = profile.sample_types.len() - 1;
        profile.mappings = maps::parse(&profile.facts.maps_text);
        maps::assign(&mut profile);
        profile
    }
}

/// Parses `N: B [N: B]`, which the name of a thread may follow.
fn parse_counts(text: &[u8]) -> Option<[i64; 4]> {
    let mut scan = Scan::new(text);
    let mut number = |before: &[u8]| {
        scan.skip_spaces().literal(before)?;
        scan.skip_spaces().int()
    };
    Some([number(b"")?, number(b":")?, number(b"[")?, number(b":")?])
        .filter(|_| scan.skip_spaces().literal(b"]").is_some())
}
