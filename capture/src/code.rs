//! Instructions in the target's code by which its threads make system calls for this process.

use crate::process::{self, Mapping};
use crate::request;
use crate::{Refusal, arch};

/// Maximum number of bytes of code that are searched.
const MAX_SEARCHED_BYTES: u64 = 256 << 20;
const PIECE: u64 = 1 << 20;

/// Addresses of instruction sequences that every C library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// System call followed by a return.
    pub call: u64,
    /// `rt_sigreturn`, which restores every register from the frame on the stack.
    pub ret: u64,
}

impl Code {
    /// Searches the sequences: in the C library first, then in all other code.
    pub fn find(pid: i32) -> Result<Self, Refusal> {
        let mut code = process::mappings(pid)?;
        if code.is_empty() {
            return Err(Refusal::Ended { pid });
        }
        code.retain(|mapping| mapping.executable);
        code.sort_by_key(|mapping| !is_c_library(&mapping.name));
        let (mut call, mut ret, mut left) = (None, None, MAX_SEARCHED_BYTES);
        for mapping in code {
            let (from, to) = (
                mapping.start,
                mapping.end.min(mapping.start.saturating_add(left)),
            );
            left -= to - from;
            search(pid, from, to, &mut call, &mut ret);
            if let (Some(call), Some(ret)) = (call, ret) {
                return Ok(Self { call, ret });
            }
        }
        Err(Refusal::NoCode { pid })
    }

    /// Returns true if the sequences are still there, now that the process is stopped.
    pub fn holds(&self, pid: i32) -> bool {
        let at = |address, wanted: &[&[u8]]| {
            wanted.iter().any(|wanted| {
                let mut bytes = vec![0; wanted.len()];
                request::read(pid, address, &mut bytes) == bytes.len() && bytes == *wanted
            })
        };
        at(self.call, arch::CALL) && at(self.ret, arch::RETURN)
    }
}

/// Returns true if a mapping with this name contains the C library's code, or is the vdso.
pub fn is_c_library(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    ["libc.", "libc-", "ld-musl", "[vdso]"]
        .iter()
        .any(|start| file.starts_with(start))
}

/// Searches one mapping, in pieces that overlap by the longest sequence.
fn search(pid: i32, from: u64, to: u64, call: &mut Option<u64>, ret: &mut Option<u64>) {
    let mut piece = vec![0; PIECE as usize];
    let mut at = from;
    while at < to && (call.is_none() || ret.is_none()) {
        let bytes = (to - at).min(PIECE) as usize;
        let got = request::read(pid, at, &mut piece[..bytes]);
        let here = |wanted: &[&[u8]]| {
            let found = wanted
                .iter()
                .find_map(|wanted| position(&piece[..got], wanted));
            found.map(|offset| at + offset as u64)
        };
        *call = call.or_else(|| here(arch::CALL));
        *ret = ret.or_else(|| here(arch::RETURN));
        if got < bytes || at + got as u64 == to {
            return;
        }
        at += got as u64 - 16;
    }
}

fn position(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut places = bytes.windows(wanted.len()).step_by(arch::ALIGNMENT);
    Some(places.position(|window| window == wanted)? * arch::ALIGNMENT)
}

/// Returns the mapping that contains an address.
pub fn mapping_of(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}
