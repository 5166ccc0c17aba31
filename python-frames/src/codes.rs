//! Numbers of code objects: each is written into the segment once per session.
//!
//! Two lock-free tables in private memory map code objects to numbers. The first is indexed by
//! address, and its entries have the [tag](super::tag) of the code object: the tag is compared at
//! every frame of every sample, because the address may have been reused. The second is indexed by
//! content, because a program may compile the same source again and again. Both are caches: a lost
//! entry is looked up, or written into the segment, again.

use super::layout::Layout;
use super::memory::Memory;
use super::objects;
use super::session::{Host, Session};
use super::tag::{CodeTag, mix};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use shm_protocol::codes::{Code, NO_CODE};
use unwind::probe;

/// Entries of the table by address.
const ADDRESS_ENTRIES: usize = 1 << 15;
/// Entries of the table by content.
const CONTENT_ENTRIES: usize = 1 << 16;
/// Maximum number of entries that are probed for one content.
const MAX_PROBES: usize = 8;

/// Entry of the table by address.
///
/// Writers store the address last. Readers load it first, and again at the end. A reader that sees
/// the same address twice, and a tag that matches the code object, has the right number: the frame
/// that the address comes from keeps the code object alive, so nobody can write another tag for
/// this address.
struct Entry {
    /// Address of the code object; 0 is empty; [`BUSY`] while the entry is written.
    code: AtomicU64,
    number: AtomicU64,
    session: AtomicU64,
    tag: [AtomicU64; CodeTag::WORDS],
}

/// Value of [`Entry::code`] during a write. Not the address of any code object.
const BUSY: u64 = 1;

/// Entry of the table by content.
struct Content {
    /// Hash of content and session; 0 is empty.
    hash: AtomicU64,
    /// Lower half: number of the code object. Upper half: that of the hash.
    number: AtomicU64,
}

/// Both tables. All zeros is empty.
struct Tables {
    entries: [Entry; ADDRESS_ENTRIES],
    contents: [Content; CONTENT_ENTRIES],
}

static TABLES: AtomicPtr<Tables> = AtomicPtr::new(null_mut());

/// Maps the tables, unless another thread does so first.
#[cold]
fn map_tables(host: &dyn Host) -> *mut Tables {
    let mapping = host.map(size_of::<Tables>()).cast::<Tables>();
    if mapping.is_null() {
        return mapping;
    }
    let none = null_mut();
    match TABLES.compare_exchange(none, mapping, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => mapping,
        Err(others) => {
            // SAFETY: just mapped, and no other thread has its address.
            unsafe { host.unmap(mapping.cast(), size_of::<Tables>()) };
            others
        }
    }
}

#[inline]
fn tables(host: &dyn Host) -> Option<&'static Tables> {
    let mapped = TABLES.load(Ordering::Acquire);
    let tables = if mapped.is_null() {
        map_tables(host)
    } else {
        mapped
    };
    // SAFETY: null, or a mapping that is never unmapped.
    unsafe { tables.as_ref() }
}

/// Returns the number and the tag of a code object, which is written into the segment if it is new.
/// The number is [`NO_CODE`] if the segment is full. Returns `None` if there is no code object at
/// `at`.
#[inline(always)]
pub fn number_and_tag(layout: &Layout, at: u64, session: &Session<'_>) -> Option<(u32, CodeTag)> {
    // An empty entry has address 0.
    if at == 0 || !at.is_multiple_of(8) {
        return None;
    }
    let tables = tables(session.host)?;
    let entry = &tables.entries[(mix(0, at) >> 40) as usize % ADDRESS_ENTRIES];
    if entry.code.load(Ordering::Acquire) == at {
        let words = entry.tag.each_ref();
        let tag = CodeTag::from_words(words.map(|word| word.load(Ordering::Acquire)));
        let number = entry.number.load(Ordering::Acquire);
        let is_valid = entry.session.load(Ordering::Acquire) == session.number
            && entry.code.load(Ordering::Acquire) == at;
        // SAFETY: a code object with this tag was here, and a frame of this thread keeps alive what
        // is here now.
        if is_valid && unsafe { tag.matches(layout, at) } {
            return Some((number as u32, tag));
        }
    }
    // SAFETY: a frame of the running thread keeps the code object alive.
    unsafe { read_and_enter(layout, at, tables, entry, session) }
}

