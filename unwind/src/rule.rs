//! Unwind rules: how to find one frame's caller, in 64 bits.
//!
//! A rule gives the canonical frame address (CFA, DWARF 5 §6.4.1) and the stack addresses at which
//! the return address and the frame pointer were saved. Other registers are not followed.
//! Frames that need more take the slow path (`crate::slow`).

// Decision 24: an unwinder of our own, not framehop.
use crate::arch::{Machine, Native, SignalFrame};
use crate::stack::{Known, Memory};
use crate::{Cause, Registers};

/// Method of finding the CFA. A kind takes three bits of a rule, and all eight values are in use.
/// Another kind would have to take a bit from the CFA's offset, which has 24 and needs fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// No rule: zeroed memory.
    Empty = 0,
    /// The stack cannot be unwound further; `cfa` holds the [`Cause`].
    Failed = 1,
    /// Outermost frame.
    End = 2,
    /// CFA = sp + cfa.
    Sp = 3,
    /// CFA = fp + cfa.
    Fp = 4,
    /// CFA = word at (fp + cfa), and the frame pointer was saved at (fp + fp_at): realigned stacks.
    FpDeref = 5,
    /// CFA = word at (sp + cfa), and the other offsets are relative to sp too: signal frames, in
    /// which the kernel has saved all registers. Their ip is exact.
    Context = 6,
    /// x86-64 PLT entries, which have 16 bytes: CFA = sp + 8 before byte `cfa` of the entry, and
    /// sp + 16 from that byte on.
    Plt = 7,
}

/// Register that the CFA is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Stack pointer, at a distance that is fixed in the code.
    Sp,
    /// Frame pointer.
    Fp,
    /// Any other register or word, so that the step may switch stacks.
    Other,
}

/// Packed rule: `instance:5 | kind:3 | cfa:24 (words, signed) | ra:16 | fp:16 (words, signed)`. The
/// instance distinguishes modules that were loaded at the same addresses one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Rule(u64);

/// Value of `ra` or `fp` if the register still holds the caller's value.
pub const KEPT: i16 = i16::MIN;

/// Largest instance. Shared by all later modules at the same addresses.
pub const MAX_INSTANCE: u8 = 31;

/// Limit of the CFA's offset, in words.
const CFA_LIMIT: i64 = 1 << 23;

/// Value in place of a [`Cause`] in the rule of frames that take the slow path.
const SLOW: u64 = 0x40;
/// Value in place of a [`Cause`] in the rule of frames that are called from another stack.
const SWITCH: u64 = 0x41;
/// Value in place of a [`Cause`] in the rule of frames whose frame record is on another stack.
const CALLBACK: u64 = 0x42;

impl Rule {
    /// Rule of the outermost frame.
    pub const END: Self = Self((Kind::End as u64) << 56);

    /// Rule of a frame that takes the slow path ([`crate::slow`]). Means [`Cause::Unsupported`]
    /// if there is no slow path.
    pub(crate) const SLOW: Self = Self(((Kind::Failed as u64) << 56) | (SLOW << 32));

    /// Rule of a frame that is called from another stack ([`crate::switch`]). Means
    /// [`Cause::Unsupported`] if that stack cannot be read.
    pub(crate) const SWITCH: Self = Self(((Kind::Failed as u64) << 56) | (SWITCH << 32));

    /// Rule of a frame whose frame record is on the stack that it has left ([`crate::callback`]).
    /// Means [`Cause::Unsupported`] if that stack cannot be read.
    pub(crate) const CALLBACK: Self = Self(((Kind::Failed as u64) << 56) | (CALLBACK << 32));

    /// Rule of an address that cannot be looked up right now. Must never be cached, so that the
    /// next sample looks it up again.
    pub const NOT_NOW: Self = Self::SLOW;

