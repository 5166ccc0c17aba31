//! Layout of a segment: `repr(C)`, little-endian, pinned by tests. Any change here is a change of
//! [`ABI_VERSION`].
//!
//! ```text
//! 0            Control      commands; one page each, like the next two
//! 4096         Identity     written once, before the magic is published
//! 8192         Status       what the agent reports: session ended, statistics
//! 12288        ModuleTable  executable mappings, then their paths
//! 256 KiB      bank 0       even sessions
//! 256 KiB + B  bank 1       odd sessions
//! ```
//! Before its first session, a segment consists of the first three pages only ([`CONTROL_BYTES`]);
//! the program that starts the session adds the rest.
//!
//! Sessions alternate between two banks, so a new session neither waits for nor overwrites what a
//! slow thread is still adding to the previous one.

// Decision 02: the shared file is the message, without a serializer.
use crate::cpu::CpuParams;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

mod bank;

pub use bank::{
    BANK_HEADER_BYTES, BankHeader, CostLog, EXCLUSIVE_SHARDS, IntervalEntry, IntervalLog,
    KEPT_SUMS, MAX_INTERVALS, MAX_OVERWRITTEN_OBJECTS, MAX_RECORDED_THREADS, MERGED_ADDRESS, Node,
    PeakState, Record, SHARED_SHARD, ShardTotals, THREAD_ADDRESS, ThreadEntry, ThreadTable,
    TrialSums, reserved_units, step_of,
};

/// Minimum `RLIMIT_AS` and `RLIMIT_DATA`, in bytes, of a process in which the agent becomes active.
/// jemalloc maps memory by megabytes, while glibc's heap grows by as much as is needed; a program
/// with a lower limit may need all memory up to it.
pub const MIN_MEMORY_LIMIT: u64 = 32 << 20;

/// "MEMPROF\n", little-endian, at the start of [`Identity`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"MEMPROF\n");
/// Version of this layout. Readers refuse any other.
pub const ABI_VERSION: u32 = 17;
/// Size of each control page in bytes, whatever the machine's page size.
pub const PAGE: usize = 4096;
/// Offset of the first bank. A multiple of the largest page size (64 KiB).
pub const HEADER_BYTES: usize = 256 << 10;
/// Offset of [`Identity`].
pub const IDENTITY_OFFSET: usize = PAGE;
/// Offset of [`Status`].
pub const STATUS_OFFSET: usize = 2 * PAGE;
/// Offset of [`ModuleTable`].
pub const MODULES_OFFSET: usize = 3 * PAGE;
/// Size of a segment that never had a session: control, identity and status. Committed from the
/// start.
pub const CONTROL_BYTES: usize = MODULES_OFFSET;
/// Default size of a segment on a machine with much memory. Sparse: only what a session uses is
/// committed.
pub const DEFAULT_SEGMENT_BYTES: usize = 2 << 30;
/// Smallest usable segment.
pub const MIN_SEGMENT_BYTES: usize = 1 << 20;
/// Largest accepted segment.
pub const MAX_SEGMENT_BYTES: usize = 4 << 30;

/// First page: commands from the controller to the agent.
#[repr(C)]
pub struct Control {
    /// Epoch in force. Sampling is off if its lowest byte is 0. `params[epoch & 1]` are in force.
    ///
    /// Each start of a session and each change of parameters uses the next number
    /// ([`Control::after`]). Numbers do not repeat during a process's life, so a thread detects a
    /// change by comparing, however many epochs it has missed.
    ///
    /// The lowest byte alone decides whether sampling is on and which parameters are in force. It is
    /// written last, by itself: a reader that sees only the new upper bytes still uses the old
    /// parameters.
    pub epoch: AtomicU32,
    /// Last epoch that was published, so that the next one differs from it.
    pub last_epoch: AtomicU32,
    /// Zero.
    pub reserved: [u8; 56],
    /// Parameters of even and odd epochs.
    pub params: [Params; 2],
    /// CPU sampling parameters of even and odd epochs.
    pub cpu: [CpuParams; 2],
}

impl Control {
    /// Returns the epoch in force, or 0 if sampling is off.
    #[inline(always)]
    #[must_use]
    pub fn epoch(&self, order: Ordering) -> u32 {
        match self.epoch.load(order) {
            epoch if epoch as u8 == 0 => 0,
            epoch => epoch,
        }
    }

