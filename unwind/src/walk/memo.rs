//! The memo of a thread's last stack, and the walk in progress.
//!
//! Two buffers: one holds the last stack, the other takes the frames of the new one. Frames are
//! stored innermost first. When the walk has met the memo, the shorter part is copied to the longer
//! one: the new frames in front of those that are kept, or those behind the new ones. If it has not
//! met it, the buffers change places.
//!
//! A stack is named by a sum over its frames ([`part`]). With each frame is stored the sum of those
//! further in, so that the sum of a frame and all those further out is a difference, whatever is put
//! in front of them.

// Decision 08: a stack is compared by the words it was read from.
use super::MAX_FRAMES;
use crate::Registers;
use crate::rule::{Rule, Word};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Where a walk's innermost frame is stored: there is room for later frames in front of it.
const FRONT: usize = 256;
const ROOM: usize = FRONT + MAX_FRAMES;
/// One more than two for each frame: see `note`.
const WORDS: usize = 2 * ROOM + 1;

/// Places of frames by their stack pointers.
const PLACES: usize = 1024;

/// The place of a frame with this stack pointer.
#[inline(always)]
fn place_of(sp: u64) -> usize {
    (sp >> 4) as usize % PLACES
}

/// What a frame adds to its stack's sum: its address and place, mixed so that sums of different
/// frames are equal by chance only. Addresses and places are close to each other, and the low half of
/// a product is linear in both; the high half is not, once a factor is spread over all bits.
#[inline(always)]
pub(super) fn part(address: u64, sp: u64, salt: u64) -> u64 {
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    const OTHER: u64 = 0xD6E8_FEB8_6659_FD93;
    let address = (address ^ salt).wrapping_mul(SPREAD);
    let product = u128::from(address) * u128::from(sp ^ OTHER);
    product as u64 ^ (product >> 64) as u64
}

/// A frame, in one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Frame {
    pub(super) registers: Registers,
    /// How its step is taken, and which of the successive modules at its address its code belongs
    /// to.
    pub(super) rule: Rule,
    /// Sum of the frames further in.
    sum: u64,
    /// [`Node::path`](super::Node::path), if there is a node.
    pub(super) path: u64,
    /// Its node in the tree; 0: not known.
    pub(super) node: u32,
    /// Number of inserted frames that it and all frames further out run.
    pub(super) inserted: u32,
    /// Index of the first of the words that its step read.
    words: u32,
}

impl Frame {
    /// The value to intern.
    #[inline]
    pub(super) fn address(&self) -> u64 {
        super::tagged(self.registers.ip, self.rule.instance())
    }
}

/// Frames, and what their steps read.
#[repr(C)]
struct Buffer {
    frames: [MaybeUninit<Frame>; ROOM],
    words: [MaybeUninit<Word>; WORDS],
}

/// The frames that a walk has noted.
#[derive(Clone, Copy)]
pub(super) struct Noted {
    /// Number of frames.
    pub(super) count: usize,
    /// Their sum.
    pub(super) sum: u64,
    /// One more than the index of their last word.
    words: usize,
}

impl Noted {
    pub(super) const NONE: Self = Self {
        count: 0,
        sum: 0,
        words: 2 * FRONT,
    };
}

/// What a walk has found: new frames, and those of the memo that they were called from.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) fresh: Noted,
    /// The memo's frame that the outermost new one was called from, if the walk met the memo there.
    pub(super) joins: Option<usize>,
}

/// The last stack, and room for the next.
#[repr(C)]
pub(super) struct Memo {
    /// The buffer of the last stack.
    current: usize,
    /// Its frames there.
    begin: usize,
    end: usize,
    /// One more than the index of its last word.
    words_end: usize,
    /// Sum of all of its frames, and of those that were once in front of them.
    total: u64,
    /// Its frames by their stack pointers ([`place_of`]): the last one of each place. May be of a
    /// former memo, or of the walk in progress.
    by_sp: [u16; PLACES],
    buffers: [Buffer; 2],
}

impl Memo {
    pub(super) fn forget(&mut self) {
        self.end = self.begin;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Index of the innermost frame.
    #[inline]
    pub(super) fn begin(&self) -> usize {
        self.begin
    }

    /// One more than the index of the outermost frame.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.end
    }

    #[inline]
    fn last(&self) -> &Buffer {
        &self.buffers[self.current & 1]
    }

    #[inline]
    fn next(&self) -> &Buffer {
        &self.buffers[!self.current & 1]
    }

    /// A frame of the last stack.
    #[inline]
    pub(super) fn frame(&self, index: usize) -> &Frame {
        debug_assert!((self.begin..self.end).contains(&index));
        // SAFETY: callers pass an index of `begin..end`, whose frames `adopt` wrote or left there.
        unsafe { self.last().frames.get_unchecked(index).assume_init_ref() }
    }

    #[inline]
    pub(super) fn frame_mut(&mut self, index: usize) -> &mut Frame {
        debug_assert!((self.begin..self.end).contains(&index));
        let last = &mut self.buffers[self.current & 1];
        // SAFETY: as in `frame`.
        unsafe { last.frames.get_unchecked_mut(index).assume_init_mut() }
    }

