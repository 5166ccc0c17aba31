//! Header before each sampled object, with what `free` needs to know.
//!
//! For layout, contents and checksums see [`shm_protocol::header`]. The header has an extension if
//! the object is aligned to more than 16 bytes, or has 128 KiB or more.
//!
//! An object that fills a size class of 1 to 14 KiB, a multiple of 1 KiB, has its header in a table
//! instead ([`crate::headers`]), and begins where its allocation does.
//!
//! Any other object takes the size class of its own size plus the header's. The usable size, at
//! least 16 bytes, usually is what it would be without a header: the object's own size class, as
//! `nallocx` returns it. It is 16 bytes less if the object with its header fits into that same
//! class. A program that has ever called `nallocx`, or that allocates with `mallocx`, may rely on
//! all of the class. So its objects are exact: they take the next class if they would fill their
//! own.

// Decision 56: headers lie in what the size class leaves over.
use crate::backend::jemalloc;
use crate::headers;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::header::{
    self, EXTENSION_DISTANCE, FirstWord, HEADER, MAX_TABLE_CLASS, MIN_EXTENDED_BYTES, SecondWord,
    TABLE_UNIT, Words,
};
use shm_protocol::record::{NewSample, RecordId};

/// Granularity of the tables of size classes, in bytes: each class is a multiple of it.
const STEP: usize = 8;
/// Largest size class in the tables, in bytes. jemalloc is queried for larger ones.
const MAX_KNOWN: usize = 4 << 10;
/// Flag of an entry: objects of this size have their header in the table of headers.
const IN_TABLE: usize = 1;

/// Sampled object, as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Record in which it was counted.
    pub record: RecordId,
    /// Low 8 bits of the session's number.
    pub session: u8,
    /// Number of objects that it stands for, rounded as headers store it ([`header::storable`]).
    pub weight: f32,
    /// Tick of the clock at which it was allocated.
    pub born: u32,
    /// Requested size in bytes.
    pub bytes: u64,
    /// Requested alignment if it made a difference; else 1.
    pub align: usize,
    /// True if leak checks ignore it.
    pub ignored: bool,
    /// True if all of its size class is usable.
    pub exact: bool,
}

/// Result of reading a header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeaderState {
    /// Header of a live object.
    Live(Object),
    /// Header of an object that was freed.
    Freed,
    /// Header that the program has overwritten.
    Overwritten(IntactParts),
}

/// Intact parts of an overwritten header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntactParts {
    /// First word, if it is intact; with the size from the extension, if there is one.
    pub first: Option<FirstWord>,
    /// Second word, which is next to the object, if it is intact.
    pub second: Option<SecondWord>,
}

/// True once the program has queried the size of a class.
static ALL_EXACT: AtomicBool = AtomicBool::new(false);

/// Makes every object exact from now on.
pub fn make_all_exact() {
    if !ALL_EXACT.load(Ordering::Relaxed) {
        ALL_EXACT.store(true, Ordering::Relaxed);
    }
}

/// Returns true if objects of the C functions are exact. Those of jemalloc's own functions always
/// are.
#[inline]
#[must_use]
pub fn is_exact() -> bool {
    ALL_EXACT.load(Ordering::Relaxed)
}

/// Position of an object in its allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Offset of the object in its allocation; 0 if its header is in the table.
    pub offset: usize,
    /// Usable size in bytes.
    pub usable: usize,
}

/// Returns the layout of an object. With `exact`, all of its size class must be usable.
#[inline]
#[must_use]
pub fn layout(bytes: usize, align: usize, exact: bool) -> Layout {
    if align < HEADER && bytes <= MAX_KNOWN {
        let entry = if exact { &CLASSES } else { &USABLE };
        let entry = usize::from(entry[bytes.div_ceil(STEP)]);
        Layout {
            offset: HEADER - HEADER * (entry & IN_TABLE),
            usable: entry & !IN_TABLE,
        }
    } else {
        uncommon_layout(bytes, align, exact)
    }
}

