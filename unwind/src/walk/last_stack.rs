//! Cache of a thread's last stack, and buffer of the walk in progress.
//!
//! There are two buffers: one holds the last stack, the other receives the frames of the new one.
//! Frames are stored innermost first. When a walk reaches a cached frame, that frame and those
//! further out are kept. The shorter part is copied next to the longer one: the new frames in front
//! of the kept ones, or the kept frames after the new ones. When a walk reaches no cached frame,
//! the buffers are swapped.
//!
//! A stack's hash is the sum of its frames' hashes ([`frame_hash`]). Each frame stores the sum of
//! its inner frames' hashes. The sum from a frame outwards is therefore a difference, which does
//! not change when other frames are put in front.

// Decision 08: a stack is compared by the words it was read from.
use super::CACHED_FRAMES;
use crate::Registers;
use crate::rule::{Rule, Word};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Index where a walk stores its innermost frame. Later walks put frames in front of it.
const HEADROOM: usize = 256;
const CAPACITY: usize = HEADROOM + CACHED_FRAMES;
/// Two words for each frame, and one that `push` may write without using it.
const WORD_CAPACITY: usize = 2 * CAPACITY + 1;

/// Number of slots of the index by stack pointer. A power of two.
const SP_SLOTS: usize = 1024;

/// Returns the index slot of a stack pointer.
#[inline(always)]
fn sp_slot(sp: u64) -> usize {
    (sp >> 4) as usize % SP_SLOTS
}

/// Returns a frame's term in the stack hash, from its address and stack pointer.
///
/// Addresses and stack pointers of different frames are close to each other, and the low half of a
/// product is linear in both, so sums would collide. The high half is not linear once one factor is
/// spread over all bits.
#[inline(always)]
pub(super) fn frame_hash(address: u64, sp: u64, salt: u64) -> u64 {
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
    /// Unwind rule. Its instance tells which of the modules that were loaded at this address one
    /// after another the code belongs to.
    pub(super) rule: Rule,
    /// Sum of the hashes of the inner frames, down to the innermost.
    sum: u64,
    /// [`Node::path`](super::Node::path) of `node`. Undefined if `node` is 0.
    pub(super) path: u64,
    /// Node in the tree; 0 if unknown.
    pub(super) node: u32,
    /// Number of interpreter frames that run in this frame and in all outer frames.
    pub(super) inserted: u32,
    /// Index of the first word that its step read.
    words: u32,
}

impl Frame {
    /// Returns the address to intern.
    #[inline]
    pub(super) fn address(&self) -> u64 {
        super::tagged(self.registers.ip, self.rule.instance())
    }
}

/// Frames, and the words that their steps read.
#[repr(C)]
struct Buffer {
    frames: [MaybeUninit<Frame>; CAPACITY],
    words: [MaybeUninit<Word>; WORD_CAPACITY],
}

/// Frames that the walk in progress has pushed to the next buffer.
#[derive(Clone, Copy)]
pub(super) struct NewFrames {
    /// Number of frames.
    pub(super) count: usize,
    /// Sum of their hashes.
    pub(super) sum: u64,
    /// Index after their last word.
    words: usize,
}

impl NewFrames {
    pub(super) const NONE: Self = Self {
        count: 0,
        sum: 0,
        words: 2 * HEADROOM,
    };
}

/// Stack found by a walk: new frames, then the cached frames that they were called from.
#[derive(Clone, Copy)]
pub(super) struct Traced {
    pub(super) new: NewFrames,
    /// Index of the cached frame that called the outermost new one; `None` if all frames are new.
    pub(super) join: Option<usize>,
}

/// Last stack, and room for the next.
#[repr(C)]
pub(super) struct LastStack {
    /// Index of the last stack's buffer. Only the lowest bit counts.
    current: usize,
    /// Range of the last stack's frames in its buffer, up to `end`.
    begin: usize,
    end: usize,
    /// Index after the last stack's last word.
    words_end: usize,
    /// Sum of the hashes of all its frames, including frames that have since been removed from the
    /// front.
    total: u64,
    /// Frame index by stack pointer ([`sp_slot`]); the latest frame of each slot. An entry may be
    /// of an earlier stack or of the walk in progress, so it must be checked.
    by_sp: [u16; SP_SLOTS],
    buffers: [Buffer; 2],
}

impl LastStack {
    pub(super) fn clear(&mut self) {
        self.end = self.begin;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Returns the index of the innermost frame.
    #[inline]
    pub(super) fn begin(&self) -> usize {
        self.begin
    }

    /// Returns one more than the index of the outermost frame.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.end
    }