    /// Returns a rule from byte offsets. `ra_at` and `fp_at` are relative to the CFA (to fp for
    /// [`Kind::FpDeref`], to sp for [`Kind::Context`]); `None` if the register is unchanged.
    /// Returns [`Cause::Unsupported`] if an offset is too large or not a multiple of 8.
    #[must_use]
    pub fn new(kind: Kind, cfa: i64, ra_at: Option<i64>, fp_at: Option<i64>) -> Self {
        let words = |offset: Option<i64>| match offset {
            None => Some(KEPT),
            Some(bytes) if bytes % 8 == 0 => {
                i16::try_from(bytes / 8).ok().filter(|words| *words != KEPT)
            }
            Some(_) => None,
        };
        let cfa = if kind == Kind::Plt { cfa * 8 } else { cfa };
        match (words(ra_at), words(fp_at)) {
            (Some(ra), Some(fp)) if cfa % 8 == 0 && (cfa / 8).abs() < CFA_LIMIT => {
                let cfa = (cfa / 8) as u64 & 0xff_ffff;
                let ra = u64::from(ra as u16);
                let fp = u64::from(fp as u16);
                Self(((kind as u64) << 56) | (cfa << 32) | (ra << 16) | fp)
            }
            _ => Self::failed(Cause::Unsupported),
        }
    }

    /// Returns the rule of an address whose frame cannot be unwound.
    #[must_use]
    pub fn failed(cause: Cause) -> Self {
        Self(((Kind::Failed as u64) << 56) | ((cause as u64) << 32))
    }

    /// Returns the rule with these bits, from [`bits`](Self::bits).
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the packed form, which is never 0.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns this rule for code of the `instance`th module at its addresses.
    #[must_use]
    pub fn with_instance(self, instance: u8) -> Self {
        Self(self.0 & (u64::MAX >> 5) | (u64::from(instance.min(MAX_INSTANCE)) << 59))
    }

    /// Returns the number of the module, starting at 0, among those loaded at its addresses one
    /// after another.
    #[inline]
    #[must_use]
    pub fn instance(self) -> u8 {
        (self.0 >> 59) as u8
    }

    #[inline(always)]
    fn kind(self) -> Kind {
        match (self.0 >> 56) as u8 & 7 {
            0 => Kind::Empty,
            1 => Kind::Failed,
            2 => Kind::End,
            3 => Kind::Sp,
            4 => Kind::Fp,
            5 => Kind::FpDeref,
            6 => Kind::Context,
            _ => Kind::Plt,
        }
    }

    /// Returns the CFA's offset in bytes. For kinds that use the field otherwise, returns eight
    /// times its value.
    #[inline]
    fn cfa(self) -> i64 {
        (self.0 << 8) as i64 >> 40 << 3
    }

    /// Returns the offset of the return address in bytes, or `None` if it is in the link register.
    #[inline]
    fn ra(self) -> Option<i64> {
        Some((self.0 >> 16) as i16)
            .filter(|w| *w != KEPT)
            .map(|w| i64::from(w) * 8)
    }

    /// Returns the offset of the saved frame pointer in bytes, or `None` if it is unchanged.
    #[inline]
    fn fp(self) -> Option<i64> {
        Some(self.0 as i16)
            .filter(|w| *w != KEPT)
            .map(|w| i64::from(w) * 8)
    }

    /// Returns true if the result of a step depends only on registers and on the two words that it
    /// reads, so that comparing these words validates a cached step.
    #[inline]
    #[must_use]
    pub fn is_plain(self) -> bool {
        matches!(self.kind(), Kind::Sp | Kind::Fp)
    }

    /// Returns the register that the CFA is computed from.
    #[must_use]
    pub(crate) fn base(self) -> Base {
        match self.kind() {
            Kind::Sp | Kind::Plt => Base::Sp,
            Kind::Fp | Kind::FpDeref => Base::Fp,
            Kind::Context | Kind::Empty | Kind::Failed | Kind::End => Base::Other,
        }
    }

    /// Returns true if a frame with this rule takes the slow path.
    #[inline]
    pub(crate) fn is_slow(self) -> bool {
        self == Self::SLOW.with_instance(self.instance())
    }

    /// Returns true if the frame is called from another stack.
    #[inline]
    pub(crate) fn is_switch(self) -> bool {
        self == Self::SWITCH.with_instance(self.instance())
    }

