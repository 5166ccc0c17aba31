//! Finding the module of an address.

mod program;

use crate::sys::{self, read_file};
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::sync::atomic::{AtomicUsize, Ordering};
use unwind::elf;

/// A mapped module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// First address: its ELF header.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Distinguishes it from another module at the same addresses.
    pub identity: u64,
    /// Address of its terminated name, which stays valid; 0: the loader has the name.
    pub name: u64,
    /// The loader's record of it, 0: none.
    pub link_map: u64,
}

impl Found {
    /// Terminated name, empty for the executable; null: none.
    ///
    /// # Safety
    /// The module stays loaded during the call and while the name is used.
    pub unsafe fn name(&self) -> *const core::ffi::c_char {
        let map = self.link_map as *const LinkMap;
        if self.name != 0 || map.is_null() {
            return self.name as *const core::ffi::c_char;
        }
        // SAFETY: the caller's: the loader keeps the record of a loaded module.
        unsafe { (*map).name.cast() }
    }
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

/// `_dl_find_object`, 0 where the C library has none.
static DL_FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

/// Looks for `_dl_find_object`; at start-up. A weak reference would do the same, but
/// linkers turn it into a version requirement on the C library that they saw, and the agent
/// would not load with an older one.
pub fn init() {
    DL_FIND_OBJECT.store(sys::symbol(c"_dl_find_object") as usize, Ordering::Relaxed);
    program::find(|pc| ask_loader(dl_find_object()?, pc));
}

fn dl_find_object() -> Option<DlFind> {
    let address = DL_FIND_OBJECT.load(Ordering::Relaxed);
    // SAFETY: 0 or the function of this type.
    unsafe { core::mem::transmute::<usize, Option<DlFind>>(address) }
}

/// Whether a lookup takes nanoseconds instead of reading a file.
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
    let link_map = result.link_map as u64;
    let told = (result.map_start as u64, result.map_end as u64);
    let (start, end) = program::range(link_map).unwrap_or(told);
    // Nothing is read through these pointers here: another thread may be unloading it.
    Some(Found {
        start,
        end,
        identity: result.eh_frame as u64 ^ link_map.rotate_left(16),
        name: 0,
        link_map,
    })
}

/// How many bytes of `/proc/self/maps` are searched.
const MAPS_BYTES: usize = 1 << 20;
/// Room for the names of modules found there.
const NAMES_BYTES: usize = 256 << 10;

/// Buffers of a search. They are mapped at the first search and never unmapped, because a
/// thread's stack may be too small for them. Zeroed memory is an empty one.
#[repr(C)]
struct Scratch {
    names_used: usize,
    names: [u8; NAMES_BYTES],
    text: [u8; MAPS_BYTES],
}

static SCRATCH: AtomicUsize = AtomicUsize::new(0);

/// The module that holds `pc`, by the maps. Call inside `close::reading`.
fn search_maps(pc: u64) -> Option<Found> {
    let scratch = claim_scratch()?;
    let text = read_file(c"/proc/self/maps", &mut scratch.text);
    let found = search_text(text, pc, by_header).map(|(found, file)| Found {
        name: keep_name(&mut scratch.names, &mut scratch.names_used, path_of(file)),
        ..found
    });
    SCRATCH.store(&raw const *scratch as usize, Ordering::Release);
    found
}

/// The scratch buffer, claimed by one thread at a time. Another thread that asks in the meantime
/// gets nothing, and truncates one stack.
fn claim_scratch() -> Option<&'static mut Scratch> {
    const CLAIMED: usize = 1;
    // A filter that the program has installed may forbid opening the maps.
    if crate::seccomp::is_installed() {
        return None;
    }
    let at = match SCRATCH.swap(CLAIMED, Ordering::Acquire) {
        CLAIMED => return None,
        0 => {
            let at = sys::map_private(size_of::<Scratch>());
            if at.is_null() {
                SCRATCH.store(0, Ordering::Release);
                return None;
            }
            at as usize
        }
        at => at,
    };
    // SAFETY: never unmapped, and no other thread gets it out of `SCRATCH` until it is put back.
    Some(unsafe { &mut *(at as *mut Scratch) })
}

/// Address of the terminated `path` among `names`, to which it is added if it is new.
fn keep_name(names: &mut [u8], used: &mut usize, path: &[u8]) -> u64 {
    let mut at = 0;
    for name in names[..*used].split_inclusive(|byte| *byte == 0) {
        if name.strip_suffix(&[0]) == Some(path) {
            return &raw const names[at] as u64;
        }
        at += name.len();
    }
    let Some(room) = names[at..].get_mut(..=path.len()) else {
        return c"[unnamed]".as_ptr() as u64;
    };
    room[..path.len()].copy_from_slice(path);
    *used = at + path.len() + 1;
    &raw const names[at] as u64
}