    #[inline]
    fn current_buffer(&self) -> &Buffer {
        &self.buffers[self.current & 1]
    }

    #[inline]
    fn next_buffer(&self) -> &Buffer {
        &self.buffers[!self.current & 1]
    }

    /// Returns a frame of the last stack.
    #[inline]
    pub(super) fn frame(&self, index: usize) -> &Frame {
        debug_assert!((self.begin..self.end).contains(&index));
        // SAFETY: the index is in `begin..end`, whose frames are initialized.
        unsafe {
            self.current_buffer()
                .frames
                .get_unchecked(index)
                .assume_init_ref()
        }
    }

    #[inline]
    pub(super) fn frame_mut(&mut self, index: usize) -> &mut Frame {
        debug_assert!((self.begin..self.end).contains(&index));
        let last = &mut self.buffers[self.current & 1];
        // SAFETY: the index is in `begin..end`, whose frames are initialized.
        unsafe { last.frames.get_unchecked_mut(index).assume_init_mut() }
    }

    /// Returns a frame of the walk in progress, which must have been [pushed](Self::push); 0 is the
    /// innermost.
    #[inline]
    pub(super) fn new_frame(&self, index: usize) -> &Frame {
        // SAFETY: frames below the number of pushed ones are initialized.
        unsafe { self.next_buffer().frames[HEADROOM + index].assume_init_ref() }
    }

    /// Returns a frame of a traced stack; 0 is the innermost.
    #[inline]
    pub(super) fn traced_frame(&self, traced: &Traced, index: usize) -> &Frame {
        match (index.checked_sub(traced.new.count), traced.join) {
            (Some(outwards), Some(join)) => self.frame(join + outwards),
            _ => self.new_frame(index),
        }
    }

    /// Returns the number of frames of a traced stack.
    #[inline]
    pub(super) fn count(&self, found: &Traced) -> usize {
        found.new.count + found.join.map_or(0, |join| self.end - join)
    }

    /// Returns the sum of the hashes of a frame of the last stack and all its outer frames.
    #[inline]
    pub(super) fn sum_from(&self, index: usize) -> u64 {
        self.total.wrapping_sub(self.frame(index).sum)
    }

