//! Per-thread cache of the interpreter frames of the last walk.
//!
//! Reading all frames at every sample is expensive: each code object has to be looked up. Most
//! samples find the same frames as the one before, so a walk first compares the few words that each
//! cached frame was read from, and the [tag](super::tag) of its code object. A frame that only
//! moved to another instruction, or now runs another function, is refreshed in place. The first
//! frame that is linked differently, and all its callees, are read again.
//!
//! The calls of a walk: [`begin`](FrameCache::begin), then
//! [`is_unchanged`](FrameCache::is_unchanged); if that returns false,
//! [`start_collecting`](FrameCache::start_collecting), `add` for each frame, and
//! [`end`](FrameCache::end).

// Decision 51: Python's frames are compared in place.
use super::cached_frame::{CachedFrame, Link};
use super::codes;
use super::frame::{code_of, is_entry, words_of};
use super::function::Function;
use super::instruction;
use super::layout::{self, Layout, Style};
use super::memory::Memory;
use super::quick_check::{QuickCheck, never_matching_address};
use super::tag::CodeTag;
use super::walk::Walk;
use core::mem::MaybeUninit;
use cpython::MAX_FRAMES;
use cpython::chain::{Damaged, Frame, Words};
use shm_protocol::codes::{FRAMES_OMITTED, NO_CODE, address_of};
use unwind::interpreter::InterpreterFrame;

/// Initial and minimum number of walks between two lookups of the functions of cached frames. A
/// lookup may cost a system call, and most functions have no version yet. Prime, so that it does
/// not fall into step with loops in the program.
const MIN_LOOKUP_WALKS: u32 = 31;
/// Maximum back-off between two lookups, in walks: doubled after each lookup that finds no version.
const MAX_LOOKUP_WALKS: u32 = 1 << 10;
/// Maximum number of cached frames that are searched for one frame of the current walk.
const MAX_SEARCHED: usize = 16;

type Buffer<T> = [MaybeUninit<T>; MAX_FRAMES];
/// Padding in cache lines: puts the hot heads of the buffers in different L1 sets.
type Padding<const LINES: usize> = [MaybeUninit<[u64; 8]>; LINES];

/// Frames of the last walk (cached) and of the walk in progress (fresh). All zeros is empty.
#[repr(C)]
pub struct FrameCache {
    /// Number of cached frames. Their buffers are filled outermost first.
    count: usize,
    /// Number of fresh frames. Their buffer is filled innermost first.
    fresh_count: usize,
    /// Number of outermost cached frames that the walk in progress reuses: the callers of its fresh
    /// frames.
    reused: usize,
    /// Number of outermost cached frames that the walk in progress may still reach. Between walks,
    /// all of them.
    reachable: usize,
    /// Number of outermost cached frames whose addresses have not changed since the last walk.
    unchanged: usize,
    /// Walks left until the next lookup of functions.
    walks_to_lookup: u32,
    /// Current number of walks between two lookups.
    lookup_walks: u32,
    /// Number of outermost fresh frames whose native frame is not known yet.
    pending: usize,
    inserted: Buffer<InterpreterFrame>,
    checks: Buffer<QuickCheck>,
    padding: Padding<12>,
    cached: Buffer<CachedFrame>,
    more_padding: Padding<24>,
    fresh: Buffer<CachedFrame>,
}

impl FrameCache {
    /// Forgets the last walk.
    pub fn forget(&mut self) {
        self.count = 0;
        self.reachable = 0;
    }

    /// Begins a walk. Callers may try [`is_unchanged`](Self::is_unchanged) before they collect.
    #[inline]
    pub fn begin(&mut self) {
        self.unchanged = self.count;
    }

    /// Begins to collect fresh frames.
    #[inline]
    pub fn start_collecting(&mut self) {
        self.fresh_count = 0;
        self.reused = 0;
        self.pending = 0;
    }

    /// Returns the number of frames of the walk in progress.
    #[inline]
    pub fn len(&self) -> usize {
        self.reused + self.fresh_count
    }

