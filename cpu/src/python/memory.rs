//! Reads the memory of a process while one of its threads is stopped: page by page, each page once.
//! Frames are close to each other, and a system call takes longer than copying a page.

use cpython::chain::{ADDRESS_LIMIT, is_pointer};

use crate::memory::Copied;
use crate::mixer::IntMap;

const PAGE: u64 = 4096;
/// Maximum number of pages read while a thread is stopped.
const MAX_PAGES: usize = 4096;
/// Number of pages for which buffers are kept between samples.
const KEPT_PAGES: usize = 256;
/// Maximum distance in bytes from the stack pointer at which an address may be on the stack.
const MAX_STACK_BYTES: u64 = 256 << 20;

/// Buffers of pages.
#[derive(Default)]
pub struct Pages {
    pid: i32,
    /// Index of the buffer of each page; `None` if the page is unreadable.
    indices: IntMap<u64, Option<u32>>,
    bytes: Vec<u8>,
}

impl Pages {
    pub fn new(pid: i32) -> Self {
        Self {
            pid,
            ..Self::default()
        }
    }

    fn page(&mut self, page: u64) -> Option<&[u8]> {
        let size = PAGE as usize;
        if !self.indices.contains_key(&page) {
            let index = self.indices.len();
            let end = size * (index + 1);
            if index >= MAX_PAGES {
                return None;
            }
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            let read = capture::read_memory(self.pid, page, &mut self.bytes[end - size..end]);
            self.indices
                .insert(page, (read == size).then_some(index as u32));
        }
        let index = self.indices.get(&page).copied().flatten()?;
        let start = index as usize * size;
        self.bytes.get(start..start + size)
    }
}

/// Reader of a process's memory: a copy of the thread's stack, and pages.
pub struct Memory<'a> {
    pages: &'a mut Pages,
    stack: Copied<'a>,
}

impl<'a> Memory<'a> {
    /// Starts reading for a thread that was just stopped.
    pub fn new(pages: &'a mut Pages, stack: Copied<'a>) -> Self {
        pages.indices.clear();
        let kept = KEPT_PAGES * PAGE as usize;
        if pages.bytes.len() > kept {
            pages.bytes.truncate(kept);
            pages.bytes.shrink_to_fit();
        }
        Self { pages, stack }
    }

    pub fn pid(&self) -> i32 {
        self.pages.pid
    }

    /// Fills `to` with the bytes at an address. Returns true if all were readable.
    pub fn read(&mut self, mut at: u64, mut to: &mut [u8]) -> bool {
        let end = at.checked_add(to.len() as u64);
        if end.is_none_or(|end| end > ADDRESS_LIMIT) {
            return false;
        }
        if let Some(bytes) = end.and_then(|end| self.stack.bytes(at, end)) {
            to.copy_from_slice(bytes);
            return true;
        }
        while !to.is_empty() {
            let offset = (at % PAGE) as usize;
            let Some(page) = self.pages.page(at - at % PAGE) else {
                return false;
            };
            let count = to.len().min(page.len() - offset);
            let (first, rest) = std::mem::take(&mut to).split_at_mut(count);
            first.copy_from_slice(&page[offset..offset + count]);
            to = rest;
            at += count as u64;
        }
        true
    }

    fn array<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes).then_some(bytes)
    }

    pub fn word(&mut self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub fn half(&mut self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub fn byte(&mut self, at: u64) -> Option<u8> {
        self.array(at).map(|[byte]| byte)
    }

    /// Reads a pointer to an object. Returns `None` if the word is not a valid pointer.
    pub fn follow(&mut self, at: u64) -> Option<u64> {
        self.word(at).filter(|pointer| is_pointer(*pointer))
    }

    /// Returns true if an address may be on the stack, above the stack pointer.
    pub fn is_on_stack(&self, at: u64) -> bool {
        let (low, _) = self.stack.range();
        at.checked_sub(low)
            .is_some_and(|distance| distance < MAX_STACK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_addresses_give_none() {
        let mut pages = Pages::new(std::process::id().cast_signed());
        let words: Vec<u64> = (0..2048).collect();
        let start = words.as_ptr() as u64;
        let stack = [7u64.to_le_bytes(), 8u64.to_le_bytes()];
        let copied = Copied::new(0x10, stack.as_flattened());
        let mut memory = Memory::new(&mut pages, copied);
        for word in [0u64, 511, 512, 1023, 2047] {
            assert_eq!(memory.word(start + 8 * word), Some(word));
        }
        assert_eq!(memory.half(start + 8), Some(1));
        assert_eq!((memory.word(0x18), memory.word(0x20)), (Some(8), None));
        let mut many = [0; 3 * PAGE as usize];
        assert!(memory.read(start, &mut many));
        assert_eq!(many[8 * 1027..][..2], [3, 4]);
        for wild in [0, 4090, ADDRESS_LIMIT - 4, u64::MAX - 7, u64::MAX] {
            assert_eq!(memory.word(wild), None, "{wild:x}");
        }
        assert!(memory.is_on_stack(0x4000) && !memory.is_on_stack(8));
    }
}