    /// Returns the hash of the last stack; 0 if there is none.
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        if self.is_empty() {
            0
        } else {
            self.sum_from(self.begin)
        }
    }

    /// Appends a frame to the walk in progress, and adds its hash. `words` are innermost first;
    /// those with address 0 are unused.
    ///
    /// # Safety
    /// `new` has fewer than [`CACHED_FRAMES`] frames.
    #[inline(always)]
    pub(super) unsafe fn push(
        &mut self,
        new: &mut NewFrames,
        registers: Registers,
        rule: Rule,
        words: [Word; 2],
        hash: u64,
    ) {
        let index = HEADROOM + new.count;
        let next = &mut self.buffers[!self.current & 1];
        self.by_sp[sp_slot(registers.sp)] = index as u16;
        // SAFETY: `new` has fewer than CACHED_FRAMES frames, so both indices are in bounds: there
        // are two words for each frame and one more. Both words are written without a branch; the
        // next frame overwrites the unused ones.
        unsafe {
            let frame = next.frames.get_unchecked_mut(index);
            frame.write(Frame {
                registers,
                rule,
                sum: new.sum,
                path: 0,
                node: 0,
                inserted: 0,
                words: new.words as u32,
            });
            for word in words {
                next.words.get_unchecked_mut(new.words).write(word);
                new.words += usize::from(word.at != 0);
            }
        }
        new.count += 1;
        new.sum = new.sum.wrapping_add(hash);
    }

    /// Finds the cached frame with these registers, from index `from` outwards, and sets `from` to
    /// its caller. May miss one that shares its slot with another frame; the walk then takes one
    /// more step.
    #[inline(always)]
    pub(super) fn find(&self, at: Registers, from: &mut usize) -> Option<usize> {
        let index = usize::from(self.by_sp[sp_slot(at.sp)]);
        if index.wrapping_sub(*from) >= self.end - *from {
            return None;
        }
        let matches = self.is_at(index, &at);
        if matches {
            *from = index + 1;
        }
        matches.then_some(index)
    }

    /// Returns true if a cached frame has these registers. The frame pointer counts only if the
    /// frame's step depends on it.
    #[inline(always)]
    pub(super) fn is_at(&self, index: usize, at: &Registers) -> bool {
        let frame = self.frame(index);
        // A single branch, since it is unpredictable which of the two differs.
        (frame.registers.sp ^ at.sp) | (frame.registers.ip ^ at.ip) == 0
            && (frame.registers.fp == at.fp || frame.rule.ignores_fp())
    }

    /// Compares the words that the steps read, from frame `from` outwards, with their current
    /// values. Returns the first frame whose step must be taken again, or `None` if no word has
    /// changed.
    ///
    /// # Safety
    /// All words of the last stack's frames are readable now.
    #[inline(always)]
    pub(super) unsafe fn first_changed(&self, from: usize) -> Option<usize> {
        // SAFETY: the words of the frames `begin..end` are initialized.
        let words = unsafe {
            let first = self.frame(from).words as usize;
            let start = self
                .current_buffer()
                .words
                .as_ptr()
                .cast::<Word>()
                .add(first);
            core::slice::from_raw_parts(start, self.words_end - first)
        };
        // SAFETY: all words are readable, which the caller guarantees.
        let offset = unsafe { first_differing(words) }?;
        let changed = self.frame(from).words as usize + offset;
        // The changed word belongs to the last frame whose words start at or before it.
        let ends_before_change = |index: &usize| self.frame(*index + 1).words as usize <= changed;
        let unchanged = (from..self.end - 1).take_while(ends_before_change);
        Some(from + unchanged.count())
    }

    /// Pushes the cached frames `range`, which are unchanged, to the walk in progress. Called when
    /// the frame after them has changed.
    #[cold]
    pub(super) fn copy_unchanged(&mut self, range: Range<usize>, new: &mut NewFrames) {
        let from = range.start;
        let count = range.len().min(CACHED_FRAMES - new.count);
        for index in from..from + count {
            let frame = *self.frame(index);
            let next = *self.frame(index + 1);
            let mut words = [Word::default(); 2];
            for (word, at) in words.iter_mut().zip(frame.words..next.words) {
                // SAFETY: words between those of two cached frames are initialized.
                *word = unsafe { self.current_buffer().words[at as usize].assume_init() };
            }
            let hash = next.sum.wrapping_sub(frame.sum);
            // SAFETY: `count` is bounded so that `new` stays below CACHED_FRAMES until this push.
            unsafe { self.push(new, frame.registers, frame.rule, words, hash) };
        }
    }

    /// Drops the outermost cached frames so that a traced stack has at most [`CACHED_FRAMES`]
    /// frames. Also forgets the nodes of all other cached frames, whose outermost callers are now
    /// unknown. Returns true if any frame was dropped.
    #[cold]
    pub(super) fn cut(&mut self, found: &Traced) -> bool {
        let (Some(join), Some(excess)) =
            (found.join, self.count(found).checked_sub(CACHED_FRAMES + 1))
        else {
            return false;
        };
        let end = self.end - 1 - excess;
        debug_assert!(end > join);
        self.words_end = self.frame(end).words as usize;
        self.end = end;
        self.forget_nodes();
        true
    }

    /// Forgets the nodes of all frames. Stops at the first frame without a node, since no frame
    /// further in has one.
    pub(super) fn forget_nodes(&mut self) {
        for index in (self.begin..self.end).rev() {
            if core::mem::take(&mut self.frame_mut(index).node) == 0 {
                break;
            }
        }
    }

    /// Returns the sum of the hashes of the innermost `count` frames of the last stack, which must
    /// have more than that.
    #[inline]
    pub(super) fn sum_of_innermost(&self, count: usize) -> u64 {
        let sum = |index| self.frame(index).sum;
        sum(self.begin + count).wrapping_sub(sum(self.begin))
    }

    /// Makes a traced stack of at most [`CACHED_FRAMES`] frames the last stack. Returns by how much
    /// the indices of the kept frames have grown.
    #[inline]
    pub(super) fn commit(&mut self, found: &Traced) -> isize {
        let Traced { new, join } = *found;
        let Some(join) = join else {
            self.current ^= 1;
            self.begin = HEADROOM;
            self.end = HEADROOM + new.count;
            self.words_end = new.words;
            self.total = new.sum;
            if new.count > SP_SLOTS / 4 {
                // Outer frames, pushed later, may have taken the slots of inner ones.
                self.index(HEADROOM..HEADROOM + new.count.min(SP_SLOTS));
            }
            return 0;
        };
        // There may be room in front of the kept frames for the new frames but not for their words,
        // or vice versa.
        let words = new.words - NewFrames::NONE.words;
        let has_room = new.count <= join && words <= self.frame(join).words as usize;
        if !has_room || new.count > self.end - join {
            return self.append_kept(join, &new);
        }
        self.begin = join - new.count;
        if new.count > 0 {
            self.prepend(join, &new);
        }
        0
    }

    /// Returns the buffers of the last and of the next stack.
    #[inline]
    fn both(&mut self) -> (&mut Buffer, &mut Buffer) {
        let [a, b] = &mut self.buffers;
        if self.current & 1 == 0 {
            (a, b)
        } else {
            (b, a)
        }
    }

    /// Copies the new frames to the last stack's buffer, in front of the frame `join`.
    #[inline]
    fn prepend(&mut self, join: usize, new: &NewFrames) {
        let begin = join - new.count;
        let (last, next) = self.both();
        // SAFETY: `join` is a frame of the last stack, which is initialized.
        let kept = unsafe { last.frames[join].assume_init_ref() };
        let sum = kept.sum.wrapping_sub(new.sum);
        let words = kept.words.wrapping_sub(new.words as u32);
        let shift = Shift { sum, words };
        // SAFETY: the walk has pushed `new.count` frames, starting at HEADROOM.
        unsafe { copy(next, HEADROOM..HEADROOM + new.count, last, begin, &shift) };
        copy_words(next, 2 * HEADROOM..new.words, last, words);
        self.index(begin..join);
    }

    /// Copies the kept frames to the other buffer, after the new ones. Returns by how much their
    /// indices have grown.
    #[inline(never)]
    fn append_kept(&mut self, join: usize, new: &NewFrames) -> isize {
        let count = self.end - join;
        let words_end = self.words_end;
        let begin = HEADROOM + new.count;
        let (last, next) = self.both();
        // SAFETY: `join` is a frame of the last stack, which is initialized.
        let kept = unsafe { last.frames[join].assume_init_ref() };
        let first = kept.words as usize;
        let sum = new.sum.wrapping_sub(kept.sum);
        let words = (new.words as u32).wrapping_sub(kept.words);
        let shift = Shift { sum, words };
        // SAFETY: the last stack's frames end at `join + count`.
        unsafe { copy(last, join..join + count, next, begin, &shift) };
        copy_words(last, first..words_end, next, words);
        self.current ^= 1;
        self.begin = HEADROOM;
        self.end = begin + count;
        self.words_end = new.words + (words_end - first);
        self.total = self.total.wrapping_add(sum);
        self.index(HEADROOM..begin + count);
        begin as isize - join as isize
    }

    /// Enters frames of the last stack in the index by stack pointer. Of frames that share a slot,
    /// the innermost is entered: a later walk reaches it first.
    #[inline]
    fn index(&mut self, indices: Range<usize>) {
        for index in indices.rev() {
            let slot = sp_slot(self.frame(index).registers.sp);
            self.by_sp[slot] = index as u16;
        }
    }
}

