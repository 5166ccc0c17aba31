//! From `.eh_frame` to a [`Rule`], through `gimli` and without a heap.
//!
//! About 0.6 µs for an address that was never seen; done once per return address.

use crate::Cause;
use crate::elf::{Image, Section};
use crate::rule::{Kind, Rule};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, Expression, LittleEndian, Operation,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection,
    UnwindTableRow,
};

type Bytes = EndianSlice<'static, LittleEndian>;

/// Room for a table row on a fixed budget: 33 general registers and some to spare.
struct Fixed;

impl UnwindContextStorage<usize> for Fixed {
    type Rules = [(Register, RegisterRule<usize>); 40];
    type Stack = [UnwindTableRow<usize, Self>; 3];
}

/// DWARF numbers of the registers that are followed.
struct Numbers {
    sp: Register,
    fp: Register,
    ra: Register,
}

#[cfg(target_arch = "x86_64")]
const NUMBERS: Numbers = Numbers {
    sp: Register(7),
    fp: Register(6),
    ra: Register(16),
};
#[cfg(target_arch = "aarch64")]
const NUMBERS: Numbers = Numbers {
    sp: Register(31),
    fp: Register(29),
    ra: Register(30),
};

/// The interpreter's working memory, a few KiB: kept off small stacks by its owner.
pub struct Scratch {
    context: UnwindContext<usize, Fixed>,
}

impl Scratch {
    /// Fresh working memory.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "large: to be made where it stays"
    )]
    pub fn new() -> Self {
        Self {
            context: UnwindContext::new_in(),
        }
    }
}

/// The rule for the frame that returns to `ip`, which lies in `image`.
#[must_use]
pub fn compile(image: &Image, ip: u64, scratch: &mut Scratch) -> Rule {
    let pc = ip.wrapping_sub(1);
    let Some(header) = image.eh_frame_hdr() else {
        return Rule::failed(Cause::NoRule);
    };
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.address);
    let parsed = EhFrameHdr::from(EndianSlice::new(header.bytes, LittleEndian)).parse(&bases, 8);
    let Ok(parsed) = parsed else {
        return Rule::failed(Cause::NoRule);
    };
    let pointer = match parsed.eh_frame_ptr() {
        gimli::Pointer::Direct(address) => address,
        gimli::Pointer::Indirect(_) => return Rule::failed(Cause::NoRule),
    };
    let (Some(table), Some(frames)) = (parsed.table(), image.bytes_from(pointer)) else {
        return Rule::failed(Cause::NoRule);
    };
    let section = eh_frame(&frames);
    let bases = bases.set_eh_frame(frames.address);
    let row = table.unwind_info_for_address(
        &section,
        &bases,
        &mut scratch.context,
        pc,
        EhFrame::cie_from_offset,
    );
    match row {
        Ok(row) => pack(row, &section),
        Err(gimli::Error::NoUnwindInfoForAddress) => Rule::failed(Cause::NoRule),
        Err(_) => Rule::failed(Cause::Unsupported),
    }
}

fn eh_frame(frames: &Section) -> EhFrame<Bytes> {
    EhFrame::from(EndianSlice::new(frames.bytes, LittleEndian))
}

fn pack(row: &UnwindTableRow<usize, Fixed>, section: &EhFrame<Bytes>) -> Rule {
    let ra = row.register(NUMBERS.ra);
    if matches!(ra, Some(RegisterRule::Undefined)) {
        return Rule::END;
    }
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let kind = match *register {
                r if r == NUMBERS.sp => Kind::Sp,
                r if r == NUMBERS.fp => Kind::Fp,
                _ => return Rule::failed(Cause::Unsupported),
            };
            plain(kind, *offset, ra, row.register(NUMBERS.fp))
        }
        CfaRule::Expression(expression) => {
            by_expression(expression, ra, row.register(NUMBERS.fp), section)
        }
    }
    .unwrap_or(Rule::failed(Cause::Unsupported))
}

type MaybeRule = Option<RegisterRule<usize>>;

