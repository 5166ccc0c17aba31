use super::*;

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
    let (found, file) = search_text(MAPS, 0x2abc, without_header).unwrap();
    assert_eq!((found.start, found.end), (0x1000, 0x5000));
    assert_eq!(path_of(file), b"/opt/with space/a.so");
    let (found, file) = search_text(MAPS, 0x8010, without_header).unwrap();
    assert_eq!((found.start, found.end), (0x8000, 0x9000));
    assert_eq!(path_of(file), b"[vdso]");
}

/// Stands for a header that cannot be read.
fn without_header(_: &Line<'_>, _: u64, _: u64) -> Option<(u64, u64)> {
    None
}

/// Mappings of a small program linked by lld or zig, after another mapping of its file.
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
fn code_in_the_headers_page_belongs_to_the_headers_module() {
    let extent_of = |header: &Line<'_>, pc: u64, offset: u64| {
        assert_eq!((header.start, pc, offset), (0x40000, 0x40980, 0x980));
        Some((0x30000, 0x50800))
    };
    let (found, _) = search_text(SHARED_PAGE, 0x40980, extent_of).unwrap();
    assert_eq!((found.start, found.end), (0x30000, 0x51000));
    // A wrong header is treated like none.
    for wrong in [(0x20000, 0x50800), (0x31000, 0x50800)] {
        let extent_of = |_: &Line<'_>, _, _| Some(wrong);
        let (found, _) = search_text(SHARED_PAGE, 0x40980, extent_of).unwrap();
        assert_eq!((found.start, found.end), (0x40000, 0x51000));
    }
    let extent_of = |_: &Line<'_>, _, _| Some((0x30000, 0x31000));
    assert!(search_text(SHARED_PAGE, 0x40980, extent_of).is_none());
}

#[test]
fn a_file_keeps_its_identity_when_it_is_renamed_or_deleted() {
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
}

fn filtered(text: &[u8], room: usize) -> std::vec::Vec<u8> {
    let mut kept = std::vec![0; room];
    let mut filter = Filter::new(&mut kept);
    text.split(|byte| *byte == b'\n')
        .for_each(|line| filter.add(line));
    let used = filter.end();
    kept.truncate(used);
    kept
}

#[test]
fn only_lines_of_files_with_code_are_kept() {
    let mut long = std::vec::Vec::new();
    for page in 0..60_000u64 {
        let at = 0x10_0000 + page * 0x1000;
        let line = std::format!("{at:x}-{:x} rw-p 00000000 fd:01 9 /data\n", at + 4096);
        long.extend_from_slice(line.as_bytes());
        long.extend_from_slice(b"4000-5000 rw-p 00000000 00:00 0 \n");
    }
    long.extend_from_slice(MAPS);
    let kept = filtered(&long, 4096);
    let text = |bytes| std::string::String::from_utf8(bytes).unwrap();
    let expected: std::vec::Vec<&[u8]> = MAPS.split(|byte| *byte == b'\n').collect();
    let expected = [
        &expected[..4],
        &[b""],
        &expected[5..7],
        &[b""],
        &expected[7..8],
    ]
    .concat();
    let expected = text(expected.join(&b'\n'));
    assert_eq!(text(kept), std::format!("{expected}\n\n"));
    let ranges_of = |bytes: &[u8]| runs(bytes).map(|run| (run.start, run.end)).collect();
    let ranges: std::vec::Vec<_> = ranges_of(&filtered(&long, 4096));
    assert_eq!(ranges, ranges_of(MAPS));
    let ranges: std::vec::Vec<_> = ranges_of(&filtered(SHARED_PAGE, 4096));
    assert_eq!(ranges, ranges_of(SHARED_PAGE));
}

#[test]
fn lines_that_do_not_fit_are_left_out_entirely() {
    for room in 0..MAPS.len() + 8 {
        let kept = filtered(MAPS, room);
        assert!(kept.len() <= room);
        let mut kept = kept.split(|byte| *byte == b'\n');
        let mut all = MAPS.split(|byte| *byte == b'\n');
        assert!(kept.all(|line| line.is_empty() || all.any(|other| other == line)));
    }
}

#[test]
fn data_and_files_without_a_readable_header_hold_no_code() {
    for pc in [0x1500, 0x3500, 0x4500, 0x5500, 0x6500, 0x7500] {
        assert!(search_text(MAPS, pc, without_header).is_none(), "{pc:x}");
    }
}
