//! Names stubs (PLT entries), which jump into other modules through a slot of the GOT that the
//! loader fills in.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::image::{Image, Section, number};
use super::super::residency::Residency;

/// `EM_X86_64`.
const X86_64: u16 = 62;
/// `EM_AARCH64`.
const AARCH64: u16 = 183;
/// Size of a relocation, in bytes.
const RELOCATION_SIZE: usize = 24;
/// Size of a symbol, in bytes.
const SYMBOL_SIZE: usize = 24;
/// Types of relocations that store a symbol's address in a GOT slot: `GLOB_DAT` and `JUMP_SLOT` of
/// each architecture.
const SLOT_RELOCATIONS: [(u16, u64); 4] =
    [(X86_64, 6), (X86_64, 7), (AARCH64, 1025), (AARCH64, 1026)];
/// Sections of stubs.
const STUB_SECTIONS: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];
/// Encoding of `bti c`.
const BTI_C: u64 = 0xd503_245f;
/// Size of the largest aarch64 stub, in bytes.
const MAX_STUB: u64 = 32;

/// Returns the names of the addresses that lie in a stub. `wanted` is sorted.
pub fn names(image: &Image, wanted: &[u64]) -> HashMap<u64, Rc<str>> {
    let sections = STUB_SECTIONS.iter().filter_map(|name| image.section(name));
    let mut slots = HashMap::new();
    for section in sections {
        let first = wanted.partition_point(|&address| address < section.address);
        let inside = wanted[first..].iter().take_while(|&&a| section.holds(a));
        let Some(code) = image.data(section) else {
            continue;
        };
        for &address in inside {
            if let Some(slot) = slot(image.machine(), section, &code, address) {
                slots.insert(address, slot);
            }
        }
    }
    if slots.is_empty() {
        return HashMap::new();
    }
    let symbols = symbol_names(image, &slots).unwrap_or_default();
    let name = |(address, slot)| Some((address, Rc::clone(symbols.get(&slot)?)));
    slots.into_iter().filter_map(name).collect()
}

/// Returns the address of the GOT slot that the stub at `address` jumps through.
fn slot(machine: u16, section: &Section, code: &[u8], address: u64) -> Option<u64> {
    match machine {
        X86_64 => slot_of_x86_stub(section, code, address),
        AARCH64 => slot_of_aarch64_stub(section, code, address),
        _ => None,
    }
}

/// Decodes `jmp *DISTANCE(%rip)`, which may follow an `endbr64`.
fn slot_of_x86_stub(section: &Section, code: &[u8], address: u64) -> Option<u64> {
    let size = match section.entry {
        8 => 8,
        _ => 16,
    };
    let start = (address - section.address) / size * size;
    let stub = code.get(usize::try_from(start).ok()?..)?;
    let stub = &stub[..stub.len().min(size as usize)];
    let jump = stub
        .windows(6)
        .position(|bytes| bytes[..2] == [0xff, 0x25])?;
    let distance = number(stub, jump + 2, 4)? as u32 as i32;
    let next_instruction = section.address.checked_add(start + jump as u64 + 6)?;
    next_instruction.checked_add_signed(distance.into())
}

/// Decodes `adrp x16, PAGE` and `ldr x17, [x16, OFFSET]`.
fn slot_of_aarch64_stub(section: &Section, code: &[u8], address: u64) -> Option<u64> {
    let word = |at: u64| number(code, usize::try_from(at).ok()?, 4);
    let mut distance = (address - section.address) & !3;
    // A stub may begin with a landing pad.
    distance += 4 * u64::from(word(distance) == Some(BTI_C));
    let words = (0..MAX_STUB)
        .step_by(4)
        .map_while(|back| distance.checked_sub(back));
    for at in words {
        let first = word(at)?;
        if first & 0x9f00_001f != 0x9000_0010 {
            continue;
        }
        let second = word(at + 4).filter(|second| second & 0xffc0_03ff == 0xf940_0211)?;
        let pages = (((first >> 5) & 0x7_ffff) << 2) | ((first >> 29) & 3);
        // A signed 21-bit number.
        let pages = ((pages as i64) << 43) >> 43;
        let page = section.address.checked_add(at)? & !0xfff;
        let offset = ((second >> 10) & 0xfff) * 8;
        return page.checked_add_signed(pages << 12)?.checked_add(offset);
    }
    None
}

/// Returns the name of the symbol whose address is stored in each of the slots.
fn symbol_names(image: &Image, slots: &HashMap<u64, u64>) -> Option<HashMap<u64, Rc<str>>> {
    let mut numbers: HashMap<u64, u64> = slots.values().map(|&slot| (slot, 0)).collect();
    let residency = Residency::of(image.map());
    for table in [".rela.plt", ".rela.dyn"] {
        let table = image.section(table).and_then(|section| image.data(section));
        for entry in table
            .as_deref()
            .unwrap_or_default()
            .chunks_exact(RELOCATION_SIZE)
        {
            residency.count_item();
            let slot = number(entry, 0, 8)?;
            let info = number(entry, 8, 8)?;
            let kind = (image.machine(), info & 0xffff_ffff);
            if let Some(known) = numbers
                .get_mut(&slot)
                .filter(|_| SLOT_RELOCATIONS.contains(&kind))
            {
                *known = info >> 32;
            }
        }
    }
    let table = image.section(".dynsym")?;
    let symbols = image.data(table)?;
    let strings = image.data(image.section_by_index(table.link)?)?;
    let name = |(slot, symbol): (u64, u64)| {
        let entry = usize::try_from(symbol).ok()?.checked_mul(SYMBOL_SIZE)?;
        let at = number(&symbols, entry, 4).filter(|_| symbol > 0)? as usize;
        let name = strings.get(at..)?.split(|&byte| byte == 0).next()?;
        let name = std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty())?;
        Some((slot, format!("{name}@plt").into()))
    };
    Some(numbers.into_iter().filter_map(name).collect())
}
