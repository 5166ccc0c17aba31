//! Pseudo-frames, which stand for unknown parts of a stack.

/// Address in a dump of the pseudo-frame `[truncated]`, the outermost frame of a stack that could
/// not be unwound to its end.
pub const TRUNCATED_ADDRESS: u64 = 0x101;

/// Address in a dump of the pseudo-frame `[table full]`, the only frame of the stack that collects
/// samples without room in the target's table.
pub const TABLE_FULL_ADDRESS: u64 = 0x201;

/// Address in a dump of the pseudo-frame `[not sampled]`, the only frame of the stack with CPU time
/// that no sample covers.
pub const NOT_SAMPLED_ADDRESS: u64 = 0x301;

/// Address of the pseudo-frame for all kernel functions in gperftools' format.
pub(crate) const KERNEL_ADDRESS: u64 = 0x401;

/// Address in a dump of the pseudo-frame `[deeper frames merged]`, the innermost frame of stacks
/// whose deeper frames found no room in the target's table.
pub const MERGED_ADDRESS: u64 = 0x501;

/// Address of the pseudo-frame `[resident before the start]`, the only frame of the stacks with
/// memory that was resident before the session began.
pub const RESIDENT_BEFORE_ADDRESS: u64 = 0x601;

/// All pseudo-frames. The kernel keeps the first page of an address space unmapped, so no module
/// can have these addresses.
pub const MARKERS: [Marker; 6] = [
    TRUNCATED,
    TABLE_FULL,
    NOT_SAMPLED,
    IN_KERNEL,
    MERGED,
    RESIDENT_BEFORE,
];

/// The pseudo-frames of heap profiles.
pub(crate) const HEAP_MARKERS: [Marker; 3] = [TRUNCATED, TABLE_FULL, MERGED];

const TRUNCATED: Marker = Marker {
    address: TRUNCATED_ADDRESS - 1,
    len: 0x100,
    name: "[truncated]",
};

const TABLE_FULL: Marker = Marker {
    address: TABLE_FULL_ADDRESS - 1,
    len: 0x100,
    name: "[table full]",
};

const MERGED: Marker = Marker {
    address: MERGED_ADDRESS - 1,
    len: 0x100,
    name: "[deeper frames merged]",
};

const NOT_SAMPLED: Marker = Marker {
    address: NOT_SAMPLED_ADDRESS - 1,
    len: 0x100,
    name: "[not sampled]",
};

const RESIDENT_BEFORE: Marker = Marker {
    address: RESIDENT_BEFORE_ADDRESS - 1,
    len: 0x100,
    name: "[resident before the start]",
};

const IN_KERNEL: Marker = Marker {
    address: KERNEL_ADDRESS - 1,
    len: 0x100,
    name: "[kernel]",
};

/// The pseudo-frames of this project's CPU profiles.
pub(crate) const CPU_MARKERS: [Marker; 4] = [TRUNCATED, TABLE_FULL, NOT_SAMPLED, MERGED];

/// A pseudo-frame with a reserved range of addresses; see [`MARKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Lookup address, also the start of the range.
    pub address: u64,
    /// Length of the range.
    pub len: u64,
    /// Name in reports.
    pub name: &'static str,
}

/// Offset added to the addresses of pseudo-frames in gperftools' format. google-pprof attributes
/// any address outside libraries to the main program; in a position-independent executable, a low
/// address would be attributed to the first function. No process has addresses this high.
const GPERFTOOLS_OFFSET: u64 = 1 << 60;

/// Returns the address of a pseudo-frame, or its return address, in gperftools' format. Other
/// addresses are not changed.
pub(crate) fn to_gperftools(address: u64) -> u64 {
    match marker_at(address) {
        Some(_) => address + GPERFTOOLS_OFFSET,
        None => address,
    }
}

/// Reverses [`to_gperftools`].
pub(crate) fn from_gperftools(address: u64) -> u64 {
    match marker_at(address.wrapping_sub(GPERFTOOLS_OFFSET)) {
        Some(_) => address - GPERFTOOLS_OFFSET,
        None => address,
    }
}

/// Returns the pseudo-frame that a lookup address stands for.
pub fn marker_at(address: u64) -> Option<&'static Marker> {
    MARKERS
        .iter()
        .find(|m| address.wrapping_sub(m.address) < m.len)
}