    /// Drops all frames of the walk in progress.
    pub fn discard(&mut self) {
        self.fresh_count = 0;
        self.reused = 0;
        self.pending = 0;
    }

    /// Drops the outermost fresh frames if no native frame was found that runs them.
    #[inline]
    pub fn discard_pending(&mut self) {
        self.fresh_count -= self.pending;
        self.pending = 0;
    }

    /// Ends a walk that collected frames: moves the fresh frames into the cache.
    #[inline]
    pub fn end(&mut self, layout: &Layout) {
        let mut unchanged = self.reused.min(self.unchanged);
        let total = self.reused + self.fresh_count;
        for index in self.reused..total {
            // SAFETY: `push` wrote the first `fresh_count` fresh frames.
            let mut cached = unsafe { self.fresh[total - 1 - index].assume_init() };
            let caller = index.checked_sub(1).map(|index| self.cached(index).frame);
            cached.link = match caller {
                None => Link::None,
                Some(frame) if cached.is_entry == 0 && cached.words.previous == frame => {
                    Link::Direct
                }
                Some(_) => Link::Native,
            };
            // SAFETY: `unchanged` is at most the `count` of the last walk, which wrote that many
            // entries.
            let last =
                (index < self.unchanged).then(|| unsafe { self.inserted[index].assume_init() });
            if unchanged == index && last == Some(cached.inserted) {
                unchanged += 1;
            }
            self.inserted[index].write(cached.inserted);
            self.cached[index].write(cached);
            self.checks[index].write(cached.quick_check(layout));
        }
        self.count = total;
        self.reachable = total;
        self.unchanged = unchanged;
    }

    /// Returns a cached frame. `index` must be below `count`.
    #[inline(always)]
    fn cached(&self, index: usize) -> &CachedFrame {
        debug_assert!(index < MAX_FRAMES);
        // SAFETY: every index in this module counts from `count` or `reachable` down, or is one
        // that `end` has just written.
        unsafe { self.cached.get_unchecked(index).assume_init_ref() }
    }

    /// Returns true if the cached frames are exactly those of this walk, whose innermost frame is
    /// `frame`. `at` is an address in the native frame that runs it; 0 if not known. `style` must
    /// be the layout's; callers pass it as a constant.
    #[inline(always)]
    pub fn is_unchanged(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        style: Style,
        frame: u64,
        at: u64,
    ) -> bool {
        let Some(last) = self.count.checked_sub(1) else {
            return false;
        };
        let innermost = self.cached(last);
        if innermost.frame != frame
            || ((style == Style::Records || at != 0) && innermost.inserted.at != at)
        {
            return false;
        }
        let changed = match style {
            // Inlined here, because most samples do nothing else.
            Style::Records => self.first_changed(walk, memory, &layout::PYTHON_3_11, last),
            _ => self.first_changed_by_style(walk, memory, last),
        };
        match changed {
            None => true,
            Some(changed) => {
                self.reachable = changed;
                false
            }
        }
    }

    /// Returns the cached frames, outermost first, and how many of them have not changed.
    #[inline]
    pub fn frames(&self) -> (&[InterpreterFrame], usize) {
        let frames = self.inserted.as_ptr().cast();
        // SAFETY: `end` wrote the first `count`.
        let frames = unsafe { core::slice::from_raw_parts(frames, self.count) };
        (frames, self.unchanged)
    }

