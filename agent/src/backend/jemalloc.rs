//! All of jemalloc that the agent uses: its functions, and internals of version 5.3.1. No other
//! module names them, except those with functions that the linker redirects (`exhaustion`,
//! `wrapped`, `zeroing`).

#[cfg(not(test))]
use core::ffi::{CStr, c_uint};
use core::ffi::{c_int, c_void};
#[cfg(not(test))]
use core::sync::atomic::{AtomicBool, AtomicUsize};
use core::sync::atomic::{AtomicI32, AtomicIsize, AtomicPtr, AtomicU32};

pub use tikv_jemalloc_sys::*;

/// Symbolic link whose target jemalloc reads options from.
#[cfg(not(test))]
pub const OPTIONS_LINK: &CStr = c"/etc/_rjem_malloc.conf";
/// Environment variable that jemalloc reads options from.
#[cfg(not(test))]
pub const OPTIONS_VARIABLE: &CStr = c"_RJEM_MALLOC_CONF";

/// jemalloc's `arena_t`.
pub type Arena = c_void;
/// `MALLOCX_ARENA_LIMIT`.
pub const MAX_ARENAS: usize = (1 << 12) - 1;
/// `malloc_init_initialized`.
pub const INITIALISED: c_int = 0;
/// jemalloc's `extent_state_dirty`.
#[cfg(not(test))]
pub const DIRTY: c_int = 1;

/// Head of jemalloc 5.3.1's `bin_info_t`.
#[repr(C)]
pub struct BinInfo {
    _object: usize,
    /// Size of a slab in bytes.
    pub slab: usize,
}

unsafe extern "C" {
    pub fn _rjem_memalign(align: usize, size: usize) -> *mut c_void;

    /// State of jemalloc's initialisation.
    #[link_name = "_rjem_je_malloc_init_state"]
    pub static INIT_STATE: AtomicI32;
    /// jemalloc's option `lg_tcache_nslots_mul`: log2 of how many objects of a small size class a
    /// thread caches, in objects of a slab; between the least and the most that other options set.
    #[link_name = "_rjem_je_opt_lg_tcache_nslots_mul"]
    pub static LG_CACHED_SLABS: AtomicIsize;
    /// jemalloc's option `narenas_ratio`: arenas for each processor, in 65,536ths.
    #[link_name = "_rjem_je_opt_narenas_ratio"]
    pub static ARENAS_PER_PROCESSOR: AtomicU32;
    /// jemalloc's size classes of small requests, one entry for each 8 bytes. Filled when it is
    /// initialised.
    #[link_name = "_rjem_je_sz_size2index_tab"]
    pub static mut CLASS_OF_REQUEST: [u8; 3];
    /// jemalloc's tree of all pages (`emap_t`). Declared as a byte, because only its address is
    /// used.
    #[link_name = "_rjem_je_arena_emap_global"]
    pub static EMAP: u8;
    #[link_name = "_rjem_je_arenas"]
    pub static ARENAS: [AtomicPtr<Arena>; MAX_ARENAS];
    /// Hooks of arenas for which nobody has set others.
    #[link_name = "_rjem_je_ehooks_default_extent_hooks"]
    pub static DEFAULT_HOOKS: extent_hooks_t;
    /// Returns an arena's `ehooks_t`.
    #[link_name = "_rjem_je_arena_get_ehooks"]
    pub fn hooks_of(arena: *mut Arena) -> *const c_void;
    /// First entry of jemalloc's table of small size classes. Its slabs have one page.
    #[link_name = "_rjem_je_bin_infos"]
    pub static FIRST_BIN: BinInfo;
}

/// Offset of the mutex in `rtree_t`, in bytes: it follows a pointer.
#[cfg(not(test))]
pub const TREE_MUTEX_OFFSET: usize = 8;

#[cfg(not(test))]
unsafe extern "C" {
    /// Number of arenas that threads are assigned to; some may not exist yet.
    #[link_name = "_rjem_je_narenas_auto"]
    pub static AUTOMATIC_ARENAS: AtomicU32;
    /// jemalloc's option `retain`: addresses are kept when their memory is returned.
    #[link_name = "_rjem_je_opt_retain"]
    pub static RETAIN: AtomicBool;
    /// jemalloc's option `lg_extent_max_active_fit`: log2 of how much larger than a request an
    /// unused extent may be to be split for it.
    #[link_name = "_rjem_je_opt_lg_extent_max_active_fit"]
    pub static MAX_FIT: AtomicUsize;
    /// Index of the arena for large objects; 0 before jemalloc is initialised.
    #[link_name = "_rjem_je_huge_arena_ind"]
    pub static LARGE_ARENA: AtomicU32;
    /// jemalloc's option `oversize_threshold`: number of adjacent free bytes that are returned at
    /// once. Arenas read it when they are created, with jemalloc's lock on the arenas held.
    #[link_name = "_rjem_je_oversize_threshold"]
    pub static OVERSIZE_THRESHOLD: AtomicUsize;
    #[link_name = "_rjem_je_opt_dirty_decay_ms"]
    pub static DECAY_MS: AtomicIsize;

    /// Mode of transparent huge pages that jemalloc has read from the system.
    #[link_name = "_rjem_je_init_system_thp_mode"]
    pub static HUGE_PAGE_MODE: AtomicU32;

    /// Locks a mutex before a fork. The functions below unlock it in the parent, and initialise it
    /// again in the child. The first argument is not used.
    #[link_name = "_rjem_je_malloc_mutex_prefork"]
    pub fn lock_for_fork(thread: *mut c_void, mutex: *mut c_void);
    #[link_name = "_rjem_je_malloc_mutex_postfork_parent"]
    pub fn unlock_in_parent(thread: *mut c_void, mutex: *mut c_void);
    #[link_name = "_rjem_je_malloc_mutex_postfork_child"]
    pub fn unlock_in_child(thread: *mut c_void, mutex: *mut c_void);

    /// Frees jemalloc's data for an exiting thread.
    #[link_name = "_rjem_je_tsd_cleanup"]
    pub fn tsd_cleanup(data: *mut c_void);
    #[link_name = "_rjem_je_arena_nthreads_get"]
    pub fn threads_of(arena: *mut Arena, internal: bool) -> c_uint;
    /// Returns an extent's pages to the system, and keeps its addresses if jemalloc retains them.
    #[link_name = "_rjem_je_extent_dalloc_wrapper"]
    pub fn return_extent(
        thread: *mut c_void,
        cache: *mut c_void,
        hooks: *mut c_void,
        extent: *mut c_void,
    );
    /// Returns an arena's unused memory to the system; all of it if `all`.
    #[link_name = "_rjem_je_arena_decay"]
    pub fn decay(thread: *mut c_void, arena: *mut Arena, is_background: bool, all: bool);
    #[link_name = "_rjem_je_arena_decay_ms_set"]
    pub fn set_decay(thread: *mut c_void, arena: *mut c_void, state: c_int, ms: isize) -> bool;
}
