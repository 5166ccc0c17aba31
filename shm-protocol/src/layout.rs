//! The bytes of a segment. `repr(C)`, little-endian, pinned by tests: any
//! change here is a change of [`ABI_VERSION`].
//!
//! ```text
//! 0            Control      one page; the agent maps these three over a static
//! 4096         Identity     written once, before the magic is published
//! 8192         Status       what the agent reports: session ended, statistics
//! 12288        ModuleTable  executable mappings, then their paths
//! 256 KiB      bank 0       even sessions
//! 256 KiB + B  bank 1       odd sessions
//! ```
//! Before its first session a segment is the first three pages only
//! ([`CONTROL_BYTES`]); whoever starts the session adds the rest.
//!
//! Sessions alternate between two banks, so a new one never waits for, nor
//! wipes, what a slow thread is still adding to the one before.

// Decision 02: the shared file is the message, without a serializer.
use crate::cpu::CpuParams;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

mod bank;

pub use bank::{
    BANK_HEADER_BYTES, BankHeader, EXCLUSIVE_SHARDS, INTERVALS_KEPT, IntervalEntry, IntervalLog,
    KEPT_SUMS, MERGED_ADDRESS, Node, OVERWRITTEN_KEPT, PeakState, Record, SHARED_SHARD,
    ShardTotals, THREAD_ADDRESS, THREADS_KEPT, ThreadEntry, ThreadTable, reserved_units, step_of,
};

/// Smallest `RLIMIT_AS` and `RLIMIT_DATA`, in bytes, of a process that the agent does not leave alone. jemalloc
/// maps its memory by megabytes, glibc's heap grows by as much as is needed, and a process with less than this
/// may need all of it.
pub const MIN_MEMORY_LIMIT: u64 = 32 << 20;

/// "MEMPROF\n", little-endian, at the start of [`Identity`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"MEMPROF\n");
/// Version of this layout. Readers refuse any other.
pub const ABI_VERSION: u32 = 15;
/// Bytes of a control page's view, whatever the machine's page size.
pub const PAGE: usize = 4096;
/// Offset of the first bank. A multiple of the largest page size (64 KiB).
pub const HEADER_BYTES: usize = 256 << 10;
/// Offset of [`Identity`].
pub const IDENTITY_OFFSET: usize = PAGE;
/// Offset of [`Status`].
pub const STATUS_OFFSET: usize = 2 * PAGE;
/// Offset of [`ModuleTable`].
pub const MODULES_OFFSET: usize = 3 * PAGE;
/// Size of a segment that never had a session: control, identity and status. All of it is backed by
/// memory from the start.
pub const CONTROL_BYTES: usize = MODULES_OFFSET;
/// Default size of a segment on a machine with much memory. Sparse: only what a session uses takes
/// memory.
pub const DEFAULT_SEGMENT_BYTES: usize = 2 << 30;
/// Smallest usable segment.
pub const MIN_SEGMENT_BYTES: usize = 1 << 20;
/// Largest accepted segment.
pub const MAX_SEGMENT_BYTES: usize = 4 << 30;

/// The first page: commands from the controller to the agent.
#[repr(C)]
pub struct Control {
    /// The epoch in force. Each start and each change of parameters takes the next number
    /// ([`Control::after`]), of which no two are the same in a process's life: a thread compares its own
    /// with it, and may sleep through any number of them. `params[epoch & 1]` are in force. Sampling is
    /// off where the lowest byte is 0.
    ///
    /// The other bytes are written first, which changes nothing as long as the lowest one stays. That is
    /// written by itself, so no write to it can be seen half done.
    pub epoch: AtomicU32,
    /// The last epoch that was published, so that the next one differs from it.
    pub last_epoch: AtomicU32,
    /// Zero.
    pub reserved: [u8; 56],
    /// The parameters of even and odd epochs.
    pub params: [Params; 2],
    /// The same for CPU time.
    pub cpu: [CpuParams; 2],
}

impl Control {
    /// The epoch in force; 0: sampling is off.
    #[inline(always)]
    #[must_use]
    pub fn epoch(&self, order: Ordering) -> u32 {
        match self.epoch.load(order) {
            epoch if epoch as u8 == 0 => 0,
            epoch => epoch,
        }
    }

    /// The parameters that were published with an epoch.
    #[inline(always)]
    #[must_use]
    pub fn params_of(&self, epoch: u32) -> &Params {
        &self.params[epoch as usize & 1]
    }