    /// Returns the parameters of an epoch.
    #[inline(always)]
    #[must_use]
    pub fn params_of(&self, epoch: u32) -> &Params {
        &self.params[epoch as usize & 1]
    }

    /// Returns the epoch after `epoch`. Parities alternate, so the parameters in force are never
    /// overwritten. The lowest byte is never 0. Numbers repeat after about four billion epochs: 136
    /// years at one a second.
    #[must_use]
    pub fn after(epoch: u32) -> u32 {
        let next = epoch.wrapping_add(1);
        match next as u8 {
            0 => next.wrapping_add(2),
            _ => next,
        }
    }
}

/// Parameters of an epoch. Written only while no epoch that uses them is in force.
#[repr(C)]
pub struct Params {
    /// Number of the session, counted from 1. Its lowest bit is the number of the bank.
    pub session: AtomicU64,
    /// Mean number of bytes between samples; 1 samples every allocation. 0 if the session samples
    /// only CPU time.
    pub interval: AtomicU64,
    /// End of the session in ns of [`crate::clock::now_ns`]; 0 if none.
    pub deadline_ns: AtomicU64,
    /// Start of the session in ns of [`crate::clock::now_ns`].
    pub start_ns: AtomicU64,
    /// Start of the session, Unix ns.
    pub start_unix_ns: AtomicU64,
    /// Pid of the controller that started the session, in its own pid namespace; 0 if the agent
    /// itself did.
    pub controller_pid: AtomicU64,
    /// Maximum address space for sampled objects in bytes; 0 if only the agent's own limit applies.
    pub range_limit: AtomicU64,
    /// Logarithm of the maximum thinning: at call sites sampled often already, at least one of
    /// 2^`thinning` due samples is taken. With 0, every due sample is taken.
    pub thinning: AtomicU64,
    /// Maximum share of the process's CPU time that sampling may take, in millionths; 0 if the
    /// interval is fixed.
    pub max_overhead: AtomicU64,
}

/// Identity of the process. Written once by the agent, `magic` last.
#[repr(C)]
pub struct Identity {
    /// [`MAGIC`] once everything else here is valid.
    pub magic: AtomicU64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// [`HEADER_BYTES`].
    pub header_bytes: u32,
    /// Size of the whole segment once the banks have been added.
    pub segment_bytes: u64,
    /// Pid as the process sees it (its own pid namespace).
    pub pid: u32,
    /// Effective user id at creation.
    pub uid: u32,
    /// Start time (field 22 of `/proc/self/stat`), which with pid and boot id identifies the
    /// process uniquely.
    pub start_time: u64,
    /// Kernel's boot id, binary.
    pub boot_id: [u8; 16],
    /// Creation time, Unix ns.
    pub created_unix_ns: u64,
    /// Creation time in ns of [`crate::clock::now_ns`].
    pub created_ns: u64,
    /// Allocator: 0 for the built-in jemalloc, 1 for the program's own.
    pub allocator: u32,
    /// Length of `exe_build_id` in bytes.
    pub exe_build_id_len: u32,
    /// Build id of the executable.
    pub exe_build_id: [u8; 32],
    /// Version of the agent, zero-padded UTF-8.
    pub agent_version: [u8; 32],
    /// Length of `exe` in bytes. If the path is longer than `exe`, its last components are stored,
    /// without a leading slash.
    pub exe_len: u32,
    /// Pid of the parent if this is the segment of a forked child, else 0.
    pub forked_from: u32,
    /// Inode of the pid namespace in which `pid` is valid.
    pub pid_namespace: u64,
    /// Command name (`comm`) of the process, zero-padded. If a program is started through a link,
    /// it is the link's name.
    pub comm: [u8; 16],
    /// Path of the executable as the process sees it.
    pub exe: [u8; 1024],
    /// Seccomp mode at creation (field `Seccomp` of `/proc/self/status`): 0 none, 1 strict, 2
    /// filter.
    pub seccomp_mode: u32,
    /// Number of seccomp filters (field `Seccomp_filters`); 0 on kernels before 5.9.
    pub seccomp_filters: u32,
    /// Addresses of the allocator's data. If the program keeps its own allocator, they lead only to
    /// the objects that are sampled. All zero if not known.
    pub heap: HeapGlobals,
    /// Agent's own memory; all zero if `heap` is.
    pub agent_memory: AgentMemory,
}

