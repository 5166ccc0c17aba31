//! Facts about the machine, its kernel, and the permissions of this process.

use std::sync::OnceLock;

use shm_protocol::clock::Shift;

use crate::files::{MAX_FILE_BYTES, MAX_MAPS_BYTES, read};
use crate::status::Status;

/// Returns the numbers of the online processors.
pub fn processors() -> Vec<u32> {
    let text = read("/sys/devices/system/cpu/online", MAX_FILE_BYTES).unwrap_or_default();
    let online = parse_cpu_list(String::from_utf8_lossy(&text).trim());
    if online.is_empty() {
        // SAFETY: no pointer is passed.
        let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        return (0..u32::try_from(count).unwrap_or(1).max(1)).collect();
    }
    online
}

/// Parses a list of processors as the kernel writes it: `0-3,8`. Skips malformed parts.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    /// Limit on processor numbers (exclusive), against absurd ranges.
    const MAX_PROCESSORS: u32 = 1 << 14;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().ok()?;
        let last: u32 = last.parse().ok()?;
        (last < MAX_PROCESSORS).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// Reads a number from a file in `/proc/sys/kernel`.
pub fn setting(name: &str) -> Option<i64> {
    let text = read(&format!("/proc/sys/kernel/{name}"), MAX_FILE_BYTES).ok()?;
    String::from_utf8_lossy(&text).trim().parse().ok()
}

/// Returns the number of mappings that each process may have.
pub fn max_mappings() -> Option<usize> {
    let text = read("/proc/sys/vm/max_map_count", MAX_FILE_BYTES).ok()?;
    String::from_utf8_lossy(&text).trim().parse().ok()
}

/// Returns how many bytes may still be committed, or `None` if the kernel does not limit that
/// (`vm.overcommit_memory` is not 2).
pub fn commit_left() -> Option<u64> {
    const NEVER_OVERCOMMIT: &[u8] = b"2";
    let mode = read("/proc/sys/vm/overcommit_memory", MAX_FILE_BYTES).ok()?;
    if mode.trim_ascii() != NEVER_OVERCOMMIT {
        return None;
    }
    let text = read("/proc/meminfo", MAX_FILE_BYTES).ok()?;
    let (limit, used) = (
        meminfo(&text, "CommitLimit:")?,
        meminfo(&text, "Committed_AS:")?,
    );
    Some(limit.saturating_sub(used))
}

/// Returns a value of `/proc/meminfo` in bytes.
fn meminfo(text: &[u8], field: &str) -> Option<u64> {
    let text = String::from_utf8_lossy(text);
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Returns true if this process may lock any amount of memory (`CAP_IPC_LOCK`).
pub fn may_lock() -> bool {
    read("/proc/self/status", MAX_FILE_BYTES).is_ok_and(|status| has_ipc_lock(&status))
}

/// Returns true if a `/proc/PID/status` lists `CAP_IPC_LOCK` among the effective capabilities.
fn has_ipc_lock(status: &[u8]) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = String::from_utf8_lossy(status);
    let digits = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = digits.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|set| (set >> CAP_IPC_LOCK) & 1 == 1)
}

/// Returns the size of the machine's memory, in bytes.
pub fn memory() -> usize {
    let sysconf = |name| {
        // SAFETY: no pointer is passed.
        usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0)
    };
    sysconf(libc::_SC_PHYS_PAGES).saturating_mul(sysconf(libc::_SC_PAGESIZE))
}

/// Returns the kernel's estimate of the memory available to programs without swapping, in bytes.
/// Before Linux 3.14, returns the free memory.
pub fn available_memory() -> Option<u64> {
    let text = read("/proc/meminfo", MAX_FILE_BYTES).ok()?;
    meminfo(&text, "MemAvailable:").or_else(|| meminfo(&text, "MemFree:"))
}

/// Returns the kernel's boot id, binary and as text.
pub fn boot_id() -> Option<([u8; 16], String)> {
    let text = read("/proc/sys/kernel/random/boot_id", MAX_FILE_BYTES).ok()?;
    let id = shm_protocol::clock::parse_boot_id(&text)?;
    let text = String::from_utf8_lossy(&text);
    Some((id, text.trim().to_owned()))
}

/// Returns the mounts of our mount namespace, in the format of `/proc/self/mountinfo`.
pub fn own_mounts() -> Option<Vec<u8>> {
    read("/proc/self/mountinfo", MAX_MAPS_BYTES).ok()
}

/// Returns true if procfs is mounted on `/proc`.
pub fn is_mounted() -> bool {
    Status::of_self().is_some()
}

/// Returns true if `/proc` shows the pids of our own pid namespace. If it belongs to another one
/// (`unshare --pid` without `--mount-proc`), its pids denote different processes in our system
/// calls.
pub fn is_ours() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| Status::of_self().is_some_and(|status| status.ns_pids.len() <= 1))
}

/// Returns the offsets of this process's clocks in its time namespace.
pub fn clock_shift() -> Shift {
    static SHIFT: OnceLock<Shift> = OnceLock::new();
    *SHIFT.get_or_init(|| {
        // The file shows the namespace of future children, which may differ from ours.
        let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
        let is_own = namespace("time") == namespace("time_for_children");
        match read("/proc/self/timens_offsets", MAX_FILE_BYTES) {
            Ok(text) if is_own => Shift::parse(&text),
            _ => Shift::NONE,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_capabilities_are_parsed() {
        assert!(has_ipc_lock(
            b"Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n"
        ));
        assert!(has_ipc_lock(b"CapEff:\t0000000000004000\n"));
        assert!(!has_ipc_lock(
            b"CapPrm:\t0000000000004000\nCapEff:\t0000000000000000\n"
        ));
        assert!(!has_ipc_lock(b"CapEff:\tmany\n") && !has_ipc_lock(b""));
    }

    #[test]
    fn processor_lists_are_parsed() {
        assert_eq!(parse_cpu_list("0-2,5,7-8"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_cpu_list("0"), [0]);
        assert!(
            parse_cpu_list("").is_empty()
                && parse_cpu_list("x-3,4-").is_empty()
                && parse_cpu_list("0-99999999").is_empty()
        );
    }
}