    /// Tries to end the walk at a cached frame. Returns true if `frame`, run by the native frame
    /// `at` (0 if not known yet), is cached and all its callers are unchanged. These are reused.
    #[inline(always)]
    pub fn joins_cached(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        frame: u64,
        at: u64,
    ) -> Result<bool, Damaged> {
        let from = self.reachable.saturating_sub(MAX_SEARCHED);
        let is_match = |index: &usize| {
            let cached = self.cached(*index);
            cached.frame == frame && (at == 0 || cached.inserted.at == at)
        };
        let Some(index) = (from..self.reachable).rev().find(is_match) else {
            return Ok(false);
        };
        if index + self.fresh_count + 2 >= MAX_FRAMES {
            return Ok(false);
        }
        if let Some(changed) = self.first_changed_by_style(walk, memory, index) {
            // The cached callees of the changed frame all lead to it. So the walk cannot end at one
            // of them either, and they are not searched again.
            self.reachable = changed;
            return Ok(false);
        }
        self.reused = index + 1;
        // The pending frames are callees that the same native frame runs.
        let at = self.cached(index).inserted.at;
        self.attach_to(at)?;
        Ok(true)
    }

    #[inline(never)]
    fn first_changed_by_style(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        index: usize,
    ) -> Option<usize> {
        match walk.layout.style {
            // The same values as `walk.layout`, but known at compile time.
            Style::Records => self.first_changed(walk, memory, &layout::PYTHON_3_11, index),
            _ => self.first_changed(walk, memory, walk.layout, index),
        }
    }

    /// Returns the first cached frame, from `index` towards the outermost, that is no longer a
    /// frame or no longer leads to its caller. Frames that changed in another way are refreshed.
    #[inline(always)]
    fn first_changed(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        layout: &Layout,
        index: usize,
    ) -> Option<usize> {
        let mut current = index;
        loop {
            let passes_quickly = self.passes_quick_check(layout, current);
            let is_same = passes_quickly || self.passes_tag_check(layout, current);
            if passes_quickly || (is_same && self.cached(current).link == Link::Direct) {
                // A frame with a direct link has a caller, so `current` is not 0.
                current -= 1;
                continue;
            }
            let is_same = is_same && self.leads_to_caller(walk, layout, current);
            if !is_same && !self.refresh_if_linked(walk, memory, layout, current) {
                return Some(current);
            }
            match current.checked_sub(1) {
                Some(caller) => current = caller,
                None => break,
            }
        }
        match self.walks_to_lookup.checked_sub(1) {
            Some(walks) => self.walks_to_lookup = walks,
            None => self.find_functions(layout, memory, index),
        }
        None
    }

    /// Compares only the words of a cached frame's [`QuickCheck`].
    #[inline(always)]
    fn passes_quick_check(&self, layout: &Layout, index: usize) -> bool {
        // SAFETY: `end` wrote the first `count` checks. The frame is readable: the walk came to it
        // through its callees, which are unchanged.
        unsafe {
            self.checks
                .get_unchecked(index)
                .assume_init_ref()
                .is_same(layout)
        }
    }

    /// Compares the tag of a cached frame's code object, and the frame's own words. Does not check
    /// which native frame runs its caller.
    #[inline(always)]
    fn passes_tag_check(&self, layout: &Layout, index: usize) -> bool {
        let cached = self.cached(index);
        // SAFETY: `end` wrote the first `count` checks. The frame is readable: the walk came to it
        // through its callees, which are unchanged. A code object with this tag was at `code` in
        // the last walk, and the object that is there now is kept alive by the thread's frame.
        unsafe {
            let check = self.checks.get_unchecked(index).assume_init_ref();
            let code = code_of(layout, check.frame());
            let links = check.compare_links(layout);
            code == cached.words.code && cached.tag.matches_and(layout, code, links)
        }
    }

    /// Refreshes a cached frame in which something has changed. Returns false if it is no longer a
    /// frame, or no longer leads to its caller.
    #[inline(never)]
    fn refresh_if_linked(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        layout: &Layout,
        index: usize,
    ) -> bool {
        let cached = self.cached(index);
        if cached.frame == 0 {
            // It stands for the outer frames of a stack that was too deep.
            return false;
        }
        // SAFETY: unchanged callees lead here, and the frame was readable in the last walk.
        let (words, is_entry) = unsafe {
            (
                words_of(layout, cached.frame),
                is_entry(layout, cached.frame),
            )
        };
        let leads_to_caller = words.previous == cached.words.previous
            && is_entry == cached.is_entry
            && (cached.link == Link::Direct || self.leads_to_caller(walk, layout, index));
        // SAFETY: unchanged callees lead to the frame, which was readable in the last walk.
        leads_to_caller && unsafe { self.refresh(walk, memory, index) }
    }