    /// A frame of the walk in progress; 0 is the innermost. It was [noted](Self::note).
    #[inline]
    pub(super) fn fresh(&self, index: usize) -> &Frame {
        // SAFETY: callers pass an index below the number of those that they noted.
        unsafe { self.next().frames[FRONT + index].assume_init_ref() }
    }

    /// A frame of what was found; the innermost is first.
    #[inline]
    pub(super) fn found(&self, found: &Found, index: usize) -> &Frame {
        match (index.checked_sub(found.fresh.count), found.joins) {
            (Some(outwards), Some(joins)) => self.frame(joins + outwards),
            _ => self.fresh(index),
        }
    }

    /// Number of frames of what was found.
    #[inline]
    pub(super) fn count(&self, found: &Found) -> usize {
        found.fresh.count + found.joins.map_or(0, |joins| self.end - joins)
    }

    /// The sum of a frame of the last stack and all those further out.
    #[inline]
    pub(super) fn sum_from(&self, index: usize) -> u64 {
        self.total.wrapping_sub(self.frame(index).sum)
    }

    /// What names the last stack.
    #[inline]
    pub(super) fn key(&self) -> u64 {
        match self.is_empty() {
            true => 0,
            false => self.sum_from(self.begin),
        }
    }

    /// Adds a frame to the walk in progress, and to its sum. Its words come innermost first; those
    /// without an address are left out.
    ///
    /// # Safety
    /// Fewer than [`MAX_FRAMES`] are noted.
    #[inline(always)]
    pub(super) unsafe fn note(
        &mut self,
        noted: &mut Noted,
        (registers, rule): (Registers, Rule),
        words: [Word; 2],
        part: u64,
    ) {
        let index = FRONT + noted.count;
        let next = &mut self.buffers[!self.current & 1];
        self.by_sp[place_of(registers.sp)] = index as u16;
        // SAFETY: the caller's. There is room for two words of each frame and one more: both are
        // written, without branches, and the next frame overwrites what is unused.
        unsafe {
            let frame = next.frames.get_unchecked_mut(index);
            frame.write(Frame {
                registers,
                rule,
                sum: noted.sum,
                path: 0,
                node: 0,
                inserted: 0,
                words: noted.words as u32,
            });
            for word in words {
                next.words.get_unchecked_mut(noted.words).write(word);
                noted.words += usize::from(word.at != 0);
            }
        }
        noted.count += 1;
        noted.sum = noted.sum.wrapping_add(part);
    }

    /// The last stack's frame with these registers, if there is one from `from` outwards, which is
    /// then the next one. If frames share a place one may not be met: the walk continues to the
    /// next.
    #[inline(always)]
    pub(super) fn meet(&self, at: Registers, from: &mut usize) -> Option<usize> {
        let index = usize::from(self.by_sp[place_of(at.sp)]);
        if index.wrapping_sub(*from) >= self.end - *from {
            return None;
        }
        let same = self.is_at(index, &at);
        if same {
            *from = index + 1;
        }
        same.then_some(index)
    }

    /// Whether a frame of the last stack has these registers, as far as its step depends on them.
    #[inline(always)]
    pub(super) fn is_at(&self, index: usize, at: &Registers) -> bool {
        let frame = self.frame(index);
        // One branch: which of them differs cannot be foreseen.
        (frame.registers.sp ^ at.sp) | (frame.registers.ip ^ at.ip) == 0
            && (frame.registers.fp == at.fp || frame.rule.ignores_fp())
    }

    /// Compares, from frame `from` outwards, the words that each step read with their current
    /// values. Returns the first frame whose step must be taken again.
    ///
    /// # Safety
    /// All words of the last stack's frames can be read now.
    #[inline(always)]
    pub(super) unsafe fn first_changed(&self, from: usize) -> Option<usize> {
        // SAFETY: the words of `begin..end` are written with their frames.
        let words = unsafe {
            let first = self.frame(from).words as usize;
            let start = self.last().words.as_ptr().cast::<Word>().add(first);
            core::slice::from_raw_parts(start, self.words_end - first)
        };
        // SAFETY: the caller's.
        let changed = unsafe { first_differing(words) }?;
        let changed = self.frame(from).words as usize + changed;
        let is_further_in = |index: &usize| self.frame(*index + 1).words as usize <= changed;
        Some(from + (from..self.end - 1).take_while(is_further_in).count())
    }

    /// Adds the last stack's frames `from..to`, which are unchanged, to the walk in progress, because
    /// the frame `to` has changed.
    #[cold]
    pub(super) fn take_back(&mut self, (from, to): (usize, usize), noted: &mut Noted) {
        let count = (to - from).min(MAX_FRAMES - noted.count);
        for index in from..from + count {
            let (frame, next) = (*self.frame(index), *self.frame(index + 1));
            let mut words = [Word::default(); 2];
            for (word, at) in words.iter_mut().zip(frame.words..next.words) {
                // SAFETY: written with its frame.
                *word = unsafe { self.last().words[at as usize].assume_init() };
            }
            let part = next.sum.wrapping_sub(frame.sum);
            // SAFETY: `count` leaves room for it.
            unsafe { self.note(noted, (frame.registers, frame.rule), words, part) };
        }
    }