/// Agent's own memory in the process. Pointers there are not the program's, so leak checks skip it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentMemory {
    /// First address of the agent's library.
    pub start: u64,
    /// End of the library's last segment.
    pub end: u64,
    /// Distance from a thread pointer to the library's thread-local variables, which include
    /// jemalloc's. Modulo 2^64.
    pub variables: u64,
    /// Size of these variables in bytes; 0 if not known.
    pub variables_bytes: u64,
    /// Distance from a thread pointer to the pointer to the thread's sampling state, which is null
    /// before its first sample.
    pub thread: u64,
    /// Size of a thread's sampling state in bytes.
    pub thread_bytes: u64,
    /// Address of an array of pointers to sampling states that are not in use. Entries may be null.
    pub spare: u64,
    /// Number of entries of that array.
    pub spare_count: u64,
    /// Address of two words: a pointer to the [`Exemption`]s, null before the first one, and their
    /// number.
    pub exemptions: u64,
    /// Address of the array of [`OwnMapping`]s.
    pub own: u64,
    /// Number of entries of that array, used or not.
    pub own_count: u64,
}

impl AgentMemory {
    /// No known memory.
    pub const NONE: Self = Self {
        start: 0,
        end: 0,
        variables: 0,
        variables_bytes: 0,
        thread: 0,
        thread_bytes: 0,
        spare: 0,
        spare_count: 0,
        exemptions: 0,
        own: 0,
        own_count: 0,
    };
}

/// Memory that the agent has mapped. Entries are in the process's own memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct OwnMapping {
    /// First address; 0 if the entry is free.
    pub start: AtomicU64,
    /// Size in bytes.
    pub bytes: AtomicU64,
}

/// Object, region or string that the program declares for leak checks. Entries are in the process's
/// own memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Exemption {
    /// Kind: [`EXEMPT_OBJECT`], [`EXEMPT_REGION`], [`DECLARED_SUPPRESSIONS`] or
    /// [`DECLARED_OPTIONS`]. Entries of any other kind are ignored.
    pub kind: AtomicU64,
    /// Address in the object, or first address of the region or string.
    pub at: AtomicU64,
    /// For a region or string: size in bytes. For an object: tick
    /// ([`crate::clock::tick_of`]) of the declaration, which does not apply to later objects at that
    /// address.
    pub extent: AtomicU64,
}

/// Object that is not a leak. Neither is anything that only it points to.
pub const EXEMPT_OBJECT: u64 = 1;
/// Region of memory whose pointers keep objects reachable.
pub const EXEMPT_REGION: u64 = 2;
/// String with known leaks, in LeakSanitizer's suppression format.
pub const DECLARED_SUPPRESSIONS: u64 = 3;
/// String with LeakSanitizer's options.
pub const DECLARED_OPTIONS: u64 = 4;

/// Addresses in the process from which a reader outside finds all heap objects. The data have the
/// layout of jemalloc 5.3.1, which belongs to this [`ABI_VERSION`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapGlobals {
    /// jemalloc's `arena_emap_global`: the radix tree of all extents.
    pub emap: u64,
    /// jemalloc's `arenas`: pointers to all arenas.
    pub arenas: u64,
    /// jemalloc's page size, bytes.
    pub page: u64,
    /// Address of a word that holds the start of the range of sampled objects; the word is 0 before
    /// there is one.
    pub range_base: u64,
    /// Address of a word that holds the size of that range in bytes.
    pub range_size: u64,
}

/// Status that the agent publishes while it runs.
#[repr(C)]
pub struct Status {
    /// Last session that reached its deadline or was ended by a controller while the process lived.
    pub ended_session: AtomicU64,
    /// End of that session in ns of [`crate::clock::now_ns`].
    pub ended_ns: AtomicU64,
    /// Last session whose profile a controller has written. Set by the controller.
    pub collected_session: AtomicU64,
    /// Time of the process's normal exit, as noticed by the agent's destructor or its replacement
    /// of `_exit`, in ns of [`crate::clock::now_ns`]. 0: it has not exited; 1: it has, at an
    /// unknown time.
    pub exited: AtomicU64,
    /// Address space reserved for sampled objects, in bytes.
    pub range_bytes: AtomicU64,
    /// Allocator's own statistics, refreshed at most once a second while sampling.
    pub allocator: AllocatorStats,
    /// Number of modules that did not fit into the table.
    pub modules_lost: AtomicU64,
    /// Reason why the agent does not sample: one of the `REFUSES_` constants; 0 if none is known.
    pub refuses: AtomicU32,
    /// `errno` of the failed call, for [`REFUSES_MEMORY`].
    pub refuses_errno: AtomicU32,
    /// State of the leak check at exit: one of the `AT_EXIT_` constants.
    pub at_exit: AtomicU64,
    /// Version of the Python interpreter, as `PY_VERSION_HEX`; 0 if none was found.
    pub python_version: AtomicU32,
    /// State of the interpreter: one of the `PYTHON_` constants, with the flags [`PYTHON_HIDES`]
    /// and [`PYTHON_FREE_THREADED`].
    pub python: AtomicU32,
}

