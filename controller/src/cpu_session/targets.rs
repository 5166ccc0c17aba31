//! Resolves names, pids, patterns and control groups to the processes that are sampled.

use std::path::Path;

use mem_agents::cgroup;
use mem_agents::process;
use mem_agents::select;
use mem_agents::text;

/// Usual mount point of control groups, for messages.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// Processes that were requested, and error messages for names that match none.
#[derive(Debug, Default)]
pub struct Targets {
    /// Pids of the processes, each once.
    pub pids: Vec<i32>,
    /// One message for each name without a process.
    pub failures: Vec<String>,
}

/// Finds the processes with these pids, names, patterns and control groups.
pub fn find(names: &[String]) -> Targets {
    let mut targets = Targets::default();
    for name in names {
        match pids_of_name(name) {
            Ok(pids) => targets.pids.extend(pids),
            Err(failure) => targets.failures.push(failure),
        }
    }
    targets.pids.sort_unstable();
    targets.pids.dedup();
    targets
}

fn pids_of_name(name: &str) -> Result<Vec<i32>, String> {
    let escaped = text::escape(name.as_bytes());
    if let Ok(pid) = name.parse::<i32>() {
        return check_pid(pid).map(|pid| vec![pid]);
    }
    let our_pid = std::process::id() as i32;
    let other_pids = || proc::all_pids().into_iter().filter(|pid| *pid != our_pid);
    if name.contains('/') {
        let group = cgroup::Group::at(Path::new(name));
        if !group.exists() {
            return Err(format!(
                "{escaped}: there is no such control group below {CGROUP_MOUNT}"
            ));
        }
        let pids: Vec<i32> = other_pids().filter(|pid| group.contains(*pid)).collect();
        if pids.is_empty() {
            return Err(format!("{escaped}: no process is in this control group"));
        }
        return Ok(pids);
    }
    let by_name: Vec<i32> = select::processes_called(name).into_iter().collect();
    if !by_name.is_empty() {
        return Ok(by_name);
    }
    let group_members = other_pids().filter(|pid| cgroup::is_called(name, *pid));
    let pids: Vec<i32> = group_members.collect();
    if pids.is_empty() {
        return Err(format!(
            "{escaped}: no process has this name, and there is none in a control group of this name"
        ));
    }
    Ok(pids)
}

fn check_pid(pid: i32) -> Result<i32, String> {
    if let Some(why) = process::absence(pid) {
        return Err(why);
    }
    if pid == std::process::id() as i32 {
        return Err(format!("{pid} is mem_profiler itself"));
    }
    Ok(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_process_are_explained() {
        let our_pid = std::process::id();
        for (name, why) in [
            (i32::MAX.to_string(), "there is no such process"),
            (our_pid.to_string(), "is mem_profiler itself"),
            ("/no/such/group".to_owned(), "no such control group"),
            (
                "no-such-name-anywhere".to_owned(),
                "no process has this name",
            ),
            ("no/such/group".to_owned(), "no such control group"),
        ] {
            let targets = find(&[name]);
            assert!(targets.pids.is_empty(), "{targets:?}");
            assert!(targets.failures[0].contains(why), "{targets:?}");
        }
        assert!(find(&["1".to_owned(), "1".to_owned()]).pids.len() <= 1);
    }
}