/// Difference between frames in two buffers.
struct Shift {
    /// Difference of [`Frame::sum`].
    sum: u64,
    /// Difference of [`Frame::words`].
    words: u32,
}

/// Copies the frames `range` of one buffer to index `at` of the other, and adds `shift` to their
/// sums and word indices.
///
/// # Safety
/// The frames `range` are initialized.
#[inline]
unsafe fn copy(from: &Buffer, range: Range<usize>, to: &mut Buffer, at: usize, shift: &Shift) {
    let first = range.start;
    for index in 0..range.len() {
        // SAFETY: the frame is in `range`, all of which is initialized.
        let mut frame = unsafe { from.frames[first + index].assume_init() };
        frame.sum = frame.sum.wrapping_add(shift.sum);
        frame.words = frame.words.wrapping_add(shift.words);
        to.frames[at + index].write(frame);
    }
}

/// Copies the words `range` to the other buffer, to indices that are `shift` greater.
#[inline]
fn copy_words(from: &Buffer, range: Range<usize>, to: &mut Buffer, shift: u32) {
    let at = (range.start as u32).wrapping_add(shift) as usize;
    to.words[at..at + range.len()].copy_from_slice(&from.words[range]);
}

/// Returns the index of the first word whose value has changed. Compares four at a time, since
/// nearly always none has.
///
/// # Safety
/// All of `words` are readable now, including those after the result.
#[inline(always)]
unsafe fn first_differing(words: &[Word]) -> Option<usize> {
    // SAFETY: all words are readable, which the caller guarantees.
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