    /// The epoch that follows. Parities alternate, so that the parameters in force are never the ones
    /// rewritten, and the lowest byte is never 0. Some four billion follow before one comes again:
    /// 136 years of one a second.
    #[must_use]
    pub fn after(epoch: u32) -> u32 {
        let next = epoch.wrapping_add(1);
        match next as u8 {
            0 => next.wrapping_add(2),
            _ => next,
        }
    }
}

/// The parameters of an epoch. Written while no epoch that uses them is published.
#[repr(C)]
pub struct Params {
    /// Number of the session, from 1. Its lowest bit names the bank.
    pub session: AtomicU64,
    /// Mean bytes between samples; 1 samples every allocation. 0: none, for a session of CPU time
    /// alone.
    pub interval: AtomicU64,
    /// End of the session in ns of [`crate::clock::now_ns`]; 0: none.
    pub deadline_ns: AtomicU64,
    /// Start of the session in ns of [`crate::clock::now_ns`].
    pub start_ns: AtomicU64,
    /// Start of the session, Unix ns.
    pub start_unix_ns: AtomicU64,
    /// Pid of the controller that started it (its own pid namespace); 0: the agent itself.
    pub controller_pid: AtomicU64,
    /// Most address space to reserve for sampled objects; 0: no limit but the agent's own.
    pub range_limit: AtomicU64,
    /// For well-known call sites at least one due sample in 2^this is taken; 0: each one.
    pub thinning: AtomicU64,
}

/// Identity of the process. Written once by the agent; `magic` is stored last.
#[repr(C)]
pub struct Identity {
    /// [`MAGIC`] once everything else here is valid.
    pub magic: AtomicU64,
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// [`HEADER_BYTES`].
    pub header_bytes: u32,
    /// Size of the whole segment once it has tables.
    pub segment_bytes: u64,
    /// Pid as the process sees it (its own pid namespace).
    pub pid: u32,
    /// Effective user at creation.
    pub uid: u32,
    /// Field 22 of `/proc/self/stat`: with pid and boot id it identifies the process among all.
    pub start_time: u64,
    /// Kernel's boot id, binary.
    pub boot_id: [u8; 16],
    /// Creation, Unix ns.
    pub created_unix_ns: u64,
    /// Creation, ns of [`crate::clock::now_ns`].
    pub created_ns: u64,
    /// 0: jemalloc inside; 1: the program's own allocator.
    pub allocator: u32,
    /// Bytes used in `exe_build_id`.
    pub exe_build_id_len: u32,
    /// Build id of the executable.
    pub exe_build_id: [u8; 32],
    /// Version of the agent, zero-padded UTF-8.
    pub agent_version: [u8; 32],
    /// Bytes used in `exe`.
    pub exe_len: u32,
    /// Pid of the parent when this is a forked child's segment, else 0.
    pub forked_from: u32,
    /// Inode of the pid namespace that `pid` is a number of.
    pub pid_namespace: u64,
    /// Short name of the process (its `comm`), zero-padded: a program started through a link
    /// goes by the link's name.
    pub comm: [u8; 16],
    /// Path of the executable as the process saw it.
    pub exe: [u8; 1024],
    /// Field `Seccomp` of `/proc/self/status` at creation: 0 none, 1 strict, 2 filter.
    pub seccomp_mode: u32,
    /// Field `Seccomp_filters` of it; 0 on kernels before 5.9.
    pub seccomp_filters: u32,
    /// Where the allocator keeps its data, with the program's own that of sampled objects alone;
    /// all zero: not known.
    pub heap: HeapGlobals,
    /// Where the agent's own memory is; all zero with `heap`.
    pub agent_memory: AgentMemory,
}

/// The agent's own memory in the process, pointers in which are not the program's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentMemory {
    /// First address of the agent's library.
    pub start: u64,
    /// End of its last segment.
    pub end: u64,
    /// Distance from a thread's pointer to its copy of the library's thread-local variables, with
    /// jemalloc's: modulo 2^64.
    pub variables: u64,
    /// Bytes of them; 0: not known.
    pub variables_bytes: u64,
    /// Distance from a thread's pointer to the pointer to its memory for sampling, null before its
    /// first sample.
    pub thread: u64,
    /// Bytes of that memory.
    pub thread_bytes: u64,
    /// Address of pointers to such memory that waits for its next thread; null ones between.
    pub spare: u64,
    /// Number of those pointers.
    pub spare_count: u64,
    /// Address of the pointer to the [`Exemption`]s, null before the first; and of their number,
    /// the next word.
    pub exemptions: u64,
    /// Address of its [`OwnMapping`]s.
    pub own: u64,
    /// Number of those, used or not.
    pub own_count: u64,
}

