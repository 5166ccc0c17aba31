//! The frames of a thread's last walk, and what they were read from.
//!
//! A frame is three words and its code object. Where a thread's frames are the same as in the last
//! walk, nothing is looked up again: their words are compared, and the [mark](super::mark) of each
//! code object. A frame that is at another instruction, or that another function now uses, gets a
//! new address in place; where frames are linked in another way, they are read again.

// Decision 51: Python's frames are compared in place.
use super::codes;
use super::frame::{Link, Seen, Words, code_of, is_entry};
use super::frames::{Damaged, Walk};
use super::function::Function;
use super::layout::{self, Layout, Style};
use super::mark::Mark;
use super::memory::Memory;
use super::place;
use super::plain::{Plain, never};
use core::mem::MaybeUninit;
use cpython::MOST_FRAMES;
use shm_protocol::codes::{LEFT_OUT, NO_CODE, address_of};
use unwind::inserted::Inserted;

/// Once in this many walks, the functions of the last walk's frames are examined: that may take a
/// system call, and most functions that have no version get none. No multiple of a number that
/// programs count their rounds by.
const PATIENCE: u32 = 31;
/// As long as they get none, twice as many each time, up to this many.
const MOST_PATIENCE: u32 = 1 << 10;
/// This many of the last walk's frames are examined to find one that is met again.
const REACH: usize = 16;

type Buffer<T> = [MaybeUninit<T>; MOST_FRAMES];
/// Keeps the beginnings of the buffers, which are what is used, out of each other's sets of the
/// processor's first cache.
type Apart<const LINES: usize> = [MaybeUninit<[u64; 8]>; LINES];

/// Zeroed memory has no frames.
#[repr(C)]
pub struct Memo {
    /// Frames of the last walk, outermost first, and what they were read from.
    count: usize,
    /// Frames of the walk in progress, innermost first, and how many of the last one follow.
    fresh_count: usize,
    kept: usize,
    /// Of the last walk's frames, those that the walk in progress may still meet; all between
    /// walks.
    ahead: usize,
    /// Of the last walk's frames, the outermost ones whose addresses are what they were.
    unchanged: usize,
    /// Walks until the functions of frames are examined.
    walks: u32,
    /// How many those were.
    patience: u32,
    /// Fresh frames, the outermost ones, whose native frame is not known yet.
    pending: usize,
    inserted: Buffer<Inserted>,
    plain: Buffer<Plain>,
    apart: Apart<12>,
    seen: Buffer<Seen>,
    further_apart: Apart<24>,
    fresh: Buffer<Seen>,
}

impl Memo {
    /// Forgets the last walk.
    pub fn forget(&mut self) {
        (self.count, self.ahead) = (0, 0);
    }

    /// Begins a walk. Whether [`stays`](Self::stays) comes first is the caller's choice.
    #[inline]
    pub fn begin(&mut self) {
        self.unchanged = self.count;
    }

    /// Begins to collect frames.
    #[inline]
    pub fn collect(&mut self) {
        (self.fresh_count, self.kept, self.pending) = (0, 0, 0);
    }

    /// Number of frames of the walk in progress.
    #[inline]
    pub fn len(&self) -> usize {
        self.kept + self.fresh_count
    }

    /// Leaves out all frames of the walk in progress.
    pub fn discard(&mut self) {
        (self.fresh_count, self.kept, self.pending) = (0, 0, 0);
    }

    /// Leaves out the outermost frames if they are run by no native frame that is known.
    #[inline]
    pub fn discard_pending(&mut self) {
        self.fresh_count -= self.pending;
        self.pending = 0;
    }

    /// Ends a walk of which frames were collected: these are the last walk's now.
    #[inline]
    pub fn end(&mut self, layout: &Layout) {
        let mut same = self.kept.min(self.unchanged);
        let total = self.kept + self.fresh_count;
        for index in self.kept..total {
            // SAFETY: `push` wrote the first `fresh_count`.
            let mut seen = unsafe { self.fresh[total - 1 - index].assume_init() };
            let next = index.checked_sub(1).map(|next| self.seen(next).frame);
            seen.link = match next {
                None => Link::None,
                Some(next) if seen.is_entry == 0 && seen.words.previous == next => Link::Direct,
                Some(_) => Link::Native,
            };
            // SAFETY: written, as the last walk's.
            let last =
                (index < self.unchanged).then(|| unsafe { self.inserted[index].assume_init() });
            if same == index && last == Some(seen.inserted) {
                same += 1;
            }
            self.inserted[index].write(seen.inserted);
            self.seen[index].write(seen);
            self.plain[index].write(seen.plain(layout));
        }
        (self.count, self.ahead, self.unchanged) = (total, total, same);
    }

