//! The signals that a process uses, which timers must leave alone.

/// From this one on they are real-time signals.
const FIRST: u32 = 34;
/// A thread that blocks more of them than this blocks them all, and waits for none.
const SOME: u32 = 16;

/// Signals that a process handles or ignores, or that a thread of it blocks to wait for them;
/// signal N is bit N - 1.
pub fn in_use(pid: i32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks.fold(0, |used, task| {
        let status = std::fs::read(task.path().join("status")).unwrap_or_default();
        used | of_status(&String::from_utf8_lossy(&status))
    })
}

fn of_status(status: &str) -> u64 {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    };
    let blocked = mask("SigBlk:");
    let real_time = blocked >> (FIRST - 1);
    let waited_for = match real_time.count_ones() > SOME {
        true => 0,
        false => blocked,
    };
    waited_for | mask("SigCgt:") | mask("SigIgn:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handled_or_waited_for_is_in_use() {
        let status = "Name:\tx\nSigBlk:\t0000000200000000\nSigIgn:\t0000000000001000\n\
                      SigCgt:\t0000000180000000\n";
        assert_eq!(of_status(status), 0x3_8000_1000);
        // A thread that wants to be left alone.
        assert_eq!(of_status("SigBlk:\tfffffffe7ffbfeff\n"), 0);
        assert_eq!(of_status("SigCgt:\tnonsense\n"), 0);
    }
}
