//! Reads `heap profile:` text: this project's dumps and those of gperftools and tcmalloc.

use std::io::Read;

use crate::builder::push_addresses;
use crate::detail::{AgeSpread, Detail, FIELDS};
use crate::dump::facts::FactsReader;
use crate::dump::{
    END, FACTS, FIRST_WITH_AGE_SPREADS, FIRST_WITH_LOSSES, FIRST_WITH_OBJECT_VARIANCES,
    FIRST_WITH_SEPARATE_SIZES, MAX_FIELDS, MIN_REPEATED_FIELDS, SIGNATURE, STACK, VERSION,
};
use crate::error::Fault;
use crate::go_text::GoNames;
use crate::intern::Interner;
use crate::leaks::Lost;
use crate::lines::{Line, Lines};
use crate::maps;
use crate::marker::HEAP_MARKERS;
use crate::profile::{Format, Location, NO_MAPPING, Profile};
use crate::scale::unsample;
use crate::scan::Scan;
use crate::value_type::{ValueType, heap_sample_types, plain_sample_types};
use crate::variance;

/// Maximum number of frames in all stacks that are repeated by a line `# s`, which is much shorter
/// than the frames. Equal to the controller's limit on the frames of a dump.
const MAX_REPEATED_FRAMES: usize = 1 << 26;

/// First bytes of the file.
pub(crate) const START: &[u8] = b"heap profile:";

/// Objects and their bytes.
#[derive(Clone, Copy, Default, PartialEq)]
struct Amount {
    objects: i64,
    bytes: i64,
}

impl Amount {
    fn average_size(self) -> Option<i64> {
        self.bytes.checked_div(self.objects)
    }

    fn add(&mut self, other: Amount) {
        self.objects = self.objects.saturating_add(other.objects);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The four numbers of a line.
#[derive(Clone, Copy, Default, PartialEq)]
struct Counts {
    live: Amount,
    allocated: Amount,
}

impl Counts {
    fn parse(scan: &mut Scan) -> Option<Self> {
        let mut number = |before: &[u8]| {
            scan.skip_spaces().literal(before)?;
            scan.skip_spaces().int()
        };
        let live = Amount {
            objects: number(b"")?,
            bytes: number(b":")?,
        };
        let allocated = Amount {
            objects: number(b"[")?,
            bytes: number(b":")?,
        };
        scan.skip_spaces().literal(b"]")?;
        Some(Self { live, allocated })
    }

    /// Returns the average size of the live objects, otherwise of those allocated.
    fn block_size(&self) -> i64 {
        let average = self.live.average_size();
        average.or(self.allocated.average_size()).unwrap_or(0)
    }

    fn add(&mut self, other: &Counts) {
        self.live.add(other.live);
        self.allocated.add(other.allocated);
    }
}

/// Contents of the first line.
struct Header {
    totals: Counts,
    period: i64,
    /// Set if counts are of samples, which have to be scaled up.
    sampled: bool,
}

/// Reads a whole file.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    let Some(first) = lines.next()? else {
        return Err(Fault::whole("is empty"));
    };
    if !first.complete {
        return Err(truncated("its first line"));
    }
    let header = parse_header(first.text)?;
    let mut reader = Reader::new(header);
    reader.run(lines)?;
    reader.finish()
}

fn truncated(at: &str) -> Fault {
    Fault::here(format!(
        "the file ends in {at}: it was cut off; fetch or copy the dump again"
    ))
}

fn parse_header(text: &[u8]) -> Result<Header, Fault> {
    let malformed = || Fault::here("is not a complete \u{201c}heap profile:\u{201d} header");
    let mut scan = Scan::new(text);
    scan.literal(START).ok_or_else(malformed)?;
    let totals = Counts::parse(&mut scan).ok_or_else(malformed)?;
    scan.skip_spaces().literal(b"@").ok_or_else(malformed)?;
    let kind = scan.skip_spaces().rest().trim_ascii_end();
    let (kind, period) = match kind.iter().position(|&c| c == b'/') {
        Some(slash) => (&kind[..slash], Scan::new(&kind[slash + 1..]).int()),
        None => (kind, None),
    };
    let (period, sampled) = match (kind, period) {
        (b"heap_v2" | b"heapz_v2", Some(period)) => (period, true),
        // The oldest format states twice the sampling interval.
        (b"heap", Some(period)) => (period / 2, true),
        (b"heapprofile" | b"growth" | b"growthz" | b"fragmentation" | b"fragmentationz", _) => {
            (1, false)
        }
        // Without an interval, pprof and jeprof do not scale either.
        (b"heap_v2" | b"heapz_v2" | b"heap" | b"", None) => (1, false),
        _ => {
            let kind = String::from_utf8_lossy(kind);
            return Err(Fault::here(format!(
                "has the unknown heap profile kind \u{201c}{kind}\u{201d}"
            )));
        }
    };
    Ok(Header {
        totals,
        period,
        sampled,
    })
}