fn plain(kind: Kind, cfa: i64, ra: MaybeRule, fp: MaybeRule) -> Option<Rule> {
    let ra_at = match ra {
        Some(RegisterRule::Offset(at)) => Some(at),
        None | Some(RegisterRule::SameValue) if cfg!(target_arch = "aarch64") => None,
        _ => return None,
    };
    Some(Rule::new(kind, cfa, ra_at, saved_fp(fp)?))
}

/// Offset of the saved frame pointer from the CFA, `Some(None)` where it is kept.
fn saved_fp(fp: MaybeRule) -> Option<Option<i64>> {
    match fp {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Some(None),
        Some(RegisterRule::Offset(at)) => Some(Some(at)),
        _ => None,
    }
}

fn by_expression(
    cfa: &UnwindExpression<usize>,
    ra: MaybeRule,
    fp: MaybeRule,
    section: &EhFrame<Bytes>,
) -> Option<Rule> {
    match shape(cfa, section)? {
        Shape::Plt { threshold } => Some(Rule::new(Kind::Plt, threshold, Some(-8), None)),
        Shape::Deref { register, offset } if register == NUMBERS.sp => {
            let at = |rule: MaybeRule| match rule {
                Some(RegisterRule::Expression(e)) => match shape(&e, section)? {
                    Shape::Address { register, offset } if register == NUMBERS.sp => Some(offset),
                    _ => None,
                },
                _ => None,
            };
            Some(Rule::new(
                Kind::Context,
                offset,
                Some(at(ra)?),
                Some(at(fp)?),
            ))
        }
        Shape::Deref { register, offset } if register == NUMBERS.fp => {
            let Some(RegisterRule::Offset(ra_at)) = ra else {
                return None;
            };
            let fp_at = match fp {
                None | Some(RegisterRule::SameValue) => None,
                Some(RegisterRule::Expression(e)) => match shape(&e, section)? {
                    Shape::Address { register, offset } if register == NUMBERS.fp => Some(offset),
                    _ => return None,
                },
                _ => return None,
            };
            Some(Rule::new(Kind::FpDeref, offset, Some(ra_at), fp_at))
        }
        _ => None,
    }
}

/// The expressions that compilers, the C library and linkers emit.
enum Shape {
    /// `breg N`: an address.
    Address { register: Register, offset: i64 },
    /// `breg N; deref`.
    Deref { register: Register, offset: i64 },
    /// `breg7 8; breg16 0; lit15; and; lit T; ge; lit3; shl; plus` (x86-64 PLT).
    Plt { threshold: i64 },
}

fn shape(expression: &UnwindExpression<usize>, section: &EhFrame<Bytes>) -> Option<Shape> {
    let expression: Expression<Bytes> = expression.get(section).ok()?;
    let encoding = gimli::Encoding {
        address_size: 8,
        format: gimli::Format::Dwarf32,
        version: 5,
    };
    let mut operations = expression.operations(encoding);
    let mut next = || operations.next().ok().flatten();
    let Some(Operation::RegisterOffset {
        register, offset, ..
    }) = next()
    else {
        return None;
    };
    match (next(), next()) {
        (None, _) => Some(Shape::Address { register, offset }),
        (Some(Operation::Deref { .. }), None) => Some(Shape::Deref { register, offset }),
        (
            Some(Operation::RegisterOffset {
                register: ip,
                offset: 0,
                ..
            }),
            Some(Operation::UnsignedConstant { value: 15 }),
        ) if cfg!(target_arch = "x86_64")
            && register == NUMBERS.sp
            && offset == 8
            && ip == NUMBERS.ra =>
        {
            let Some(Operation::And) = next() else {
                return None;
            };
            let Some(Operation::UnsignedConstant { value }) = next() else {
                return None;
            };
            let Some(Operation::Ge) = next() else {
                return None;
            };
            Some(Shape::Plt {
                threshold: i64::try_from(value).ok()?,
            })
        }
        _ => None,
    }
}
