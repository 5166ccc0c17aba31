//! Drops the allocator's frames from a view.

// Decision 62: only allocators at the leaf are left out.
use std::sync::Arc;

use anyhow::{Result, bail};
use profile::{Format, Line};
use regex::Regex;

use super::{View, prefixes, without_parameters};

impl View {
    /// Drops the frames of the allocator, as defined by the profile. In stacks recorded by this
    /// project's agent, drops them at the leaf only; in other formats, drops them together with
    /// their callees, like pprof.
    pub fn drop_allocator_frames(&mut self) -> Result<()> {
        if self.profile.drop_frames.is_empty() {
            return Ok(());
        }
        let drop = anchored(&self.profile.drop_frames)?;
        let keep = match self.profile.keep_frames.as_str() {
            "" => None,
            keep => Some(anchored(keep)?),
        };
        let profile = Arc::clone(&self.profile);
        let prefixes = prefixes::literal_prefixes(&profile.drop_frames);
        let drop = |name: &str| {
            let may_match = prefixes.as_ref().is_none_or(|all| all.may_match(name));
            may_match && drop.is_match(name)
        };
        let matching = self.matching(drop, keep.as_ref());
        match profile.format {
            Format::Dump => self.drop_leaves(&matching),
            _ => self.prune(&matching),
        }
        Ok(())
    }

    /// Returns which functions match `drop` but not `keep`.
    fn matching(&self, drop: impl Fn(&str) -> bool, keep: Option<&Regex>) -> Vec<bool> {
        let functions = self.profile.functions.iter();
        functions
            .map(|f| {
                let name = without_parameters(&f.name);
                !f.name.is_empty() && drop(name) && !keep.is_some_and(|keep| keep.is_match(name))
            })
            .collect()
    }

    /// Drops the matching frames at the leaf of each stack, unless all its frames match. A matching
    /// frame with another callee is a function of the program.
    fn drop_leaves(&mut self, matching: &[bool]) {
        let may_be_allocator = self.possible_allocator_locations();
        // Number of matching functions at the inner end of each location.
        let count_leading = |&(first, count): &(u32, u32)| {
            let lines = &self.lines[first as usize..(first + count) as usize];
            let other = |line: &Line| !matching[line.function as usize];
            lines.iter().position(other).map_or(count, |at| at as u32)
        };
        let locations = self.ranges.iter().zip(&may_be_allocator);
        let leading: Vec<u32> = locations
            .map(|(range, may_be_allocator)| {
                if *may_be_allocator {
                    count_leading(range)
                } else {
                    0
                }
            })
            .collect();
        let is_whole = |frame: u32| {
            let count = self.ranges[frame as usize].1;
            count > 0 && leading[frame as usize] == count
        };
        // Stacks share locations, so a location loses its inner functions only if no stack keeps
        // them.
        let mut reached = vec![false; leading.len()];
        let mut kept = vec![false; leading.len()];
        for (i, span) in self.spans.iter_mut().enumerate() {
            if self.cpu_stacks.get(i).is_some_and(|is_cpu| *is_cpu) {
                continue;
            }
            let frames = &self.profile.stacks.get(i)[span.0 as usize..span.1 as usize];
            let Some(at) = frames.iter().position(|&frame| !is_whole(frame)) else {
                continue;
            };
            span.0 += at as u32;
            reached[frames[at] as usize] = true;
            for &frame in &frames[at + 1..] {
                kept[frame as usize] = true;
            }
        }
        for (location, leading) in leading.iter().enumerate() {
            if reached[location] && !kept[location] {
                self.ranges[location].0 += leading;
                self.ranges[location].1 -= leading;
            }
        }
    }

