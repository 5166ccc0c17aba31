//! Birth, forks and death of the segment.

use super::identity::{self, Text};
use super::sweep::{self, Pages};
use super::{BASE, BYTES, CONTROL, PAGE, control, status, time};
use crate::thread;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use shm_protocol::clock;
use shm_protocol::layout::{
    Control, DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, Params, RESERVE_STEPS,
};
use shm_protocol::segment::{self, DEFAULT_DIR, Errno, FILE_PREFIX, Views};

/// Interval where the environment starts sampling and names none.
const DEFAULT_INTERVAL: u64 = 1024;
/// Images that one process may execute in turn, each leaving an uncollected profile.
const MAX_IMAGES: u64 = 64;
/// One segment in so many, as a power of two, looks for files that ended processes left
/// behind; all do where the folder is crowded.
const SWEEP_BITS: u32 = 4;

unsafe extern "C" {
    /// glibc: null where the process runs with more rights than its caller.
    fn secure_getenv(name: *const core::ffi::c_char) -> *const core::ffi::c_char;
}

/// The path of our segment, for its end. Written at birth, when one thread runs.
struct Path(UnsafeCell<Text<512>>);
// SAFETY: written only by the constructor and in a forked child, both single-threaded.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new(Text::new()));

/// Pid that the segment belongs to.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// A page that the kernel empties in every child that gets a copy of this memory.
static MARK: AtomicPtr<u32> = AtomicPtr::new(null_mut());

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn() = constructor;
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn constructor() {
    if cfg!(test) {
        return;
    }
    let saved = crate::sample::errno();
    crate::backend::settle();
    crate::module::init();
    thread::make_key();
    crate::stats::start();
    crate::entry::find_next();
    // SAFETY: the handler is async-signal-safe as atfork handlers must be.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    make_mark();
    let start = wants_start().then(|| Start {
        session: 1,
        interval: number(c"MEM_PROFILER_INTERVAL").unwrap_or(DEFAULT_INTERVAL),
        deadline_ns: 0,
    });
    make_segment(segment_bytes(), start, 0, None);
    crate::sample::set_errno(saved);
}

/// A session that starts with the segment.
#[derive(Clone, Copy)]
struct Start {
    session: u64,
    interval: u64,
    deadline_ns: u64,
}

/// An environment variable, where the process may trust its environment.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: glibc returns null or a terminated string.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// A number with an optional K, M or G (1024s).
fn number(name: &CStr) -> Option<u64> {
    let text = variable(name)?;
    let (digits, shift) = match text.last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let mut value = 0u64;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty())
        .then_some(value.checked_mul(1 << shift)?)
        .filter(|v| *v > 0)
}

fn wants_start() -> bool {
    !crate::backend::stands_aside()
        && variable(c"MEM_PROFILER_START").is_some_and(|v| !v.is_empty() && v != b"0")
}

fn segment_bytes() -> usize {
    number(c"MEM_PROFILER_TABLE")
        .map_or(DEFAULT_SEGMENT_BYTES, |bytes| {
            usize::try_from(bytes).unwrap_or(usize::MAX)
        })
        .clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
        & !0xffff
}

/// Makes the file and maps it, at `over` if that is given (a child replaces its parent's
/// views), and describes the process in it. Without success nothing is shared.
fn make_segment(bytes: usize, start: Option<Start>, forked_from: u32, over: Option<*mut u8>) {
    time::settle();
    let start_time = time::shift().start_time(identity::start_time());
    let made = find_name(bytes, start, start_time, over).or_else(|| {
        // No room for a whole session: at least be there for a controller to start one.
        start.and_then(|_| find_name(bytes, None, start_time, over))
    });
    let Some(base) = made else {
        hide(over);
        return;
    };
    OWNER.store(pid(), Ordering::Relaxed);
    // SAFETY: the new segment, seen by nobody before its magic.
    unsafe { identity::write(base, bytes, start_time, forked_from) };
    BYTES.store(bytes, Ordering::Relaxed);
    BASE.store(base, Ordering::Release);
    if let Some(start) = start {
        begin(start);
    }
}

