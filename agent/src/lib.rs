//! `libmem_agent.so`: when preloaded into a process, it becomes the process's `malloc`.
//!
//! # Promises
//! - When off, it costs one load and one predicted branch per allocation, one compare per
//!   free, and no memory beyond its own code and three pages.
//! - When on, each thread samples on average one allocation every `interval` bytes, walks its own
//!   stack and counts the sample in the shared segment (`shm-protocol`). Nothing else leaves the
//!   process; whoever can read the segment has the profile.
//! - It never allocates from the heap it hooks, never takes a lock of its own (except that a
//!   thread's first sample may wait up to 0.1 s, once per process, while another thread maps the
//!   address range for sampled objects), never calls the loader after start-up, never panics, never
//!   prints, and preserves `errno`. A program may request profiles and leak checks through other
//!   profilers' functions or `HEAPCHECK`. For such a request the agent starts the controller; the
//!   calling thread waits, as do other threads that make a request at the same time. One line is
//!   printed if that fails.
//! - Only a session that samples CPU time installs a signal handler, and timers that trigger it.
//!   Both are removed once the session is over, or when the program installs a seccomp filter; if
//!   the program starts to use their signal, they switch to another one. `CPUPROFILESIGNAL` and
//!   `HEAPPROFILESIGNAL` request further handlers.
//! - Failing to profile is acceptable: without a segment, without address space or without an
//!   unwind rule for a frame, the agent records less and counts what is missing in the segment's
//!   counters, and the program continues.
//!
//! # Caller's duties
//! - preload it before the program starts (`LD_PRELOAD`): its thread-local storage is
//!   initial-exec, which `dlopen` cannot provide;
//! - allocate through the C library's names: the agent sees nothing of a program with a statically
//!   linked allocator of its own.
//!
//! # Modules
//! In reading order: each uses only those before it, in rows above or to its left. Only `cpu` and
//! `cpu_profile` use each other.
//!
//! | module | contents |
//! |---|---|
//! | `local`, `arch`, `float_environment`, `probes` | a thread's initial state; assembly; the program's floating-point environment; tracepoints |
//! | `symbol_table`, `musl`, `sys` | a library's own symbol tables; recognition of musl; system calls, memory, text |
//! | `definitions`, `environment` | which modules define a symbol, and hiding ours; environment variables, even before libc has started |
//! | `c_library`, `ample_stack`, `seccomp` | the C library's functions, by address; a stack for work at start-up; the process's seccomp filters |
//! | `backend`, `own` | the underlying allocator; the memory that the agent keeps for itself |
//! | `fork_locks`, `atfork` | locks to hold across a fork that jemalloc does not take itself; fork handlers |
//! | `exemptions`, `hooks` | what the program exempts from leak reports; functions that it defines for leak checkers to call |
//! | `library`, `scratch` | this library's file, and where it lies; clearing what a leak check must not find |
//! | `cycles`, `ends`, `tid` | the process's cycle counter; ends of stacks; the ids of threads |
//! | `request`, `checks`, `on_signal` | starting the controller for a request of the program; the program's own leak checks; handlers of signals by which a user requests a profile |
//! | `headers`, `huge_pages`, `object`, `range` | the table of object headers; mappings without huge pages; sampled objects; the range in which they lie |
//! | `keeping`, `renewal` | how much freed memory jemalloc keeps; freed large objects come back as new pages |
//! | `exhaustion`, `wrapped` | what jemalloc does when memory is exhausted; its system calls |
//! | `zeroing` | zeroing of memory without writing to new pages |
//! | `timers` | timers on threads' CPU time |
//! | `session`, `cpu_totals` | the segment and its life cycle, epochs; where a session's CPU time is counted |
//! | `module`, `python` | loaded code and its unwind rules; the frames of a Python interpreter |
//! | `stats`, `trial`, `cost` | work once a second; trials; the cost of sampling, and the interval that it allows |
//! | `thread`, `fork` | a thread's memory for sampling; leaving the parent's session |
//! | `cpu`, `cpu_profile`, `heap_watch` | samples of CPU time; profiles of it that the program requests; dumps of `HEAPPROFILE` |
//! | `exit`, `image`, `limits` | the process's exit; where the agent's own memory is; limits that the program sets itself |
//! | `sample`, `entry`, `init` | the slow path; entry points, the fast path; initialisation |
//!
//! Large statics that an idle process does not write to are in a section of their own,
//! `.llvm.linkonce.b.rare`, so that the others lie on few pages. The compiler gives a section of
//! that name no bytes in the file, and no linker merges it into `.bss`, which precedes it.
#![cfg_attr(not(test), no_std)]

// Linkers place sections of one kind in the order in which they first see them. With small pages,
// the state comes before the mapped control file, where there is room; after it, `.bss` would end
// one page later.
#[cfg(all(not(test), target_arch = "x86_64"))]
core::arch::global_asm!(
    ".pushsection mem_agent_state, \"aw\", @progbits",
    ".popsection"
);

// `session::CONTROL`, which the control file is mapped over, has pages of its own. It is the first
// section with data, so that it does not separate the pages that an idle process writes. `.bss` is
// the first section without bytes in the file. The rest of the order is in `sections.ld`.
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection mem_agent_control, \"awR\", %progbits",
    ".popsection",
    ".pushsection .bss.mem_agent_first, \"awR\", %nobits",
    ".zero 8",
    ".popsection"
);

// Pads the code, after the section of the fork handlers, to a multiple of 16 KiB. The loader writes
// to the data that follow. In memory, they begin at the same offset within a page as in the file,
// so with padding they begin with a page and lie on as few pages as possible. Padding to 64 KiB
// would add more to the file. With pages of 4 KiB, padding costs one page more than it saves.
#[cfg(all(not(test), target_arch = "aarch64"))]
core::arch::global_asm!(
    ".pushsection mem_agent_fork, \"ax\", %progbits",
    ".popsection",
    ".pushsection mem_agent_last, \"axR\", %progbits",
    ".balign 16384",
    "udf #0",
    ".popsection"
);

// Decision 23: no `std` in the agent.
#[cfg(test)]
extern crate std;

mod ample_stack;
mod arch;
mod atfork;
mod backend;
#[cfg_attr(test, path = "c_library/unresolved.rs")]
mod c_library;
mod checks;
mod cost;
mod cpu;
mod cpu_profile;
mod cpu_totals;
mod cycles;
mod definitions;
mod ends;
mod entry;
mod environment;
mod exemptions;
#[cfg(not(test))]
mod exhaustion;
mod exit;
mod float_environment;
mod fork;
#[cfg(not(test))]
mod fork_locks;
mod headers;
mod heap_watch;
mod hooks;
#[cfg(not(test))]
mod huge_pages;
mod image;
mod init;
#[cfg(not(test))]
mod keeping;
mod library;
#[cfg(not(test))]
mod limits;
mod local;
mod module;
mod musl;
mod object;
mod on_signal;
mod own;
mod probes;
mod python;
mod range;
#[cfg(not(test))]
mod renewal;
mod request;
mod sample;
mod scratch;
mod seccomp;
mod session;
mod stats;
mod symbol_table;
mod sys;
mod thread;
mod tid;
mod timers;
mod trial;
#[cfg(not(test))]
mod wrapped;
mod zeroing;

/// This library must not panic; if it does, the process cannot continue.
#[cfg(not(test))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: takes no argument and does not return.
    unsafe { libc::abort() }
}

// The precompiled core library refers to this symbol in its frame tables, for languages that unwind
// through them; nothing here does.
#[cfg(not(test))]
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    ".byte 0",
);