    /// Makes what was found the last stack, which has at most [`MAX_FRAMES`] frames. Returns by how
    /// much the indices of the kept frames have grown.
    #[inline]
    pub(super) fn adopt(&mut self, found: &Found) -> isize {
        let Found { fresh, joins } = *found;
        let Some(joins) = joins else {
            self.current ^= 1;
            (self.begin, self.end) = (FRONT, FRONT + fresh.count);
            (self.words_end, self.total) = (fresh.words, fresh.sum);
            return 0;
        };
        // In front there may be room for the frames, but not for their words, and conversely.
        let words = fresh.words - Noted::NONE.words;
        let has_room = fresh.count <= joins && words <= self.frame(joins).words as usize;
        if !has_room || fresh.count > self.end - joins {
            return self.append_kept(joins, &fresh);
        }
        self.begin = joins - fresh.count;
        if fresh.count > 0 {
            self.prepend(joins, &fresh);
        }
        0
    }

    /// The buffers of the last and the next stack.
    #[inline]
    fn both(&mut self) -> (&mut Buffer, &mut Buffer) {
        let [a, b] = &mut self.buffers;
        if self.current & 1 == 0 {
            (a, b)
        } else {
            (b, a)
        }
    }

    /// Copies the new frames to the last stack's buffer, in front of the frame `joins`.
    #[inline]
    fn prepend(&mut self, joins: usize, fresh: &Noted) {
        let begin = joins - fresh.count;
        let (last, next) = self.both();
        // SAFETY: a frame of the last stack, which stays where it is.
        let kept = unsafe { last.frames[joins].assume_init_ref() };
        let sum = kept.sum.wrapping_sub(fresh.sum);
        let words = kept.words.wrapping_sub(fresh.words as u32);
        copy((next, FRONT), (last, begin), fresh.count, (sum, words));
        copy_words((next, 2 * FRONT), last, fresh.words, words);
        self.place(begin..joins);
    }

    /// Copies the kept frames behind the new ones, to the other buffer. Returns as
    /// [`adopt`](Self::adopt).
    #[inline(never)]
    fn append_kept(&mut self, joins: usize, fresh: &Noted) -> isize {
        let (count, words_end) = (self.end - joins, self.words_end);
        let begin = FRONT + fresh.count;
        let (last, next) = self.both();
        // SAFETY: a frame of the last stack.
        let kept = unsafe { last.frames[joins].assume_init_ref() };
        let (first, sum) = (kept.words as usize, fresh.sum.wrapping_sub(kept.sum));
        let words = (fresh.words as u32).wrapping_sub(kept.words);
        copy((last, joins), (next, begin), count, (sum, words));
        copy_words((last, first), next, words_end, words);
        self.current ^= 1;
        (self.begin, self.end) = (FRONT, begin + count);
        self.words_end = fresh.words + (words_end - first);
        self.total = self.total.wrapping_add(sum);
        self.place(begin..begin + count);
        begin as isize - joins as isize
    }

    /// Notes where frames of the last stack are by their stack pointers.
    #[inline]
    fn place(&mut self, indices: Range<usize>) {
        for index in indices {
            let place = place_of(self.frame(index).registers.sp);
            self.by_sp[place] = index as u16;
        }
    }
}

/// Copies frames from one buffer to another; `sum` and `words` are added to what they have.
#[inline]
fn copy(
    (from, first): (&Buffer, usize),
    (to, at): (&mut Buffer, usize),
    count: usize,
    (sum, words): (u64, u32),
) {
    for index in 0..count {
        // SAFETY: callers name frames that are written.
        let mut frame = unsafe { from.frames[first + index].assume_init() };
        frame.sum = frame.sum.wrapping_add(sum);
        frame.words = frame.words.wrapping_add(words);
        to.frames[at + index].write(frame);
    }
}

/// Copies the words from `first` to `end`, which then are `shift` further on.
#[inline]
fn copy_words((from, first): (&Buffer, usize), to: &mut Buffer, end: usize, shift: u32) {
    let at = (first as u32).wrapping_add(shift) as usize;
    to.words[at..at + (end - first)].copy_from_slice(&from.words[first..end]);
}

/// The first of `words` whose value has changed. Compares four at a time, since nearly always none
/// differs.
///
/// # Safety
/// All of `words` can be read now, including those beyond the result.
#[inline(always)]
unsafe fn first_differing(words: &[Word]) -> Option<usize> {
    // SAFETY: the caller's.
    let difference = |word: &Word| unsafe { (word.at as *const u64).read_volatile() } ^ word.value;
    let mut rest = words;
    while let Some(([a, b, c, d], outer)) = rest.split_first_chunk::<4>() {
        if difference(a) | difference(b) | difference(c) | difference(d) != 0 {
            break;
        }
        rest = outer;
    }
    let changed = rest.iter().position(|word| difference(word) != 0)?;
    Some(words.len() - rest.len() + changed)
}
