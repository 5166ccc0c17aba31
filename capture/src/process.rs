//! The mappings of a process, and its place in the kernel's order of victims.

use crate::Refusal;

/// Line of `/proc/PID/maps`.
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Set if the mapping is writable.
    pub writable: bool,
    /// Set if the mapping is executable.
    pub executable: bool,
    /// Path of the file, or the kernel's name in brackets.
    pub name: String,
}

/// Returns the mappings of a process, in the order of addresses.
pub fn mappings(pid: i32) -> Result<Vec<Mapping>, Refusal> {
    let text = proc::maps(pid).ok_or(Refusal::Ended { pid })?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(mapping).collect())
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let has = |index: usize, right| rights.get(index) == Some(&right);
    let name = fields.nth(3).unwrap_or_default().to_owned();
    (start < end).then_some(Mapping {
        start,
        end,
        writable: has(1, b'w'),
        executable: has(2, b'x'),
        name,
    })
}

/// Makes the kernel prefer this process when it runs out of memory. Needs no right.
pub fn offer_to_oom_killer(pid: i32) {
    // Without it the copy is merely as likely to be chosen as the target.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
}
