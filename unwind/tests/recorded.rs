//! Stacks of programs for aarch64, recorded under an emulator (`tests/aarch64/record`), unwound
//! here whatever machine this is: with unwind tables; by the frame records of code that has none;
//! with signed return addresses, in a program laid out for pages of 64 KiB. Each has the frame of a
//! signal, and of a function that the signal found with its return address in the link register.

use std::fs;
use std::path::Path;

use unwind::arch::Aarch64;
use unwind::compile::{Scratch, compile_on};
use unwind::elf::{self, Module, Section};
use unwind::rule::Rule;
use unwind::stack::Copied;
use unwind::{Cause, Registers, remote};

/// A recorded program.
#[derive(Default)]
struct Program {
    /// Name, address, bytes.
    sections: Vec<(String, u64, Vec<u8>)>,
    headers: Vec<u8>,
    /// Name, address, size.
    functions: Vec<(String, u64, u64)>,
    /// Start, end, access, offset in the file.
    mapped: Vec<(u64, u64, String, u64)>,
    stacks: Vec<Stack>,
}

#[derive(Default)]
struct Stack {
    name: String,
    /// The functions on it, innermost first.
    functions: Vec<String>,
    registers: Registers,
    words: Vec<u64>,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("a number")
}

fn bytes(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| hex(std::str::from_utf8(pair).expect("digits")) as u8;
    pairs.map(byte).collect()
}

impl Program {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aarch64");
        let text = fs::read_to_string(path.join(name).with_extension("stacks"));
        let mut program = Self::default();
        for line in text.expect("a recorded program").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let owned = |text: &str| text.to_owned();
            match words[0] {
                "#" => {}
                "section" => {
                    let section = (owned(words[1]), hex(words[2]), bytes(words[3]));
                    program.sections.push(section);
                }
                "headers" => program.headers = bytes(words[1]),
                "function" => {
                    let function = (owned(words[1]), hex(words[2]), hex(words[3]));
                    program.functions.push(function);
                }
                "mapped" => {
                    let (start, end) = words[1].split_once('-').expect("a range");
                    let mapped = (hex(start), hex(end), owned(words[2]), hex(words[3]));
                    program.mapped.push(mapped);
                }
                "stack" => program.stacks.push(Stack {
                    name: owned(words[1]),
                    functions: words[2..].iter().copied().map(owned).collect(),
                    ..Stack::default()
                }),
                last => {
                    let stack = program.stacks.last_mut().expect("a stack");
                    let numbers: Vec<u64> = words[1..].iter().map(|word| hex(word)).collect();
                    match last {
                        "registers" => {
                            let [ip, sp, fp] = numbers[..] else {
                                panic!("{line}")
                            };
                            stack.registers = Registers { ip, sp, fp };
                        }
                        "words" => stack.words = numbers,
                        _ => panic!("{line}"),
                    }
                }
            }
        }
        program
    }

    fn section(&self, name: &str) -> Section<'_> {
        let section = self.sections.iter().find(|(own, ..)| own == name);
        let (_, address, bytes) = section.expect("a section");
        let address = *address;
        Section { bytes, address }
    }

    /// Returns the function that returns to, or is interrupted before, `ip`.
    fn function(&self, ip: u64) -> &str {
        let holds = |at: u64| {
            let mut all = self.functions.iter();
            all.find(move |(_, start, size)| (*start..start + size).contains(&at))
        };
        // A signal handler returns to the start of a function, which was not called.
        let found = self.functions.iter().find(|(_, start, _)| *start == ip);
        let found = found.or_else(|| holds(ip.wrapping_sub(1)));
        found.map_or("nothing", |(name, ..)| name)
    }

    fn address(&self, name: &str) -> u64 {
        let found = self.functions.iter().find(|(own, ..)| own == name);
        found.expect("a function").1
    }

    fn module(&self, ip: u64) -> Option<Loaded<'_>> {
        let text = self.section(".text");
        let size = text.bytes.len() as u64;
        let holds = (text.address + 1..=text.address + size).contains(&ip);
        holds.then_some(Loaded(self))
    }

    fn rule(&self, ip: u64) -> Rule {
        compile_on::<Aarch64>(&Loaded(self), ip, &mut Scratch::new())
    }

    fn walk(&self, stack: &Stack) -> (Vec<&str>, Option<Cause>) {
        let mut frames = [Registers::default(); 64];
        let mut memory = Copied::new(stack.registers.sp, &stack.words);
        let (count, cause) = remote::walk_on::<Aarch64, _>(
            stack.registers,
            |ip| self.module(ip),
            &mut memory,
            &mut Scratch::new(),
            &mut frames,
        );
        let names = frames[..count].iter().map(|at| self.function(at.ip));
        (names.collect(), cause)
    }

    fn stack(&self, name: &str) -> &Stack {
        let stack = self.stacks.iter().find(|stack| stack.name == name);
        stack.expect("a stack of this name")
    }
}

