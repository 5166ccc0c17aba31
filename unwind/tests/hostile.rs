//! Modules that lie: whatever a mapped image holds, looking at it neither panics nor reads
//! outside of it, and unwinding through it ends.

use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed};
use std::fs;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock};
use unwind::Registers;
use unwind::compile::{Scratch, compile};
use unwind::elf::{Image, Module};
use unwind::rule::Rule;
use unwind::stack::Ends;
use unwind::walk::{Code, MAX_FRAMES, Node, Tree, Walker};

const PAGE: usize = 4096;

/// Memory in the place of a module; never given back, as images want it.
struct Mapped {
    bytes: &'static mut [u8],
}

impl Mapped {
    fn new(len: usize) -> Self {
        let len = len.next_multiple_of(PAGE);
        let layout = Layout::from_size_align(len, PAGE).expect("a layout");
        // SAFETY: the size is not 0, and zeroed memory is initialised bytes.
        let bytes = unsafe {
            let start = alloc_zeroed(layout);
            assert!(!start.is_null(), "no memory");
            std::slice::from_raw_parts_mut(start, len)
        };
        Self { bytes }
    }

    fn range(&self) -> Range<u64> {
        let start = self.bytes.as_ptr() as u64;
        start..start + self.bytes.len() as u64
    }

    fn image(&self) -> Option<Image> {
        let range = self.range();
        // SAFETY: all of the range is this memory, which is never given back.
        unsafe { Image::at(range.start, range.end) }
    }
}

/// Returns this program as it is mapped, copied; one test at a time changes it.
fn copied() -> MutexGuard<'static, Mapped> {
    static COPY: OnceLock<Mutex<Mapped>> = OnceLock::new();
    let copy = COPY.get_or_init(|| Mutex::new(copy_of_this()));
    copy.lock().unwrap_or_else(|e| e.into_inner())
}

fn copy_of_this() -> Mapped {
    let exe = std::env::current_exe().expect("a path");
    let exe = exe.to_str().expect("a path of text");
    let maps = fs::read_to_string("/proc/self/maps").expect("own mappings");
    let readable =
        |line: &&str| line.ends_with(exe) && line.split(' ').nth(1).unwrap().contains('r');
    let parts: Vec<Range<usize>> = maps.lines().filter(readable).map(range_of).collect();
    let first = parts[0].start;
    let last = parts[parts.len() - 1].end;
    let copy = Mapped::new(last - first);
    for part in parts {
        // SAFETY: the range is a readable mapping of this program, which is never unmapped.
        let bytes = unsafe { std::slice::from_raw_parts(part.start as *const u8, part.len()) };
        copy.bytes_at(part.start - first, bytes);
    }
    copy
}