/// Interpreter found, but none of its stacks has been read yet.
pub const PYTHON_DETECTED: u32 = 0;
/// Interpreter frames are recorded in stacks.
pub const PYTHON_NAMED: u32 = 1;
/// Interpreter version is not supported.
pub const PYTHON_UNKNOWN: u32 = 2;
/// Interpreter data do not have the layout of its version, so interpreter frames are omitted.
pub const PYTHON_DIFFERS: u32 = 3;
/// Interpreter was in a library that has been unloaded.
pub const PYTHON_GONE: u32 = 4;
/// Flag: the interpreter's environment makes it allocate small objects with its own allocator.
pub const PYTHON_HIDES: u32 = 1 << 8;
/// Flag: a build without the global interpreter lock.
pub const PYTHON_FREE_THREADED: u32 = 1 << 9;

/// Process is exiting and waits until a controller has checked it for leaks.
pub const AT_EXIT_WAITS: u64 = 1;
/// Leak check is done, so the process may exit. Set by the controller.
pub const AT_EXIT_CHECKED: u64 = 2;
/// Controller has detected that the process waits, and will check it. Set by the controller.
pub const AT_EXIT_SEEN: u64 = 3;
/// Program wants no check at exit, or has made it itself.
pub const AT_EXIT_UNCHECKED: u64 = 4;

/// Program uses a sanitizer's allocator (AddressSanitizer, LeakSanitizer, …), which the agent does
/// not replace.
pub const REFUSES_SANITIZER: u32 = 1;
/// Program has installed a seccomp filter since it started. The agent makes no system call that the
/// filter may not expect.
pub const REFUSES_SECCOMP: u32 = 2;
/// Tables could not be mapped.
pub const REFUSES_MEMORY: u32 = 3;
/// C library is musl.
pub const REFUSES_MUSL: u32 = 4;

/// jemalloc's `stats.*`, in bytes. Zeros if the program keeps its own allocator.
#[repr(C)]
pub struct AllocatorStats {
    /// Time of these statistics, in ns of [`crate::clock::now_ns`]; 0 if never taken. Also serves
    /// as a sign of life.
    pub taken_ns: AtomicU64,
    /// Bytes in live objects, rounded up to size classes.
    pub allocated: AtomicU64,
    /// Bytes in pages that contain live objects.
    pub active: AtomicU64,
    /// Bytes of the allocator's metadata.
    pub metadata: AtomicU64,
    /// Resident bytes of the allocator.
    pub resident: AtomicU64,
    /// Bytes in active extents.
    pub mapped: AtomicU64,
    /// Bytes of address space retained for reuse.
    pub retained: AtomicU64,
}

/// Number of bits of an address in a node. The bits above hold the module's instance.
pub const ADDRESS_BITS: u32 = 48;

/// Maximum number of modules in the table.
pub const MODULE_CAPACITY: usize = 1024;
/// Size of the area for modules' paths, in bytes.
pub const MODULE_PATH_BYTES: usize = HEADER_BYTES - MODULES_OFFSET - 64 - MODULE_CAPACITY * 80;

/// Executable mappings that stacks may point into, present and past.
#[repr(C)]
pub struct ModuleTable {
    /// Number of entries claimed.
    pub count: AtomicU32,
    /// Number of bytes of `paths` claimed.
    pub path_bytes: AtomicU32,
    /// Zero.
    pub reserved: [u64; 7],
    /// Entries; those with `ready == 0` are being written.
    pub entries: [Module; MODULE_CAPACITY],
    /// Paths, one after another, without terminators.
    pub paths: [u8; MODULE_PATH_BYTES],
}

