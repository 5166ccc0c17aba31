//! Instructions in the target's code with which its threads make system calls for this process.

use crate::process::{self, Mapping};
use crate::request;
use crate::{Refusal, arch};

/// Maximum number of bytes of code that are searched.
const MAX_SEARCHED_BYTES: u64 = 256 << 20;
/// Number of bytes of code that are read at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Number of bytes by which pieces overlap: more than the longest sequence has.
const OVERLAP_BYTES: u64 = 16;

/// Addresses of the instructions by which the target makes system calls for us. Every C library
/// contains such sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyscallCode {
    /// System call followed by a return.
    pub call: u64,
    /// `rt_sigreturn`, which restores every register from the frame on the stack.
    pub sigreturn: u64,
}

impl SyscallCode {
    /// Searches for the sequences: in the C library first, then in all other code.
    pub fn find(pid: i32) -> Result<Self, Refusal> {
        let mut code = process::mappings(pid)?;
        if code.is_empty() {
            return Err(Refusal::Ended { pid });
        }
        code.retain(|mapping| mapping.executable);
        code.sort_by_key(|mapping| !is_c_library(&mapping.name));
        let mut call = None;
        let mut sigreturn = None;
        let mut bytes_left = MAX_SEARCHED_BYTES;
        for mapping in code {
            let start = mapping.start;
            let end = mapping.end.min(start.saturating_add(bytes_left));
            bytes_left -= end - start;
            search(pid, start, end, &mut call, &mut sigreturn);
            if let (Some(call), Some(sigreturn)) = (call, sigreturn) {
                return Ok(Self { call, sigreturn });
            }
        }
        Err(Refusal::NoCode { pid })
    }

    /// Returns true if the sequences are still at these addresses, now that the process is stopped.
    pub fn is_current(&self, pid: i32) -> bool {
        let contains = |address, encodings: &[&[u8]]| {
            encodings.iter().any(|encoding| {
                let mut bytes = vec![0; encoding.len()];
                request::read(pid, address, &mut bytes) == bytes.len() && bytes == *encoding
            })
        };
        contains(self.call, arch::CALL) && contains(self.sigreturn, arch::RETURN)
    }
}

/// Returns true if a mapping with this name contains the C library's code, or is the vdso.
pub fn is_c_library(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    ["libc.", "libc-", "ld-musl", "[vdso]"]
        .iter()
        .any(|prefix| file.starts_with(prefix))
}

/// Searches one mapping, in overlapping pieces.
fn search(pid: i32, start: u64, end: u64, call: &mut Option<u64>, sigreturn: &mut Option<u64>) {
    let mut piece = vec![0; PIECE_BYTES as usize];
    let mut address = start;
    while address < end && (call.is_none() || sigreturn.is_none()) {
        let wanted_bytes = (end - address).min(PIECE_BYTES) as usize;
        let read_bytes = request::read(pid, address, &mut piece[..wanted_bytes]);
        let find = |encodings: &[&[u8]]| {
            let offset = encodings
                .iter()
                .find_map(|encoding| position(&piece[..read_bytes], encoding));
            offset.map(|offset| address + offset as u64)
        };
        *call = call.or_else(|| find(arch::CALL));
        *sigreturn = sigreturn.or_else(|| find(arch::RETURN));
        if read_bytes < wanted_bytes || address + read_bytes as u64 == end {
            return;
        }
        address += read_bytes as u64 - OVERLAP_BYTES;
    }
}

/// Returns the offset of a sequence in the code, at a multiple of the instructions' alignment.
fn position(code: &[u8], sequence: &[u8]) -> Option<usize> {
    let mut windows = code.windows(sequence.len()).step_by(arch::ALIGNMENT);
    Some(windows.position(|window| window == sequence)? * arch::ALIGNMENT)
}

/// Returns the mapping that contains an address.
pub fn mapping_of(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.start <= address);
    let mapping = mappings.get(after.checked_sub(1)?)?;
    (address < mapping.end).then_some(mapping)
}
