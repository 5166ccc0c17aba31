//! Verdicts on the differences between unwinders.
//!
//! libgcc follows every register, so its complete stacks are the reference. framehop is compared
//! too because it shares nothing with libgcc but the tables. Where framehop alone differs, the
//! frame at which it does shows whether that was expected.

use crate::module::Anew;
use crate::report::{self, Outcome};
use crate::{libgcc, peer};
use unwind::Cause;
use unwind::compile::Scratch;
use unwind::walk::Code;

/// Stack that our walker found.
#[derive(PartialEq, Eq)]
pub struct Sight {
    /// Return addresses, innermost first.
    pub frames: Vec<u64>,
    /// Cause of the truncation, if the stack is truncated.
    pub truncated: Option<Cause>,
}

/// Compares the four results for one stack and counts the outcome.
pub fn judge(remembered: &Sight, anew: &Sight, gcc: &libgcc::Trace, peer: &peer::Trace) {
    report::compared(anew.frames.len());
    let outcome = if remembered != anew {
        Outcome::MemoryDiffers
    } else {
        match anew.truncated {
            None => whole(&anew.frames, gcc, peer),
            Some(cause) => truncated(&anew.frames, cause, gcc),
        }
    };
    report::count(outcome, || {
        let mut text = format!(
            "ours truncated {:?}, libgcc whole {}, framehop error {:?}\n",
            anew.truncated, gcc.is_whole, peer.error
        );
        report::list(&mut text, "remembered", &remembered.frames);
        report::list(&mut text, "anew", &anew.frames);
        report::list(&mut text, "libgcc", &gcc.frames);
        report::list(&mut text, "framehop", &peer.frames);
        text
    });
}

/// Judges a stack that we report as complete.
fn whole(ours: &[u64], gcc: &libgcc::Trace, peer: &peer::Trace) -> Outcome {
    let peer_agrees = peer.frames == ours;
    if gcc.frames != ours {
        let gcc_stopped = !gcc.is_whole && ours.starts_with(&gcc.frames);
        return if gcc_stopped && peer_agrees {
            Outcome::LibgccStopped
        } else {
            Outcome::Wrong
        };
    }
    if peer_agrees {
        return Outcome::Equal;
    }
    let mut same = ours.iter().zip(&peer.frames).take_while(|(a, b)| a == b);
    if same.any(|(ip, _)| is_beyond_framehop(*ip)) {
        Outcome::BeyondFramehop
    } else {
        Outcome::FramehopDiffers
    }
}

/// Returns true if framehop cannot unwind the frame that returns to `ip`: it reads no memory for a
/// CFA, and knows only the registers that are followed here.
fn is_beyond_framehop(ip: u64) -> bool {
    !Anew.rule(ip, &mut Scratch::new()).is_plain()
}

/// Judges a stack that we report as truncated: right if libgcc gets no further.
fn truncated(ours: &[u64], cause: Cause, gcc: &libgcc::Trace) -> Outcome {
    let deep = cause == Cause::TooDeep && gcc.frames.len() > unwind::walk::MAX_FRAMES;
    if deep && gcc.frames.starts_with(ours) {
        return Outcome::Truncated(cause);
    }
    if gcc.frames == ours {
        if gcc.is_whole {
            Outcome::TruncatedAtEnd(cause)
        } else {
            Outcome::Truncated(cause)
        }
    } else if gcc.frames.starts_with(ours) {
        Outcome::TruncatedEarly(cause)
    } else {
        Outcome::Wrong
    }
}