/// Executable mapping.
#[repr(C)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// Offset of the path in [`ModuleTable::paths`].
    pub path_offset: u32,
    /// Length of the path in bytes.
    pub path_len: u32,
    /// 1 once the entry is valid.
    pub ready: AtomicU32,
    /// Tick ([`crate::clock::tick_of`]) at which the module was found to be unloaded; 0 while it is
    /// mapped.
    pub unloaded_tick: AtomicU32,
    /// Length of `build_id` in bytes.
    pub build_id_len: u32,
    /// Build id.
    pub build_id: [u8; 32],
    /// Number of earlier modules at the same addresses. Frames' addresses carry it above
    /// [`ADDRESS_BITS`].
    pub instance: u32,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use core::mem::{offset_of, size_of};

    #[test]
    fn steps_reach_every_number_of_units() {
        assert_eq!((reserved_units(0), reserved_units(1)), (0, 1));
        assert!(reserved_units(u8::MAX) >= crate::tree::MAX_NODES / 8192);
        for units in 0..4096 {
            let step = step_of(units);
            assert!(reserved_units(step) >= units);
            assert!(step == 0 || reserved_units(step - 1) < units);
        }
    }

    #[test]
    fn epochs_alternate_in_parity_and_never_mean_off() {
        let mut epoch = 0;
        for _ in 0..100_000 {
            let next = Control::after(epoch);
            assert!(next > epoch && next as u8 != 0);
            assert_ne!(next & 1, epoch & 1, "{epoch:x} {next:x}");
            epoch = next;
        }
        assert_eq!(Control::after(255), 0x102);
        assert_eq!(Control::after(u32::MAX), 2, "after four billion");
    }

    #[test]
    fn layout_is_pinned() {
        assert_eq!(size_of::<Params>(), 72);
        assert_eq!(size_of::<Control>(), 240);
        assert_eq!(offset_of!(Control, cpu), 208);
        assert_eq!(offset_of!(Control, epoch), 0);
        assert_eq!(offset_of!(Control, last_epoch), 4);
        assert_eq!(size_of::<Identity>(), 1336);
        assert_eq!(size_of::<AgentMemory>(), 88);
        assert_eq!(size_of::<OwnMapping>(), 16);
        assert_eq!(size_of::<Exemption>(), 24);
        assert_eq!(offset_of!(Identity, exe), 176);
        assert_eq!(size_of::<AllocatorStats>(), 56);
        assert_eq!(size_of::<Status>(), 128);
        assert_eq!(size_of::<Module>(), 80);
        assert_eq!(size_of::<ModuleTable>(), HEADER_BYTES - MODULES_OFFSET);
        assert_eq!(size_of::<Counters>(), 128);
        assert_eq!(size_of::<ShardTotals>(), 64);
        assert_eq!(offset_of!(BankHeader, reserved_step), 8);
        assert_eq!(offset_of!(BankHeader, grown_units), 12);
        assert_eq!(offset_of!(BankHeader, node_count), 16);
        assert_eq!(offset_of!(BankHeader, max_units), 32);
        assert_eq!(offset_of!(BankHeader, totals), 192);
        assert_eq!(offset_of!(BankHeader, intervals), 2304);
        assert_eq!(size_of::<IntervalLog>(), 3136);
        assert_eq!(offset_of!(BankHeader, threads), 5440);
        assert_eq!(size_of::<ThreadEntry>(), 24);
        assert_eq!(size_of::<ThreadTable>(), 1544);
        assert_eq!(offset_of!(BankHeader, cpu), 6984);
        assert!(offset_of!(BankHeader, overwritten) + 16 <= BANK_HEADER_BYTES);
        assert!(size_of::<BankHeader>() <= BANK_HEADER_BYTES);
        assert_eq!(size_of::<Node>(), 16);
        assert_eq!(offset_of!(BankHeader, peak), 7168);
        assert_eq!(size_of::<PeakState>(), 64);
        assert_eq!(offset_of!(BankHeader, cost), 7232);
        assert_eq!(size_of::<CostLog>(), 128);
        assert_eq!(size_of::<Record>(), 256);
        assert_eq!(offset_of!(Record, alloc_object_variance), 56);
        assert_eq!(offset_of!(Record, free_samples), 64);
        assert_eq!(offset_of!(Record, free_object_variance), 112);
        assert_eq!(offset_of!(Record, size_class), 10);
        assert_eq!(offset_of!(Record, peak_epoch), 12);
        assert_eq!(offset_of!(Record, free_short), 120);
        assert_eq!(offset_of!(Record, kept_epoch), 128);
        assert_eq!(offset_of!(Record, live_squares_high), 132);
        assert_eq!(offset_of!(Record, live_squares), 136);
        assert_eq!(offset_of!(Record, kept), 144);
    }
}
