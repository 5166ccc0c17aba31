//! x86-64 (System V ABI, x86-64 psABI table 3.36).

use super::{Machine, Numbers, SignalFrame, Target};
use gimli::{Register, Vendor};

/// x86-64.
#[derive(Clone, Copy, Debug)]
pub struct X86_64;

impl Machine for X86_64 {
    const NUMBERS: Numbers = Numbers {
        sp: Register(7),
        fp: Register(6),
        ra: Register(16),
    };
    const HAS_PLT_RULE: bool = true;
    const VENDOR: Vendor = Vendor::Default;
    const LINKED: Option<SignalFrame> = None;
    const HAS_FRAME_RECORDS: bool = false;

    #[inline(always)]
    fn return_address(word: u64) -> u64 {
        word
    }

    fn call(_: u32, _: u64) -> Option<Target> {
        None
    }

    fn is_signal_return(_: [u32; 2]) -> bool {
        false
    }
}