/// Calls `seen` with the mappings of each file in the maps. Returns whether the maps could be
/// read completely.
pub fn each_in_maps(mut seen: impl FnMut(&Run<'_>)) -> bool {
    let Some(scratch) = claim_scratch() else {
        return false;
    };
    let text = read_file(c"/proc/self/maps", &mut scratch.text);
    let whole = !text.is_empty() && text.len() < MAPS_BYTES;
    if whole {
        runs(text).for_each(|run| seen(&run));
    }
    SCRATCH.store(&raw const *scratch as usize, Ordering::Release);
    whole
}

/// The module that holds `pc`, and its file's text. `extent` is asked where it begins and ends:
/// see [`by_header`].
fn search_text(
    text: &[u8],
    pc: u64,
    extent: impl Fn(&Line<'_>, u64, u64) -> Option<(u64, u64)>,
) -> Option<(Found, &[u8])> {
    let run = runs(text).find(|run| (run.start..run.end).contains(&pc))?;
    let holds = |line: &Line<'_>| line.executable && (line.start..line.end).contains(&pc);
    let code = lines(run.text).find(holds)?;
    let header = run.headers().take_while(|line| line.start <= pc).last()?;
    let told = extent(&header, pc, pc - code.start + code.offset);
    let told = told.filter(|(start, _)| run.headers().any(|line| line.start == *start));
    let (start, end) = told.unwrap_or_else(|| {
        let next = run.headers().find(|line| line.start > pc);
        (header.start, next.map_or(u64::MAX, |next| next.start))
    });
    let inside = |line: &Line<'_>| (start..end).contains(&line.start);
    let end = lines(run.text).filter(inside).last()?.end;
    let found = Found {
        start,
        end,
        identity: inode(run.file),
        ..Found::default()
    };
    (start <= pc && pc < end).then_some((found, run.file))
}

/// Where the module begins and ends that has the byte of its file at `offset` at `pc`, by the
/// header in a mapping of the file's start. That need not be where the module begins: linkers
/// that leave no gaps in files (lld, zig) put the first code into the header's page, which is then
/// mapped once more for it. Nor is every mapping of the start a module.
fn by_header(header: &Line<'_>, pc: u64, offset: u64) -> Option<(u64, u64)> {
    // SAFETY: as the maps have just said, it is a part of the module that holds `pc`, or what is
    // mapped in front of that; no `dlclose` unmaps it while who asks is reading.
    let page = unsafe { elf::first_page(header.start, header.end) }?;
    elf::extent(page, pc, offset)
}

/// Mappings of one file side by side: a module, or several if it was loaded more than once.
pub struct Run<'a> {
    /// First address.
    start: u64,
    /// One past the last.
    end: u64,
    /// Device, inode and path as one text.
    file: &'a [u8],
    /// Lines of the maps.
    text: &'a [u8],
}

impl<'a> Run<'a> {
    /// The mappings of the file's start.
    fn headers(&self) -> impl Iterator<Item = Line<'a>> + use<'a> {
        lines(self.text).filter(|line| line.offset == 0 && line.readable)
    }

    /// Whether the module of this range and identity is among them.
    pub fn has(&self, start: u64, end: u64, identity: u64) -> bool {
        (self.start..self.end).contains(&start)
            && self.headers().any(|line| line.start == start)
            && lines(self.text).any(|line| line.end == end)
            && inode(self.file) == identity
    }
}

/// The files in the text of maps.
fn runs(text: &[u8]) -> impl Iterator<Item = Run<'_>> {
    let mut rest = text;
    core::iter::from_fn(move || {
        loop {
            let at = rest;
            let first = next_line(&mut rest)?;
            let Some(line) = parse_line(first).filter(|line| is_image(line.file)) else {
                continue;
            };
            let (mut behind, mut end) = (rest, line.end);
            while let Some(next) = next_line(&mut behind).and_then(parse_line) {
                if next.is_gap() {
                    continue;
                }
                if next.file != line.file {
                    break;
                }
                end = next.end;
                rest = behind;
            }
            return Some(Run {
                start: line.start,
                end,
                file: line.file,
                text: &at[..at.len() - rest.len()],
            });
        }
    })
}