    /// Drops matching frames with all their callees, unless nothing else would remain.
    fn prune(&mut self, matching: &[bool]) {
        let locations = self.possible_allocator_locations();
        let pruned: Vec<Pruned> = (0..self.ranges.len())
            .map(|i| {
                if locations[i] {
                    self.prune_location(i, matching)
                } else {
                    Pruned::None
                }
            })
            .collect();
        for (i, span) in self.spans.iter_mut().enumerate() {
            if self.cpu_stacks.get(i).is_some_and(|is_cpu| *is_cpu) {
                continue;
            }
            let frames = self.profile.stacks.get(i);
            let mut found_user = false;
            for at in (span.0..span.1).rev() {
                match pruned[frames[at as usize] as usize] {
                    Pruned::None => found_user = true,
                    Pruned::Whole if found_user => {
                        span.0 = at + 1;
                        break;
                    }
                    Pruned::Inlined if found_user => {
                        span.0 = at;
                        break;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Returns the locations that may belong to the allocator. Excludes those that only the CPU
    /// profile of a combined profile has, because the time of the allocator matters there. Also
    /// excludes Python frames, because a Python function called `allocate` is the program's own.
    fn possible_allocator_locations(&self) -> Vec<bool> {
        let mut locations = self.locations_of_stacks();
        for (may_be_allocator, location) in locations.iter_mut().zip(&self.profile.locations) {
            *may_be_allocator &= !self.profile.is_python(location);
        }
        locations
    }

    /// Returns the locations of all stacks but those of the CPU profile in a combined profile.
    fn locations_of_stacks(&self) -> Vec<bool> {
        if self.cpu_stacks.is_empty() {
            return vec![true; self.ranges.len()];
        }
        let mut locations = vec![false; self.ranges.len()];
        for (stack, frames) in self.profile.stacks.iter().enumerate() {
            if !self.is_cpu_stack(stack) {
                frames.iter().for_each(|&f| locations[f as usize] = true);
            }
        }
        locations
    }

    /// Prunes a location at its outermost matching function: drops this function and those inlined
    /// into it.
    fn prune_location(&mut self, location: usize, matching: &[bool]) -> Pruned {
        let (first, count) = self.ranges[location];
        let lines = &self.lines[first as usize..(first + count) as usize];
        let Some(at) = lines.iter().rposition(|l| matching[l.function as usize]) else {
            return Pruned::None;
        };
        if at + 1 == lines.len() {
            return Pruned::Whole;
        }
        let used = at as u32 + 1;
        self.ranges[location] = (first + used, count - used);
        Pruned::Inlined
    }
}

/// Result of pruning a location.
#[derive(Clone, Copy)]
enum Pruned {
    None,
    /// The outermost function matches: the location is dropped.
    Whole,
    /// An inlined function matches: the functions it was inlined into are kept.
    Inlined,
}

/// Compiles a pattern that must match a whole name.
fn anchored(pattern: &str) -> Result<Regex> {
    match Regex::new(&format!("^({pattern})$")) {
        Ok(regex) => Ok(regex),
        Err(e) => bail!("the profile's pattern of frames to leave out is malformed: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use profile::{Detail, Function, ProfileBuilder};

    use super::*;

    /// Returns the stacks of a view. Stacks are innermost frame first; each frame is one function,
    /// as `malloc`, or several that were inlined, as `allocate<main`.
    fn shown(format: Format, stacks: &[&[&'static str]]) -> Vec<String> {
        let mut builder = ProfileBuilder::new(1);
        let mut known: Vec<&str> = Vec::new();
        for stack in stacks {
            let mut number = |&frame: &&'static str| {
                let number = known.iter().position(|other| *other == frame);
                number.unwrap_or_else(|| {
                    known.push(frame);
                    known.len() - 1
                })
            };
            let addresses = stack.iter().map(|frame| 0x1000 + number(frame) as u64);
            builder.stack(addresses, &Detail::default());
        }
        let mut profile = builder.finish();
        profile.format = format;
        for (at, frame) in known.into_iter().enumerate() {
            let first_line = profile.lines.len() as u32;
            for name in frame.split('<') {
                profile.lines.push(Line {
                    function: profile.functions.len() as u32,
                    ..Line::default()
                });
                profile.functions.push(Function {
                    name: name.to_owned(),
                    ..Function::default()
                });
            }
            let number = profile.functions[first_line as usize..].len() as u32;
            let location = &mut profile.locations[at];
            location.first_line = first_line;
            location.line_count = number;
        }
        let mut view = View::new(profile, None).unwrap();
        view.drop_allocator_frames().unwrap();
        let name = |line: &Line| {
            view.profile().functions[line.function as usize]
                .name
                .as_str()
        };
        let frame = |&frame: &u32| {
            view.lines(frame)
                .iter()
                .map(name)
                .collect::<Vec<_>>()
                .join("<")
        };
        let stacks = view.stacks();
        stacks
            .map(|stack| stack.frames.iter().map(frame).collect::<Vec<_>>().join(" "))
            .collect()
    }

    fn one(stack: &[&'static str]) -> String {
        shown(Format::Dump, &[stack]).remove(0)
    }

    #[test]
    fn the_programs_functions_named_like_allocators_are_kept() {
        let pool = ["malloc", "read_file", "allocate", "main"];
        assert_eq!(one(&pool), "read_file allocate main");
        let anonymous = [
            "operator new(unsigned long)",
            "parse",
            "Cache::free",
            "main",
        ];
        assert_eq!(one(&anonymous), "parse Cache::free main");
        let cgo = ["mk", "_cgo_Cfunc_mk", "runtime.asmcgocall", "[truncated]"];
        assert_eq!(one(&cgo), cgo.join(" "));
        // A function of the program may hide an allocator's, too.
        assert_eq!(
            one(&["read_file", "malloc", "main"]),
            "read_file malloc main"
        );
    }

    #[test]
    fn a_stack_of_only_allocator_frames_is_kept() {
        assert_eq!(one(&["malloc", "calloc<realloc"]), "malloc calloc<realloc");
        assert_eq!(one(&["malloc", "operator new<push<fill"]), "push<fill");
    }

    #[test]
    fn other_formats_lose_the_frames_that_pprof_removes() {
        let stack: &[&[&'static str]] = &[&["read_file", "malloc", "main"]];
        for format in [Format::HeapText, Format::Jemalloc, Format::Pprof] {
            assert_eq!(shown(format, stack), ["main"]);
        }
    }

    #[test]
    fn a_location_is_the_same_in_all_stacks() {
        let inlined = "operator new<push";
        let stacks: [&[&'static str]; 3] =
            [&["malloc", inlined], &["log", inlined], &[inlined, "main"]];
        let whole = [
            inlined.to_owned(),
            format!("log {inlined}"),
            format!("{inlined} main"),
        ];
        assert_eq!(shown(Format::Dump, &stacks), whole);
        assert_eq!(shown(Format::Dump, &stacks[..1]), ["push"]);
    }
}
