//! Reads this project's CPU profile.

use std::io::Read;

use super::builder::CpuBuilder;
use super::{END, START, VERSION};
use crate::dump::facts::FactsReader;
use crate::error::Fault;
use crate::lines::Lines;
use crate::profile::{Line, Profile};
use crate::scan::Scan;

/// Reads a whole file.
pub(crate) fn read<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    check_signature(lines)?;
    let mut profile = Profile::default();
    let mut facts = FactsReader::default();
    let mut stacks: Option<CpuBuilder> = None;
    let mut symbols = Vec::new();
    while let Some(line) = lines.next()? {
        if !line.complete {
            return Err(truncated());
        }
        if line.text == END {
            let builder = stacks.unwrap_or_else(|| begin_stacks(profile, &mut facts, &mut symbols));
            return finish(lines, builder, symbols);
        }
        match (line.text.strip_prefix(b"# "), &mut stacks) {
            (Some(fact), None) => facts.read_line(&mut profile, fact).map_err(Fault::Here)?,
            (Some(_), Some(_)) => return Err(Fault::here("is a fact after the stacks")),
            (None, stacks) => {
                let builder = stacks.get_or_insert_with(|| {
                    begin_stacks(std::mem::take(&mut profile), &mut facts, &mut symbols)
                });
                add_stack(builder, line.text).ok_or_else(|| Fault::here("is no stack"))?;
            }
        }
    }
    Err(truncated())
}

fn truncated() -> Fault {
    Fault::here("the file ends here: it was cut off; fetch or copy the profile again")
}

fn check_signature<R: Read>(lines: &mut Lines<R>) -> Result<(), Fault> {
    let Some(line) = lines.next()?.filter(|line| line.complete) else {
        return Err(truncated());
    };
    let version = line.text.strip_prefix(START).unwrap_or_default();
    let version = std::str::from_utf8(version).ok();
    match version.and_then(|v| v.parse::<u32>().ok()) {
        Some(1..=VERSION) => Ok(()),
        Some(v) => Err(Fault::here(format!(
            "the CPU profile has version {v}, this program reads up to {VERSION}: use a newer one"
        ))),
        None => Err(Fault::here(
            "the version of the CPU profile is not a number: cut off or damaged",
        )),
    }
}

/// Lookup address and lines of each symbolized location.
type Symbols = Vec<(u64, Vec<Line>)>;

/// Moves the facts into the profile. Returns a builder that is ready for stacks.
fn begin_stacks(
    mut profile: Profile,
    facts: &mut FactsReader,
    symbols: &mut Symbols,
) -> CpuBuilder {
    profile.functions = std::mem::take(&mut facts.functions);
    profile.mappings = std::mem::take(&mut facts.modules);
    *symbols = std::mem::take(&mut facts.symbols);
    // Moments are only defined for heaps.
    profile.moments.clear();
    let mut builder = CpuBuilder::continue_from(profile);
    builder.set_columns();
    builder
}

/// Reads a stack: `SAMPLES NANOSECONDS THREAD FRAME …`.
fn add_stack(builder: &mut CpuBuilder, text: &[u8]) -> Option<()> {
    let mut scan = Scan::new(text);
    let mut number = || u64::try_from(scan.skip_spaces().int()?).ok();
    let samples = number()?;
    let ns = number()?;
    let thread = number()?;
    let thread = u32::try_from(thread).ok()?;
    while !scan.skip_spaces().rest().is_empty() {
        let location = match scan.literal(b"k") {
            Some(()) => {
                let function = u32::try_from(scan.int()?).ok()?;
                builder.checked_kernel_location(function)?
            }
            None => builder.user_location(scan.hex()?),
        };
        builder.push_frame(location);
    }
    builder.close(samples, ns, thread);
    Some(())
}

fn finish<R: Read>(
    lines: &mut Lines<R>,
    mut builder: CpuBuilder,
    symbols: Symbols,
) -> Result<Profile, Fault> {
    while let Some(line) = lines.next()? {
        if !line.text.is_empty() {
            return Err(Fault::here("something follows the end of the CPU profile"));
        }
    }
    for (address, frames) in symbols {
        builder.set_lines(address, frames);
    }
    Ok(builder.finish())
}
