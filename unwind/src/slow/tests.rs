use crate::Cause;
use crate::Registers;
use crate::compile::{Scratch, compile};
use crate::elf::Image;
use crate::rule::Rule;
use crate::stack::Ends;
use crate::walk::{Code, Node, Tree, Walk, Walker};
use std::boxed::Box;
use std::cell::RefCell;
use std::vec::Vec;

// These functions never run: only their unwind tables are used. The return address of a call
// from each is the address of its name plus one.
core::arch::global_asm!(
    // Saves rbx in the word below its return address, and no other register.
    ".p2align 4",
    "saves_rbx: .cfi_startproc",
    ".cfi_def_cfa_offset 32",
    ".cfi_offset rbx, -16",
    ".zero 16, 0x90",
    ".cfi_endproc",
    "touches_nothing: .cfi_startproc",
    ".cfi_def_cfa_offset 16",
    ".zero 16, 0x90",
    ".cfi_endproc",
    "hangs_on_rbx: .cfi_startproc",
    ".cfi_def_cfa rbx, 16",
    ".zero 16, 0x90",
    ".cfi_endproc",
    // The saved frame pointer is at the address in the frame pointer.
    "stale_fp: .cfi_startproc",
    ".cfi_def_cfa_offset 16",
    ".cfi_escape 0x10, 6, 2, 0x76, 0",
    ".zero 16, 0x90",
    ".cfi_endproc",
    // The caller's stack pointer is two words above the CFA.
    "switches: .cfi_startproc",
    ".cfi_def_cfa_offset 16",
    ".cfi_escape 0x15, 7, 0x7e",
    ".zero 16, 0x90",
    ".cfi_endproc",
    ".zero 16, 0x90",
    "begins: .cfi_startproc",
    ".zero 16, 0x90",
    ".cfi_endproc",
);

unsafe extern "C" {
    static __ehdr_start: u8;
    static _end: u8;
    fn saves_rbx();
    fn touches_nothing();
    fn hangs_on_rbx();
    fn stale_fp();
    fn switches();
    fn begins();
}

fn after(function: unsafe extern "C" fn()) -> u64 {
    function as *const () as u64 + 1
}

struct Own;

impl Code for Own {
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        compile(&self.image(ip).unwrap(), ip, scratch)
    }

    fn image(&self, _: u64) -> Option<Image> {
        // SAFETY: the addresses belong to this program, which stays mapped.
        unsafe { Image::at(&raw const __ehdr_start as u64, &raw const _end as u64) }
    }
}

#[derive(Default)]
struct Frames(RefCell<Vec<u64>>);

impl Tree for Frames {
    fn root(&self) -> Node {
        0.into()
    }
    fn truncated(&self) -> Node {
        1.into()
    }
    fn child(&self, parent: Node, address: u64) -> Option<Node> {
        self.0.borrow_mut().insert(0, address);
        Some(parent)
    }
}

fn walk(memory: &[u64], ip: u64, fp: u64) -> (Vec<u64>, Walk) {
    let layout = std::alloc::Layout::new::<Walker>();
    // SAFETY: the memory has this layout, and zeroed memory is what `init` expects.
    let mut walker: Box<Walker> = unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) };
    walker.init(Ends::default());
    let sp = memory.as_ptr() as u64;
    let frames = Frames::default();
    let walk = walker.walk(Registers { ip, sp, fp }, 0, &frames, Own);
    (frames.0.into_inner(), walk)
}

#[test]
fn a_cfa_register_is_taken_from_the_nearest_inner_frame_that_saved_it() {
    let mut memory = [0u64; 12];
    let base = memory.as_ptr() as u64;
    memory[1] = after(saves_rbx);
    memory[4] = base + 64;
    memory[5] = after(hangs_on_rbx);
    memory[9] = after(touches_nothing);
    let (frames, walk) = walk(&memory, after(touches_nothing), 0);
    let expected = [touches_nothing, saves_rbx, hangs_on_rbx, touches_nothing];
    assert_eq!(frames, expected.map(after));
    assert_eq!(walk.truncated, None);
}

#[test]
fn a_cfa_in_an_unsaved_register_truncates_the_stack() {
    let mut memory = [0u64; 8];
    memory[1] = after(hangs_on_rbx);
    let (frames, walk) = walk(&memory, after(touches_nothing), 0);
    assert_eq!(frames, [touches_nothing, hangs_on_rbx].map(after));
    assert_eq!(walk.truncated, Some(Cause::Unsupported));
}

#[test]
fn frames_that_do_not_need_an_unreadable_frame_pointer_are_unwound() {
    let mut memory = [0u64; 8];
    memory[1] = after(touches_nothing);
    let (frames, walk) = walk(&memory, after(stale_fp), 0x10);
    assert_eq!(frames, [stale_fp, touches_nothing].map(after));
    assert_eq!(walk.truncated, None);
}

#[test]
fn a_callers_stack_pointer_may_differ_from_the_cfa() {
    let mut memory = [0u64; 12];
    memory[1] = after(touches_nothing);
    memory[3] = after(hangs_on_rbx);
    memory[5] = after(saves_rbx);
    let (frames, walk) = walk(&memory, after(switches), 0);
    assert_eq!(frames, [switches, touches_nothing, saves_rbx].map(after));
    assert_eq!(walk.truncated, None);
}

#[test]
fn the_outermost_function_of_a_coroutine_ends_its_stack() {
    let mut memory = [0u64; 4];
    memory[1] = begins as *const () as u64;
    let (frames, walk) = walk(&memory, after(touches_nothing), 0);
    assert_eq!(frames, [after(touches_nothing), memory[1]]);
    assert_eq!(walk.truncated, None);
}
