//! Ledger of a control group's memory: what the kernel charges to it, by use, with the processes and
//! files that have most of it.

mod files;

use std::collections::HashMap;

use mem_agents::cgroup::Account;
use mem_agents::process;
use mem_agents::text;
use serde::Serialize;

use super::Row;
use files::Files;

/// Maximum number of processes that are listed.
const MAX_LISTED_PROCESSES: usize = 8;
/// Maximum number of files that are listed.
const MAX_LISTED_FILES: usize = 8;

/// Control group around another one, with a limit.
#[derive(Debug, Serialize)]
pub struct Around {
    /// Directory of the group.
    pub cgroup: String,
    /// Memory that is charged to the group, in bytes.
    pub current_bytes: u64,
    /// Limit in bytes.
    pub limit_bytes: u64,
}

/// Memory of a control group.
#[derive(Debug)]
pub struct Ledger {
    /// Memory that is charged to the group, in bytes.
    pub current: u64,
    /// Limit in bytes; `None` if there is none.
    pub limit: Option<u64>,
    /// Group around this one that is nearest to its limit, if there is one.
    pub around: Option<Around>,
    /// Memory without the file cache that has not been used lately: what Kubernetes compares with
    /// the limit.
    pub working_set: u64,
    /// Memory that is swapped out, in bytes.
    pub swap: u64,
    /// Number of processes.
    pub processes: usize,
    /// Parts, which add up to `current` together with `remainder`.
    pub parts: Vec<Row>,
    /// Memory that no part contains, in bytes; negative if the parts exceed `current`.
    pub remainder: i64,
    /// Processes with the most anonymous memory. Shared pages are divided among those that share
    /// them.
    pub largest_processes: Vec<Row>,
    /// Files that the processes have open with the most pages in the cache, whichever group they are
    /// charged to.
    pub largest_files: Vec<Row>,
    /// Largest files in memory: those that are open, and those in the usual directories.
    pub largest_shared: Vec<Row>,
    /// True if there are too many files to list all.
    pub is_file_list_incomplete: bool,
    /// True if some processes cannot be read.
    pub is_incomplete: bool,
}

/// Reads the ledger of a group.
pub fn read(account: &Account) -> Ledger {
    let memory = account.memory();
    let counters = account.counters();
    let our_pid = std::process::id() as i32;
    let pids: Vec<i32> = proc::all_pids()
        .into_iter()
        .filter(|pid| account.contains(*pid))
        .collect();
    let members = Members::read(&pids, our_pid);
    let mut files = Files::new();
    pids.iter().for_each(|pid| files.add_process(*pid));
    let current = memory.map_or(0, |memory| memory.current);
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let parts = match account.version {
        1 => parts_of_version_1(account, &counters, &members),
        _ => parts_of_version_2(&counters),
    };
    let explained: u64 = parts.iter().map(|part| part.bytes).sum();
    let swap = match account.version {
        1 => counter("swap"),
        _ => account.number("memory.swap.current").unwrap_or(0),
    };
    Ledger {
        current,
        limit: memory.and_then(|memory| memory.limit),
        around: account.narrowest_around().and_then(|(group, memory)| {
            Some(Around {
                cgroup: text::path(&group),
                current_bytes: memory.current,
                limit_bytes: memory.limit?,
            })
        }),
        working_set: current.saturating_sub(counter("inactive_file")),
        swap,
        processes: pids.len(),
        remainder: current.wrapping_sub(explained).cast_signed(),
        parts,
        largest_processes: members.largest,
        largest_files: files.cached(MAX_LISTED_FILES),
        largest_shared: files.in_memory(MAX_LISTED_FILES),
        is_file_list_incomplete: files.is_incomplete(),
        is_incomplete: members.is_incomplete,
    }
}

/// Memory of a group's processes.
struct Members {
    /// Processes with the most anonymous memory.
    largest: Vec<Row>,
    /// Page tables of all processes, in bytes.
    page_tables: u64,
    /// Kernel's stacks of all threads, in bytes.
    kernel_stacks: u64,
    is_incomplete: bool,
}

impl Members {
    fn read(pids: &[i32], our_pid: i32) -> Self {
        let mut members = Self {
            largest: Vec::new(),
            page_tables: 0,
            kernel_stacks: 0,
            is_incomplete: false,
        };
        for pid in pids {
            let non_resident = super::NonResident::read(*pid);
            members.page_tables += non_resident.page_tables;
            members.kernel_stacks += non_resident.kernel_stacks;
            match anonymous(*pid) {
                Some(bytes) => {
                    let remark = if *pid == our_pid { "this command" } else { "" };
                    let row = Row::new(process::title(*pid), bytes, remark);
                    members.largest.push(row);
                }
                None => members.is_incomplete |= !proc::has_exited(*pid),
            }
        }
        members
            .largest
            .sort_by_key(|row| std::cmp::Reverse(row.bytes));
        members.largest.truncate(MAX_LISTED_PROCESSES);
        members
    }
}