impl AgentMemory {
    /// None that is known.
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

/// Memory that the agent has mapped for itself: in the process's own memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct OwnMapping {
    /// First address; 0: the entry is free.
    pub start: AtomicU64,
    /// Its bytes.
    pub bytes: AtomicU64,
}

/// What a program says is not a leak, or may hold pointers: in the process's own memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Exemption {
    /// [`EXEMPT_OBJECT`], [`EXEMPT_REGION`], [`STATED_SUPPRESSIONS`] or [`STATED_OPTIONS`];
    /// anything else: nothing.
    pub kind: AtomicU64,
    /// Address, in an object or of a region's or a text's first byte.
    pub at: AtomicU64,
    /// For an object: the clock's tick when it was said, which later objects at its address do not
    /// inherit. Of a region or a text: bytes.
    pub extent: AtomicU64,
}

/// The object, and what only it holds, is not a leak.
pub const EXEMPT_OBJECT: u64 = 1;
/// What memory of the program's own points to is held.
pub const EXEMPT_REGION: u64 = 2;
/// A text: leaks that are known, in LeakSanitizer's format.
pub const STATED_SUPPRESSIONS: u64 = 3;
/// A text: LeakSanitizer's options.
pub const STATED_OPTIONS: u64 = 4;

/// Addresses in the process from which a reader outside finds all objects of the heap. What is
/// there is laid out as in the jemalloc of [`ABI_VERSION`], 5.3.1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapGlobals {
    /// jemalloc's `arena_emap_global`: the radix tree of all extents.
    pub emap: u64,
    /// jemalloc's `arenas`: pointers to all arenas.
    pub arenas: u64,
    /// jemalloc's page size, bytes.
    pub page: u64,
    /// A word that holds the first address of the range of sampled objects; 0 before there is one.
    pub range_base: u64,
    /// A word that holds the size of that range, bytes.
    pub range_size: u64,
}

/// Status that the agent publishes while it runs.
#[repr(C)]
pub struct Status {
    /// Last session that ended while the process lived: by the agent at its deadline, or by a
    /// controller.
    pub ended_session: AtomicU64,
    /// When it did, ns of [`crate::clock::now_ns`].
    pub ended_ns: AtomicU64,
    /// Last session that a controller wrote out (the controller's word).
    pub collected_session: AtomicU64,
    /// 1: the process ended in order (its destructors ran).
    pub exited: AtomicU64,
    /// Bytes of address space reserved for sampled objects.
    pub range_bytes: AtomicU64,
    /// The allocator's own statistics, refreshed at most once a second while sampling.
    pub allocator: AllocatorStats,
    /// Modules that found no room in the table.
    pub modules_lost: AtomicU64,
    /// Why the agent does not sample, one of the `REFUSES_` constants; 0: nothing is known
    /// that would keep it from it.
    pub refuses: AtomicU32,
    /// `errno` of the call that failed, for [`REFUSES_MEMORY`].
    pub refuses_errno: AtomicU32,
    /// One of the `AT_EXIT_` constants.
    pub at_exit: AtomicU64,
    /// Version of the Python interpreter that was met, as `PY_VERSION_HEX` has it; 0: none.
    pub python_version: AtomicU32,
    /// One of the `PYTHON_` constants, with [`PYTHON_HIDES`] and [`PYTHON_UNLOCKED`].
    pub python: AtomicU32,
}

/// There is an interpreter, and no stack of its has been read yet.
pub const PYTHON_MET: u32 = 0;
/// Its frames are in the stacks.
pub const PYTHON_NAMED: u32 = 1;
/// Its version is none of those whose data the agent knows.
pub const PYTHON_UNKNOWN: u32 = 2;
/// Its data are not as its version has them: its frames are left out.
pub const PYTHON_DIFFERS: u32 = 3;
/// It was in a library that has been unloaded.
pub const PYTHON_GONE: u32 = 4;
/// Set beside one of these: its environment leaves small objects to an allocator of its own.
pub const PYTHON_HIDES: u32 = 1 << 8;
/// Set beside one of these: it is a build without a global lock.
pub const PYTHON_UNLOCKED: u32 = 1 << 9;