fn next_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    if rest.is_empty() {
        return None;
    }
    let end = rest.iter().position(|byte| *byte == b'\n');
    let line = &rest[..end.unwrap_or(rest.len())];
    *rest = end.map_or(&[], |end| &rest[end + 1..]);
    Some(line)
}

fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// Whether a mapping is of a file, or of the kernel's own module.
fn is_image(file: &[u8]) -> bool {
    let path = path_of(file);
    path.starts_with(b"/") || path == b"[vdso]"
}

/// One mapping.
struct Line<'a> {
    start: u64,
    end: u64,
    readable: bool,
    executable: bool,
    offset: u64,
    /// Device, inode and path as one text.
    file: &'a [u8],
}

impl Line<'_> {
    /// Reserved addresses between two parts of a module (qemu's loader leaves them).
    fn is_gap(&self) -> bool {
        !self.readable && !self.executable && path_of(self.file).is_empty()
    }
}

fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let mut range = fields.next()?.splitn(2, |byte| *byte == b'-');
    let (start, end) = (hex(range.next()?)?, hex(range.next()?)?);
    let permissions = fields.next()?;
    Some(Line {
        start,
        end,
        readable: permissions.contains(&b'r'),
        executable: permissions.contains(&b'x'),
        offset: hex(fields.next()?)?,
        file: fields.next()?,
    })
}

/// The path, as it was when the file was mapped.
fn path_of(file: &[u8]) -> &[u8] {
    let path = file.splitn(3, |byte| *byte == b' ').nth(2);
    let path = path.unwrap_or_default().trim_ascii_start();
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}

fn hex(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| (*byte as char).to_digit(16).map(u64::from);
    text.iter()
        .try_fold(0u64, |n, byte| Some(n.checked_mul(16)? | digit(byte)?))
}