    /// Returns true if the frame's frame record is on another stack.
    #[inline]
    pub(crate) fn is_callback(self) -> bool {
        self == Self::CALLBACK.with_instance(self.instance())
    }

    /// Returns true if a step needs more than the frame's registers and its stack: inner frames,
    /// the code, or another stack.
    #[inline]
    pub(crate) fn is_rare<A: Machine>(self) -> bool {
        self.is_slow()
            || A::HAS_LINK_REGISTER && self.is_leaf()
            || self.is_bare()
            || self.is_switch()
            || self.is_callback()
    }

    /// Returns true if the stack ends here, whatever its memory contains.
    #[must_use]
    pub(crate) fn ends(self) -> bool {
        match self.kind() {
            Kind::End => true,
            Kind::Failed => !self.is_rare::<Native>(),
            Kind::Empty | Kind::Sp | Kind::Fp | Kind::FpDeref | Kind::Context | Kind::Plt => false,
        }
    }

    /// Returns the rule of a signal frame, in which the interrupted frame's registers are saved.
    pub(crate) fn signal(frame: SignalFrame) -> Self {
        Self::new(Kind::Context, frame.sp, Some(frame.pc), Some(frame.fp))
    }

    /// Returns true if this is the rule of a signal frame.
    pub(crate) fn is_signal(self) -> bool {
        self.kind() == Kind::Context
    }

    /// Returns true if the return address is in the link register.
    pub(crate) fn is_leaf(self) -> bool {
        self.is_plain() && self.ra().is_none()
    }

    /// Returns true if this is the rule of the outermost frame.
    pub(crate) fn is_end(self) -> bool {
        self.kind() == Kind::End
    }

    /// Returns true if a module has no unwind table for the frame.
    pub(crate) fn lacks_table(self) -> bool {
        self.with_instance(0) == Self::failed(Cause::NoRule)
    }

    /// Returns true if the code is in no module: generated code, or no code at all.
    pub(crate) fn is_outside(self) -> bool {
        self.with_instance(0) == Self::failed(Cause::NoModule)
    }

    /// Returns true if only a frame record can lead to the caller.
    #[must_use]
    pub fn is_bare(self) -> bool {
        self.lacks_table() || self.is_outside()
    }

    /// Returns true if the frame has an unwind table, or may have one that cannot be read now.
    pub(crate) fn may_have_table(self) -> bool {
        !self.is_bare()
    }

    /// Returns the stack pointer of a frame whose frame pointer `fp` points to its frame record.
    /// `low` is the lowest possible stack pointer, returned if the rule does not need the exact
    /// one. Returns `None` if the frame has no record by this rule.
    #[must_use]
    pub fn sp_of_record(self, low: u64, fp: u64) -> Option<u64> {
        match self.kind() {
            Kind::End | Kind::Fp | Kind::FpDeref => Some(low),
            Kind::Failed => (self.is_bare() || self.is_callback()).then_some(low),
            Kind::Sp => {
                let fp_at = self.fp()?;
                let is_record = self.ra()? == fp_at + 8;
                let cfa = fp.wrapping_add_signed(-fp_at);
                let sp = cfa.wrapping_add_signed(-self.cfa());
                (is_record && fp >= low && sp >= low && sp <= fp).then_some(sp)
            }
            Kind::Empty | Kind::Context | Kind::Plt => None,
        }
    }

    /// Returns true if a step by this rule needs the frame pointer to find the caller.
    #[inline]
    #[must_use]
    pub fn needs_fp(self) -> bool {
        self.base() == Base::Fp
    }

    /// Returns true if a step by this rule does not depend on the frame pointer.
    #[inline]
    #[must_use]
    pub fn ignores_fp(self) -> bool {
        self.kind() == Kind::Sp && self.fp().is_some()
    }
}

/// Word that a step has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Word {
    /// Address; 0 if no word was read.
    pub at: u64,
    /// Value at that address.
    pub value: u64,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Frame of the caller.
    Caller {
        /// Registers of the caller.
        registers: Registers,
        /// Word that held the return address.
        ra: Word,
        /// Word that held the frame pointer; address 0 if it is unchanged.
        fp: Word,
    },
    /// No caller: the frame is the outermost.
    End {
        /// Zero word in place of the return address; address 0 if the rule itself ends the stack.
        ra: Word,
    },
    /// No known caller: the stack cannot be unwound further.
    Truncated(Cause),
}

