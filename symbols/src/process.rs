//! The profiled process, if it is still running.

use std::path::PathBuf;

use profile::Profile;

/// Maximum number of threads to examine for a running one.
const MAX_THREADS: usize = 1024;

/// Returns the profiled process's pid if the profile was taken on this machine since its last boot.
/// The pid may have been reused by another process.
pub fn pid_here(profile: &Profile) -> Option<u32> {
    profile.facts.pid.filter(|_| is_from_this_boot(profile))
}

/// Returns the `/proc` directory of a process, or `None` if there is no such process. If the main
/// thread has exited, returns that of another thread, because an exited thread has no executable,
/// root or mappings.
pub fn directory(pid: u32) -> Option<PathBuf> {
    let main_directory = PathBuf::from(format!("/proc/{pid}"));
    let has_root = |directory: &PathBuf| std::fs::read_link(directory.join("root")).is_ok();
    if !main_directory.is_dir() || has_root(&main_directory) {
        return Some(main_directory).filter(|main_directory| main_directory.is_dir());
    }
    let threads = std::fs::read_dir(main_directory.join("task"))
        .into_iter()
        .flatten();
    let threads = threads.flatten().take(MAX_THREADS);
    let mut others = threads.map(|thread| PathBuf::from("/proc").join(thread.file_name()));
    Some(others.find(has_root).unwrap_or(main_directory))
}

/// Returns true if the profile was taken on this machine since its last boot.
fn is_from_this_boot(profile: &Profile) -> bool {
    let current = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let recorded = profile.facts.boot_id.as_deref().map(str::trim);
    recorded.is_some_and(|recorded| current.is_ok_and(|current| current.trim() == recorded))
}