#[cold]
#[inline(never)]
fn uncommon_layout(bytes: usize, align: usize, exact: bool) -> Layout {
    let aligned = align <= HEADER;
    if aligned && (HEADER..=MAX_TABLE_CLASS).contains(&bytes) && is_in_table(bytes, exact) {
        let usable = class_of(bytes);
        return Layout { offset: 0, usable };
    }
    let flags = align.trailing_zeros() as c_int;
    let bytes = bytes.max(1);
    let offset = if aligned && (bytes as u64) < MIN_EXTENDED_BYTES {
        HEADER
    } else {
        header::extended_offset(align)
    };
    // SAFETY: a size that is not 0 and a power of two.
    let class = |bytes| unsafe { jemalloc::nallocx(bytes, flags) };
    let usable = match (class(bytes), exact) {
        (class_bytes, true) => class_bytes,
        // 0 if it is too large for any class.
        (class_bytes, false) => class_bytes.min(class(bytes + offset).saturating_sub(offset)),
    };
    Layout { offset, usable }
}

/// Returns true if an object of this size has its header in the table: if it fills its class, or
/// needs all of it.
const fn is_in_table(bytes: usize, exact: bool) -> bool {
    let class = class_of(bytes);
    header::is_table_class(class) && (exact || bytes + HEADER > class)
}

/// Size classes of requests, in steps of 8 bytes, with the flag [`IN_TABLE`].
static CLASSES: [u16; MAX_KNOWN / STEP + 1] = {
    let mut classes = [0; MAX_KNOWN / STEP + 1];
    let mut at = 0;
    while at < classes.len() {
        let bytes = at * STEP;
        classes[at] = (class_of(bytes) | is_in_table(bytes, true) as usize) as u16;
        at += 1;
    }
    classes
};

/// Usable sizes of requests with a header, in steps of 8 bytes, with the flag [`IN_TABLE`].
static USABLE: [u16; MAX_KNOWN / STEP + 1] = {
    let mut usable = [0; MAX_KNOWN / STEP + 1];
    let mut at = 0;
    while at < usable.len() {
        let bytes = at * STEP;
        let class = class_of(bytes);
        let beside_header = class_of(bytes + HEADER) - HEADER;
        let size = if is_in_table(bytes, false) {
            class | IN_TABLE
        } else if beside_header > 0 && beside_header < class {
            beside_header
        } else {
            class
        };
        usable[at] = size as u16;
        at += 1;
    }
    usable
};

/// Returns the size class of a request. Up to 128 bytes, classes are multiples of 16; above, there
/// are four for each doubling.
const fn class_of(bytes: usize) -> usize {
    let bytes = if bytes == 0 { 1 } else { bytes };
    let step = if bytes <= 128 {
        16
    } else {
        1 << ((bytes - 1).ilog2() - 2)
    };
    bytes.next_multiple_of(step)
}

/// Returns the address of an object's header.
///
/// # Safety
/// `at` is in the range, in memory of the arena, all of which has entries in the table.
#[inline(always)]
unsafe fn header_of(at: *const u8) -> *mut Words {
    // SAFETY: the table has an entry for `at`, and the bytes before `at` belong to the arena.
    unsafe {
        if at.addr().is_multiple_of(TABLE_UNIT) {
            let entry: *mut Words = headers::entry(at).cast();
            // Entries without an object, live or freed, are zero.
            if (*entry)[1] != 0 {
                return entry;
            }
        }
        at.wrapping_sub(HEADER).cast_mut().cast()
    }
}

/// Clears the table's entry for an object whose header lies before it: an earlier object at this
/// address may have left its header there.
///
/// # Safety
/// `at` is a multiple of [`TABLE_UNIT`], in memory of the arena.
#[cold]
unsafe fn forget_entry(at: *const u8) {
    let entry: *mut Words = headers::entry(at).cast();
    // SAFETY: the table has an entry for `at`. Written only if necessary, because the page may not
    // be backed yet.
    unsafe {
        if (*entry)[1] != 0 {
            (*entry)[1] = 0;
        }
    }
}

