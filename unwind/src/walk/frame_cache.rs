//! Cache of single frames on the thread's own stack, by their registers.
//!
//! The position of a frame's caller follows from the frame's registers alone: the return address,
//! the saved frame pointer and the caller's frame lie at fixed distances from the stack pointer.
//! The two words are read again in each walk, so only the registers have to be compared. Stacks
//! that were never seen as a whole are walked as fast as others.
//!
//! Cost: about 30 instructions and one cache line for each frame, without branches that depend on
//! the stack.

// Decision 52: a frame's caller is found by its place.
use crate::Registers;
use crate::arch::{Machine, Native};
use crate::rule::{Rule, Word};

/// Number of entries: 128 KiB, of which a thread with few different frames touches little.
const ENTRIES: usize = 2048;

/// Cached frame. Zeroed memory is an empty entry, since no walk has era 0.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Entry {
    registers: Registers,
    /// All ones if the position of the caller depends on the frame pointer, else 0.
    needs_fp: u64,
    /// All ones if the caller has the same frame pointer, else 0.
    keeps_fp: u64,
    /// Term in the stack hash.
    hash: u64,
    /// Distance of the return address from the stack pointer, in bytes.
    ra_distance: u32,
    /// Distance of the saved frame pointer from the stack pointer, in bytes.
    fp_distance: u32,
    /// Distance of the caller's stack pointer from this frame's, in bytes.
    size: u32,
    /// Era in which the entry was written; entries of earlier eras are invalid.
    era: u32,
}

/// Frame cache of one thread.
#[repr(C)]
pub(super) struct FrameCache {
    era: u32,
    entries: [Entry; ENTRIES],
}

/// Caller of a cached frame, and the frame's term in the stack hash.
pub(super) struct Caller {
    pub(super) registers: Registers,
    pub(super) hash: u64,
}

impl FrameCache {
    /// Invalidates all entries. Called when their rules or the thread's stack may have changed.
    pub(super) fn forget(&mut self) {
        self.era = self.era.wrapping_add(1);
        if self.era == 0 {
            self.entries.iter_mut().for_each(|entry| entry.era = 0);
            self.era = 1;
        }
    }

    #[inline(always)]
    fn index(at: Registers) -> usize {
        // The return address comes last, since it is known later than the stack pointer.
        let sp = at.sp.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        (at.ip ^ (at.ip >> 11) ^ sp) as usize % ENTRIES
    }

    /// Returns the caller of a cached frame.
    ///
    /// # Safety
    /// All stack words of frames [inserted](Self::insert) since the last [`forget`](Self::forget)
    /// are readable now.
    #[inline(always)]
    pub(super) unsafe fn caller(&self, at: Registers) -> Option<Caller> {
        let entry = &self.entries[Self::index(at)];
        let cached = entry.registers;
        // A single branch, since it is unpredictable which of them differs.
        let differs = (cached.ip ^ at.ip)
            | (cached.sp ^ at.sp)
            | ((cached.fp ^ at.fp) & entry.needs_fp)
            | u64::from(entry.era ^ self.era);
        if differs != 0 {
            return None;
        }
        // SAFETY: both words were read when the entry was written, and all such words are readable,
        // which the caller guarantees.
        let word = |distance: u32| unsafe {
            ((at.sp + u64::from(distance)) as *const u64).read_volatile()
        };
        let fp = word(entry.fp_distance);
        let registers = Registers {
            ip: Native::return_address(word(entry.ra_distance)),
            sp: at.sp + u64::from(entry.size),
            fp: (fp & !entry.keeps_fp) | (at.fp & entry.keeps_fp),
        };
        Some(Caller {
            registers,
            hash: entry.hash,
        })
    }

    /// Caches a frame whose plain step read the return address `ra` and, if it was saved, the frame
    /// pointer `fp`, and led to a frame with stack pointer `caller_sp`.
    #[inline]
    pub(super) fn insert(
        &mut self,
        at: Registers,
        rule: Rule,
        ra: Word,
        fp: Word,
        caller_sp: u64,
        hash: u64,
    ) {
        let distance = |to: u64| u32::try_from(to.wrapping_sub(at.sp)).ok();
        let keeps_fp = fp.at == 0;
        let fp_at = if keeps_fp { ra.at } else { fp.at };
        let distances = (distance(ra.at), distance(fp_at), distance(caller_sp));
        let (Some(ra_distance), Some(fp_distance), Some(size)) = distances else {
            return;
        };
        let all_if = |condition: bool| if condition { u64::MAX } else { 0 };
        self.entries[Self::index(at)] = Entry {
            registers: at,
            needs_fp: all_if(rule.needs_fp()),
            keeps_fp: all_if(keeps_fp),
            hash,
            ra_distance,
            fp_distance,
            size,
            era: self.era,
        };
    }
}
