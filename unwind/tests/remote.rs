//! The stack of a thread, unwound from a copy of its words and from the files of its modules,
//! as if it were another process's.

use std::arch::asm;
use std::fs;
use std::hint::black_box;

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use unwind::compile::Scratch;
use unwind::elf::{Section, Sections};
use unwind::stack::Copied;
use unwind::{Cause, Registers, remote};

/// An executable mapping of a file.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// A module as another process has it: the file, and where it was loaded.
struct File {
    start: u64,
    end: u64,
    bias: u64,
    data: Vec<u8>,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("a number")
}

/// Returns the address ranges of our maps, with offset, permissions and path.
fn maps() -> Vec<(Mapping, String)> {
    let text = fs::read_to_string("/proc/self/maps").expect("our maps");
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').expect("a range");
        let mapping = Mapping {
            start: hex(start),
            end: hex(end),
            offset: hex(words[2]),
            path: words.get(5).copied().unwrap_or_default().to_owned(),
        };
        (mapping, words[1].to_owned())
    };
    text.lines().map(line).collect()
}

impl File {
    fn of(mapping: &Mapping) -> Self {
        let data = fs::read(&mapping.path).expect("a module");
        let file = object::File::parse(&*data).expect("an ELF file");
        let holds =
            |(offset, size): (u64, u64)| (offset & !4095..offset + size).contains(&mapping.offset);
        // Segments share pages: code is the later one.
        let segment = file.segments().filter(|s| holds(s.file_range())).last();
        let segment = segment.expect("the segment that is mapped");
        let address = segment.address() - segment.file_range().0 + mapping.offset;
        Self {
            start: mapping.start,
            end: mapping.end,
            bias: mapping.start.wrapping_sub(address),
            data: data.clone(),
        }
    }

    fn sections(&self) -> Sections<'_> {
        let file = object::File::parse(&*self.data).expect("an ELF file");
        let section = |name| {
            let section = file.section_by_name(name).expect("unwind tables");
            Section {
                bytes: section.data().expect("its bytes"),
                address: self.bias.wrapping_add(section.address()),
            }
        };
        Sections {
            eh_frame_hdr: section(".eh_frame_hdr"),
            eh_frame: section(".eh_frame"),
        }
    }

    /// Returns the name of the function that holds an address.
    fn name(&self, address: u64) -> Option<String> {
        let file = object::File::parse(&*self.data).ok()?;
        let address = address.wrapping_sub(self.bias);
        let holds =
            |s: &object::Symbol<'_, '_>| (s.address()..s.address() + s.size()).contains(&address);
        let found = file.symbols().find(holds);
        let found = found.or_else(|| file.dynamic_symbols().find(holds));
        Some(found?.name().ok()?.to_owned())
    }
}

/// Returns the registers here, and the words from the stack pointer to the end of the stack.
#[inline(never)]
fn snapshot() -> (Registers, Vec<u64>) {
    let (pc, sp, fp): (u64, u64, u64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads registers.
    unsafe {
        asm!("lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads registers.
    unsafe {
        asm!("adr {pc}, .", "mov {sp}, sp", "mov {fp}, x29",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp);
    }
    let maps = maps();
    let stack = maps.iter().find(|(m, _)| (m.start..m.end).contains(&sp));
    let end = stack.expect("the stack").0.end;
    let word = |at: u64| {
        // SAFETY: the word is in the mapping that contains our stack. Only words of this function's
        // callees may change during the read.
        unsafe { (at as *const u64).read_volatile() }
    };
    let words = (sp..end).step_by(8).map(word).collect();
    // A return address is one more than an address inside the call.
    let registers = Registers { ip: pc + 1, sp, fp };
    (registers, words)
}

#[inline(never)]
fn innermost(depth: u32) -> (Registers, Vec<u64>) {
    match black_box(depth) {
        0 => black_box(snapshot()),
        _ => black_box(innermost(depth - 1)),
    }
}

#[inline(never)]
fn outer() -> (Registers, Vec<u64>) {
    // An array on the stack, whose size is known only from the unwind tables.
    let room = black_box([7u64; 300]);
    let taken = innermost(3);
    black_box(room);
    taken
}

#[test]
fn a_copied_stack_is_unwound_with_the_files_of_its_modules() {
    let (start, words) = outer();
    let is_code = |(m, permissions): &&(Mapping, String)| {
        permissions.contains('x') && m.path.starts_with('/')
    };
    let maps = maps();
    let files: Vec<File> = maps
        .iter()
        .filter(is_code)
        .map(|(m, _)| File::of(m))
        .collect();
    let file = |ip: u64| files.iter().find(|f| (f.start..f.end).contains(&(ip - 1)));
    let module = |ip: u64| file(ip).map(File::sections);

    let mut frames = [Registers::default(); 256];
    let mut memory = Copied::new(start.sp, &words);
    let mut scratch = Scratch::new();
    let (count, cause) = remote::walk(start, module, &mut memory, &mut scratch, &mut frames);
    let name = |at: &Registers| file(at.ip)?.name(at.ip - 1);
    let names: Vec<String> = frames[..count].iter().filter_map(name).collect();
    assert_eq!(cause, None, "{names:#?}");
    let position = |part: &str| names.iter().position(|name| name.contains(part));
    assert_eq!(position("snapshot"), Some(0), "{names:#?}");
    let inner = names
        .iter()
        .filter(|name| name.contains("innermost"))
        .count();
    assert_eq!(inner, 4, "{names:#?}");
    assert_eq!(position("outer"), Some(5), "{names:#?}");
    assert!(
        frames[..count].is_sorted_by(|a, b| a.sp < b.sp),
        "{names:#?}"
    );

    // A copy that is too short and a full buffer are reported as causes of truncation.
    let mut short = Copied::new(start.sp, &words[..words.len().min(300)]);
    let (cut, cause) = remote::walk(start, module, &mut short, &mut scratch, &mut frames);
    assert_eq!(cause, Some(Cause::OutOfStack));
    assert!(cut < count);
    let few = &mut frames[..3];
    let mut memory = Copied::new(start.sp, &words);
    let walked = remote::walk(start, module, &mut memory, &mut scratch, few);
    assert_eq!(walked, (3, Some(Cause::TooDeep)));
}
