//! Regressions: modules with false headers or unwind tables, as fuzzing found them. Every
//! address gets an answer.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs;
use std::path::Path;

use unwind::compile::{Scratch, compile};
use unwind::elf::Image;

const PAGE: usize = 4096;

/// Looks up every address of the module in memory; gives how many.
fn look_up(module: &[u8]) -> usize {
    let size = module.len().next_multiple_of(PAGE).max(PAGE);
    let layout = Layout::from_size_align(size, PAGE).expect("whole pages");
    // SAFETY: the layout has a size.
    let at = unsafe { alloc_zeroed(layout) };
    assert!(!at.is_null());
    // SAFETY: the memory was just allocated with this size, and nothing else refers to it.
    unsafe { at.copy_from_nonoverlapping(module.as_ptr(), module.len()) };
    let start = at as u64;
    let end = at as u64 + size as u64;
    // SAFETY: the memory stays allocated until `image` has been dropped.
    let image = unsafe { Image::at(start, end) };
    let mut lookups = 0;
    if let Some(image) = image {
        let mut scratch = Scratch::new();
        for ip in start..end {
            let _ = compile(&image, ip, &mut scratch);
            lookups += 1;
        }
    }
    // SAFETY: the memory was allocated above with this layout, and nothing borrows it any more.
    unsafe { dealloc(at, layout) };
    lookups
}

#[test]
fn corrupt_tables_are_handled() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions");
    let mut modules = 0;
    for entry in fs::read_dir(directory).expect("the inputs") {
        let bytes = fs::read(entry.expect("an input").path()).expect("an input");
        modules += usize::from(look_up(&bytes) > 0);
    }
    assert!(modules >= 2, "too few of the inputs were modules");
}