/// The process exits, and stands still until a controller has checked it for leaks.
pub const AT_EXIT_WAITS: u64 = 1;
/// It was checked, and may go (the controller's word).
pub const AT_EXIT_CHECKED: u64 = 2;
/// A controller knows that it waits, and will check it (the controller's word).
pub const AT_EXIT_SEEN: u64 = 3;
/// The program wants no check at its exit, or has made it itself.
pub const AT_EXIT_UNCHECKED: u64 = 4;

/// The program has a sanitizer's allocator (AddressSanitizer, LeakSanitizer, …), which the
/// agent leaves in charge.
pub const REFUSES_SANITIZER: u32 = 1;
/// The program has put itself under a seccomp filter since it started: the agent makes no
/// system call that the filter may not expect.
pub const REFUSES_SECCOMP: u32 = 2;
/// The tables could not be mapped.
pub const REFUSES_MEMORY: u32 = 3;
/// The C library is musl.
pub const REFUSES_MUSL: u32 = 4;

/// jemalloc's `stats.*`, bytes; zeros where the program keeps its own allocator.
#[repr(C)]
pub struct AllocatorStats {
    /// When they were taken, ns of [`crate::clock::now_ns`]; 0: never. Also a sign of life.
    pub taken_ns: AtomicU64,
    /// Bytes in live objects, as the allocator rounds them.
    pub allocated: AtomicU64,
    /// Bytes in pages that hold live objects.
    pub active: AtomicU64,
    /// Bytes of the allocator's own bookkeeping.
    pub metadata: AtomicU64,
    /// Bytes physically mapped by the allocator.
    pub resident: AtomicU64,
    /// Bytes in active extents.
    pub mapped: AtomicU64,
    /// Address space kept for reuse.
    pub retained: AtomicU64,
}

/// Bits of an address in a node.
pub const ADDRESS_BITS: u32 = 48;

/// Maximum number of modules kept.
pub const MODULE_CAPACITY: usize = 1024;
/// Bytes for the modules' paths.
pub const MODULE_PATH_BYTES: usize = HEADER_BYTES - MODULES_OFFSET - 64 - MODULE_CAPACITY * 80;

/// The executable mappings that stacks may point into, present and past.
#[repr(C)]
pub struct ModuleTable {
    /// Entries claimed.
    pub count: AtomicU32,
    /// Bytes of `paths` claimed.
    pub path_bytes: AtomicU32,
    /// Zero.
    pub reserved: [u64; 7],
    /// The entries; those with `ready == 0` are being written.
    pub entries: [Module; MODULE_CAPACITY],
    /// Paths, back to back, not terminated.
    pub paths: [u8; MODULE_PATH_BYTES],
}

/// One executable mapping.
#[repr(C)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// Offset of the path in [`ModuleTable::paths`].
    pub path_offset: u32,
    /// Length of the path.
    pub path_len: u32,
    /// 1 once the entry is valid.
    pub ready: AtomicU32,
    /// Tick at which it was found unloaded, or 0 while it is mapped.
    pub unloaded_tick: AtomicU32,
    /// Bytes used in `build_id`.
    pub build_id_len: u32,
    /// Build id.
    pub build_id: [u8; 32],
    /// Number of modules that were at its addresses before: what the addresses of its frames carry
    /// above [`ADDRESS_BITS`].
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
    fn epochs_alternate_in_parity_and_never_look_like_none() {
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
        assert_eq!(size_of::<Params>(), 64);
        assert_eq!(size_of::<Control>(), 224);
        assert_eq!(offset_of!(Control, cpu), 192);
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
        assert_eq!(offset_of!(BankHeader, most_units), 32);
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
        assert_eq!(size_of::<Record>(), 256);
        assert_eq!(offset_of!(Record, alloc_object_variance), 56);
        assert_eq!(offset_of!(Record, free_samples), 64);
        assert_eq!(offset_of!(Record, free_object_variance), 112);
        assert_eq!(offset_of!(Record, size_class), 10);
        assert_eq!(offset_of!(Record, peak_epoch), 12);
        assert_eq!(offset_of!(Record, free_short), 120);
        assert_eq!(offset_of!(Record, kept_epoch), 128);
        assert_eq!(offset_of!(Record, kept), 144);
    }
}
