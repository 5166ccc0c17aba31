//! The profiled process, while it lives.

use std::path::PathBuf;

use heap_format::Profile;

/// Maximum number of threads that are examined for one that lives.
const MOST_TRIED: usize = 1024;

/// Its pid, if this is the machine that it ran on and was not started again since. Another process
/// may have the pid by now.
pub fn pid_here(profile: &Profile) -> Option<u32> {
    profile.facts.pid.filter(|_| is_of_this_machine(profile))
}

/// Its directory in `/proc`, or that of another of its threads where the first one has ended before
/// the others: such a one has no executable, root or mappings any more. `None`: it is not there.
pub fn directory(pid: u32) -> Option<PathBuf> {
    let own = PathBuf::from(format!("/proc/{pid}"));
    let has_root = |directory: &PathBuf| std::fs::read_link(directory.join("root")).is_ok();
    if !own.is_dir() || has_root(&own) {
        return Some(own).filter(|own| own.is_dir());
    }
    let threads = std::fs::read_dir(own.join("task")).into_iter().flatten();
    let threads = threads.flatten().take(MOST_TRIED);
    let mut others = threads.map(|thread| PathBuf::from("/proc").join(thread.file_name()));
    Some(others.find(has_root).unwrap_or(own))
}

/// Whether the profile was taken on this machine since it was started.
fn is_of_this_machine(profile: &Profile) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let recorded = profile.facts.boot_id.as_deref().map(str::trim);
    recorded.is_some_and(|recorded| own.is_ok_and(|own| own.trim() == recorded))
}