/// Steps to the caller in the common case: the rule is plain, its words are known to be readable,
/// and the frame is not the outermost. Returns `None` otherwise. Short enough to be inlined in the
/// walk's loop.
#[inline(always)]
#[must_use]
pub fn plain_step(rule: Rule, at: Registers, stack: Known) -> Option<(Registers, Word, Word)> {
    let Registers { sp, fp, .. } = at;
    let base = match rule.kind() {
        Kind::Sp => sp,
        Kind::Fp => fp,
        _ => return None,
    };
    let cfa = base.wrapping_add_signed(rule.cfa());
    let ra_at = cfa.wrapping_add_signed(rule.ra()?);
    let ra = Word {
        at: ra_at,
        value: stack.peek(ra_at)?,
    };
    let (fp_word, fp) = match rule.fp() {
        None => (Word::default(), fp),
        Some(offset) => {
            let at = cfa.wrapping_add_signed(offset);
            let value = stack.peek(at)?;
            (Word { at, value }, value)
        }
    };
    let ip = Native::return_address(ra.value);
    (cfa > sp && ip != 0).then_some((Registers { ip, sp: cfa, fp }, ra, fp_word))
}

/// Applies `rule` to the frame in `at`, whose stack is read from `memory`.
///
/// ```
/// use unwind::rule::{Kind, Rule, Step, step};
/// use unwind::stack::Copied;
/// use unwind::Registers;
///
/// // A frame of 32 bytes: the return address is its last word, the frame pointer the one before.
/// let words = [0u64, 0, 0x7f00, 0x40_1234];
/// let mut memory = Copied::new(0x1000, &words);
/// let rule = Rule::new(Kind::Sp, 32, Some(-8), Some(-16));
/// let at = Registers { ip: 0x40_1000, sp: 0x1000, fp: 0 };
/// let Step::Caller { registers, .. } = step(rule, &at, &mut memory) else { panic!() };
/// assert_eq!(registers, Registers { ip: 0x40_1234, sp: 0x1020, fp: 0x7f00 });
/// ```
#[inline]
pub fn step(rule: Rule, at: &Registers, memory: &mut impl Memory) -> Step {
    step_on::<Native>(rule, at, memory)
}

/// Like [`step`], for another machine's stack.
#[inline]
pub fn step_on<A: Machine>(rule: Rule, at: &Registers, memory: &mut impl Memory) -> Step {
    match apply::<A>(rule, at, memory) {
        Ok(step) => step,
        Err(cause) => Step::Truncated(cause),
    }
}

/// Steps from an interrupted frame that may not have saved its return address. `link` is the value
/// of the link register.
#[cold]
pub(crate) fn leaf_step<A: Machine>(
    rule: Rule,
    at: &Registers,
    link: u64,
    memory: &mut impl Memory,
) -> Step {
    let base = match rule.kind() {
        Kind::Sp if rule.ra().is_none() => at.sp,
        Kind::Fp if rule.ra().is_none() => at.fp,
        _ => return step_on::<A>(rule, at, memory),
    };
    let sp = base.wrapping_add_signed(rule.cfa());
    let fp = match rule.fp() {
        None => Ok(at.fp),
        Some(offset) => memory.read(sp.wrapping_add_signed(offset)),
    };
    let none = Word::default();
    match (A::return_address(link), fp) {
        _ if sp < at.sp => Step::Truncated(Cause::BadFrame),
        (_, Err(cause)) => Step::Truncated(cause),
        (0, Ok(_)) => Step::End { ra: none },
        (ip, Ok(fp)) => Step::Caller {
            registers: Registers { ip, sp, fp },
            ra: none,
            fp: none,
        },
    }
}