impl Object {
    /// Writes the header of an object.
    ///
    /// # Safety
    /// `at` is 16-aligned, and `offset` is from the object's [`layout`](Self::layout). The
    /// `offset` bytes before `at` belong to the caller. If `offset` is 0, `at` is a multiple of
    /// [`TABLE_UNIT`] in the range.
    #[inline]
    pub unsafe fn write(&self, offset: usize, at: *mut u8) {
        let address = at.addr() as u64;
        let extended = offset > HEADER;
        let first = FirstWord {
            record: self.record,
            session: self.session,
            bytes: if extended { 0 } else { self.bytes },
            ignored: self.ignored,
            exact: self.exact,
            extended,
        };
        let second = SecondWord {
            weight: self.weight,
            born: self.born,
        };
        let words = [
            header::first_word(&first, address),
            header::second_word(second, address),
        ];
        // SAFETY: the `offset` bytes before `at` are nobody else's, or the table has an entry for
        // `at`.
        unsafe {
            if offset == 0 {
                headers::entry(at).cast::<Words>().write(words);
                return;
            }
            if at.addr().is_multiple_of(TABLE_UNIT) {
                forget_entry(at);
            }
            at.sub(HEADER).cast::<Words>().write(words);
            if extended {
                let words = header::extension(self.bytes, self.align as u64, address);
                at.sub(EXTENSION_DISTANCE).cast::<Words>().write(words);
            }
        }
    }

    /// Reads the header of an object.
    ///
    /// # Safety
    /// `at` is in the range, in memory of the arena.
    #[inline]
    #[must_use]
    pub unsafe fn read(at: *const u8) -> HeaderState {
        let address = at.addr() as u64;
        // SAFETY: `at` is in memory of the arena. An invalid pointer of the program may be
        // unaligned.
        let words = unsafe { header_of(at).read_unaligned() };
        let first = header::read_first_word(words[0], address);
        let second = header::read_second_word(words[1], address);
        match (first, second) {
            (Some(first), Some(second)) if !first.extended => {
                HeaderState::Live(Self::of(&first, second, first.bytes, 1))
            }
            // SAFETY: `at` is in memory of the arena.
            _ => unsafe { Self::read_uncommon(at, words) },
        }
    }

    /// Reads the header of an object with an extension, or one that is not intact.
    ///
    /// # Safety
    /// See [`read`](Self::read).
    #[cold]
    #[inline(never)]
    unsafe fn read_uncommon(at: *const u8, words: Words) -> HeaderState {
        let address = at.addr() as u64;
        let second = header::read_second_word(words[1], address);
        let mut first = header::read_first_word(words[0], address);
        if second.is_none() && header::is_freed(words[1], address) {
            return HeaderState::Freed;
        }
        if let Some(word) = first.filter(|word| word.extended) {
            // SAFETY: `write` put an extension there together with this flag. If the flag is not
            // genuine, the checksum fails.
            let words = unsafe { at.sub(EXTENSION_DISTANCE).cast::<Words>().read_unaligned() };
            let extension = header::read_extension(words, address);
            if let (Some((bytes, align)), Some(second)) = (extension, second) {
                return HeaderState::Live(Self::of(&word, second, bytes, align as usize));
            }
            first = extension.map(|(bytes, _)| FirstWord { bytes, ..word });
        }
        HeaderState::Overwritten(IntactParts { first, second })
    }

    #[inline(always)]
    fn of(first: &FirstWord, second: SecondWord, bytes: u64, align: usize) -> Self {
        Self {
            record: first.record,
            session: first.session,
            weight: second.weight,
            born: second.born,
            bytes,
            align,
            ignored: first.ignored,
            exact: first.exact,
        }
    }

    /// Marks an object as freed, for the detection of double frees, and for outside readers that
    /// look for objects. jemalloc does not write to free memory; at most it releases the page,
    /// which then reads as zeros.
    ///
    /// # Safety
    /// [`write`](Self::write) wrote a header there, and the memory is still allocated.
    #[inline]
    pub unsafe fn retire(at: *mut u8) {
        // SAFETY: a header is there, in memory that is still allocated.
        unsafe { (*header_of(at))[1] = header::freed_word(at.addr() as u64) }
    }

    /// Returns the object's position in its allocation.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout {
        layout(self.bytes as usize, self.align, self.exact)
    }

    /// Returns the number of bytes that the object stands for.
    #[inline]
    #[must_use]
    pub fn weighted_bytes(&self) -> u64 {
        (self.bytes as i64 as f64 * f64::from(self.weight)) as u64
    }

    /// Returns the sample as it was counted at the allocation. `start` is the session's first tick.
    #[inline]
    #[must_use]
    pub fn sample(&self, start: u32) -> NewSample {
        let tick = self.born.wrapping_sub(start);
        NewSample {
            bytes: self.bytes,
            weight: self.weight,
            tick,
        }
    }
}

#[cfg(test)]
mod tests;
