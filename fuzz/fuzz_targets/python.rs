//! An interpreter's memory: thread states, frames, code objects, strings, all of them the input's.
//!
//! The input's words lie right before memory that cannot be read. The uppermost byte of some words
//! marks them: they are replaced by an address in the input, an address of a type that objects must
//! have, or the thread's own number. The last words of the input change others between two samples.
#![no_main]

use std::alloc::{Layout as Memory, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cpython::layout::{self, COOKIE, Layout, MAX_FRAME_BYTES, RUNTIME_WORDS};
use libfuzzer_sys::{Corpus, fuzz_target};
use python_frames::{Code, Frames, Host, Runtime, Session};
use shm_protocol::Bank;
use shm_protocol::bank::Geometry;
use shm_protocol::codes::frame_of;
use unwind::Registers;
use unwind::interpreter::NativeStack;
use unwind::stack::{Memory as _, Stack};

const PAGE: usize = 4096;
/// Number of pages for the input, between the page of the types and one that cannot be read.
const PAGES: usize = 4;
const MAX_WORDS: usize = PAGES * PAGE / 8;
/// Number of native frames of a walk.
const NATIVE_FRAMES: u64 = 8;
const BANK_BYTES: usize = 1 << 20;

/// Uppermost bytes of words that stand for addresses.
const INSIDE: u64 = 0xa5;
const TYPE: u64 = 0xa6;
const THREAD: u64 = 0xa7;

/// Maps zeroed memory. Returns null if there is none.
fn map(bytes: usize) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is requested, so nothing that is mapped is replaced.
    let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        null_mut()
    } else {
        at
    }
}

/// This process, with the bank of one session.
struct Process<'a>(&'a Bank<'a>);

impl Host for Process<'_> {
    fn map(&self, bytes: usize) -> *mut c_void {
        map(bytes)
    }

    unsafe fn unmap(&self, at: *mut c_void, bytes: usize) {
        // SAFETY: the caller passes a mapping of `map` that nobody uses any more.
        unsafe { libc::munmap(at, bytes) };
    }

    fn reserve_codes(&self, bytes: usize) -> bool {
        self.0.codes.reserve(bytes);
        self.0.codes.reserved() >= bytes
    }

    fn record_success(&self) {}

    fn record_failure(&self) {}
}

/// Returns the address of the page of the types. The input's pages follow it.
fn place() -> u64 {
    static PLACE: OnceLock<u64> = OnceLock::new();
    *PLACE.get_or_init(|| {
        let at = map((PAGES + 2) * PAGE);
        assert!(!at.is_null());
        // SAFETY: its last page, which nobody uses.
        let hidden =
            unsafe { libc::mprotect(at.byte_add((PAGES + 1) * PAGE), PAGE, libc::PROT_NONE) };
        assert_eq!(hidden, 0);
        let place = at as u64;
        for (number, name) in [b"code\0\0\0\0", b"str\0\0\0\0\0", b"bytes\0\0\0"]
            .into_iter()
            .enumerate()
        {
            let number = number as u64;
            write(
                place + number * 64 + layout::TYPE_NAME_OFFSET,
                place + 1024 + number * 8,
            );
            write(place + 1024 + number * 8, u64::from_le_bytes(*name));
        }
        place
    })
}

/// Returns the end of what can be read.
fn end() -> u64 {
    place() + ((PAGES + 1) * PAGE) as u64
}

fn write(at: u64, word: u64) {
    // SAFETY: callers name words of the pages of `place`, which stay mapped and which one thread
    // uses.
    unsafe { (at as *mut u64).write_unaligned(word) };
}

/// Returns what a word stands for, in an input that begins at `start`.
fn meaning(word: u64, start: u64) -> u64 {
    match word >> 56 {
        INSIDE => start + (word & 0x3fff),
        TYPE => place() + (word & 3) * 64,
        // SAFETY: takes nothing.
        THREAD => (unsafe { libc::pthread_self() }) as u64,
        _ => word,
    }
}

/// Returns the layouts of all versions; `_PyRuntime` is where the input begins.
fn layouts() -> Vec<Layout> {
    let versions = [0x0309_0000, 0x030a_0000, 0x030b_0000, 0x030c_0000];
    let known = versions.into_iter().filter_map(layout::for_version);
    let own = [0x030d_00f0, 0x030e_00f0, 0x030f_00f0];
    // With a global lock, and without one.
    let all = [0, 1]
        .into_iter()
        .flat_map(|threaded| own.map(|version| (version, threaded)));
    let near = all.map(|(version, threaded)| {
        published(version, threaded, |number| (number as u64 % 8 + 1) * 8)
    });
    // Frames are read to their limit.
    let far = |number| MAX_FRAME_BYTES - 8 - number as u64 % 3 * 8;
    let far = own.map(|version| published(version, 1, far));
    known.chain(near).chain(far).collect()
}