impl Mapped {
    fn bytes_at(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes.len());
        // SAFETY: inside, as checked; nobody else has the memory yet.
        unsafe {
            let to = self.bytes.as_ptr().cast_mut().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

fn range_of(line: &str) -> Range<usize> {
    let (start, rest) = line.split_once('-').expect("a range");
    let (end, _) = rest.split_once(' ').expect("a range");
    let number = |text| usize::from_str_radix(text, 16).expect("a number");
    number(start)..number(end)
}

/// Code that is all in one image.
struct One(Image);

impl Code for One {
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        compile(&self.0, ip, scratch)
    }

    fn image(&self, _: u64) -> Option<Image> {
        Some(self.0)
    }
}

struct Nowhere;

impl Tree for Nowhere {
    fn root(&self) -> Node {
        0.into()
    }
    fn truncated(&self) -> Node {
        1.into()
    }
    fn child(&self, parent: Node, _: u64) -> Option<Node> {
        Some(parent)
    }
}

fn walker() -> Box<Walker> {
    // SAFETY: the memory has this layout, and zeroed memory is what `init` expects.
    let mut walker: Box<Walker> =
        unsafe { Box::from_raw(alloc_zeroed(Layout::new::<Walker>()).cast()) };
    walker.init(Ends::default());
    walker
}

/// Makes all lookups of an image for code at these addresses in it. Returns the number of rules
/// found.
fn look_up(mapped: &Mapped, addresses: &[u64]) -> usize {
    let Some(image) = mapped.image() else {
        return 0;
    };
    let range = mapped.range();
    let inside = |bytes: &[u8]| {
        let start = bytes.as_ptr() as u64;
        range.start <= start && start + bytes.len() as u64 <= range.end
    };
    assert!(image.build_id().is_none_or(inside));
    assert!(image.eh_frame_hdr().is_none_or(|s| inside(s.bytes)));
    let mut scratch = Scratch::new();
    let ips = addresses
        .iter()
        .map(|place| range.start + place % (range.end - range.start));
    let ips: Vec<u64> = ips.collect();
    let mut found = 0;
    for ip in &ips {
        assert!(image.bytes_from(*ip).is_none_or(|s| inside(s.bytes)));
        let _ = image.text(*ip);
        let rule = compile(&image, *ip, &mut scratch);
        found += usize::from(rule != Rule::failed(unwind::Cause::NoRule));
    }
    climb(image, &ips);
    found
}

/// Walks a stack of nothing but return addresses into the image.
fn climb(image: Image, ips: &[u64]) {
    let stack: Vec<u64> = ips.iter().copied().cycle().take(512).collect();
    let sp = stack.as_ptr() as u64;
    for fp in [sp + 64, ips[0], u64::MAX] {
        let registers = Registers { ip: ips[0], sp, fp };
        let walk = walker().walk(registers, sp + 8 * 512, &Nowhere, One(image));
        assert!(walk.leaf.is_some());
    }
    const { assert!(MAX_FRAMES > 512) };
}

/// Returns the address ranges of the copy's unwind tables: `.eh_frame_hdr`, then `.eh_frame`.
fn tables(mapped: &Mapped) -> [Range<usize>; 2] {
    let image = mapped.image().expect("a sound image");
    let start = mapped.range().start;
    let header = image.eh_frame_hdr().expect("a header");
    let relative = i32::from_le_bytes(header.bytes[4..8].try_into().expect("four bytes"));
    let frames = (header.address + 4).wrapping_add_signed(i64::from(relative)) - start;
    let header_at = (header.address - start) as usize;
    let frames_len = image
        .bytes_from(start + frames)
        .expect("frames")
        .bytes
        .len();
    let frames = frames as usize;
    [
        header_at..header_at + header.bytes.len(),
        frames..frames + frames_len,
    ]
}

#[test]
fn a_valid_copy_can_be_unwound() {
    let copy = copied();
    let image = copy.image().expect("an image");
    let start = copy.range().start;
    let this = a_valid_copy_can_be_unwound as *const () as u64 + 5;
    let exe = fs::read_to_string("/proc/self/maps").expect("own mappings");
    let first = exe.lines().next().map(range_of).expect("a mapping").start as u64;
    let rule = compile(&image, start + this - first, &mut Scratch::new());
    assert_ne!(rule, Rule::failed(unwind::Cause::NoRule));
    assert!(look_up(&copy, &[this - first]) == 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_program_headers(
        damage in prop::collection::vec((0usize..1024, any::<u8>()), 1..6),
        addresses in prop::collection::vec(any::<u64>(), 4),
    ) {
        let mut copy = copied();
        let before = copy.bytes[..1024].to_vec();
        for (at, byte) in damage {
            copy.bytes[at] = byte;
        }
        look_up(&copy, &addresses);
        copy.bytes[..1024].copy_from_slice(&before);
    }

    #[test]
    fn damaged_tables(
        which in 0usize..2,
        near in any::<prop::sample::Index>(),
        damage in prop::collection::vec((0usize..64, any::<u8>()), 1..12),
    ) {
        let mut copy = copied();
        let place = tables(&copy)[which].clone();
        let at = place.start + near.index(place.len() - 64);
        let before = copy.bytes[at..at + 64].to_vec();
        // Looks up code whose entries may have been damaged: the index is sorted like the frames.
        // After 12 bytes, it has entries of 8 bytes, each with a function's address first.
        let index = tables(&copy)[0].clone();
        let count = (index.len() - 12) / 8;
        let share = (at - place.start) as f64 / place.len() as f64;
        let header = index.start;
        let entry = index.start + 12 + (count as f64 * share) as usize * 8;
        let code = |at: usize| {
            let word = copy.bytes.get(at..at + 4).map(|w| i32::from_le_bytes(w.try_into().unwrap()));
            (header as i64 + i64::from(word.unwrap_or(0))) as u64
        };
        let addresses = [code(entry) + 1, code(entry + 8) + 9, code(entry + 16), at as u64];
        for (offset, byte) in damage {
            copy.bytes[at + offset] = byte;
        }
        look_up(&copy, &addresses);
        copy.bytes[at..at + 64].copy_from_slice(&before);
    }

    #[test]
    fn random_frames_after_a_valid_index(
        entries in prop::collection::vec(any::<u8>(), 64..512),
        augmentation in prop::sample::select(vec!["", "zR", "zRS", "zPLR"]),
        addresses in prop::collection::vec(0u64..64, 6),
    ) {
        look_up(&handmade(augmentation, &entries), &addresses.iter().map(|p| 0x800 + p).collect::<Vec<_>>());
    }

    #[test]
    fn random_pages(page in prop::collection::vec(any::<u8>(), 256), sound in 0usize..64) {
        let mapped = Mapped::new(2 * PAGE);
        let good = handmade("zR", &[]);
        mapped.bytes[..256].copy_from_slice(&page);
        mapped.bytes[..sound].copy_from_slice(&good.bytes[..sound]);
        look_up(&mapped, &[0x801, 0x10]);
    }
}

/// Returns an image of two pages whose only entry, for the code that starts at 0x800, has these
/// instructions.
fn handmade(augmentation: &str, instructions: &[u8]) -> Mapped {
    let mapped = Mapped::new(2 * PAGE);
    let mut bytes = vec![0u8; 2 * PAGE];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[32] = 64;
    (bytes[54], bytes[56]) = (56, 2);
    header(&mut bytes[64..120], 1, 5, 0, 2 * PAGE as u64);
    header(&mut bytes[120..176], 0x6474_e550, 4, 0x400, 20);
    // Version, encodings: pcrel sdata4, udata4, datarel sdata4; frames, count, one entry.
    bytes[0x400..0x404].copy_from_slice(&[1, 0x1b, 0x03, 0x3b]);
    let word = |bytes: &mut Vec<u8>, at: usize, value: i32| {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    word(&mut bytes, 0x404, 0x500 - 0x404);
    word(&mut bytes, 0x408, 1);
    word(&mut bytes, 0x40c, 0x800 - 0x400);
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(augmentation.as_bytes());
    cie.extend([0, 1, 0x78, 16]);
    match augmentation {
        "zR" | "zRS" => cie.extend([1, 0x1b]),
        "zPLR" => cie.extend([7, 0x1b, 0, 0, 0, 0, 0x1b, 0x1b]),
        _ => {}
    }
    cie.extend([0x0c, 7, 8, 0x90, 1]);
    cie.resize(cie.len().next_multiple_of(4), 0);
    word(&mut bytes, 0x500, cie.len() as i32);
    bytes[0x504..0x504 + cie.len()].copy_from_slice(&cie);
    let entry = 0x504 + cie.len();
    word(&mut bytes, 0x410, entry as i32 - 0x400);
    word(&mut bytes, entry, (17 + instructions.len()) as i32);
    word(&mut bytes, entry + 4, entry as i32 + 4 - 0x500);
    word(&mut bytes, entry + 8, 0x800 - (entry as i32 + 8));
    word(&mut bytes, entry + 12, 64);
    bytes[entry + 17..entry + 17 + instructions.len()].copy_from_slice(instructions);
    mapped.bytes_at(0, &bytes);
    mapped
}

fn header(bytes: &mut [u8], kind: u32, flags: u32, address: u64, len: u64) {
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    for (at, value) in [(8, address), (16, address), (32, len), (40, len)] {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}