#[derive(Clone, Copy)]
struct Loaded<'a>(&'a Program);

impl<'a> Module<'a> for Loaded<'a> {
    fn eh_frame_hdr(&self) -> Option<Section<'a>> {
        Some(self.0.section(".eh_frame_hdr"))
    }

    fn bytes_from(&self, address: u64) -> Option<Section<'a>> {
        let section = self.0.section(".eh_frame");
        let offset = usize::try_from(address.checked_sub(section.address)?).ok()?;
        let bytes = section.bytes.get(offset..)?;
        Some(Section { bytes, address })
    }

    fn instruction(&self, address: u64) -> Option<u32> {
        let text = self.0.section(".text");
        let offset = usize::try_from(address.checked_sub(text.address)?).ok()?;
        let bytes = text.bytes.get(offset..offset.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    fn bytes_before(&self, address: u64) -> Option<[u8; 8]> {
        let text = self.0.section(".text");
        let end = usize::try_from(address.checked_sub(text.address)?).ok()?;
        let bytes = text.bytes.get(end.checked_sub(8)?..end)?;
        bytes.try_into().ok()
    }
}

fn all_are_whole(program: &Program) {
    let names: Vec<&str> = program.stacks.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(
        names,
        ["calls", "library", "leaf", "plain", "interrupted"],
        "recorded"
    );
    for stack in &program.stacks {
        let expected: Vec<&str> = stack.functions.iter().map(String::as_str).collect();
        assert_eq!(program.walk(stack), (expected, None), "{}", stack.name);
    }
}

#[test]
fn stacks_are_unwound_by_tables() {
    all_are_whole(&Program::read("tables"));
}

#[test]
fn stacks_without_tables_are_unwound_by_frame_records() {
    let program = Program::read("records");
    for function in ["visit", "arrange"] {
        let rule = program.rule(program.address(function) + 20);
        assert_eq!(rule, Rule::failed(Cause::NoRule), "{function}");
    }
    all_are_whole(&program);
}

#[test]
fn signed_return_addresses_and_64_kib_pages_are_supported() {
    let program = Program::read("signed");
    let text = program.section(".text");
    let code = text.address..text.address + text.bytes.len() as u64;
    let is_signed = |word: &&u64| **word >> 48 != 0 && code.contains(&(**word & 0xffff_ffff_ffff));
    let words = program.stacks.iter().flat_map(|stack| &stack.words);
    assert!(words.filter(is_signed).count() > 20);
    all_are_whole(&program);

    // The loader maps whole pages, so the module's bounds come from its headers.
    let [(start, end, access, offset), .., (_, last, ..)] = &program.mapped[..] else {
        panic!("{:?}", program.mapped)
    };
    assert_eq!(
        (access.as_str(), start % 0x1_0000, end % 0x1_0000),
        ("r-xp", 0, 0)
    );
    let mut page = program.headers.clone();
    page.resize(4096, 0);
    let pc = text.address;
    let (first, beyond) = elf::extent(&page, pc, pc - start + offset).expect("code");
    assert_eq!(first, *start);
    // Memory that has no bytes in the file (.bss) is not in the file's mappings.
    assert!(beyond.abs_diff(*last) < 0x1_0000, "{beyond:x}");
}

/// Returns the stack with words changed by `change`, which gets the words and their address.
fn changed(stack: &Stack, change: impl Fn(&mut [u64], u64)) -> Stack {
    let mut words = stack.words.clone();
    change(&mut words, stack.registers.sp);
    Stack {
        name: stack.name.clone(),
        functions: stack.functions.clone(),
        registers: stack.registers,
        words,
    }
}

/// Returns the index of the word with the return address of the frame record of `arrange`.
fn record_of_arrange(program: &Program, stack: &Stack) -> usize {
    let is_return = |word: &u64| program.function(*word) == "visit";
    let at = stack.words.iter().position(is_return);
    at.expect("arrange was called by visit")
}

#[test]
fn invalid_frame_records_are_not_followed() {
    let program = Program::read("records");
    let stack = program.stack("library");
    let at = record_of_arrange(&program, stack);
    let arrange = stack.functions.iter().position(|f| f == "arrange");
    let cut: Vec<&str> = stack.functions[..=arrange.expect("there")]
        .iter()
        .map(String::as_str)
        .collect();
    let text = program.section(".text");
    let not_after_a_call = program.address("visit") + 4;
    let after_another_call = *stack.words[at + 1..]
        .iter()
        .find(|word| program.function(**word) == "_start")
        .expect("begin's caller");
    for wrong in [
        1,
        stack.registers.sp,
        text.address + 1,
        not_after_a_call,
        // After the call of a function that has a table, so this record belongs to another frame.
        after_another_call,
    ] {
        let stack = changed(stack, |words, _| words[at] = wrong);
        let found = program.walk(&stack);
        assert_eq!(found, (cut.clone(), Some(Cause::NoRule)), "{wrong:x}");
    }
    // The caller's record is not above this one: it is the same, below, overlapping, or unreadable.
    let own = stack.registers.sp + 8 * (at as u64 - 1);
    for wrong in [own, own - 64, own + 8, 8] {
        let stack = changed(stack, |words, _| words[at - 1] = wrong);
        let found = program.walk(&stack);
        assert_eq!(found, (cut.clone(), Some(Cause::NoRule)), "{wrong:x}");
    }
}

/// Simulates generated code, which is in no module.
#[test]
fn records_through_generated_code_are_followed_if_they_lead_to_a_call() {
    let program = Program::read("records");
    let stack = program.stack("library");
    let at = record_of_arrange(&program, stack);
    let mut expected: Vec<&str> = stack.functions.iter().map(String::as_str).collect();
    let outer = expected.iter().position(|name| *name == "visit");
    let outer = outer.expect("arrange was called by visit");
    expected[outer] = "nothing";
    let generated = |words: &mut [u64]| words[at] = 0x7654_3210;
    let made = changed(stack, |words, _| generated(words));
    assert_eq!(program.walk(&made), (expected.clone(), None));
    // The record of that code is invalid: below, zero, or its return address does not follow a
    // call.
    let own = stack.registers.sp + 8 * (at as u64 - 1);
    let place = |words: &[u64], low: u64| (words[at - 1] - low) as usize / 8;
    for wrong in [own - 64, own, 0] {
        let spoiled = changed(&made, |words, _| words[at - 1] = wrong);
        let cut = (expected[..outer].to_vec(), Some(Cause::NoRule));
        assert_eq!(program.walk(&spoiled), cut, "{wrong:x}");
    }
    for wrong in [0, 1, program.address("visit") + 4] {
        let spoiled = changed(&made, |words, low| words[place(words, low) + 1] = wrong);
        let cut = (expected[..outer].to_vec(), Some(Cause::NoRule));
        assert_eq!(program.walk(&spoiled), cut, "{wrong:x}");
    }
}

#[test]
fn a_damaged_stack_never_loops() {
    for name in ["tables", "records", "signed"] {
        let program = Program::read(name);
        for stack in &program.stacks {
            let top = stack.registers.sp + 8 * stack.words.len() as u64;
            for at in 0..stack.words.len() {
                for wrong in [0, stack.registers.sp, top - 16, stack.registers.ip, !0] {
                    let stack = changed(stack, |words, _| words[at] = wrong);
                    let (names, cause) = program.walk(&stack);
                    // A frame that a signal interrupted may be on any stack.
                    let may_turn = names.contains(&"handler_return");
                    let is_endless = cause == Some(Cause::TooDeep) && !may_turn;
                    assert!(!is_endless, "{at} {wrong:x}: {names:?}");
                }
            }
        }
    }
}
