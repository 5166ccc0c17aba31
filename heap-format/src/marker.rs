//! Pseudo-frames: what stands in a stack for what is not known of it.

/// Address, as written in a dump, of the pseudo-frame that stands outermost in
/// a stack which could not be unwound to its end.
pub const TRUNCATED_ADDRESS: u64 = 0x101;

/// Address, as written in a dump, of the single pseudo-frame that collects
/// samples for which the target's table had no room.
pub const TABLE_FULL_ADDRESS: u64 = 0x201;

/// Address, as written in a dump, of the single pseudo-frame of CPU time for
/// which there is no sample.
pub const NOT_SAMPLED_ADDRESS: u64 = 0x301;

/// Address, as gperftools' format has it, of the pseudo-frame for all functions of the kernel.
pub(crate) const KERNEL_ADDRESS: u64 = 0x401;

/// Address, as written in a dump, of the innermost frame of stacks whose further frames found no
/// room in the target's table.
pub const MERGED_ADDRESS: u64 = 0x501;

/// The pseudo-frames: lookup address, length of the range that represents it
/// in the dump's maps, and the displayed name. The kernel keeps the first
/// page of an address space unmapped, so no module can have these addresses.
pub const MARKERS: [Marker; 5] = [TRUNCATED, TABLE_FULL, NOT_SAMPLED, IN_KERNEL, MERGED];

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

const IN_KERNEL: Marker = Marker {
    address: KERNEL_ADDRESS - 1,
    len: 0x100,
    name: "[kernel]",
};

/// The pseudo-frames that this project's CPU profiles have.
pub(crate) const CPU_MARKERS: [Marker; 4] = [TRUNCATED, TABLE_FULL, NOT_SAMPLED, MERGED];

/// A pseudo-frame with a reserved address; see [`MARKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Lookup address, also the start of the marker's range.
    pub address: u64,
    /// Length of the marker's range.
    pub len: u64,
    /// Name in reports.
    pub name: &'static str,
}

/// What gperftools' format has added to the addresses of pseudo-frames. google-pprof takes any
/// address that no library has for the program's: where that is linked to run anywhere, a low one
/// lies in its first function. No process has these.
const ASIDE: u64 = 1 << 60;

/// The address that stands for a pseudo-frame, or is the return address of one, in gperftools'
/// format; any other one stays.
pub(crate) fn aside(address: u64) -> u64 {
    match marker_at(address) {
        Some(_) => address + ASIDE,
        None => address,
    }
}

/// The reverse.
pub(crate) fn back(address: u64) -> u64 {
    match marker_at(address.wrapping_sub(ASIDE)) {
        Some(_) => address - ASIDE,
        None => address,
    }
}

/// The marker that a lookup address stands for.
pub fn marker_at(address: u64) -> Option<&'static Marker> {
    MARKERS
        .iter()
        .find(|m| address.wrapping_sub(m.address) < m.len)
}