/// Returns the layout of a version that publishes it: words with the results of `offset`.
fn published(version: u64, threaded: u64, offset: impl Fn(usize) -> u64) -> Layout {
    let mut words: [u64; RUNTIME_WORDS] = std::array::from_fn(offset);
    [words[0], words[1], words[2]] = [COOKIE, version, threaded];
    match layout::published(&words) {
        Some((_, Some(layout))) => layout,
        _ => unreachable!("a version that is known"),
    }
}

/// Returns an empty bank, in memory that all inputs share.
fn bank() -> Bank<'static> {
    static AT: OnceLock<usize> = OnceLock::new();
    let at = *AT.get_or_init(|| map(BANK_BYTES) as usize) as *mut u8;
    assert!(!at.is_null());
    // SAFETY: of this size, and nobody else's; a bank of zeros is empty.
    unsafe { at.write_bytes(0, BANK_BYTES) };
    let geometry = Geometry::of_segment(BANK_BYTES);
    // SAFETY: all of it is mapped, forever.
    unsafe { Bank::at(at, geometry) }
}

/// Returns the interpreter of a version, whose lists begin with the input at `start`.
fn interpreter(version: u8, start: u64) -> Runtime {
    static ALL: OnceLock<Vec<Layout>> = OnceLock::new();
    let all = ALL.get_or_init(layouts);
    let layout = all[usize::from(version) % all.len()];
    let at = place() + 2048;
    write(at + layout.interpreters, start);
    Runtime {
        at,
        layout,
        evaluation: Code {
            start: 0,
            end: u64::MAX,
        },
        may_unload: layout.extra_header_bytes != 0,
        unmaps_freed: false,
    }
}

/// A thread's frames, and what they are read from.
struct Input<'a> {
    frames: &'a mut Frames,
    runtime: &'a Runtime,
    session: &'a Session<'a>,
    /// Stack pointer of the innermost frame.
    sp: u64,
}

impl Input<'_> {
    /// Takes a sample of a thread that runs.
    fn sample(&mut self) {
        self.read(false);
    }

    /// Takes a sample of a thread that a signal has interrupted, if `is_interrupted`.
    fn read(&mut self, is_interrupted: bool) {
        let sp = self.sp;
        let mut stack = Stack::at(sp);
        let _ = stack.read(end() - 8);
        let frame = |index: usize| Registers {
            ip: 0x1000,
            sp: sp + (end() - sp) / NATIVE_FRAMES * index as u64,
            fp: 0,
        };
        let native_stack = NativeStack::new(stack.known(), NATIVE_FRAMES as usize, &frame);
        // SAFETY: the interpreter's memory is the input's, and stays mapped.
        let interpreter_frames = unsafe {
            if is_interrupted {
                self.frames
                    .read_interrupted(self.runtime, &native_stack, self.session)
            } else {
                self.frames.read(self.runtime, &native_stack, self.session)
            }
        };
        assert!(interpreter_frames.unchanged <= interpreter_frames.frames.len());
        // The name of a code object is read again from the written data.
        let named = interpreter_frames.frames.iter();
        assert!(named.clone().all(|frame| frame_of(frame.address).is_some()));
        self.frames.forget_interrupted();
    }
}

fuzz_target!(|data: &[u8]| -> Corpus {
    let [version, part, changes, rest @ ..] = data else {
        return Corpus::Reject;
    };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut words: Vec<u64> = rest.chunks_exact(8).map(word).collect();
    let changes = usize::from(*changes).min(words.len() / 2);
    let changes = words.split_off(words.len() - changes);
    if words.is_empty() || words.len() > MAX_WORDS {
        return Corpus::Reject;
    }
    let count = words.len() as u64;
    let start = end() - count * 8;
    for (number, word) in (0..).zip(&words) {
        write(start + number * 8, meaning(*word, start));
    }
    static SESSIONS: AtomicU64 = AtomicU64::new(1);
    let runtime = interpreter(*version, start);
    let bank = bank();
    let session = Session {
        number: SESSIONS.fetch_add(1, Ordering::Relaxed),
        codes: &bank.codes,
        host: &Process(&bank),
    };
    let memory = Memory::new::<Frames>();
    // SAFETY: it has a size; zeroed memory is what a thread begins with.
    let frames = unsafe { alloc_zeroed(memory) }.cast::<Frames>();
    let is_interrupted = version & 0x80 != 0;
    let mut input = Input {
        // SAFETY: just allocated, zeroed, and freed only below.
        frames: unsafe { &mut *frames },
        runtime: &runtime,
        session: &session,
        sp: end() - (count * u64::from(*part) / 256).max(1) * 8,
    };
    input.sample();
    input.read(is_interrupted);
    for change in changes {
        // The upper bits are the index of the word, the lower ones its new value: 24 bits, and 8
        // bits for the uppermost byte.
        let (number, value) = (change >> 40 & 0xffff, change & 0xff_ffff_ffff);
        let value = value & 0xff_ffff | value >> 32 << 56;
        write(start + number % count * 8, meaning(value, start));
    }
    input.read(is_interrupted);
    input.frames.forget_last();
    input.sample();
    // SAFETY: allocated above with this layout; `input` is not used any more.
    unsafe { dealloc(frames.cast(), memory) };
    Corpus::Keep
});
