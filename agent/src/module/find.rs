//! Which module is an address in?

use crate::session::read_file;
use core::arch::asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// A mapped module.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// First address: its ELF header.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// What tells it from another module at the same place.
    pub identity: u64,
    /// Address of its terminated name, or 0.
    pub name: u64,
}

/// glibc's `struct dl_find_object`, with room for what later versions may add.
#[repr(C)]
struct DlFound {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame: *mut c_void,
    reserved: [u64; 16],
}

/// The public head of `struct link_map`.
#[repr(C)]
struct LinkMap {
    addr: u64,
    name: *const u8,
}

type DlFind = unsafe extern "C" fn(*mut c_void, *mut DlFound) -> c_int;

core::arch::global_asm!(".weak _dl_find_object");

/// `_dl_find_object` where the C library has it: a weak reference, so that the agent loads
/// without.
fn dl_find_object() -> Option<DlFind> {
    let address: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads this library's own GOT entry.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + _dl_find_object@GOTPCREL]",
            at = out(reg) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads this library's own GOT entry.
    unsafe {
        asm!(
            "adrp {at}, :got:_dl_find_object",
            "ldr {at}, [{at}, #:got_lo12:_dl_find_object]",
            at = out(reg) address,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    // SAFETY: null or the function of this type.
    unsafe { core::mem::transmute::<usize, Option<DlFind>>(address) }
}

/// Whether finding takes nanoseconds rather than a file.
pub fn is_cheap() -> bool {
    dl_find_object().is_some()
}

/// The module that holds `pc`.
pub fn find(pc: u64) -> Option<Found> {
    match dl_find_object() {
        Some(function) => ask_loader(function, pc),
        None => search_maps(pc),
    }
}

fn ask_loader(function: DlFind, pc: u64) -> Option<Found> {
    // SAFETY: all zero is a valid DlFound.
    let mut result: DlFound = unsafe { core::mem::zeroed() };
    // SAFETY: async-signal-safe by its contract (glibc manual, "Dynamic Linker
    // Introspection"); the result has room.
    if unsafe { function(pc as *mut c_void, &mut result) } != 0 {
        return None;
    }
    // SAFETY: null, or the link map of a module whose code is running, which stays.
    let name = unsafe { result.link_map.as_ref() }.map_or(0, |map| map.name as u64);
    Some(Found {
        start: result.map_start as u64,
        end: result.map_end as u64,
        identity: result.eh_frame as u64 ^ (result.link_map as u64).rotate_left(16),
        name,
    })
}

/// Bytes of `/proc/self/maps` that are searched. In the agent's own zeroed memory: a
/// thread's stack may be too small.
const MAPS_BYTES: usize = 1 << 20;
static BUFFER: AtomicUsize = AtomicUsize::new(0);

/// The mapping that holds `pc`, extended over its neighbours of the same file.
fn search_maps(pc: u64) -> Option<Found> {
    let buffer = take_buffer()?;
    let found = search_text(read_file(c"/proc/self/maps", buffer), pc);
    BUFFER.store(buffer.as_ptr() as usize, Ordering::Release);
    found
}

/// A buffer for one thread at a time; another one gets nothing, and loses one stack.
fn take_buffer() -> Option<&'static mut [u8]> {
    const TAKEN: usize = 1;
    let at = match BUFFER.swap(TAKEN, Ordering::Acquire) {
        TAKEN => return None,
        0 => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping where nothing is.
            let at = unsafe { libc::mmap(core::ptr::null_mut(), MAPS_BYTES, access, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                BUFFER.store(0, Ordering::Release);
                return None;
            }
            at as usize
        }
        at => at,
    };
    // SAFETY: mapped for ever, and ours until it is put back.
    Some(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, MAPS_BYTES) })
}

/// Range of the file's mappings around `pc`, from that of offset 0 on.
fn search_text(text: &[u8], pc: u64) -> Option<Found> {
    let mut module: Option<(Found, &[u8])> = None;
    let mut hit = false;
    for line in text.split(|byte| *byte == b'\n') {
        let Some((start, end, offset, file)) = parse_line(line) else {
            continue;
        };
        match &mut module {
            Some((found, same)) if *same == file && !file.is_empty() && offset != 0 => {
                found.end = end;
            }
            _ if hit => break,
            _ if offset == 0 && is_image(file) => {
                module = Some((
                    Found {
                        start,
                        end,
                        identity: inode(file),
                        name: 0,
                    },
                    file,
                ));
            }
            _ => module = None,
        }
        hit |= (start..end).contains(&pc);
    }
    module
        .filter(|(found, _)| hit && (found.start..found.end).contains(&pc))
        .map(|(f, _)| f)
}

/// Whether a mapping is of a file, or of the kernel's own module.
fn is_image(file: &[u8]) -> bool {
    let path = file
        .rsplitn(2, |byte| *byte == b' ')
        .next()
        .unwrap_or_default();
    file.contains(&b'/') || path == b"[vdso]"
}

/// Start, end, offset, and device, inode and path as one text.
fn parse_line(line: &[u8]) -> Option<(u64, u64, u64, &[u8])> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let mut range = fields.next()?.splitn(2, |byte| *byte == b'-');
    let (start, end) = (hex(range.next()?)?, hex(range.next()?)?);
    let _permissions = fields.next()?;
    Some((start, end, hex(fields.next()?)?, fields.next()?))
}

fn hex(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| (*byte as char).to_digit(16).map(u64::from);
    text.iter()
        .try_fold(0u64, |n, byte| Some(n.checked_mul(16)? | digit(byte)?))
}

/// A number that differs for another file.
fn inode(file: &[u8]) -> u64 {
    file.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_function_is_found_both_ways_at_the_same_place() {
        let pc = search_text as *const () as u64 + 1;
        let text = std::fs::read("/proc/self/maps").unwrap();
        let by_maps = search_text(&text, pc).unwrap();
        let by_loader = find(pc).unwrap();
        assert_eq!(by_maps.start, by_loader.start);
        assert!((by_maps.start..by_maps.end).contains(&pc));
    }

    #[test]
    fn addresses_outside_every_file_are_not_found() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(search_text(&text, 0x10).is_none());
        let local = 1u8;
        assert!(search_text(&text, &raw const local as u64).is_none());
    }
}
