//! Tests with steps over synthetic frames.

use super::*;
use crate::stack::Stack;

#[test]
fn offsets_survive_packing() {
    for cfa in [8i64, 16, 8 << 20, -8, -64] {
        for (ra, fp) in [(Some(-8), None), (None, Some(-16)), (Some(-8000), Some(80))] {
            let rule = Rule::new(Kind::Sp, cfa, ra, fp);
            assert_eq!((rule.cfa(), rule.ra(), rule.fp()), (cfa, ra, fp));
            assert!(rule.is_plain());
        }
    }
}

#[test]
fn an_instance_changes_only_the_instance_bits() {
    let rule = Rule::new(Kind::Plt, 11, Some(-8), Some(80));
    let tagged = rule.with_instance(31).with_instance(17);
    assert_eq!((tagged.instance(), tagged.kind()), (17, Kind::Plt));
    assert_eq!(tagged.with_instance(0), rule);
    assert_eq!(rule.with_instance(200).instance(), MAX_INSTANCE);
}

#[test]
fn rules_that_cannot_be_packed_fail_as_unsupported() {
    let unsupported = Rule::failed(Cause::Unsupported);
    assert_eq!(Rule::new(Kind::Sp, 12, None, None), unsupported);
    assert_eq!(Rule::new(Kind::Sp, 1 << 40, None, None), unsupported);
    assert_eq!(Rule::new(Kind::Sp, 16, Some(1 << 30), None), unsupported);
}

fn frame(words: &[u64]) -> (u64, Stack) {
    let sp = words.as_ptr() as u64;
    (sp, Stack::at(sp))
}

#[test]
fn a_plain_step_reads_return_address_and_frame_pointer() {
    let words = [1u64, 2, 0xf9, 0x1234, 5];
    let (sp, mut stack) = frame(&words);
    let rule = Rule::new(Kind::Sp, 32, Some(-8), Some(-16));
    let at = Registers { ip: 9, sp, fp: 7 };
    let expected = Registers {
        ip: 0x1234,
        sp: sp + 32,
        fp: 0xf9,
    };
    let Step::Caller { registers, ra, fp } = step(rule, &at, &mut stack) else {
        panic!("no caller")
    };
    assert_eq!((registers, ra.at, fp.at), (expected, sp + 24, sp + 16));
}

#[test]
fn frames_that_do_not_grow_end_the_stack() {
    let words = [1u64, 2, 3, 4];
    let (sp, mut stack) = frame(&words);
    let at = Registers {
        ip: 9,
        sp,
        fp: sp - 64,
    };
    let below = Rule::new(Kind::Fp, 16, Some(-8), None);
    assert_eq!(
        step(below, &at, &mut stack),
        Step::Truncated(Cause::BadFrame)
    );
    let same = Rule::new(Kind::Sp, 0, Some(8), None);
    assert_eq!(
        step(same, &at, &mut stack),
        Step::Truncated(Cause::BadFrame)
    );
}

#[test]
fn an_unsaved_return_address_truncates_the_stack() {
    let words = [1u64, 2, 3, 4];
    let (sp, mut stack) = frame(&words);
    let at = Registers { ip: 9, sp, fp: 3 };
    let leaf = Rule::new(Kind::Sp, 16, None, None);
    assert_eq!(
        step(leaf, &at, &mut stack),
        Step::Truncated(Cause::Unsupported)
    );
}

#[test]
fn a_zero_return_address_ends_the_stack() {
    let words = [1u64, 0, 3, 4];
    let (sp, mut stack) = frame(&words);
    let rule = Rule::new(Kind::Sp, 16, Some(-8), None);
    let at = Registers { ip: 9, sp, fp: 3 };
    assert_eq!(
        step(rule, &at, &mut stack),
        Step::End {
            ra: Word {
                at: sp + 8,
                value: 0
            }
        }
    );
}

#[test]
fn a_wild_frame_pointer_truncates_the_stack() {
    let words = [1u64, 2, 3, 4];
    let (sp, mut stack) = frame(&words);
    let at = Registers {
        ip: 9,
        sp,
        fp: 0x7fff_ffff_f000,
    };
    let rule = Rule::new(Kind::Fp, 16, Some(-8), Some(-16));
    assert_eq!(
        step(rule, &at, &mut stack),
        Step::Truncated(Cause::OutOfStack)
    );
}

#[cfg(target_arch = "aarch64")]
#[test]
fn a_signed_return_address_is_read_without_its_signature() {
    let plain = frame as *const () as u64;
    let modifier = 0x1230u64;
    let signed: u64;
    // SAFETY: PACIA1716; older cores sign nothing.
    unsafe {
        core::arch::asm!(
            "hint #8",
            inout("x17") plain => signed,
            in("x16") modifier,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    assert_eq!(Native::return_address(signed), plain);
    assert_eq!(Native::return_address(plain), plain);
}