#[inline]
fn apply<A: Machine>(rule: Rule, at: &Registers, memory: &mut impl Memory) -> Result<Step, Cause> {
    let cfa = match rule.kind() {
        Kind::Sp => at.sp.wrapping_add_signed(rule.cfa()),
        Kind::Fp => at.fp.wrapping_add_signed(rule.cfa()),
        _ => return apply_other_kind::<A>(rule, at, memory),
    };
    if cfa <= at.sp {
        return Err(Cause::BadFrame);
    }
    // Only the innermost frame may hold its return address in a register. It called malloc, so it
    // does not.
    let ra_at = cfa.wrapping_add_signed(rule.ra().ok_or(Cause::Unsupported)?);
    let fp_at = rule.fp().map(|offset| cfa.wrapping_add_signed(offset));
    read_caller::<A>(cfa, ra_at, fp_at, at, memory)
}

#[inline]
fn read_caller<A: Machine>(
    cfa: u64,
    ra_at: u64,
    fp_at: Option<u64>,
    at: &Registers,
    memory: &mut impl Memory,
) -> Result<Step, Cause> {
    let ra = Word {
        at: ra_at,
        value: memory.read(ra_at)?,
    };
    let fp = match fp_at {
        None => Word::default(),
        Some(fp_at) => Word {
            at: fp_at,
            value: memory.read(fp_at)?,
        },
    };
    let ip = A::return_address(ra.value);
    if ip == 0 {
        return Ok(Step::End { ra });
    }
    let outer_fp = if fp.at == 0 { at.fp } else { fp.value };
    Ok(Step::Caller {
        registers: Registers {
            ip,
            sp: cfa,
            fp: outer_fp,
        },
        ra,
        fp,
    })
}

#[cold]
fn apply_other_kind<A: Machine>(
    rule: Rule,
    at: &Registers,
    memory: &mut impl Memory,
) -> Result<Step, Cause> {
    match rule.kind() {
        Kind::End => Ok(Step::End {
            ra: Word::default(),
        }),
        Kind::Failed => Err(Cause::from_index((rule.cfa() / 8) as u8)),
        Kind::Context => step_from_signal_frame(rule, at, memory),
        Kind::FpDeref => step_from_realigned::<A>(rule, at, memory),
        Kind::Plt => {
            let has_pushed = (at.ip.wrapping_sub(1) & 15) as i64 >= rule.cfa() / 8;
            let cfa = at.sp.wrapping_add(if has_pushed { 16 } else { 8 });
            read_caller::<A>(cfa, cfa.wrapping_sub(8), None, at, memory)
        }
        Kind::Empty | Kind::Sp | Kind::Fp => Err(Cause::Unsupported),
    }
}

fn step_from_realigned<A: Machine>(
    rule: Rule,
    at: &Registers,
    memory: &mut impl Memory,
) -> Result<Step, Cause> {
    let cfa = memory.read(at.fp.wrapping_add_signed(rule.cfa()))?;
    if cfa <= at.sp {
        return Err(Cause::BadFrame);
    }
    let ra_at = cfa.wrapping_add_signed(rule.ra().ok_or(Cause::Unsupported)?);
    let fp_at = rule.fp().map(|offset| at.fp.wrapping_add_signed(offset));
    read_caller::<A>(cfa, ra_at, fp_at, at, memory)
}

/// Steps from a signal frame. The interrupted frame may be on another stack, below or above.
fn step_from_signal_frame(
    rule: Rule,
    at: &Registers,
    memory: &mut impl Memory,
) -> Result<Step, Cause> {
    let mut word = |offset: i64| {
        let at = at.sp.wrapping_add_signed(offset);
        memory.read(at).map(|value| Word { at, value })
    };
    let sp = word(rule.cfa())?.value;
    let ra = word(rule.ra().ok_or(Cause::Unsupported)?)?;
    let fp = word(rule.fp().ok_or(Cause::Unsupported)?)?;
    memory.move_to(sp)?;
    // The interrupted pc is exact; plus one, it is treated as a return address.
    let registers = Registers {
        ip: ra.value.wrapping_add(1),
        sp,
        fp: fp.value,
    };
    Ok(Step::Caller { registers, ra, fp })
}

#[cfg(test)]
mod tests;
