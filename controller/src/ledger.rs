//! Ledgers of a control group, and of a process without the agent: what their memory is used for.
//! The entries add up to a total that the kernel keeps.

pub mod group;
pub mod process;

use mem_agents::text;
use serde::{Serialize, Serializer};

use crate::terminal::result;

/// Width of the bars, in characters.
const BAR_WIDTH: usize = 8;
/// Maximum width of a name in a list, in characters.
const MAX_NAME_WIDTH: usize = 60;

/// Remark on the row of files that are modified in memory only.
pub const MODIFIED: &str = "private copies of pages of files";

/// Entry of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Name of the use.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Explanation for users.
    #[serde(skip)]
    pub remark: String,
}

impl Row {
    /// Creates an entry.
    pub fn new(name: impl Into<String>, bytes: u64, remark: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            bytes,
            remark: remark.into(),
        }
    }
}

/// Serializes rows as a map from names to bytes.
pub fn sizes<S: Serializer>(rows: &[Row], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rows.iter().map(|row| (&row.name, row.bytes)))
}

/// Prints rows with their shares of `total` bytes.
pub fn print_rows(rows: &[Row], total: u64) {
    for row in rows {
        print_row(&row.name, row.bytes, total, &row.remark);
    }
}

/// Prints a row with its share of `total` bytes.
pub fn print_row(name: &str, bytes: u64, total: u64, note: &str) {
    let share = bytes as f64 / total.max(1) as f64;
    let bar = "#".repeat((share.min(1.0) * BAR_WIDTH as f64).round() as usize);
    let size = text::bytes(bytes as f64);
    let line = format!(
        "  {name:<18}  {size:>9} {:>5.1}%  {bar:<BAR_WIDTH$}  {note}",
        share * 100.0
    );
    result(line.trim_end());
}

/// Prints sizes and names. Of a long name, the end is shown.
pub fn print_list(rows: &[Row]) {
    for row in rows {
        let width = row.name.chars().count();
        let name = match width.checked_sub(MAX_NAME_WIDTH) {
            None | Some(0) => row.name.clone(),
            Some(extra) => format!(
                "...{}",
                row.name.chars().skip(extra + 3).collect::<String>()
            ),
        };
        let size = text::bytes(row.bytes as f64);
        result(&format!("    {size:>9}  {name}"));
    }
}

/// Memory of a process that the kernel keeps outside of the resident memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NonResident {
    /// Page tables.
    pub page_tables: u64,
    /// Kernel's stacks of the threads.
    pub kernel_stacks: u64,
    /// Reserved huge pages (hugetlbfs).
    pub huge_pages: u64,
}

/// Minimum size of the kernel's stack of a thread, in bytes: x86-64 and aarch64, without KASAN. It is
/// at least a page.
const MIN_KERNEL_STACK_BYTES: u64 = 16 << 10;

impl NonResident {
    /// Reads the sizes for a process.
    pub fn read(pid: i32) -> Self {
        let status = proc::file(pid, "status").unwrap_or_default();
        let kib = |name| {
            let text = proc::status_field(&status, name)?.strip_suffix("kB")?;
            text.trim().parse::<u64>().ok()
        };
        let threads = proc::status_field(&status, "Threads:");
        let threads: u64 = threads.and_then(|text| text.parse().ok()).unwrap_or(0);
        Self {
            page_tables: kib("VmPTE:").unwrap_or(0).saturating_mul(1024),
            kernel_stacks: threads.saturating_mul(MIN_KERNEL_STACK_BYTES.max(proc::page_size())),
            huge_pages: kib("HugetlbPages:").unwrap_or(0).saturating_mul(1024),
        }
    }
}