struct Reader {
    header: Header,
    profile: Profile,
    interner: Interner,
    scratch: Vec<u64>,
    /// Set if the file has values of allocated objects, not only of live ones.
    has_allocated: bool,
    /// Sum of the stacks, compared with the header.
    stack_totals: Counts,
    /// Set for this project's dumps, by their second line.
    is_own_dump: bool,
    /// Set if exact values include the variances of objects.
    has_object_variances: bool,
    /// Set if exact values include losses.
    has_losses: bool,
    /// Set if exact values include the spread of ages.
    has_age_spreads: bool,
    /// Set until the exact values of the last stack have been read.
    awaits_exact_values: bool,
    /// Number of frames of repeated stacks.
    repeated_frames: usize,
    /// Addresses of the last stack, as text.
    last_addresses: Vec<u8>,
    facts: FactsReader,
    go: GoNames,
}

impl Reader {
    fn new(header: Header) -> Self {
        let Counts { live, allocated } = header.totals;
        let has_allocated = (allocated.objects != live.objects && allocated.objects != 0)
            || (allocated.bytes != live.bytes && allocated.bytes != 0);
        let profile = Profile {
            format: Format::HeapText,
            period: header.period,
            period_type: Some(ValueType::new("space", "bytes")),
            drop_frames: crate::frames::FOREIGN_ALLOCATOR_FRAMES.clone(),
            keep_frames: crate::frames::ALLOCATOR_KEEP.into(),
            ..Profile::default()
        };
        Self {
            header,
            profile,
            interner: Interner::new(),
            scratch: Vec::new(),
            has_allocated,
            stack_totals: Counts::default(),
            is_own_dump: false,
            has_object_variances: false,
            has_losses: false,
            has_age_spreads: false,
            awaits_exact_values: false,
            repeated_frames: 0,
            last_addresses: Vec::new(),
            facts: FactsReader::default(),
            go: GoNames::default(),
        }
    }

    fn run<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<(), Fault> {
        let mut number = 1;
        while let Some(line) = lines.next()? {
            number += 1;
            let text = line.text.trim_ascii();
            if is_maps_sentinel(text) {
                return self.read_maps_and_facts(lines);
            }
            self.read_line(number, Line { text, ..line })?;
        }
        if self.is_own_dump || self.stack_totals != self.header.totals || number == 1 {
            return Err(truncated("the stacks"));
        }
        Ok(())
    }

    fn read_line(&mut self, number: u64, line: Line) -> Result<(), Fault> {
        let text = line.text;
        if number == 2
            && let Some(version) = text.strip_prefix(SIGNATURE)
        {
            return self.read_signature(version);
        }
        if self.is_own_dump && text.starts_with(STACK) {
            return self.read_exact_values(&text[STACK.len()..]);
        }
        if text.is_empty() || text[0] == b'#' {
            if !self.is_own_dump {
                self.go.read_comment(text);
            }
            return Ok(());
        }
        self.go.begin_stack(text);
        if !line.complete {
            return Err(truncated("this line"));
        }
        self.read_stack(text)
    }

    fn read_signature(&mut self, version: &[u8]) -> Result<(), Fault> {
        let version = std::str::from_utf8(version)
            .ok()
            .and_then(|v| v.parse::<u32>().ok());
        match version {
            Some(v) if v <= VERSION => {
                self.is_own_dump = true;
                self.has_object_variances = v >= FIRST_WITH_OBJECT_VARIANCES;
                self.profile.split_by_size_class = v >= FIRST_WITH_SEPARATE_SIZES;
                self.has_losses = v >= FIRST_WITH_LOSSES;
                self.has_age_spreads = v >= FIRST_WITH_AGE_SPREADS;
                self.has_allocated = true;
                self.profile.format = Format::Dump;
                self.profile.drop_frames = crate::frames::ALLOCATOR_FRAMES.clone();
                self.profile.keep_frames.clear();
                Ok(())
            }
            Some(v) => Err(Fault::here(format!(
                "the dump has version {v}, this program reads up to {VERSION}: use a newer one"
            ))),
            None => Err(Fault::here(
                "the version of the dump is not a number: cut off or damaged",
            )),
        }
    }