    #[inline(always)]
    fn seen(&self, index: usize) -> &Seen {
        // SAFETY: callers pass an index below `count`, up to which frames are written.
        unsafe { self.seen.get_unchecked(index).assume_init_ref() }
    }

    /// Whether the last walk's frames are all of those of this one, whose innermost is `frame` in
    /// the native frame `at` (0: it is not known). `style`: the layout's, as a constant.
    #[inline(always)]
    pub fn stays(
        &mut self,
        (walk, memory): (&Walk<'_>, &mut Memory),
        style: Style,
        (frame, at): (u64, u64),
    ) -> bool {
        let Some(last) = self.count.checked_sub(1) else {
            return false;
        };
        let innermost = self.seen(last);
        if innermost.frame != frame
            || ((style == Style::Records || at != 0) && innermost.inserted.at != at)
        {
            return false;
        }
        let other = match style {
            // In place: most samples are this and nothing else.
            Style::Records => self.first_other((walk, memory), &layout::PYTHON_3_11, last),
            _ => self.first_other_by_style(walk, memory, last),
        };
        match other {
            None => true,
            Some(other) => {
                self.ahead = other;
                false
            }
        }
    }

    /// The last walk's frames, outermost first, and how many are what they were before.
    #[inline]
    pub fn frames(&self) -> (&[Inserted], usize) {
        let frames = self.inserted.as_ptr().cast();
        // SAFETY: written, as are all of the last walk's.
        let frames = unsafe { core::slice::from_raw_parts(frames, self.count) };
        (frames, self.unchanged)
    }

    /// Whether a frame in the native frame `at` is one of the last walk's, as are all further out:
    /// then these are taken. `at` 0: it is not known yet.
    #[inline]
    pub fn joins(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        (frame, at): (u64, u64),
    ) -> Result<bool, Damaged> {
        let from = self.ahead.saturating_sub(REACH);
        let is_it = |index: &usize| {
            let seen = self.seen(*index);
            seen.frame == frame && (at == 0 || seen.inserted.at == at)
        };
        let Some(index) = (from..self.ahead).rev().find(is_it) else {
            return Ok(false);
        };
        if index + self.fresh_count + 2 >= MOST_FRAMES {
            return Ok(false);
        }
        if let Some(other) = self.first_other_by_style(walk, memory, index) {
            // What is further in leads to it, so each frame is examined once.
            self.ahead = other;
            return Ok(false);
        }
        self.kept = index + 1;
        // Frames of the same native frame further in.
        let at = self.seen(index).inserted.at;
        self.settle(at)?;
        Ok(true)
    }

    #[inline(never)]
    fn first_other_by_style(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        index: usize,
    ) -> Option<usize> {
        match walk.layout.style {
            // The same layout, as a constant.
            Style::Records => self.first_other((walk, memory), &layout::PYTHON_3_11, index),
            _ => self.first_other((walk, memory), walk.layout, index),
        }
    }

    /// The first of the last walk's frames from `index` outwards that is none any more, or does not
    /// lead to the next one. What has changed in the others is found.
    #[inline(always)]
    fn first_other(
        &mut self,
        (walk, memory): (&Walk<'_>, &mut Memory),
        layout: &Layout,
        index: usize,
    ) -> Option<usize> {
        let mut other = index;
        loop {
            let is_plain = self.is_plainly_same(layout, other);
            let is_same = is_plain || self.is_same(layout, other);
            if is_plain || (is_same && self.seen(other).link == Link::Direct) {
                // There is a next one.
                other -= 1;
                continue;
            }
            let is_same = is_same && self.leads_on(walk, layout, other);
            if !is_same && !self.is_renewed((walk, memory), layout, other) {
                return Some(other);
            }
            match other.checked_sub(1) {
                Some(next) => other = next,
                None => break,
            }
        }
        match self.walks.checked_sub(1) {
            Some(walks) => self.walks = walks,
            None => self.look_for_functions(layout, memory, index),
        }
        None
    }

    /// Whether the fewest words that suffice show that a frame of the last walk is what it was.
    #[inline(always)]
    fn is_plainly_same(&self, layout: &Layout, index: usize) -> bool {
        // SAFETY: the last walk's, which is written; the frames further in lead to it.
        unsafe {
            self.plain
                .get_unchecked(index)
                .assume_init_ref()
                .is_same(layout)
        }
    }

    /// The same by its code object's mark; where other native frames run the next one, whether they
    /// still do is not asked.
    #[inline(always)]
    fn is_same(&self, layout: &Layout, index: usize) -> bool {
        let seen = self.seen(index);
        // SAFETY: as in `is_plainly_same`; its code object was here, and the thread's frame holds
        // what is here.
        unsafe {
            let plain = self.plain.get_unchecked(index).assume_init_ref();
            let code = code_of(layout, plain.frame());
            let leads = plain.leads_as_before(layout);
            code == seen.words.code && seen.mark.holds_with(layout, code, leads)
        }
    }

    /// Whether one of the last walk's frames in which something has changed is one, and leads to
    /// the next one. What has changed in it is found.
    #[inline(never)]
    fn is_renewed(
        &mut self,
        (walk, memory): (&Walk<'_>, &mut Memory),
        layout: &Layout,
        index: usize,
    ) -> bool {
        let seen = self.seen(index);
        if seen.frame == 0 {
            // In the place of those that were too many.
            return false;
        }
        // SAFETY: the thread's own frames lead here, and it could be read when they did before.
        let (words, is_entry) =
            unsafe { (Words::of(layout, seen.frame), is_entry(layout, seen.frame)) };
        let leads_on = words.previous == seen.words.previous
            && is_entry == seen.is_entry
            && (seen.link == Link::Direct || self.leads_on(walk, layout, index));
        leads_on && self.renew(walk, memory, index)
    }

    /// For frames that are what they were: whether their functions can show that by now.
    #[cold]
    #[inline(never)]
    fn look_for_functions(&mut self, layout: &Layout, memory: &mut Memory, index: usize) {
        self.walks = self.patience;
        if layout.function_version == 0 {
            return;
        }
        let mut got_any = false;
        for index in 0..=index {
            if !self.is_plainly_same(layout, index) {
                // SAFETY: the last walk's.
                let seen = unsafe { self.seen[index].assume_init_mut() };
                let frame = (seen.frame, seen.words.code);
                seen.function = Function::looked_for(layout, memory, frame);
                got_any |= seen.function.version().is_some() && seen.link == Link::Direct;
                self.plain[index].write(seen.plain(layout));
            }
        }
        self.patience = match got_any {
            true => PATIENCE,
            false => (2 * self.patience + 1).clamp(PATIENCE, MOST_PATIENCE),
        };
    }

    /// Finds the address of a frame whose words have changed; whether there is one.
    #[inline(never)]
    fn renew(&mut self, walk: &Walk<'_>, memory: &mut Memory, index: usize) -> bool {
        let layout = walk.layout;
        // SAFETY: the last walk's.
        let seen = unsafe { self.seen[index].assume_init_mut() };
        // SAFETY: read just now.
        let words = unsafe { Words::of(layout, seen.frame) };
        // SAFETY: as in `first_other`.
        let is_same = words.code == seen.words.code
            && unsafe {
                seen.function.holds(layout, seen.frame) || seen.mark.holds(layout, words.code)
            };
        if !is_same {
            let Some((number, mark)) = codes::number(layout, words.code, walk.epoch) else {
                return false;
            };
            (seen.number, seen.mark) = (number, mark);
            seen.function = Function::met(layout, memory, (seen.frame, words.code));
        }
        let Ok(address) = place::address(layout, seen.number, (seen.frame, words)) else {
            return false;
        };
        seen.words = words;
        self.plain[index].write(seen.plain(layout));
        if seen.inserted.address != address {
            seen.inserted.address = address;
            self.inserted[index].write(seen.inserted);
            self.unchanged = self.unchanged.min(index);
        }
        true
    }

    /// Whether one of the last walk's frames leads to the next one, by other native frames.
    #[inline(always)]
    fn leads_on(&self, walk: &Walk<'_>, layout: &Layout, index: usize) -> bool {
        let Some(next) = index.checked_sub(1).map(|index| self.seen(index)) else {
            return self.ends(walk, layout, index);
        };
        let (this, trail) = (self.seen(index), walk.trail);
        let (at, next_at) = (this.inserted.at, next.inserted.at);
        match layout.style {
            Style::Objects => false,
            Style::Records => {
                this.words.previous == next.frame
                    && trail.peek(at + layout.current + 8) == Some(next_at)
                    && trail.peek(next_at + layout.current) == Some(next.frame)
            }
            Style::Entries => {
                this.words.previous == at
                    && trail.peek(at + layout.frame_previous) == Some(next.frame)
            }
        }
    }

    /// Whether one of the last walk's frames that led to none still is in the outermost record.
    #[inline(always)]
    fn ends(&self, walk: &Walk<'_>, layout: &Layout, index: usize) -> bool {
        if layout.style != Style::Records {
            return true;
        }
        let at = self.seen(index).inserted.at;
        let further = walk.trail.peek(at + layout.current + 8);
        further.is_some_and(|further| {
            let is_outermost = further <= at;
            is_outermost || matches!(walk.trail.peek(further + layout.current), None | Some(0))
        })
    }

    /// Whether there is room for one more frame than [`leave_out`](Self::leave_out) puts.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.fresh_count + 1 < MOST_FRAMES
    }

    /// Adds a frame that can be read, further out than those before.
    #[inline]
    pub fn add(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        (frame, words): (u64, Words),
    ) -> Result<(), Damaged> {
        let layout = walk.layout;
        let found = match memory.is_interrupted() {
            false => codes::number(layout, words.code, walk.epoch),
            true => {
                let number = codes::number_anew(layout, memory, words.code, walk.epoch);
                number.map(|number| (number, Mark::default()))
            }
        };
        let (number, mark) = found.ok_or(Damaged)?;
        let address = place::address(layout, number, (frame, words))?;
        self.push(Seen {
            frame,
            words,
            inserted: Inserted { at: 0, address },
            number,
            // SAFETY: it can be read.
            is_entry: unsafe { is_entry(layout, frame) },
            link: Link::None,
            function: Function::met(layout, memory, (frame, words.code)),
            mark,
        });
        Ok(())
    }

    #[inline]
    fn push(&mut self, seen: Seen) {
        if self.fresh_count < MOST_FRAMES {
            self.fresh[self.fresh_count].write(seen);
            self.fresh_count += 1;
            self.pending += 1;
        }
    }

    /// Puts one frame in the place of all that are further out.
    #[cold]
    pub fn leave_out(&mut self) {
        if self.fresh_count + 1 == MOST_FRAMES {
            let words = Words {
                code: never(),
                previous: 0,
                instruction: 0,
            };
            let address = address_of(NO_CODE, LEFT_OUT);
            self.push(Seen {
                frame: 0,
                words,
                inserted: Inserted { at: 0, address },
                number: NO_CODE,
                is_entry: 0,
                link: Link::None,
                function: Function::default(),
                mark: Mark::default(),
            });
        }
    }

    /// The frames since the last call are run by the native frame in which `at` is.
    #[inline]
    pub fn settle(&mut self, at: u64) -> Result<(), Damaged> {
        let first = self.fresh_count - self.pending;
        for seen in &mut self.fresh[first..self.fresh_count] {
            // SAFETY: `push` wrote it.
            unsafe { seen.assume_init_mut() }.inserted.at = at;
        }
        self.pending = 0;
        let inner = first.checked_sub(1).map(|inner| {
            // SAFETY: as above.
            unsafe { self.fresh[inner].assume_init_ref() }.inserted.at
        });
        match inner {
            // On another stack than the frames further in.
            Some(inner) if inner > at => Err(Damaged),
            _ => Ok(()),
        }
    }
}
