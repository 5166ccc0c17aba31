//! Unwinds a thread's stack, given its registers and memory.

use unwind::compile::{Scratch, compile};
use unwind::rule::{Rule, Step, Word};
use unwind::stack::{Interrupted, Memory};
use unwind::{Cause, Registers, remote};

use crate::clone;
use crate::frame_pointer;
use crate::leaf;
use crate::outermost;
use crate::registers::LiveRegisters;
use crate::space::{Library, Space};

/// Maximum number of frames of a stack.
pub const MAX_FRAMES: usize = 8192;

/// Unwinder of stacks of other processes.
pub struct Unwinder {
    library: Library,
    scratch: Box<Scratch>,
    frames: Vec<Registers>,
    /// True if the frame pointer is not known yet, since no frame has restored it.
    lacks_fp: bool,
    /// Rule of the frame before the last; `None` if there is none.
    callee_rule: Option<Rule>,
    /// True if the last frame was found by a frame record.
    is_by_record: bool,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self {
            library: Library::default(),
            scratch: Box::new(Scratch::new()),
            frames: Vec::new(),
            lacks_fp: false,
            callee_rule: None,
            is_by_record: false,
        }
    }
}

/// Unwound stack.
pub struct Walked<'a> {
    /// Frames, innermost first.
    pub frames: &'a [Registers],
    /// Reason why the stack is truncated, or `None` if it is complete.
    pub cut: Option<Cause>,
}

impl Unwinder {
    /// Loads the tables of the code at an address.
    pub fn prepare(&mut self, space: &mut Space, address: u64) {
        space.prepare(address, &mut self.library);
    }

