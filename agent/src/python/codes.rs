//! Code objects in the segment, each once.
//!
//! Two tables in private memory lead to their numbers. The first is by address, with the words
//! that change if another code object is made at that address: they are compared with what is there
//! now, at every frame of every sample. The second is by what is written, since a program may
//! compile the same text again and again. Both are caches: what they lose is found again, or
//! written again.

use super::layout::Layout;
use super::mark::{Mark, mix};
use super::memory::Memory;
use super::objects;
use crate::own;
use crate::session::{self, Epoch};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use shm_protocol::codes::{Code, NO_CODE};
use unwind::probe;

/// Entries of the first table.
const ADDRESSES: usize = 1 << 15;
/// Entries of the second.
const CONTENTS: usize = 1 << 16;
/// Entries of it that are examined for one code object.
const TRIES: usize = 8;

/// Of the first table.
///
/// The number is written before the words, and read after them: a reader that finds all of the
/// words as they are now, with the address before and after, has the number of what is there now,
/// since the frame that it comes from holds that, and nobody writes others for this address
/// meanwhile.
struct Entry {
    /// Address; [`BUSY`] while it is written.
    code: AtomicU64,
    number: AtomicU64,
    session: AtomicU64,
    mark: [AtomicU64; Mark::WORDS],
}

/// No address of a code object.
const BUSY: u64 = 1;

struct Content {
    hash: AtomicU64,
    number: AtomicU64,
}

/// Zeroed memory is empty.
struct Tables {
    entries: [Entry; ADDRESSES],
    contents: [Content; CONTENTS],
}

static TABLES: AtomicPtr<Tables> = AtomicPtr::new(null_mut());

#[cold]
fn make() -> *mut Tables {
    let made = own::map(size_of::<Tables>()).cast::<Tables>();
    if made.is_null() {
        return made;
    }
    let none = null_mut();
    match TABLES.compare_exchange(none, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(first) => {
            // SAFETY: the mapping just made, which nobody else knows.
            unsafe { own::unmap(made.cast(), size_of::<Tables>()) };
            first
        }
    }
}

#[inline]
fn tables() -> Option<&'static Tables> {
    let known = TABLES.load(Ordering::Acquire);
    let tables = if known.is_null() { make() } else { known };
    // SAFETY: null, or the mapping that `make` made and nobody unmaps.
    unsafe { tables.as_ref() }
}

/// The number of the code object at an address, which is written down if it is new
/// ([`NO_CODE`] if there was no room), and its mark. `None`: it is none.
#[inline]
pub fn number(layout: &Layout, at: u64, epoch: &Epoch) -> Option<(u32, Mark)> {
    // An empty entry has the address 0.
    let tables = tables().filter(|_| at != 0 && at.is_multiple_of(8))?;
    let entry = &tables.entries[(mix(0, at) >> 40) as usize % ADDRESSES];
    if entry.code.load(Ordering::Acquire) == at {
        let words = entry.mark.each_ref();
        let mark = Mark::from_words(words.map(|word| word.load(Ordering::Acquire)));
        let number = entry.number.load(Ordering::Acquire);
        let is_valid = entry.session.load(Ordering::Acquire) == epoch.session
            && entry.code.load(Ordering::Acquire) == at;
        // SAFETY: a code object with this mark was here, and its thread's frame, which holds what
        // is here now, has led to this address.
        if is_valid && unsafe { mark.holds(layout, at) } {
            return Some((number as u32, mark));
        }
    }
    // SAFETY: a frame of the running thread holds it.
    unsafe { look_up(layout, at, (tables, entry), epoch) }
}

/// The same without its mark, of a thread that was interrupted: all of it is probed and read, since
/// it may be none any more.
#[cold]
#[inline(never)]
pub fn number_anew(layout: &Layout, memory: &mut Memory, at: u64, epoch: &Epoch) -> Option<u32> {
    let tables = tables()?;
    // SAFETY: the thread does not run while its data are read here, so that what it has unmapped is
    // found to be gone, and what was found readable stays readable, unless another thread has freed
    // what this one's frames still hold.
    let read = unsafe { objects::code(layout, at, &mut |from, to| memory.are_readable(from, to)) }?;
    Some(number_of(&read.code, tables, epoch))
}

/// # Safety
/// If there is a code object, it stays meanwhile.
#[cold]
#[inline(never)]
unsafe fn look_up(
    layout: &Layout,
    at: u64,
    (tables, entry): (&Tables, &Entry),
    epoch: &Epoch,
) -> Option<(u32, Mark)> {
    // SAFETY: the caller's.
    let read = unsafe { objects::code(layout, at, &mut probe::are_readable) }?;
    let number = number_of(&read.code, tables, epoch);
    // SAFETY: as was just read.
    let mark = unsafe { Mark::of(layout, at, &read) };
    if entry.code.swap(BUSY, Ordering::AcqRel) == BUSY {
        // Another thread's, which is written right now.
        return Some((number, mark));
    }
    entry.number.store(u64::from(number), Ordering::Release);
    entry.session.store(epoch.session, Ordering::Release);
    for (place, word) in entry.mark.iter().zip(mark.words()) {
        place.store(word, Ordering::Release);
    }
    entry.code.store(at, Ordering::Release);
    Some((number, mark))
}

/// The number of what is written for a code object.
fn number_of(code: &Code<'_>, tables: &Tables, epoch: &Epoch) -> u32 {
    let hash = hash(code, epoch.session).max(1);
    let slot = |index: usize| &tables.contents[(hash as usize).wrapping_add(index) % CONTENTS];
    for index in 0..TRIES {
        let content = slot(index);
        if content.hash.load(Ordering::Acquire) == hash {
            let number = content.number.load(Ordering::Acquire);
            if number as u32 != NO_CODE && number >> 32 == hash >> 32 {
                return number as u32;
            }
        }
    }
    let Some(number) = write(code, epoch) else {
        return NO_CODE;
    };
    let is_free = |index: &usize| slot(*index).hash.load(Ordering::Relaxed) == 0;
    let index = (0..TRIES).find(is_free);
    let content = slot(index.unwrap_or((hash >> 60) as usize % TRIES));
    content.number.store(0, Ordering::Release);
    content.hash.store(hash, Ordering::Release);
    let value = u64::from(number) | hash >> 32 << 32;
    content.number.store(value, Ordering::Release);
    number
}

/// Writes a code object down, in more memory if necessary.
fn write(code: &Code<'_>, epoch: &Epoch) -> Option<u32> {
    let codes = &epoch.bank.codes;
    codes.add(code).or_else(|| {
        session::reserve_codes(epoch, codes.needed(code))
            .then(|| codes.add(code))
            .flatten()
    })
}

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
    hash ^ hash >> 32
}