fn pid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() as u32 }
}

/// The first free name; one that this very process left before it executed another
/// image is used again if nobody needs what is in it.
fn find_name(
    bytes: usize,
    start: Option<Start>,
    start_time: u64,
    over: Option<*mut u8>,
) -> Option<*mut u8> {
    // By chance: the pids of a server's children may all be odd.
    let chance = (clock::unix_ns() ^ u64::from(pid())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if chance >> (64 - SWEEP_BITS) == 0 || sweep::is_crowded(dir()) {
        sweep::sweep(dir());
    }
    let session = start.map(|start| (start.session, first_steps()));
    let views = Views {
        base: over,
        control: Some((CONTROL.0.get().cast(), PAGE)),
    };
    // SAFETY: the views replace our own static and, in a child, its parent's segment.
    let create = |name: &CStr| unsafe { segment::create(name, bytes, session, &views) };
    for image in 0..MAX_IMAGES {
        let path = path_of(start_time, image);
        let name = path.as_c_str()?;
        let mut made = create(name);
        if matches!(made, Err(Errno(libc::EEXIST))) && sweep::is_left_over(name, None) {
            // SAFETY: terminated path of a file that is ours and holds nothing.
            unsafe { libc::unlink(name.as_ptr()) };
            made = create(name);
        }
        if matches!(made, Err(Errno(libc::ENOSPC))) && image == 0 {
            // What nobody needs may be all that is in the way.
            sweep::sweep(dir());
            made = create(name);
        }
        match made {
            Ok(mapping) => {
                // SAFETY: single-threaded here, see `Path`.
                unsafe { *PATH.0.get() = path };
                return Some(mapping.base);
            }
            // What an earlier image of ours left, and somebody has yet to collect.
            Err(Errno(libc::EEXIST)) => sweep::trim(name),
            Err(_) => return None,
        }
    }
    None
}

/// The folder of the segments.
fn dir() -> &'static [u8] {
    let chosen = variable(c"MEM_PROFILER_DIR").filter(|dir| !dir.is_empty());
    chosen.unwrap_or(DEFAULT_DIR.as_bytes())
}

fn path_of(start_time: u64, image: u64) -> Text<512> {
    let mut path = Text::new();
    path.push(dir());
    path.push(b"/");
    path.push(FILE_PREFIX.as_bytes());
    path.push_number(u64::from(pid()));
    path.push(b".");
    path.push_number(start_time);
    path.push(b".");
    path.push_number(image);
    path
}

/// Makes sure that nothing of a parent's segment, nor of one half made, stays in view.
fn hide(over: Option<*mut u8>) {
    BASE.store(null_mut(), Ordering::Release);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: both are views of our own.
    unsafe {
        libc::mmap(CONTROL.0.get().cast(), PAGE, access, flags, -1, 0);
        if let Some(over) = over {
            libc::mmap(
                over.cast(),
                BYTES.load(Ordering::Relaxed),
                access,
                flags,
                -1,
                0,
            );
        }
    }
}

/// Publishes a session of our own making. Its bank was prepared with the segment.
fn begin(start: Start) {
    let Some(bank) = super::bank(start.session) else {
        return;
    };
    if bank.header.session.load(Ordering::Relaxed) != start.session {
        return;
    }
    let control = control();
    let params: &Params = &control.params[1];
    params.session.store(start.session, Ordering::Relaxed);
    params.interval.store(start.interval, Ordering::Relaxed);
    params
        .deadline_ns
        .store(start.deadline_ns, Ordering::Relaxed);
    params.start_ns.store(time::now_ns(), Ordering::Relaxed);
    params
        .start_unix_ns
        .store(clock::unix_ns(), Ordering::Relaxed);
    params.controller_pid.store(0, Ordering::Relaxed);
    control.last_epoch.store(1, Ordering::Relaxed);
    control.epoch.store(1, Ordering::Release);
}

