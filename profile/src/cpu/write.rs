//! Writes this project's CPU profile.

use std::collections::HashSet;
use std::io::{self, Write};

use super::{END, START, VERSION, kernel_function, write_facts};
use crate::dump::facts::Writer;
use crate::dump::numbers::write_decimal;
use crate::marker::CPU_MARKERS;
use crate::packed;
use crate::profile::{Format, Location, Profile};

/// Writes a CPU profile.
///
/// Guarantee: [`read`](crate::read()) reads back what was written, whatever names it contains.
///
/// Requires a profile built by [`CpuBuilder`](super::CpuBuilder), or read from such a file. Returns
/// an error for differences, for names without addresses, and for sums of different programs, in
/// which an address has two meanings.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let Some(sampling) = &profile.facts.cpu else {
        return Err(refused("not a CPU profile of this project"));
    };
    if profile.format != Format::Cpu || profile.sample_types != sampling.mode.sample_types() {
        return Err(refused("not a CPU profile of this project"));
    }
    if profile.values.iter().any(|&value| value < 0) {
        return Err(refused("a difference of profiles, which no file can hold"));
    }
    let frames = frames(profile)?;
    let mut buffer = START.to_vec();
    write_decimal(&mut buffer, VERSION.into());
    buffer.push(b'\n');
    write_head(
        profile,
        &mut Writer {
            buffer: &mut buffer,
        },
    );
    for stack in 0..profile.stacks.len() {
        write_stack(profile, stack, &frames, &mut buffer);
        if buffer.len() > 1 << 20 {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    buffer.extend_from_slice(END);
    buffer.push(b'\n');
    out.write_all(&buffer)
}

/// Writes a CPU profile compressed by gzip, which takes about a twentieth of the space, because
/// most stacks share most of their frames.
pub fn write_packed(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let mut text = Vec::new();
    write(profile, &mut text)?;
    out.write_all(&packed::pack(&text)?.unwrap_or(text))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Formats each location, preceded by a space.
fn frames(profile: &Profile) -> io::Result<Vec<String>> {
    let mut seen = HashSet::new();
    let text = |location: &Location| match kernel_function(profile, location) {
        Some(function) => format!(" k{function}"),
        None => format!(" {:x}", location.address),
    };
    let texts: Vec<String> = profile.locations.iter().map(text).collect();
    if !texts.iter().all(|text| seen.insert(text)) {
        return Err(refused("an address has two meanings: several programs"));
    }
    Ok(texts)
}

fn write_head(profile: &Profile, writer: &mut Writer) {
    writer.origin(profile);
    writer.session(profile);
    if let Some(sampling) = &profile.facts.cpu {
        write_facts(sampling, writer);
    }
    let is_kernel_location = |location: &Location| kernel_function(profile, location).is_some();
    let kernel_location = profile.locations.iter().find(|l| is_kernel_location(l));
    for (number, module) in profile.mappings.iter().enumerate() {
        // The kernel's mapping is restored from the frames in it.
        if kernel_location.is_none_or(|l| l.mapping as usize != number) {
            writer.module(module);
        }
    }
    writer.markers(&CPU_MARKERS);
    writer.functions(profile);
    writer.locations(profile, |location| !is_kernel_location(location));
}

/// Writes a stack: `SAMPLES NANOSECONDS THREAD FRAME …`.
fn write_stack(profile: &Profile, stack: usize, frames: &[String], buffer: &mut Vec<u8>) {
    // No value is negative, as `write` has checked.
    let values = profile.values_of(stack).iter().map(|&value| value as u64);
    let thread = profile.threads.get(stack).copied().unwrap_or(0);
    for (position, number) in values.chain([thread.into()]).enumerate() {
        if position > 0 {
            buffer.push(b' ');
        }
        write_decimal(buffer, number);
    }
    for &frame in profile.stacks.get(stack) {
        buffer.extend_from_slice(frames[frame as usize].as_bytes());
    }
    buffer.push(b'\n');
}
