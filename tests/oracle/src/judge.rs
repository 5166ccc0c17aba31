//! Who is right.
//!
//! libgcc follows every register, so a whole stack of its is the truth. framehop is
//! asked as well because it shares nothing with libgcc but the tables; where it alone
//! differs, the frame at which it does tells whether that was to be expected.

use crate::module::Anew;
use crate::report::{self, Outcome};
use crate::{libgcc, peer};
use unwind::Cause;
use unwind::compile::Scratch;
use unwind::walk::Code;

/// A stack as our walker sees it.
#[derive(PartialEq, Eq)]
pub struct Sight {
    /// Return addresses, innermost first.
    pub frames: Vec<u64>,
    /// Why it is truncated, if it is.
    pub truncated: Option<Cause>,
}

/// Counts what the four say of one stack.
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

/// Of a stack that we say is whole.
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

/// Whether the frame that returns to `ip` is one that framehop does not follow: it reads
/// no memory for a CFA, and knows no register but those that are followed here.
fn is_beyond_framehop(ip: u64) -> bool {
    !Anew.rule(ip, &mut Scratch::new()).is_plain()
}

/// Of a stack that we say is truncated: is there nothing that leads further?
fn truncated(ours: &[u64], cause: Cause, gcc: &libgcc::Trace) -> Outcome {
    let deep = cause == Cause::TooDeep && gcc.frames.len() > unwind::walk::MAX_FRAMES;
    if deep && gcc.frames.starts_with(ours) {
        return Outcome::Truncated(cause);
    }
    match gcc.frames == ours {
        true if !gcc.is_whole => Outcome::Truncated(cause),
        true => Outcome::TruncatedAtEnd(cause),
        false if gcc.frames.starts_with(ours) => Outcome::TruncatedEarly(cause),
        false => Outcome::Wrong,
    }
}
