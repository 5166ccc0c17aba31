//! The profiled process, while it lives.

use heap_format::Profile;

/// Its pid, if this is the machine that it ran on and was not started anew since. Another
/// process may have the pid by now.
pub fn pid_here(profile: &Profile) -> Option<u32> {
    profile.facts.pid.filter(|_| is_of_this_machine(profile))
}

/// Whether the profile was taken on this machine since it was started.
fn is_of_this_machine(profile: &Profile) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let recorded = profile.facts.boot_id.as_deref().map(str::trim);
    recorded.is_some_and(|recorded| own.is_ok_and(|own| own.trim() == recorded))
}
