//! Functions that the C library lacks and the agent offers: those of jemalloc, gperftools and
//! LeakSanitizer, and of C libraries newer than the process's.
//!
//! Their names are not reserved: libraries of the program may have other functions with the same
//! names, and the loader finds those of a preloaded library first. So:
//!
//! - If a library that the program is linked with has a function of that name, the entry jumps
//!   there, with all arguments unchanged. An exception is an allocator library, which defines
//!   `malloc` and `free`: it is replaced as a whole.
//! - Calls from the program and these libraries are bound before the agent's constructor runs, or
//!   by it. Then the names are hidden ([`definitions::hide`]), except for those of an allocator
//!   library that is replaced. So a library that is loaded later finds what it would find without
//!   the agent: its own function, another library's, or none.
//! - `dlsym` still finds the functions that no module has.

use super::{cpu_profiler, gperftools, heap_profiler, jemalloc_api, sanitizer, statistics};
use crate::arch::{jump_by_target, resolve_and_jump};
use crate::definitions::{self, Name, hash_of};
use crate::{entry, sys};
use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Function that the agent offers.
#[repr(C)]
struct Offered {
    /// Function that the entry jumps to; null until [`resolve_targets`] has run. Must be the first
    /// word: the entry reads it.
    target: AtomicPtr<c_void>,
    /// The agent's own function.
    our_function: *mut c_void,
    /// Address of the exported symbol.
    entry: *mut c_void,
}

// SAFETY: the pointers are addresses of functions.
unsafe impl Sync for Offered {}

resolve_and_jump!(first, resolve_targets);

macro_rules! offered {
    ($($symbol:ident = $own:path,)*) => {
        /// Targets of the entries.
        #[allow(non_upper_case_globals)]
        mod targets {
            use super::*;
            $(pub static $symbol: Offered = Offered {
                target: AtomicPtr::new(null_mut()),
                our_function: $own as *mut c_void,
                entry: exported::$symbol as *mut c_void,
            };)*
        }

        /// The entries.
        #[allow(non_snake_case)]
        mod exported {
            use super::*;
            $(jump_by_target!($symbol, targets::$symbol, else first);)*
        }

        static ALL: [&Offered; [$(stringify!($symbol)),*].len()] = [$(&targets::$symbol),*];
        /// All names, each with its terminating zero. Pointers to them would have to be relocated
        /// at each start.
        const NAMES: &str = concat!($(stringify!($symbol), "\0",)*);
    };
}

// Functions of newer C libraries, jemalloc, gperftools and LeakSanitizer.
offered! {
    free_sized = entry::free_sized,
    free_aligned_sized = entry::free_aligned_sized,
    reallocarray = entry::reallocarray,
    mallinfo2 = statistics::mallinfo2,
    mallocx = jemalloc_api::mallocx,
    rallocx = jemalloc_api::rallocx,
    xallocx = jemalloc_api::xallocx,
    sallocx = jemalloc_api::sallocx,
    dallocx = jemalloc_api::dallocx,
    sdallocx = jemalloc_api::sdallocx,
    nallocx = jemalloc_api::nallocx,
    mallctl = jemalloc_api::mallctl,
    mallctlnametomib = jemalloc_api::mallctlnametomib,
    mallctlbymib = jemalloc_api::mallctlbymib,
    malloc_stats_print = jemalloc_api::malloc_stats_print,
    _ZN15HeapLeakCheckerC1EPKc = gperftools::create_on_clear_stack,
    _ZN15HeapLeakCheckerD1Ev = gperftools::destroy,
    _ZN15HeapLeakChecker9DoNoLeaksENS_15ShouldSymbolizeE = gperftools::has_no_leaks_on_clear_stack,
    _ZNK15HeapLeakChecker11BytesLeakedEv = gperftools::bytes_leaked,
    _ZNK15HeapLeakChecker13ObjectsLeakedEv = gperftools::objects_leaked,
    _ZN15HeapLeakChecker8IsActiveEv = gperftools::is_active,
    _ZN15HeapLeakChecker13GlobalCheckerEv = gperftools::global_checker,
    _ZN15HeapLeakChecker13NoGlobalLeaksEv = gperftools::has_no_global_leaks_on_clear_stack,
    _ZN15HeapLeakChecker17CancelGlobalCheckEv = gperftools::cancel_global_check,
    _ZN15HeapLeakChecker14DoIgnoreObjectEPKv = gperftools::ignore_object,
    _ZN15HeapLeakChecker14UnIgnoreObjectEPKv = gperftools::stop_ignoring_object,
    _ZN15HeapLeakChecker8DisablerC1Ev = gperftools::disable,
    _ZN15HeapLeakChecker8DisablerD1Ev = gperftools::enable,
    _ZN11HeapCleanerC1EPFvvE = gperftools::add_cleaner,
    _Z33HeapLeakChecker_InternalInitStartv = gperftools::start_of_tcmallocs,
    _Z34HeapLeakChecker_BeforeConstructorsv = gperftools::before_constructors_of_tcmallocs,
    _Z32HeapLeakChecker_AfterDestructorsv = gperftools::after_destructors_of_tcmallocs,
    _ZN11HeapCleaner15RunHeapCleanupsEv = gperftools::run_cleaners,
    _ZN15HeapLeakCheckerC2EPKc = gperftools::create_part_on_clear_stack,
    _ZN15HeapLeakCheckerD2Ev = gperftools::destroy_part,
    _ZN15HeapLeakChecker8DisablerC2Ev = gperftools::disable_part,
    _ZN15HeapLeakChecker8DisablerD2Ev = gperftools::enable_part,
    _ZN11HeapCleanerC2EPFvvE = gperftools::add_cleaner_part,
    HeapProfilerStart = heap_profiler::start,
    HeapProfilerStop = heap_profiler::stop,
    HeapProfilerDump = heap_profiler::dump,
    IsHeapProfilerRunning = heap_profiler::is_running,
    GetHeapProfile = heap_profiler::profile,
    ProfilerStart = cpu_profiler::start,
    ProfilerStartWithOptions = cpu_profiler::start_with_options,
    ProfilerStop = cpu_profiler::stop,
    ProfilerFlush = cpu_profiler::flush,
    ProfilerEnable = cpu_profiler::enable,
    ProfilerDisable = cpu_profiler::disable,
    ProfilingIsEnabledForAllThreads = cpu_profiler::is_enabled,
    ProfilerRegisterThread = cpu_profiler::register_thread,
    ProfilerGetCurrentState = cpu_profiler::current_state,
    __lsan_disable = sanitizer::__lsan_disable,
    __lsan_enable = sanitizer::__lsan_enable,
    __lsan_ignore_object = sanitizer::__lsan_ignore_object,
    __lsan_register_root_region = sanitizer::__lsan_register_root_region,
    __lsan_unregister_root_region = sanitizer::__lsan_unregister_root_region,
    __lsan_do_leak_check = sanitizer::do_leak_check_on_clear_stack,
    __lsan_do_recoverable_leak_check = sanitizer::do_recoverable_leak_check_on_clear_stack,
}