    /// Unwinds a thread's stack.
    pub fn walk(
        &mut self,
        space: &mut Space,
        live: &LiveRegisters,
        memory: &mut impl Memory,
    ) -> Walked<'_> {
        self.frames.clear();
        self.frames.push(live.unwind_registers());
        self.lacks_fp = live.lacks_fp();
        self.callee_rule = None;
        self.is_by_record = false;
        let cut = loop {
            match self.advance(space, live, memory) {
                Step::Caller { registers, .. } if self.frames.len() < MAX_FRAMES => {
                    self.frames.push(registers);
                }
                Step::Caller { .. } => break Some(Cause::TooDeep),
                Step::End { .. } => break None,
                Step::Truncated(cause) => break Some(cause),
            }
        };
        Walked {
            frames: &self.frames,
            cut,
        }
    }

    /// Steps from the last frame to its caller.
    fn advance(
        &mut self,
        space: &mut Space,
        live: &LiveRegisters,
        memory: &mut impl Memory,
    ) -> Step {
        match self.frames[..] {
            [at] => self.step(space, live, &mut Interrupted { at, memory }),
            _ => self.step(space, live, memory),
        }
    }

    fn step(&mut self, space: &mut Space, live: &LiveRegisters, memory: &mut impl Memory) -> Step {
        let at = *self.frames.last().expect("a walk begins with a frame");
        let rule = space.rule(at.ip, &mut self.library, &mut self.scratch);
        if self.lacks_fp
            && rule.is_some_and(Rule::needs_fp)
            && let Some(fp) = frame_pointer::find(space, at, memory)
            && let Some(last) = self.frames.last_mut()
        {
            last.fp = fp;
            self.lacks_fp = false;
        }
        let at = *self.frames.last().expect("a walk begins with a frame");
        if rule.is_some_and(Rule::is_bare) {
            frame_pointer::load_caller(space, &mut self.library, at, memory);
        }
        let step = rule.map_or(Step::Truncated(Cause::NoModule), |rule| {
            let space = &*space;
            let unwound = remote::Unwound {
                frames: &self.frames,
                rule,
                callee: self.callee_rule,
                live: live.by_number_if_known(),
            };
            let module = |ip| space.module(ip);
            let rules = |ip, scratch: &mut Scratch| match space.module(ip) {
                Some(found) => compile(&found, ip, scratch),
                None => Rule::failed(Cause::NoModule),
            };
            remote::step(&unwound, module, rules, memory, &mut self.scratch)
        });
        self.callee_rule = rule;
        let was_by_record = std::mem::take(&mut self.is_by_record);
        // The frame pointer is known once a frame has restored its caller's from the stack.
        self.lacks_fp &= !matches!(step, Step::Caller { fp, .. } if fp.at != 0);
        match step {
            Step::Truncated(Cause::NoRule)
                if self.frames.len() == 1
                    && let Some(step) = clone::step(space, live, at, memory) =>
            {
                step
            }
            Step::Truncated(Cause::NoRule)
                if self.frames.len() == 1
                    && let Some(step) = leaf::step(space, &mut self.library, live, at, memory) =>
            {
                step
            }
            // The outermost frame: calling conventions demand that its frame pointer is 0.
            Step::Truncated(Cause::NoRule) if was_by_record && at.fp == 0 => Step::End {
                ra: Word::default(),
            },
            Step::Truncated(cause @ (Cause::NoModule | Cause::NoRule)) => {
                let library = &mut self.library;
                let scratch = &mut *self.scratch;
                let step = frame_pointer::step(space, library, scratch, at, memory);
                self.is_by_record = step.is_some();
                // A frame found by a frame record is not the outermost: Go runs parts of its
                // runtime near the start of a thread's stack, for callers on other stacks.
                let mut is_outermost =
                    || !was_by_record && self.frames.len() > 1 && outermost::is_start(at, memory);
                match step {
                    Some(step) => step,
                    None if matches!(cause, Cause::NoRule) && is_outermost() => Step::End {
                        ra: Word::default(),
                    },
                    None => Step::Truncated(cause),
                }
            }
            step => step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::ptr::null_mut;
    use std::sync::Mutex;

    /// Code that makes a frame record, and calls a given function with its stack pointer, which is
    /// also its frame pointer.
    #[cfg(target_arch = "x86_64")]
    const CODE: &[u8] = &[
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xe7, 0xff, 0xd0, 0x5d, 0xc3,
    ];
    #[cfg(target_arch = "aarch64")]
    const CODE: &[u32] = &[
        0xa9be_7bfd,
        0x9100_03fd,
        0xaa00_03e1,
        0x9100_03e0,
        0xd63f_0020,
        0xa8c2_7bfd,
        0xd65f_03c0,
    ];
    /// Offset of the return address of that call.
    const RETURN: u64 = if cfg!(target_arch = "x86_64") { 12 } else { 20 };
    const FP: usize = if cfg!(target_arch = "x86_64") { 6 } else { 29 };
    const SP: usize = if cfg!(target_arch = "x86_64") { 7 } else { 31 };
    const BYTES: usize = 4096;

    #[cfg(target_arch = "aarch64")]
    unsafe extern "C" {
        fn __clear_cache(start: *mut libc::c_void, end: *mut libc::c_void);
    }

    /// Returns the address of the generated code.
    fn generated_code() -> *mut libc::c_void {
        static ADDRESS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let address = ADDRESS.get_or_init(|| {
            let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: the memory is new, writable, and larger than the code.
            let at = unsafe {
                let at = libc::mmap(null_mut(), BYTES, access, kind, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                CODE.as_ptr().copy_to_nonoverlapping(at.cast(), CODE.len());
                #[cfg(target_arch = "aarch64")]
                __clear_cache(at, at.byte_add(BYTES));
                at
            };
            at as usize
        });
        *address as *mut _
    }

    /// Description of a wrong stack, if one was found.
    static WRONG: Mutex<Option<String>> = Mutex::new(None);

    /// Unwinds the stack, beginning at the generated code.
    extern "C" fn unwind_and_check(sp: *const u8) {
        // SAFETY: at least `BYTES` bytes of the stack are above `sp`: the frame of `outermost`.
        let bytes = unsafe { std::slice::from_raw_parts(sp, BYTES) };
        let mut registers = [0; 32];
        registers[FP] = sp as u64;
        registers[SP] = sp as u64;
        let live = LiveRegisters::of_all(&registers, generated_code() as u64 + RETURN);
        let mut space = Space::of(std::process::id().cast_signed());
        let mut unwinder = Unwinder::default();
        let mut memory = crate::memory::Copied::new(sp as u64, bytes);
        let walked = unwinder.walk(&mut space, &live, &mut memory);
        let is_in = |index: usize, function: usize| {
            let ip = walked.frames.get(index).map_or(0, |frame| frame.ip);
            ip.wrapping_sub(function as u64) < 512
        };
        let is_complete =
            is_in(1, middle as *const () as usize) && is_in(2, outermost as *const () as usize);
        *WRONG.lock().unwrap() =
            (!is_complete).then(|| format!("{:x?} {:?}", walked.frames, walked.cut));
    }

    // `walk_middle` calls its first argument with its second. Its unwind table refers to the stack
    // pointer only.
    #[cfg(target_arch = "x86_64")]
    std::arch::global_asm!(
        ".pushsection .text.walk_middle,\"ax\",@progbits",
        "walk_middle:",
        ".cfi_startproc",
        "sub rsp, 56",
        ".cfi_def_cfa_offset 64",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "add rsp, 56",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::global_asm!(
        ".pushsection .text.walk_middle,\"ax\",@progbits",
        "walk_middle:",
        ".cfi_startproc",
        "stp x29, x30, [sp, #-64]!",
        ".cfi_def_cfa_offset 64",
        ".cfi_offset 29, -64",
        ".cfi_offset 30, -56",
        "mov x29, sp",
        "mov x2, x0",
        "mov x0, x1",
        "blr x2",
        "ldp x29, x30, [sp], #64",
        "ret",
        ".cfi_endproc",
        ".popsection",
    );

    unsafe extern "C" {
        #[link_name = "walk_middle"]
        fn middle(code: *mut libc::c_void, unwind_and_check: extern "C" fn(*const u8));
    }

    #[inline(never)]
    fn outermost() {
        let room = black_box([1u8; BYTES]);
        // SAFETY: the generated code takes a function of this type.
        unsafe { middle(generated_code(), unwind_and_check) };
        black_box(room);
    }

    #[test]
    fn generated_code_is_unwound_by_its_frame_record() {
        *WRONG.lock().unwrap() = Some("nothing was unwound".to_owned());
        outermost();
        assert_eq!(*WRONG.lock().unwrap(), None);
    }
}
