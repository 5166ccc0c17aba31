//! Explains why a process cannot be copied, and which kind of check works instead.

use anyhow::anyhow;
use capture::Refusal;
use mem_agents::{cgroup, text};

/// Returns an error if copying a process could kill it. The copy's page tables are charged to the
/// process's control group; if the group has no room for them, the kernel kills the largest process
/// of the group.
pub fn copy_memory_shortage(pid: i32) -> Option<anyhow::Error> {
    /// Reserve in bytes for other kernel data of the copy, and for allocations of the process while
    /// the copy exists.
    const RESERVE: u64 = 2 << 20;
    let room = cgroup::room(pid)?;
    let tables = proc::page_tables(pid)?;
    let needed = tables.saturating_add(tables / 8).saturating_add(RESERVE);
    (room < needed).then(|| {
        anyhow!(
            "process {pid} cannot be copied: the memory limit of its control group leaves {}, page tables need {}: --stop or --gentle search without",
            text::bytes(room as f64),
            text::bytes(needed as f64)
        )
    })
}

/// Adds the options that work without a copy to the text of a refusal.
pub fn advise_other_method(mut refusal: Refusal) -> anyhow::Error {
    if let Refusal::Clone { pid, error, advice } = &mut refusal
        && let Some(cause) = cause(*pid, error.raw_os_error())
    {
        *advice = cause;
    }
    if refusal.is_copy_refused() {
        anyhow!("{refusal}: --stop; or while it runs: --gentle")
    } else {
        refusal.into()
    }
}

/// Finds out which limit made `clone` fail with this error number, if possible.
fn cause(pid: i32, number: Option<i32>) -> Option<String> {
    match number? {
        libc::EAGAIN => {
            let full = cgroup::full_of_processes(pid);
            full.map(|(path, limit)| format!("pids.max of its control group {path} is {limit}"))
                .or_else(|| explain_thread_limit(pid))
        }
        libc::ENOMEM => {
            let read = |path| std::fs::read_to_string(path).ok();
            let policy = read("/proc/sys/vm/overcommit_memory")?;
            explain_overcommit(&policy, &read("/proc/meminfo")?)
        }
        _ => None,
    }
}

/// Returns an explanation if the process's user has reached RLIMIT_NPROC.
fn explain_thread_limit(pid: i32) -> Option<String> {
    let max = max_threads(&proc::file(pid, "limits")?)?;
    let user = proc::Status::of(pid)?.uids[0];
    let is_theirs = |pid: &i32| proc::Status::of(*pid).is_some_and(|status| status.uids[0] == user);
    let count = |pid: i32| {
        let status = proc::file(pid, "status")?;
        proc::status_field(&status, "Threads:")?.parse::<u64>().ok()
    };
    let theirs = proc::all_pids().into_iter().filter(is_theirs);
    let threads: u64 = theirs.filter_map(count).sum();
    (threads >= max).then(|| {
        let allowed = text::count(max, "thread", "threads");
        format!("RLIMIT_NPROC allows its user {allowed}; there are {threads}")
    })
}

/// Parses the limit on processes from the text of `/proc/PID/limits`.
fn max_threads(limits: &[u8]) -> Option<u64> {
    let limit = proc::status_field(limits, "Max processes")?;
    limit.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns an explanation if the kernel does not overcommit memory and the limit is reached. A copy
/// is charged for all memory that the process may write to.
fn explain_overcommit(policy: &str, meminfo: &str) -> Option<String> {
    let bytes = |name: &str| {
        let mut lines = meminfo.lines();
        let text = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib = text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
        Some(text::bytes(kib as f64 * 1024.0))
    };
    (policy.trim() == "2").then_some(())?;
    let committed = bytes("Committed_AS")?;
    let limit = bytes("CommitLimit")?;
    Some(format!(
        "vm.overcommit_memory is 2, {committed} of {limit} are committed, and a copy counts with all that the process may write to"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_was_reached_is_named() {
        let limits = b"Limit                     Soft Limit           Hard Limit           Units\n\
            Max processes             17                   unlimited            processes\n";
        assert_eq!(max_threads(limits), Some(17));
        let unlimited = String::from_utf8_lossy(limits).replace("17 ", "unlimited ");
        assert_eq!(max_threads(unlimited.as_bytes()), None);

        let meminfo =
            "MemTotal:  24000000 kB\nCommitLimit:    12582912 kB\nCommitted_AS:  11534336 kB\n";
        let explanation = explain_overcommit("2\n", meminfo).expect("a cause");
        assert!(
            explanation.contains("11.0 GiB of 12.0 GiB are committed"),
            "{explanation}"
        );
        assert_eq!(explain_overcommit("0\n", meminfo), None);
        assert_eq!(explain_overcommit("2\n", "MemTotal: 1 kB\n"), None);
    }
}