/// Bit set of the names that are hidden once the program has started, in the order of [`ALL`].
static HIDDEN: AtomicU64 = AtomicU64::new(0);
const _: () = assert!(ALL.len() <= u64::BITS as usize);

/// Returns all names, in the order of [`ALL`].
fn names() -> impl Iterator<Item = Name<'static>> {
    (0..ALL.len()).map(|index| {
        let text = NAMES.as_bytes().get(usize::from(NAME_OFFSETS[index])..);
        Name::with_hash(text.unwrap_or_default(), HASHES[index])
    })
}

/// Offset of each name in [`NAMES`].
static NAME_OFFSETS: [u16; ALL.len()] = {
    let names = NAMES.as_bytes();
    let (mut offsets, mut index, mut at) = ([0; ALL.len()], 0, 0);
    while index < offsets.len() {
        offsets[index] = at as u16;
        while names[at] != 0 {
            at += 1;
        }
        at += 1;
        index += 1;
    }
    offsets
};

/// Key of each name.
static KEYS: [u32; ALL.len()] = {
    let (mut keys, mut index) = ([0; ALL.len()], 0);
    while index < keys.len() {
        keys[index] = key(name_at(index));
        index += 1;
    }
    keys
};

/// Hash of each name, for searching tables of symbols.
static HASHES: [u32; ALL.len()] = {
    let (mut hashes, mut index) = ([0; ALL.len()], 0);
    while index < hashes.len() {
        hashes[index] = hash_of(name_at(index));
        index += 1;
    }
    hashes
};

/// Returns a name without its terminating zero.
const fn name_at(index: usize) -> &'static [u8] {
    let rest = NAMES.as_bytes().split_at(NAME_OFFSETS[index] as usize).1;
    let mut length = 0;
    while rest[length] != 0 {
        length += 1;
    }
    rest.split_at(length).0
}

/// Filter of the keys: one bit is set for each ([`bit_of`]), so that most names that a program
/// looks up are ruled out at once.
static FILTER: [u64; 4] = {
    let (mut filter, mut index) = ([0; 4], 0);
    while index < ALL.len() {
        let bit = bit_of(key(name_at(index)));
        filter[bit / 64] |= 1 << (bit % 64);
        index += 1;
    }
    filter
};

/// Returns the bit of a key in [`FILTER`], from 0 to 255.
const fn bit_of(key: u32) -> usize {
    (key.wrapping_mul(0x9e37_79b1) >> 24) as usize
}

/// Returns a key that few names share: of the length and three letters.
const fn key(name: &[u8]) -> u32 {
    let length = name.len();
    if length == 0 {
        return 0;
    }
    u32::from_le_bytes([length as u8, name[0], name[length / 2], name[length - 1]])
}

/// Definitions of a function outside the agent.
#[derive(Clone, Copy)]
struct OtherDefinitions {
    is_in_c_library: bool,
    /// True if an allocator library has it, which the agent replaces.
    is_in_allocator: bool,
    /// Address of another module's function, or null.
    function: *mut c_void,
}