    /// Reads a stack. A second line with the same addresses adds to the stack before it: estimates
    /// for mixed sizes are written as two lines.
    fn read_stack(&mut self, text: &[u8]) -> Result<(), Fault> {
        let mut scan = Scan::new(text);
        let malformed = || Fault::here("is neither a stack nor a comment");
        let record = Counts::parse(&mut scan).ok_or_else(malformed)?;
        scan.skip_spaces().literal(b"@").ok_or_else(malformed)?;
        let addresses = scan.rest();
        let repeated = self.read_frames(addresses)?;
        self.stack_totals.add(&record);
        let live = self.scale(record.live);
        let allocated = self.scale(record.allocated);
        let values = [allocated.objects, allocated.bytes, live.objects, live.bytes];
        let values = if self.has_allocated {
            &values[..]
        } else {
            &values[2..]
        };
        if repeated {
            self.profile.stacks.discard_open();
            let start = self.profile.values.len() - values.len();
            for (sum, value) in self.profile.values[start..].iter_mut().zip(values) {
                *sum = sum.saturating_add(*value);
            }
            return Ok(());
        }
        self.profile.stacks.close();
        self.profile.values.extend_from_slice(values);
        self.profile.block_sizes.push(record.block_size());
        self.awaits_exact_values = self.is_own_dump;
        if self.awaits_exact_values {
            self.last_addresses.clear();
            self.last_addresses.extend_from_slice(addresses);
        }
        Ok(())
    }

    /// Reads the frames of a line. Returns true if they equal those of the last stack. Usually the
    /// text is equal, so that no address has to be parsed.
    fn read_frames(&mut self, addresses: &[u8]) -> Result<bool, Fault> {
        if self.awaits_exact_values && addresses == self.last_addresses {
            return Ok(true);
        }
        let mut scan = Scan::new(addresses);
        let profile = &mut self.profile;
        let interner = &mut self.interner;
        push_addresses(profile, interner, &mut self.scratch, &mut scan)
            .ok_or_else(|| Fault::here("holds a malformed address"))?;
        Ok(self.awaits_exact_values && self.repeats_last())
    }

    fn scale(&self, amount: Amount) -> Amount {
        if self.header.sampled && amount.objects != 0 {
            let (objects, bytes) = unsample(amount.objects, amount.bytes, self.header.period);
            Amount { objects, bytes }
        } else {
            amount
        }
    }

    fn repeats_last(&self) -> bool {
        let stacks = &self.profile.stacks;
        !stacks.is_empty() && stacks.get(stacks.len() - 1) == stacks.open_frames()
    }

    /// Repeats the last stack, for exact values of another thread or size class.
    fn repeat_stack(&mut self) -> Result<(), Fault> {
        let profile = &mut self.profile;
        let count = profile.stacks.len();
        if count == 0 || profile.details.len() != count {
            return Err(Fault::here("gives exact values without a stack before it"));
        }
        self.repeated_frames += profile.stacks.get(count - 1).len();
        if self.repeated_frames > MAX_REPEATED_FRAMES {
            return Err(Fault::here("repeats stacks too often"));
        }
        profile.stacks.repeat_last();
        let values = profile.values.len() - 4;
        profile.values.extend_from_within(values..);
        profile.block_sizes.push(0);
        Ok(())
    }

    /// Reads the exact values of the last stack.
    fn read_exact_values(&mut self, fields: &[u8]) -> Result<(), Fault> {
        let is_repeated = !self.awaits_exact_values;
        if is_repeated {
            self.repeat_stack()?;
        }
        let mut scan = Scan::new(fields);
        let mut values = [0.0; MAX_FIELDS];
        let mut value_count = 0;
        while !scan.skip_spaces().rest().is_empty() {
            let max_values = if self.has_age_spreads {
                MAX_FIELDS
            } else if self.has_losses {
                FIELDS + 3
            } else {
                FIELDS + 1
            };
            let slot = values[..max_values].get_mut(value_count);
            match (slot, scan.float()) {
                (Some(slot), Some(value)) => *slot = value,
                _ => return Err(Fault::here("holds malformed exact values")),
            }
            value_count += 1;
        }
        let [fields @ .., thread, how, group, squares, deviations] = values;
        let malformed = || Fault::here("holds malformed exact values");
        let is_short = is_repeated && value_count < MIN_REPEATED_FIELDS;
        if is_short || !(0.0..1e9).contains(&thread) || thread.fract() != 0.0 {
            return Err(malformed());
        }
        self.profile.threads.push(thread as u32);
        if self.has_losses {
            let lost = Lost::from_numbers([how, group]).ok_or_else(malformed)?;
            self.profile.losses.push(lost);
        }
        let mut detail = Detail::from_fields(fields);
        detail.age_spread = (self.has_age_spreads && squares >= 0.0).then_some(AgeSpread {
            squares,
            deviations,
        });
        if !self.has_object_variances {
            variance::fill_object_variances(&mut detail, self.header.period.max(0) as u64);
        }
        let start = self.profile.values.len() - 4;
        self.profile.values[start..].copy_from_slice(&detail.values());
        if let Some(size) = self.profile.block_sizes.last_mut() {
            let [objects, bytes, live_objects, live_bytes] = detail.values();
            *size = Counts {
                live: Amount {
                    objects: live_objects,
                    bytes: live_bytes,
                },
                allocated: Amount { objects, bytes },
            }
            .block_size();
        }
        self.profile.details.push(detail);
        self.awaits_exact_values = false;
        Ok(())
    }

