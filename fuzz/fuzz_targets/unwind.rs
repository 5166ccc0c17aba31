//! A loaded module whose headers and unwind tables are wrong: the rules compiled from it.
#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};

use libfuzzer_sys::{Corpus, fuzz_target};
use unwind::compile::{Scratch, compile};
use unwind::elf::Image;

const PAGE: usize = 4096;

/// Maximum size of a module, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of addresses that are looked up in one module.
const LOOKUPS: usize = 64;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some((step, module)) = data.split_first().filter(|(_, m)| m.len() <= MAX_BYTES) else {
        return Corpus::Reject;
    };
    let size = module.len().next_multiple_of(PAGE).max(PAGE);
    let layout = Layout::from_size_align(size, PAGE).expect("a whole number of pages");
    // SAFETY: the layout has a size.
    let at = unsafe { alloc_zeroed(layout) };
    assert!(!at.is_null());
    // SAFETY: just allocated, of this size, and nobody else has it.
    unsafe { at.copy_from_nonoverlapping(module.as_ptr(), module.len()) };
    look_up(at as u64, size, usize::from(*step) + 1);
    // SAFETY: allocated above with this layout; what borrowed it is gone.
    unsafe { dealloc(at, layout) };
    Corpus::Keep
});

fn look_up(start: u64, size: usize, step: usize) {
    // SAFETY: all of it stays allocated until this returns.
    let Some(image) = (unsafe { Image::at(start, start + size as u64) }) else {
        return;
    };
    let _ = image.build_id().map(|id| assert!(id.len() <= size));
    let mut scratch = Scratch::new();
    for offset in (0..size).step_by(step).take(LOOKUPS) {
        let ip = start + offset as u64;
        let _ = image.text(ip);
        let _ = compile(&image, ip, &mut scratch);
    }
}
