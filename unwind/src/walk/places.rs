//! Frames that were met before, at their places on the thread's own stack.
//!
//! Where a frame's caller is follows from its registers alone: at these distances from its stack
//! pointer are its return address and its saved frame pointer, and its caller's frame begins. The
//! two words are read again in each walk, so nothing has to be compared but the registers, and
//! stacks that were never seen as a whole are walked as fast as others.
//!
//! Cost: about 30 instructions a frame, one cache line, and no branch that depends on the stack.

// Decision 52: a frame's caller is found by its place.
use crate::Registers;
use crate::arch::{Machine, Native};
use crate::rule::{Rule, Word};

/// 128 KiB, of which a thread with few different frames touches little.
const COUNT: usize = 2048;

/// A frame at its place; zeroed memory is none, since no walk is of era 0.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Place {
    registers: Registers,
    /// All bits if the caller depends on the frame pointer, else none.
    needs_fp: u64,
    /// All bits if the caller has the same frame pointer, else none.
    keeps_fp: u64,
    /// What the frame adds to its stack's sum.
    part: u64,
    /// Distances from the stack pointer.
    ra: u32,
    fp: u32,
    size: u32,
    era: u32,
}

/// A thread's places.
#[repr(C)]
pub(super) struct Places {
    era: u32,
    places: [Place; COUNT],
}

/// A frame's caller, and what the frame adds to the sum.
pub(super) struct Caller {
    pub(super) registers: Registers,
    pub(super) part: u64,
}

impl Places {
    /// Forgets all of them: their rules, or the stack that they are on, may be others from now on.
    pub(super) fn forget(&mut self) {
        self.era = self.era.wrapping_add(1);
        if self.era == 0 {
            self.places.iter_mut().for_each(|place| place.era = 0);
            self.era = 1;
        }
    }

    #[inline(always)]
    fn index(at: Registers) -> usize {
        // The stack pointer is known early, the return address just now.
        let sp = at.sp.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        (at.ip ^ at.ip >> 11 ^ sp) as usize % COUNT
    }

    /// The caller of a frame that was met before.
    ///
    /// # Safety
    /// What was [noted](Self::note) since [`forget`](Self::forget) can be read now.
    #[inline(always)]
    pub(super) unsafe fn caller(&self, at: Registers) -> Option<Caller> {
        let place = &self.places[Self::index(at)];
        let known = place.registers;
        // One branch: which of them differs cannot be foreseen.
        let differs = (known.ip ^ at.ip)
            | (known.sp ^ at.sp)
            | ((known.fp ^ at.fp) & place.needs_fp)
            | u64::from(place.era ^ self.era);
        if differs != 0 {
            return None;
        }
        // SAFETY: the caller's: these were read in an earlier walk.
        let word = |distance: u32| unsafe {
            ((at.sp + u64::from(distance)) as *const u64).read_volatile()
        };
        let fp = word(place.fp);
        let registers = Registers {
            ip: Native::return_address(word(place.ra)),
            sp: at.sp + u64::from(place.size),
            fp: (fp & !place.keeps_fp) | (at.fp & place.keeps_fp),
        };
        Some(Caller {
            registers,
            part: place.part,
        })
    }

    /// Notes a frame whose plain step read the return address `ra` and, if it was saved, the frame
    /// pointer `fp`, and led to a frame at `caller`.
    #[inline]
    pub(super) fn note(
        &mut self,
        (at, rule): (Registers, Rule),
        (ra, fp): (Word, Word),
        caller: u64,
        part: u64,
    ) {
        let distance = |to: u64| u32::try_from(to.wrapping_sub(at.sp)).ok();
        let keeps_fp = fp.at == 0;
        let fp_at = if keeps_fp { ra.at } else { fp.at };
        let distances = (distance(ra.at), distance(fp_at), distance(caller));
        let (Some(ra), Some(fp), Some(size)) = distances else {
            return;
        };
        let all_if = |condition: bool| if condition { u64::MAX } else { 0 };
        self.places[Self::index(at)] = Place {
            registers: at,
            needs_fp: all_if(rule.needs_fp()),
            keeps_fp: all_if(keeps_fp),
            part,
            ra,
            fp,
            size,
            era: self.era,
        };
    }
}