    /// Looks up the functions of unchanged frames that do not pass the quick check, in case they
    /// have been given a version since.
    #[cold]
    #[inline(never)]
    fn find_functions(&mut self, layout: &Layout, memory: &mut Memory, index: usize) {
        self.walks_to_lookup = self.lookup_walks;
        if layout.function_version == 0 {
            return;
        }
        let mut found_any = false;
        for index in 0..=index {
            if !self.passes_quick_check(layout, index) {
                // SAFETY: `index` is below `count`, and `end` wrote that many frames.
                let cached = unsafe { self.cached[index].assume_init_mut() };
                let Words { code, .. } = cached.words;
                // SAFETY: an unchanged frame, which this walk has read.
                cached.function =
                    unsafe { Function::find_probing(layout, memory, cached.frame, code) };
                found_any |= cached.function.version().is_some() && cached.link == Link::Direct;
                self.checks[index].write(cached.quick_check(layout));
            }
        }
        self.lookup_walks = if found_any {
            MIN_LOOKUP_WALKS
        } else {
            (2 * self.lookup_walks + 1).clamp(MIN_LOOKUP_WALKS, MAX_LOOKUP_WALKS)
        };
    }

    /// Computes the new address of a cached frame whose words have changed. Returns false if there
    /// is none, because it runs no code object.
    ///
    /// # Safety
    /// The cached frame with index `index` is readable.
    #[inline(never)]
    unsafe fn refresh(&mut self, walk: &Walk<'_>, memory: &mut Memory, index: usize) -> bool {
        let layout = walk.layout;
        // SAFETY: `index` is below `count`, and `end` wrote that many frames.
        let cached = unsafe { self.cached[index].assume_init_mut() };
        // SAFETY: the frame is readable.
        let words = unsafe { words_of(layout, cached.frame) };
        // SAFETY: the frame is readable. A code object with this tag was at its address in the last
        // walk, and the object that is there now is kept alive by the frame.
        let is_same = words.code == cached.words.code
            && unsafe {
                cached.function.matches(layout, cached.frame)
                    || cached.tag.matches(layout, words.code)
            };
        if !is_same {
            let Some((number, tag)) = codes::number_and_tag(layout, words.code, walk.session)
            else {
                return false;
            };
            cached.number = number;
            cached.tag = tag;
            // SAFETY: the frame is readable.
            cached.function =
                unsafe { Function::find_known(layout, memory, cached.frame, words.code) };
        }
        // SAFETY: the frame is readable.
        let address = unsafe { instruction::address(layout, cached.number, cached.frame, words) };
        let Ok(address) = address else {
            return false;
        };
        cached.words = words;
        self.checks[index].write(cached.quick_check(layout));
        if cached.inserted.address != address {
            cached.inserted.address = address;
            self.inserted[index].write(cached.inserted);
            self.unchanged = self.unchanged.min(index);
        }
        true
    }

    /// Returns true if a cached frame still leads to its caller through the native frames between
    /// them.
    #[inline(always)]
    fn leads_to_caller(&self, walk: &Walk<'_>, layout: &Layout, index: usize) -> bool {
        let Some(caller) = index.checked_sub(1).map(|index| self.cached(index)) else {
            return self.is_still_outermost(walk, layout, index);
        };
        let this = self.cached(index);
        let native_stack = walk.native_stack;
        let at = this.inserted.at;
        let caller_at = caller.inserted.at;
        match layout.style {
            Style::Objects => false,
            Style::Records => {
                this.words.previous == caller.frame
                    && native_stack.peek(at + layout.current + 8) == Some(caller_at)
                    && native_stack.peek(caller_at + layout.current) == Some(caller.frame)
            }
            Style::Entries => {
                this.words.previous == at
                    && native_stack.peek(at + layout.frame_previous) == Some(caller.frame)
            }
        }
    }

