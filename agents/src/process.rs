//! Display names of processes, and explanations of their state for users.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use proc::{Stat, Status};
use shm_protocol::snapshot::Header;

use crate::cgroup;
use crate::descriptors;
use crate::room;
use crate::text;

/// Explains why the process with this pid cannot be examined; `None` if it can.
pub fn absence(pid: i32) -> Option<String> {
    let Some(stat) = Stat::of(pid) else {
        if let Some(shortage) = descriptors::shortage() {
            return Some(shortage);
        }
        return Some(format!("{pid}: there is no such process"));
    };
    match Status::of(pid).map(|status| status.tgid) {
        Some(process) if process != pid => Some(format!(
            "{pid} is a thread of process {process}: give that pid"
        )),
        _ if stat.is_dead() => Some(format!(
            "{pid}: the process has ended (it is a zombie until its parent, {}, waits for it)",
            stat.parent
        )),
        _ => None,
    }
}

/// Returns the limit on the size of files that a process writes, in bytes. Returns `None` if there
/// is no limit, or if it is unknown.
pub fn file_size_limit(pid: i32) -> Option<u64> {
    let limits = proc::file(pid, "limits")?;
    let limits = String::from_utf8_lossy(&limits);
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max file size"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Explains which resource a session could exhaust. Returns `None` if there is enough of each.
pub fn shortage(pid: i32) -> Option<String> {
    mapping_shortage(pid).or_else(|| commit_shortage(pid))
}

/// Minimum memory that must be left to commit for a session, in bytes: what it takes itself, and a
/// reserve so that the program's own allocations do not fail.
const MIN_COMMIT_BYTES: u64 = 64 << 20;
/// Memory that a session takes for each thread, in bytes: once in the process, and once more in a
/// forked child.
const COMMIT_BYTES_OF_THREAD: u64 = 4 << 20;

/// Explains why nothing can be sampled if the kernel does not overcommit and little memory is left.
fn commit_shortage(pid: i32) -> Option<String> {
    let left = proc::commit_left()?;
    let status = Status::of(pid);
    let threads = status.as_ref().and_then(Status::threads).unwrap_or(1);
    let data = status.and_then(|status| status.data_bytes()).unwrap_or(0);
    let needed = commit_needed(left, data, threads as u64);
    if left >= needed {
        return None;
    }
    let sizes = room::comparison(Some(needed), Some(left));
    let purpose = if needed > data && left >= data {
        ", so that it can still fork"
    } else {
        ""
    };
    Some(format!(
        "with vm.overcommit_memory=2 a session {sizes} to commit{purpose}: raise vm.overcommit_ratio"
    ))
}

/// Returns how much memory must be left to commit for a session in a process with `data` bytes of
/// its own. If the process can fork now, with `left` bytes, it must be able to during the session,
/// too.
fn commit_needed(left: u64, data: u64, threads: u64) -> u64 {
    let session = MIN_COMMIT_BYTES.saturating_add(threads.saturating_mul(COMMIT_BYTES_OF_THREAD));
    if left >= data {
        session.saturating_add(data)
    } else {
        session
    }
}

/// Minimum number of mappings that a process must be able to add for a session. Half of them are a
/// reserve, so that the program's own allocations do not fail.
const MIN_FREE_MAPPINGS: usize = 64;

/// Explains that a process cannot be sampled because it has nearly as many mappings as the kernel
/// allows. Returns `None` if it has fewer.
pub fn mapping_shortage(pid: i32) -> Option<String> {
    let limit = proc::max_mappings()?;
    let count = proc::maps(pid)?.iter().filter(|b| **b == b'\n').count();
    (count.saturating_add(MIN_FREE_MAPPINGS) > limit).then(|| {
        format!(
            "it has {count} mappings, and a session needs a few more than the {limit} that the kernel \
             allows: raise vm.max_map_count"
        )
    })
}

/// Returns a hint for users if a process is stopped or frozen: it neither allocates nor answers.
pub fn stopped_hint(pid: i32) -> Option<String> {
    if let Some(group) = cgroup::frozen(pid) {
        return Some(format!(
            "its control group {group} is frozen, so it neither allocates nor answers until that is \
             thawed"
        ));
    }
    let stopped = proc::is_stopped(pid);
    stopped.then(|| format!("it is stopped (kill -CONT {pid} continues it)"))
}

/// Returns the name by which users know a process: that of its executable, or of the link through
/// which it was started (`redis-server` may be a link to a file with another name). A name that the
/// process gave itself counts only if it agrees with these.
pub fn display_name(comm: &[u8], exe: &[u8], arguments: &[Vec<u8>]) -> Vec<u8> {
    let exe = text::base_name(exe);
    let first = arguments.first().map_or(&b""[..], |a| a);
    let word = first.split(|b| *b == b' ').next().unwrap_or(first);
    let word = text::base_name(word);
    let word = word.strip_suffix(b":").unwrap_or(word);
    let agrees = |name: &[u8]| !comm.is_empty() && name.starts_with(comm);
    if !agrees(exe) && agrees(word) {
        word.to_vec()
    } else {
        exe.to_vec()
    }
}

/// Returns the name of a running process, for display.
pub fn name(pid: i32) -> String {
    let exe = proc::exe(pid).unwrap_or_default();
    let comm = proc::Stat::of(pid).map_or_else(Vec::new, |stat| stat.comm);
    text::escape(&display_name(&comm, &exe, &proc::command_line(pid)))
}

/// Returns name and pid of a running process, for display.
pub fn title(pid: i32) -> String {
    format!("{} ({pid})", name(pid))
}

/// Returns the id of the boot during which a segment was created, as text. Assumes the current boot
/// if the segment states none.
pub fn boot_id_of(header: &Header<'_>) -> Option<String> {
    let current = proc::boot_id();
    let id = header.boot_id();
    let is_stated = id.iter().any(|byte| *byte != 0);
    let is_other = is_stated && current.as_ref().is_none_or(|(current, _)| current != id);
    if !is_other {
        return current.map(|(_, text)| text);
    }
    let digits = id.iter().map(|byte| format!("{byte:02x}"));
    let mut text: String = digits.collect();
    for dash in [20, 16, 12, 8] {
        text.insert(dash.min(text.len()), '-');
    }
    Some(text)
}

/// Returns true if a segment was created during another boot than `current`. If either is unknown,
/// because `/proc` does not show it, the segment counts as one of this boot unless its clock is
/// ahead of ours.
pub fn is_from_other_boot(current: Option<[u8; 16]>, header: &Header<'_>) -> bool {
    let id = header.boot_id();
    let is_known = id.iter().any(|byte| *byte != 0);
    match current {
        Some(current) if is_known => id != current,
        _ => header.created_ns() > crate::clock::now_ns() + MAX_CLOCK_LEAD_NS,
    }
}

/// Maximum time by which a segment's creation may be ahead of our clock, in ns.
pub const MAX_CLOCK_LEAD_NS: u64 = 1_000_000_000;

/// Returns the name of a user, or the uid if it has none. A name is looked up once: a server lists
/// many processes of the same users, all the time.
pub fn user_name(uid: u32) -> String {
    static NAMES: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = names.entry(uid);
    let look_up = || match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    };
    name.or_insert_with(look_up).clone()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_session_takes_from_no_process_the_memory_for_a_fork() {
        const MIB: u64 = 1 << 20;
        for (left, data, threads, needed) in [
            (500, 10, 1, 78),
            (500, 400, 1, 468),
            (420, 400, 1, 468),
            // A fork is impossible already.
            (300, 400, 2, 72),
            (500, 0, 100, 464),
        ] {
            let found = commit_needed(left * MIB, data * MIB, threads);
            assert_eq!(found, needed * MIB, "{left} {data} {threads}");
        }
        assert_eq!(commit_needed(0, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_process_has_the_name_of_the_link_that_started_it() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("typed");
        std::os::unix::fs::symlink("/bin/cat", &link).unwrap();
        let mut child = Command::new(&link)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // `spawn` returns while the kernel still replaces the program, before it sets the name and
        // the arguments. Once the child answers, both are set.
        let mut answer = [0];
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let output = child.stdout.as_mut().unwrap();
        output.read_exact(&mut answer).unwrap();
        let title = title(child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(title, format!("typed ({})", child.id()));
    }

    #[test]
    fn display_names_follow_links_but_not_invented_names() {
        let name =
            |comm: &[u8], exe: &[u8], first: &[u8]| display_name(comm, exe, &[first.to_vec()]);
        let redis = b"/usr/bin/redis-server *:7000";
        assert_eq!(
            name(b"redis-server", b"/usr/bin/redis-check-rdb", redis),
            b"redis-server"
        );
        assert_eq!(name(b"MainThread", b"/usr/bin/node", b"node"), b"node");
        assert_eq!(name(b"run.sh", b"/usr/bin/dash", b"/bin/sh"), b"dash");
        assert_eq!(
            name(b"python3", b"/usr/bin/python3.11", b"python3"),
            b"python3.11"
        );
        assert_eq!(
            name(b"nginx", b"/usr/sbin/nginx", b"nginx: worker process"),
            b"nginx"
        );
        assert_eq!(display_name(b"", b"/a/b", &[]), b"b");
    }
}