/// A number that differs for another file: of its device and inode, which stay when it is
/// renamed or deleted.
fn inode(file: &[u8]) -> u64 {
    let mut blanks = (0..file.len()).filter(|at| file[*at] == b' ');
    let end = blanks.nth(1).unwrap_or(file.len());
    file[..end]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::CStr;

    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// As [`search_maps`], one test at a time.
    fn find_in_maps(pc: u64) -> Option<Found> {
        let _one = ONE.lock().unwrap();
        search_maps(pc)
    }

    fn name_of(found: &Found) -> &CStr {
        // SAFETY: what finds modules promises a terminated name that stays.
        unsafe { CStr::from_ptr(found.name as *const core::ffi::c_char) }
    }

    #[test]
    fn code_is_found_by_the_loader_and_in_the_maps_at_the_same_address() {
        init();
        let ours = search_maps as *const () as u64 + 1;
        // SAFETY: a plain lookup by a terminated name.
        let libc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strlen".as_ptr()) } as u64;
        for pc in [ours, libc] {
            let by_maps = find_in_maps(pc).unwrap();
            assert!((by_maps.start..by_maps.end).contains(&pc));
            if let Some(function) = dl_find_object() {
                assert_eq!(by_maps.start, ask_loader(function, pc).unwrap().start);
            }
        }
    }

    #[test]
    fn names_found_in_the_maps_are_the_files_and_stay() {
        let pc = search_maps as *const () as u64 + 1;
        let first = find_in_maps(pc).unwrap();
        assert_eq!(find_in_maps(pc).unwrap().name, first.name);
        let exe = std::env::current_exe().unwrap();
        assert_eq!(name_of(&first).to_str().unwrap(), exe.to_str().unwrap());
        // SAFETY: a plain lookup by a terminated name.
        let libc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strlen".as_ptr()) } as u64;
        let libc = find_in_maps(libc).unwrap();
        assert!(name_of(&libc).to_str().unwrap().contains("/libc"));
        assert_eq!(name_of(&first).to_str().unwrap(), exe.to_str().unwrap());
    }

    #[test]
    fn names_beyond_the_room_for_them_are_not_mistaken_for_others() {
        let (mut names, mut used) = ([0u8; 8], 0);
        let first = keep_name(&mut names, &mut used, b"/a/b");
        let other = keep_name(&mut names, &mut used, b"/c/d");
        assert_eq!(keep_name(&mut names, &mut used, b"/a/b"), first);
        assert_eq!((first, used), (&raw const names[0] as u64, 5));
        let found = Found {
            name: other,
            ..Found::default()
        };
        assert_eq!(name_of(&found), c"[unnamed]");
    }

    #[test]
    fn addresses_outside_every_file_are_not_found() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(search_text(&text, 0x10, by_header).is_none());
        let local = 1u8;
        assert!(search_text(&text, &raw const local as u64, by_header).is_none());
    }

    const MAPS: &[u8] = b"\
1000-2000 r--p 00000000 fd:01 7    /opt/with space/a.so (deleted)
2000-3000 r-xp 00001000 fd:01 7    /opt/with space/a.so (deleted)
3000-4000 ---p 00002000 fd:01 7    /opt/with space/a.so (deleted)
4000-5000 rw-p 00002000 fd:01 7    /opt/with space/a.so (deleted)
5000-6000 rw-p 00000000 00:00 0 \n\
6000-7000 ---p 00000000 fd:01 8    /data
7000-8000 r-xp 00001000 fd:01 8    /data
8000-9000 r-xp 00000000 00:00 0    [vdso]
";

    #[test]
    fn a_module_is_all_mappings_of_its_file() {
        let (found, file) = search_text(MAPS, 0x2abc, untold).unwrap();
        assert_eq!((found.start, found.end), (0x1000, 0x5000));
        assert_eq!(path_of(file), b"/opt/with space/a.so");
        let (found, file) = search_text(MAPS, 0x8010, untold).unwrap();
        assert_eq!((found.start, found.end), (0x8000, 0x9000));
        assert_eq!(path_of(file), b"[vdso]");
    }

    /// Where the header cannot be read.
    fn untold(_: &Line<'_>, _: u64, _: u64) -> Option<(u64, u64)> {
        None
    }

    /// As lld and zig link small programs, and a mapping of the file in front of it.
    const SHARED_PAGE: &[u8] = b"\
10000-30000 r--p 00000000 fd:01 7    /opt/a
30000-31000 r--p 00000000 fd:01 7    /opt/a
31000-38000 ---p 00001000 fd:01 7    /opt/a
38000-40000 ---p 00000000 00:00 0 \n\
40000-42000 r-xp 00000000 fd:01 7    /opt/a
50000-51000 rw-p 00001000 fd:01 7    /opt/a
51000-53000 r--p 00000000 fd:01 7    /opt/a
";

    #[test]
    fn code_in_the_page_of_the_header_is_of_the_module_that_the_header_says() {
        let told = |header: &Line<'_>, pc: u64, offset: u64| {
            assert_eq!((header.start, pc, offset), (0x40000, 0x40980, 0x980));
            Some((0x30000, 0x50800))
        };
        let (found, _) = search_text(SHARED_PAGE, 0x40980, told).unwrap();
        assert_eq!((found.start, found.end), (0x30000, 0x51000));
        let run = runs(SHARED_PAGE).next().unwrap();
        assert!(run.has(found.start, found.end, found.identity));
        assert!(!run.has(0x50000, found.end, found.identity));
        assert!(!run.has(found.start, found.end, 1));
        // A header that is wrong is as good as none.
        for wrong in [(0x20000, 0x50800), (0x31000, 0x50800)] {
            let told = |_: &Line<'_>, _, _| Some(wrong);
            let (found, _) = search_text(SHARED_PAGE, 0x40980, told).unwrap();
            assert_eq!((found.start, found.end), (0x40000, 0x51000));
        }
        let told = |_: &Line<'_>, _, _| Some((0x30000, 0x31000));
        assert!(search_text(SHARED_PAGE, 0x40980, told).is_none());
    }

    #[test]
    fn every_module_is_seen_once_and_known_again_when_its_file_is_deleted() {
        let ranges: std::vec::Vec<_> = runs(MAPS).map(|run| (run.start, run.end)).collect();
        assert_eq!(
            ranges,
            [(0x1000, 0x5000), (0x6000, 0x8000), (0x8000, 0x9000)]
        );
        assert_eq!(
            inode(b"fd:01 7    /a.so"),
            inode(b"fd:01 7    /b.so (deleted)")
        );
        assert_ne!(inode(b"fd:01 7    /a.so"), inode(b"fd:01 77    /a.so"));
        let (mut here, mut known) = (0, 0);
        let own = find_in_maps(search_maps as *const () as u64 + 1).unwrap();
        let whole = {
            let _one = ONE.lock().unwrap();
            each_in_maps(|run| {
                here += 1;
                known += usize::from(run.has(own.start, own.end, own.identity));
            })
        };
        assert!(whole && here > 1 && known == 1, "{here} {known}");
    }

    #[test]
    fn data_and_files_without_a_readable_header_hold_no_code() {
        for pc in [0x1500, 0x3500, 0x4500, 0x5500, 0x6500, 0x7500] {
            assert!(search_text(MAPS, pc, untold).is_none(), "{pc:x}");
        }
    }
}