    fn read_maps_and_facts<R: Read>(&mut self, lines: &mut Lines<R>) -> Result<(), Fault> {
        let mut maps = Vec::new();
        let mut in_facts = false;
        let mut ended = false;
        while let Some(line) = lines.next()? {
            let text = line.text;
            if self.is_own_dump && text == END && line.complete {
                ended = true;
            } else if ended && !text.is_empty() {
                return Err(Fault::here("something follows the end of the dump"));
            } else if self.is_own_dump && text.starts_with(FACTS) {
                in_facts = true;
            } else if in_facts {
                let Some(fact) = text.strip_prefix(b"# ").filter(|_| line.complete) else {
                    return Err(truncated("the facts"));
                };
                self.facts
                    .read_line(&mut self.profile, fact)
                    .map_err(Fault::Here)?;
            } else if !(self.is_own_dump && is_marker(text)) {
                maps.extend_from_slice(text);
                maps.push(b'\n');
            }
        }
        if self.is_own_dump && !ended {
            return Err(truncated(if in_facts { "the facts" } else { "the maps" }));
        }
        let used = maps.trim_ascii_end().len();
        maps.truncate(used);
        self.profile.facts.maps_text = maps;
        Ok(())
    }

    fn finish(mut self) -> Result<Profile, Fault> {
        self.go.end_stack();
        let mut profile = self.profile;
        profile.sample_types = if self.has_allocated {
            heap_sample_types()
        } else {
            plain_sample_types()
        };
        profile.default_type = profile.sample_types.len() - 1;
        profile.facts.cpu = None;
        if profile.is_of_go() {
            crate::frames::GO_FRAMES.clone_into(&mut profile.drop_frames);
            profile.split_by_size_class = false;
        }
        if !profile.details.is_empty() && profile.details.len() != profile.stacks.len() {
            return Err(Fault::whole(
                "some stacks lack their exact values: the dump is damaged",
            ));
        }
        let mappings = maps::parse(&profile.facts.maps_text);
        profile.mappings = maps::with_modules(mappings, self.facts.modules);
        // A file has names either in Go's comments or in facts.
        let is_go_profile = !self.go.symbols.is_empty();
        let (functions, symbols) = if is_go_profile {
            (self.go.functions, self.go.symbols)
        } else {
            (self.facts.functions, self.facts.symbols)
        };
        place_symbols(&mut profile, self.interner, functions, symbols);
        maps::assign(&mut profile);
        if profile.threads.iter().all(|&thread| thread == 0) {
            profile.threads.clear();
        }
        if profile.losses.iter().all(|lost| lost.how.is_none()) {
            profile.losses.clear();
        }
        profile.label_stacks();
        Ok(profile)
    }
}

/// Adds the source-level frames that a symbolized dump contains to the locations.
fn place_symbols(
    profile: &mut Profile,
    mut interner: Interner,
    functions: Vec<crate::profile::Function>,
    symbols: Vec<(u64, Vec<crate::profile::Line>)>,
) {
    profile.functions = functions;
    for (address, lines) in symbols {
        let location_count = profile.locations.len();
        let number = interner.intern(address).0 as usize;
        if number >= location_count {
            // An address that is in no stack: interner and locations must stay in step.
            let mapping = NO_MAPPING;
            profile.locations.push(Location {
                address,
                mapping,
                first_line: 0,
                line_count: 0,
            });
        }
        let location = &mut profile.locations[number];
        location.first_line = profile.lines.len() as u32;
        location.line_count = lines.len() as u32;
        profile.lines.extend(lines);
    }
}

pub(crate) fn is_maps_sentinel(text: &[u8]) -> bool {
    text == b"MAPPED_LIBRARIES:" || text == b"--- Memory map: ---"
}

/// Returns true if a line of the maps is the range of a pseudo-frame.
fn is_marker(text: &[u8]) -> bool {
    let starts = |m: &crate::marker::Marker| {
        text.starts_with(format!("{:08x}-{:08x} ", m.address, m.address + m.len).as_bytes())
    };
    text.starts_with(b"00000") && HEAP_MARKERS.iter().any(starts)
}