/// Steps of a bank that a session of our own making begins with: an eighth where more can
/// be had later, all where not.
fn first_steps() -> u8 {
    let mark = MARK.load(Ordering::Relaxed);
    let later = !mark.is_null() && super::can_populate(mark.cast());
    if later {
        RESERVE_STEPS / 8
    } else {
        RESERVE_STEPS
    }
}

fn make_mark() {
    let Some(page) = Pages::new(PAGE) else { return };
    // SAFETY: our own page.
    unsafe {
        if libc::madvise(page.start(), PAGE, libc::MADV_WIPEONFORK) == 0 {
            page.start().cast::<u32>().write(1);
            MARK.store(page.start().cast(), Ordering::Relaxed);
            core::mem::forget(page);
        }
    }
}

/// Whether this process is a copy that still sees its parent's segment. One load; on
/// kernels before 4.14 only `fork` itself tells.
#[inline]
fn is_copy() -> bool {
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: mapped for ever once set.
    !mark.is_null() && unsafe { mark.read_volatile() } == 0
}

/// Called before each sample: a child made without `fork`'s handlers gets a segment of
/// its own here. Whether it just did.
#[inline]
pub fn after_unseen_fork() -> bool {
    let copy = is_copy();
    if copy {
        in_child_now();
    }
    copy
}

extern "C" fn in_child() {
    let saved = crate::sample::errno();
    in_child_now();
    crate::sample::set_errno(saved);
}

#[cold]
fn in_child_now() {
    let mark = MARK.load(Ordering::Relaxed);
    if !mark.is_null() {
        // SAFETY: our own page, mapped for ever.
        unsafe { mark.write_volatile(1) };
    }
    let parent = OWNER.load(Ordering::Relaxed);
    let Some(base) = super::base().filter(|_| parent != pid()) else {
        return;
    };
    let start = inherited(control());
    // SAFETY: the calling thread's own words. What it drew was for its parent's epoch.
    unsafe { (*crate::arch::local()).epoch = 0 };
    super::keep_only_shard(thread::own_shard());
    make_segment(BYTES.load(Ordering::Relaxed), start, parent, Some(base));
    crate::module::publish_all();
}

/// The session that the parent was in goes on in the child, as one of its own.
fn inherited(control: &Control) -> Option<Start> {
    let epoch = control.epoch.load(core::sync::atomic::Ordering::Acquire);
    let params = &control.params[usize::from(epoch & 1)];
    (epoch != 0).then(|| Start {
        session: params.session.load(Ordering::Relaxed) + 1,
        interval: params.interval.load(Ordering::Relaxed).max(1),
        deadline_ns: params.deadline_ns.load(Ordering::Relaxed),
    })
}

/// At the process's end: the segment goes, unless it holds a profile to collect.
extern "C" fn destructor() {
    let owner = OWNER.load(Ordering::Relaxed);
    if cfg!(test) || owner == 0 || owner != pid() || is_copy() {
        return;
    }
    let saved = crate::sample::errno();
    let last = control()
        .last_epoch
        .load(core::sync::atomic::Ordering::Relaxed);
    let session = control().params[usize::from(last & 1)]
        .session
        .load(Ordering::Relaxed);
    if let Some(status) = status() {
        let collected = status.collected_session.load(Ordering::Relaxed);
        // Whoever sees that sampling is off must see why.
        status.exited.store(1, Ordering::Relaxed);
        control().epoch.store(0, Ordering::Release);
        // SAFETY: single-threaded write at birth; only read since.
        let path = unsafe { (*PATH.0.get()).as_c_str() };
        match path {
            // SAFETY: terminated path.
            Some(path) if last == 0 || collected >= session => unsafe {
                libc::unlink(path.as_ptr());
            },
            Some(path) => sweep::trim(path),
            None => {}
        }
    }
    crate::sample::set_errno(saved);
}