/// Returns the anonymous memory of a process in bytes. Shared pages are divided among the processes
/// that share them, if the kernel provides `Pss_Anon` (Linux 5.9).
fn anonymous(pid: i32) -> Option<u64> {
    let rollup = proc::file(pid, "smaps_rollup")?;
    let kib = |name: &str| -> Option<u64> {
        let text = proc::status_field(&rollup, name)?.strip_suffix("kB")?;
        text.trim().parse().ok()
    };
    let kib = kib("Pss_Anon:").or_else(|| kib("Anonymous:"))?;
    Some(kib.saturating_mul(1024))
}

/// Lists what a group of version 1 is charged for. The kernel does not tell the kinds of its own
/// memory apart; page tables and stacks are those of the group's processes.
fn parts_of_version_1(
    account: &Account,
    counters: &HashMap<String, u64>,
    members: &Members,
) -> Vec<Row> {
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let kernel = if account.is_root {
        0
    } else {
        account.number("memory.kmem.usage_in_bytes").unwrap_or(0)
    };
    let page_tables = members.page_tables.min(kernel);
    let kernel_stacks = members.kernel_stacks.min(kernel - page_tables);
    let other = kernel - page_tables - kernel_stacks;
    let mut rows = vec![
        anonymous_row(counter("rss")),
        cache_row(counter("cache").saturating_sub(counter("shmem"))),
        shared_row(counter("shmem")),
        Row::new("page tables", page_tables, "of the processes"),
        Row::new("kernel stacks", kernel_stacks, "of the threads"),
        Row::new("other kernel", other, "inodes, dentries, pipes, buffers"),
    ];
    rows.retain(|row| row.bytes > 0);
    rows
}

/// Lists what a group of version 2 is charged for.
fn parts_of_version_2(counters: &HashMap<String, u64>) -> Vec<Row> {
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let page_tables = counter("pagetables").saturating_add(counter("sec_pagetables"));
    let kernel_kinds = [
        page_tables,
        counter("kernel_stack"),
        counter("percpu"),
        counter("vmalloc"),
        counter("slab_reclaimable"),
        counter("slab_unreclaimable"),
        counter("zswap"),
    ];
    let known_kinds: u64 = kernel_kinds.into_iter().fold(0, u64::saturating_add);
    let mut rows = vec![
        anonymous_row(counter("anon")),
        cache_row(counter("file").saturating_sub(counter("shmem"))),
        shared_row(counter("shmem")),
        Row::new(
            "slab, reclaimable",
            counter("slab_reclaimable"),
            "inodes, dentries: dropped when needed",
        ),
        Row::new(
            "slab, other",
            counter("slab_unreclaimable"),
            "the kernel's objects",
        ),
        Row::new("page tables", page_tables, "of the processes"),
        Row::new("kernel stacks", counter("kernel_stack"), "of the threads"),
        Row::new("sockets", counter("sock"), "network buffers"),
        Row::new("per processor", counter("percpu"), "the kernel's counters"),
        Row::new("vmalloc", counter("vmalloc"), "the kernel's large buffers"),
        Row::new("zswap", counter("zswap"), "compressed, in memory"),
        Row::new(
            "other kernel",
            counter("kernel").saturating_sub(known_kinds),
            "without a kind",
        ),
    ];
    rows.retain(|row| row.bytes > 0);
    rows
}

fn anonymous_row(bytes: u64) -> Row {
    Row::new("anonymous", bytes, "heaps, stacks, private memory")
}

fn cache_row(bytes: u64) -> Row {
    Row::new(
        "page cache",
        bytes,
        "files: dropped or written back when needed",
    )
}

fn shared_row(bytes: u64) -> Row {
    Row::new("shared memory", bytes, "tmpfs, /dev/shm, memfd, System V")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_version_2_are_each_in_one_row() {
        let counters: HashMap<String, u64> = [
            ("anon", 1000),
            ("file", 600),
            ("shmem", 200),
            ("kernel", 500),
            ("kernel_stack", 10),
            ("pagetables", 20),
            ("sec_pagetables", 5),
            ("percpu", 30),
            ("vmalloc", 40),
            ("slab_reclaimable", 100),
            ("slab_unreclaimable", 50),
            ("slab", 150),
            ("sock", 7),
            ("file_mapped", 300),
            ("inactive_file", 111),
        ]
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .into();
        let rows = parts_of_version_2(&counters);
        let row = |name: &str| {
            rows.iter()
                .find(|row| row.name == name)
                .map(|row| row.bytes)
        };
        assert_eq!(row("page cache"), Some(400));
        assert_eq!(row("page tables"), Some(25));
        assert_eq!(row("other kernel"), Some(245));
        assert_eq!(row("zswap"), None);
        let sum: u64 = rows.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, 1000 + 600 + 500 + 7);
        assert_eq!(parts_of_version_2(&HashMap::new()), []);
    }
}