/// Returns the number of a code object of an interrupted thread. Uses no cached address:
/// checks that all of the code object is readable, and reads it, as it may be half freed.
#[cold]
#[inline(never)]
pub fn number_uncached(
    layout: &Layout,
    memory: &mut Memory,
    at: u64,
    session: &Session<'_>,
) -> Option<u32> {
    let tables = tables(session.host)?;
    // SAFETY: the thread does not run while its data are read here. So memory that the thread has
    // unmapped is found unreadable, and memory that was found readable stays readable, unless
    // another thread frees what this thread's frames still hold.
    let read =
        unsafe { objects::read_code(layout, at, &mut |from, to| memory.are_readable(from, to)) }?;
    Some(number_by_content(&read.code, tables, session))
}

/// Reads a code object and replaces its entry in the table by address.
///
/// # Safety
/// If there is a code object at `at`, it stays alive during the call.
#[cold]
#[inline(never)]
unsafe fn read_and_enter(
    layout: &Layout,
    at: u64,
    tables: &Tables,
    entry: &Entry,
    session: &Session<'_>,
) -> Option<(u32, CodeTag)> {
    // SAFETY: the code object stays alive during the call.
    let read = unsafe { objects::read_code(layout, at, &mut probe::are_readable) }?;
    let number = number_by_content(&read.code, tables, session);
    // SAFETY: it was read from `at` and stays alive.
    let tag = unsafe { CodeTag::of(layout, at, &read) };
    if entry.code.swap(BUSY, Ordering::AcqRel) == BUSY {
        // Another thread is writing this entry.
        return Some((number, tag));
    }
    entry.number.store(u64::from(number), Ordering::Release);
    entry.session.store(session.number, Ordering::Release);
    for (slot, word) in entry.tag.iter().zip(tag.words()) {
        slot.store(word, Ordering::Release);
    }
    entry.code.store(at, Ordering::Release);
    Some((number, tag))
}

/// Returns the number of a code object with this content. Writes it into the segment if it is new.
fn number_by_content(code: &Code<'_>, tables: &Tables, session: &Session<'_>) -> u32 {
    let hash = hash(code, session.number).max(1);
    let slot =
        |index: usize| &tables.contents[(hash as usize).wrapping_add(index) % CONTENT_ENTRIES];
    for index in 0..MAX_PROBES {
        let content = slot(index);
        if content.hash.load(Ordering::Acquire) == hash {
            let number = content.number.load(Ordering::Acquire);
            if number as u32 != NO_CODE && number >> 32 == hash >> 32 {
                return number as u32;
            }
        }
    }
    let Some(number) = write(code, session) else {
        return NO_CODE;
    };
    let is_free = |index: &usize| slot(*index).hash.load(Ordering::Relaxed) == 0;
    let index = (0..MAX_PROBES).find(is_free);
    let content = slot(index.unwrap_or((hash >> 60) as usize % MAX_PROBES));
    content.number.store(0, Ordering::Release);
    content.hash.store(hash, Ordering::Release);
    let value = u64::from(number) | ((hash >> 32) << 32);
    content.number.store(value, Ordering::Release);
    number
}

/// Appends a code object to the segment, and reserves memory there if necessary.
fn write(code: &Code<'_>, session: &Session<'_>) -> Option<u32> {
    let codes = session.codes;
    codes.add(code).or_else(|| {
        let is_reserved = session.host.reserve_codes(codes.bytes_to_commit(code));
        is_reserved.then(|| codes.add(code)).flatten()
    })
}

/// Returns a hash of the content of a code object.
fn hash(code: &Code<'_>, session: u64) -> u64 {
    let mut hash = mix(session, u64::from(code.first_line));
    for bytes in [code.name.bytes, code.file.bytes, code.lines] {
        hash = mix(hash, bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = mix(hash, u64::from_le_bytes(word));
        }
    }
    hash ^ (hash >> 32)
}