/// Value for a function without definitions outside the agent.
const NO_DEFINITION: OtherDefinitions = OtherDefinitions {
    is_in_c_library: false,
    is_in_allocator: false,
    function: null_mut(),
};

/// Stores the target of each entry, once: at start-up, or at the first call of an entry. Keeps
/// `errno`.
extern "C" fn resolve_targets() {
    let saved = sys::errno();
    let others = find_others();
    let mut hidden = 0;
    for (index, (offered, others)) in ALL.iter().zip(others).enumerate() {
        let is_others = !others.is_in_c_library && !others.function.is_null();
        let target = if is_others {
            others.function
        } else {
            offered.our_function
        };
        let stays_visible = others.is_in_c_library || (others.is_in_allocator && !is_others);
        let _ = offered.target.compare_exchange(
            null_mut(),
            target,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        hidden |= u64::from(!stays_visible) << index;
    }
    HIDDEN.store(hidden, Ordering::Relaxed);
    sys::set_errno(saved);
}

/// Finds the definitions of all functions outside the agent, in the order of [`ALL`]. Calls the
/// loader.
fn find_others() -> [OtherDefinitions; ALL.len()] {
    let mut others = [NO_DEFINITION; ALL.len()];
    let mut is_before = true;
    definitions::each_module(|module| {
        if module.is_ours() {
            is_before = false;
            return true;
        }
        const MALLOC: Name = Name::new(c"malloc");
        const FREE: Name = Name::new(c"free");
        let is_replaced = !is_before && module.defines(MALLOC) && module.defines(FREE);
        module.each_defined(names(), |index, function| {
            let others = &mut others[index];
            if module.is_c_library() {
                others.is_in_c_library = true;
            } else if is_replaced {
                others.is_in_allocator = true;
            } else if others.function.is_null() {
                others.function = function;
            }
        });
        true
    });
    others
}

/// Finds the targets of all entries, at start-up.
pub fn find_next() {
    resolve_targets();
}

/// Binds calls of hidden functions that the loader would look up lazily, when it no longer finds
/// them. Called by the constructor: the loader has relocated what the program is linked with by
/// then.
pub fn bind_calls() {
    definitions::each_module(|module| {
        if !module.is_ours() {
            module.bind_lazy_calls(|name| Some(find_hidden(name)?.entry));
        }
        true
    });
}

/// Returns the names of the agent that are hidden from the loader.
pub fn hidden_names() -> impl Iterator<Item = Name<'static>> {
    // Only a sanitizer calls this, and none is in the process.
    const SANITIZERS: Name = Name::new(c"__asan_default_options");
    let hidden = HIDDEN.load(Ordering::Relaxed);
    let offered = names().enumerate();
    let hidden =
        offered.filter_map(move |(index, name)| (hidden >> index & 1 == 1).then_some(name));
    hidden.chain([SANITIZERS])
}

/// Returns the index of a name, if it is hidden.
fn index_of_hidden(name: &CStr) -> Option<usize> {
    // Most names that programs look up are not in the list, and seldom have the key of one that is.
    let key = key(name.to_bytes());
    let bit = bit_of(key);
    if (FILTER[bit / 64] >> (bit % 64)) & 1 == 0 {
        return None;
    }
    let same = |index: &usize| KEYS[*index] == key;
    let index = (0..KEYS.len()).filter(same).find(|index| {
        let rest = NAMES.as_bytes().get(usize::from(NAME_OFFSETS[*index])..);
        rest.is_some_and(|rest| rest.starts_with(name.to_bytes_with_nul()))
    })?;
    (HIDDEN.load(Ordering::Relaxed) >> index & 1 == 1).then_some(index)
}

/// Returns the hidden function with this name, if no module had another one at start-up.
fn find_hidden(name: &CStr) -> Option<&'static Offered> {
    let found = ALL[index_of_hidden(name)?];
    (found.target.load(Ordering::Relaxed) == found.our_function).then_some(found)
}

/// Returns the address that `dlsym` returns for a hidden name, if no other module has such a
/// function. Calls the loader.
pub fn dlsym_result(name: &CStr) -> Option<*mut c_void> {
    let found = find_hidden(name)?;
    (!definitions::is_defined_by_others(Name::new(name))).then_some(found.entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_and_no_other_is_found() {
        HIDDEN.store(u64::MAX, Ordering::Relaxed);
        for (index, name) in names().enumerate() {
            let bytes = name.to_bytes();
            assert_eq!(name.hash(), hash_of(bytes), "{name:?}");
            let name = std::ffi::CString::new(bytes).expect("no zero within");
            assert_eq!(index_of_hidden(&name), Some(index), "{name:?}");
        }
        assert_eq!(hidden_names().count(), ALL.len() + 1);
        assert_eq!(names().count(), ALL.len());
        // The last has the key of `mallocx`.
        for name in [c"", c"malloc", c"mallocx2", c"ProfilerStar", c"mallxcx"] {
            assert_eq!(index_of_hidden(name), None, "{name:?}");
        }
    }
}