    /// Returns true if the outermost cached frame is still in the outermost record (`_PyCFrame`)
    /// that has frames.
    #[inline(always)]
    fn is_still_outermost(&self, walk: &Walk<'_>, layout: &Layout, index: usize) -> bool {
        if layout.style != Style::Records {
            return true;
        }
        let at = self.cached(index).inserted.at;
        let outer = walk.native_stack.peek(at + layout.current + 8);
        outer.is_some_and(|outer| {
            let is_outermost = outer <= at;
            is_outermost
                || matches!(
                    walk.native_stack.peek(outer + layout.current),
                    None | Some(0)
                )
        })
    }

    /// Returns true if a frame can be added and there is still room for
    /// [`add_elision`](Self::add_elision).
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.fresh_count + 1 < MAX_FRAMES
    }

    /// Returns true if no more frames can be added.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.fresh_count >= MAX_FRAMES
    }

    /// Adds the readable frame at `at`, the caller of the one added before.
    #[inline(always)]
    pub fn add(
        &mut self,
        walk: &Walk<'_>,
        memory: &mut Memory,
        at: u64,
        frame: &Frame,
    ) -> Result<(), Damaged> {
        let layout = walk.layout;
        let words = frame.words;
        let found = if memory.is_interrupted() {
            let number = codes::number_uncached(layout, memory, words.code, walk.session);
            number.map(|number| (number, CodeTag::default()))
        } else {
            codes::number_and_tag(layout, words.code, walk.session)
        };
        let (number, tag) = found.ok_or(Damaged)?;
        // SAFETY: `frame` was read there.
        let address = unsafe { instruction::address(layout, number, at, words) }?;
        self.push(CachedFrame {
            frame: at,
            words,
            inserted: InterpreterFrame { at: 0, address },
            number,
            is_entry: frame.is_entry,
            link: Link::None,
            // SAFETY: `frame` was read there.
            function: unsafe { Function::find_known(layout, memory, at, words.code) },
            tag,
        });
        Ok(())
    }

    #[inline]
    fn push(&mut self, cached: CachedFrame) {
        if self.fresh_count < MAX_FRAMES {
            self.fresh[self.fresh_count].write(cached);
            self.fresh_count += 1;
            self.pending += 1;
        }
    }

    /// Adds one frame that stands for all outer frames of a stack that is too deep. Later walks
    /// always find it changed.
    #[cold]
    pub fn add_elision(&mut self) {
        if self.fresh_count + 1 == MAX_FRAMES {
            let words = Words {
                code: never_matching_address(),
                previous: 0,
                instruction: 0,
            };
            let address = address_of(NO_CODE, FRAMES_OMITTED);
            self.push(CachedFrame {
                frame: 0,
                words,
                inserted: InterpreterFrame { at: 0, address },
                number: NO_CODE,
                is_entry: 0,
                link: Link::None,
                function: Function::default(),
                tag: CodeTag::default(),
            });
        }
    }

    /// Records that the pending frames are run by the native frame that contains address `at`.
    #[inline(always)]
    pub fn attach_to(&mut self, at: u64) -> Result<(), Damaged> {
        let first = self.fresh_count - self.pending;
        for cached in &mut self.fresh[first..self.fresh_count] {
            // SAFETY: `push` wrote the first `fresh_count` fresh frames.
            unsafe { cached.assume_init_mut() }.inserted.at = at;
        }
        self.pending = 0;
        // SAFETY: `callee` is below `fresh_count`, and `push` wrote that many fresh frames.
        let callee = first
            .checked_sub(1)
            .map(|callee| unsafe { self.fresh[callee].assume_init_ref() }.inserted.at);
        match callee {
            // The caller's native frame must be at a higher address than the callee's.
            Some(callee) if callee > at => Err(Damaged),
            _ => Ok(()),
        }
    }
}
