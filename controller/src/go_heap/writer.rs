//! Converts a heap profile of Go's runtime to a dump.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use golang::{Bucket, Heap};
use mem_agents::clock::Time;
use mem_agents::dump::Written;
use mem_agents::ended::Ended;
use mem_agents::output::Output;
use mem_agents::parallel_writer;
use profile::maps::{self, Entry};
use profile::{
    BuildId, Detail, Facts, FileIdentity, GO, Mapping, Profile, ProfileBuilder, unsample,
};

use super::process::{self, Process};

/// Beginning of the dump's trigger, which says what caused the dump.
const TRIGGER: &str = "profile of Go's runtime";

/// Writes the dump of a process. `enabled` is the time at which we switched its sampling on; if
/// `None`, it has sampled since its start.
pub fn write(
    process: &Process,
    heap: &Heap,
    enabled: Option<Time>,
    output: &Output,
) -> anyhow::Result<Written> {
    let now = Time::now();
    let mut profile = profile(process, heap, enabled, now);
    let sum = |value: fn(&Detail) -> f64| profile.details.iter().map(value).sum::<f64>();
    let alloc_bytes = sum(|detail| detail.alloc_bytes);
    let live_bytes = sum(Detail::live_bytes);
    let samples = profile
        .details
        .iter()
        .map(|detail| detail.alloc_samples)
        .sum();
    let path = output.write(&process.description.name, process.pid, |number, file| {
        profile.facts.sequence = Some(number);
        parallel_writer::write(&profile::dump::Text::new(profile)?, file)
    })?;
    Ok(Written {
        path,
        pid: process.pid,
        title: process.title.clone(),
        ended: Ended::Not,
        samples,
        is_exact: heap.rate == 1,
        alloc_bytes,
        live_bytes,
        peak_bytes: live_bytes,
        threads: 0,
        cost: None,
        is_last: true,
        remark: Some(remark(heap).to_owned()),
        warnings: Vec::new(),
    })
}

/// Says which moment the profile shows.
fn remark(heap: &Heap) -> &'static str {
    if heap.is_mixed {
        "as of the last garbage collection; some stacks, as of the one before"
    } else if heap.is_first {
        "as of now: no garbage collection has published a profile yet"
    } else {
        "as of the last garbage collection"
    }
}

fn profile(process: &Process, heap: &Heap, enabled: Option<Time>, now: Time) -> Profile {
    let pid = process.pid;
    let maps_text = proc::maps(pid).unwrap_or_default();
    let mut builder = ProfileBuilder::new(heap.rate.unsigned_abs());
    let build_id = symbols::Elf::open(&process::exe_path(pid)).map(|elf| elf.build_id);
    let build_id = build_id.unwrap_or_default();
    let exe = process.description.exe.clone().unwrap_or_default();
    let code = maps::parse(&maps_text).into_iter();
    let code = code.filter(|mapping| mapping.path == exe);
    code.map(|mapping| Mapping {
        build_id: build_id.clone(),
        ..mapping
    })
    .for_each(|module| builder.module(module));
    let start_ns = enabled.map_or_else(|| process_start_ns(process, now), |time| time.unix_ns);
    let counters = proc::memory_counters(pid).into_iter();
    let arguments = process.description.command_line.iter();
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    builder.facts(Facts {
        pid: u32::try_from(pid).ok(),
        process: Some(lossy(&process.description.name)),
        exe_file: exe_file(pid, &exe, &build_id, &maps_text, now.unix_ns),
        exe: Some(exe),
        exe_build_id: build_id,
        command_line: arguments.map(|argument| lossy(argument)).collect(),
        boot_id: proc::boot_id().map(|(_, text)| text),
        start_unix_ns: Some(start_ns),
        end_unix_ns: Some(now.unix_ns),
        end_boot_ns: now.boot_ns,
        duration_ns: Some(now.unix_ns.saturating_sub(start_ns)),
        runtime: Some(GO.to_owned()),
        trigger: Some(format!("{TRIGGER}, {}", remark(heap))),
        ended: Some(Ended::Not.fact()),
        memory: counters.map(|(name, n)| (name.to_owned(), n)).collect(),
        maps_text,
        ..Facts::default()
    });
    let mut stacks: BTreeMap<(&[u64], u64), Detail> = BTreeMap::new();
    // Buckets without published allocations are new since the last garbage collection.
    let published = heap.buckets.iter().filter(|bucket| bucket.allocated > 0);
    for bucket in published {
        let key = (heap.stack(bucket), bucket.size);
        stacks
            .entry(key)
            .or_default()
            .add(&detail(bucket, heap.rate));
    }
    for ((stack, _), detail) in &stacks {
        builder.stack(stack.iter().copied(), detail);
    }
    builder.finish()
}

/// Returns the process's start as Unix time in nanoseconds.
fn process_start_ns(process: &Process, now: Time) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    let ticks = ticks.ok().flatten().and_then(|n| u64::try_from(n).ok());
    let per_second = ticks.filter(|n| *n > 0).unwrap_or(100);
    let since_boot = process.start_time().saturating_mul(SECOND / per_second);
    let age = now.boot_ns.unwrap_or_default().saturating_sub(since_boot);
    now.unix_ns.saturating_sub(age)
}

/// Returns the identity of an executable without a build id.
fn exe_file(
    pid: i32,
    exe: &std::path::Path,
    build_id: &BuildId,
    maps: &[u8],
    unix_ns: u64,
) -> Option<FileIdentity> {
    if !build_id.is_empty() {
        return None;
    }
    let is_exe = |entry: &Entry<'_>| OsStr::from_bytes(&maps::with_newlines(entry.path)) == exe;
    let inode = Entry::all(maps).find(is_exe)?.inode;
    let running = process::exe_path(pid);
    [exe, &running]
        .into_iter()
        .find_map(|file| FileIdentity::of_mapped(file, inode, unix_ns))
}

/// Returns the values of a bucket: estimates as `runtime/pprof` scales them, to the byte.
fn detail(bucket: &Bucket, rate: i64) -> Detail {
    let scaled = |objects: u64| {
        let count = i64::try_from(objects).unwrap_or(i64::MAX);
        let bytes = i64::try_from(objects.saturating_mul(bucket.size)).unwrap_or(i64::MAX);
        let (objects, bytes) = unsample(count, bytes, rate);
        Scaled {
            objects: objects as f64,
            bytes: bytes as f64,
        }
    };
    let allocated = scaled(bucket.allocated);
    let live = scaled(bucket.allocated - bucket.freed);
    // Each sampled object stands for `weight` objects.
    let size = bucket.size as f64;
    let weight = if rate > 1 {
        -1.0 / (-size / rate as f64).exp_m1()
    } else {
        1.0
    };
    let variance = |samples: u64| {
        let objects = samples as f64 * weight * (weight - 1.0);
        Scaled {
            objects,
            bytes: objects * size * size,
        }
    };
    let alloc_variance = variance(bucket.allocated);
    let live_variance = variance(bucket.allocated - bucket.freed);
    Detail {
        alloc_samples: bucket.allocated,
        free_samples: bucket.freed,
        alloc_objects: allocated.objects,
        alloc_bytes: allocated.bytes,
        freed_objects: allocated.objects - live.objects,
        freed_bytes: allocated.bytes - live.bytes,
        alloc_variance: alloc_variance.bytes,
        live_variance: live_variance.bytes,
        alloc_object_variance: alloc_variance.objects,
        live_object_variance: live_variance.objects,
        ..Detail::default()
    }
}

/// Estimated number of objects, and their bytes.
struct Scaled {
    objects: f64,
    bytes: f64,
}
