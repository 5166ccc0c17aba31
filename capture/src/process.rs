//! The mappings of a process, and its priority as a victim of the OOM killer.

use crate::Refusal;

/// Line of `/proc/PID/maps`.
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
    /// Set if the mapping is writable.
    pub writable: bool,
    /// Set if the mapping is executable.
    pub executable: bool,
    /// Path of the file, or the kernel's name in brackets.
    pub name: String,
}

/// Returns the mappings of a process, sorted by address.
pub fn mappings(pid: i32) -> Result<Vec<Mapping>, Refusal> {
    let text = proc::maps(pid).ok_or(Refusal::Ended { pid })?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(mapping).collect())
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let address = |text| u64::from_str_radix(text, 16).ok();
    let start = address(start)?;
    let end = address(end)?;
    let has = |index: usize, letter| permissions.get(index) == Some(&letter);
    let name = fields.nth(3).unwrap_or_default().to_owned();
    (start < end).then_some(Mapping {
        start,
        end,
        writable: has(1, b'w'),
        executable: has(2, b'x'),
        name,
    })
}

/// Makes the kernel kill this process first when it runs out of memory. Raising the score needs no
/// privilege.
pub fn offer_to_oom_killer(pid: i32) {
    // If this fails, the copy is merely as likely to be chosen as the target.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
}
