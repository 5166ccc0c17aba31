//! Tests with headers as `agent/src/object.rs` writes them, and with bytes that are not headers.

use super::*;

use shm_protocol::header::{FirstWord, SecondWord, extension, first_word, freed_word, second_word};

/// Returns memory of `room` bytes at 0x1000 with an object of `bytes` at an offset, preceded by its
/// header and, if `align` is given, an extension. If the weight is 0, the object has been freed.
fn memory(room: usize, offset: usize, bytes: u64, align: Option<u64>, weight: f32) -> Vec<u8> {
    let mut memory = vec![0xaa; room];
    let mut put = |at: usize, word: u64| memory[at..at + 8].copy_from_slice(&word.to_le_bytes());
    let at = 0x1000 + offset as u64;
    let mut counted = COUNTED;
    match align {
        None => counted.bytes = bytes,
        Some(align) => {
            let [own, check] = extension(bytes, align, at);
            put(offset - 32, own);
            put(offset - 24, check);
            counted.extended = true;
        }
    }
    put(offset - 16, first_word(&counted, at));
    let second = match weight {
        0.0 => freed_word(at),
        _ => second_word(SecondWord { weight, born: 77 }, at),
    };
    put(offset - 8, second);
    memory
}

const COUNTED: FirstWord = FirstWord {
    record: 0xabcdef,
    session: 200,
    bytes: 0,
    ignored: false,
    exact: false,
    extended: false,
};

#[test]
fn flags_are_read() {
    for ignored in [false, true] {
        let mut memory = memory(1 << 20, 16, 0, None, 2.5);
        let counted = FirstWord {
            bytes: 100_000,
            ignored,
            exact: true,
            ..COUNTED
        };
        memory[..8].copy_from_slice(&first_word(&counted, 0x1010).to_le_bytes());
        let found = found(&memory).expect("an object");
        assert_eq!((found.bytes, found.ignored), (100_000, ignored));
    }
}

fn found(memory: &[u8]) -> Option<Sampled> {
    find(0x1000, memory.len() as u64, |offset| {
        memory
            .get(offset as usize..offset as usize + 16)?
            .try_into()
            .ok()
    })
}

#[test]
fn objects_of_every_size_and_alignment_are_found() {
    let shapes: [(usize, usize, u64, Option<u64>); 12] = [
        (32, 16, 0, None),
        (32, 16, 8, None),
        (32, 16, 16, None),
        (48, 16, 17, None),
        (128, 16, 100, None),
        (1 << 20, 16, 130_000, None),
        (1 << 20, 32, 1_000_000, Some(1)),
        // Shrunk in place, once or more often.
        (224, 16, 104, None),
        (192, 16, 0, None),
        // Aligned to 16, so small that it makes a difference.
        (48, 32, 8, Some(16)),
        (128, 64, 64, Some(64)),
        (16384, 4096, 9000, Some(4096)),
    ];
    for (room, offset, bytes, align) in shapes {
        let found = found(&memory(room, offset, bytes, align, 2.5));
        let expected = Sampled {
            at: 0x1000 + offset as u64,
            bytes,
            record: 0xabcdef,
            session: 200,
            weight: 2.5,
            born: 77,
            ignored: false,
        };
        assert_eq!(found, Some(expected), "{room} {offset} {bytes} {align:?}");
    }
}

/// A program may overwrite part of a header by writing before or past the end of an object.
#[test]
fn objects_with_partly_overwritten_headers_are_found() {
    let content = |memory: &[u8]| {
        super::content(0x1000, memory.len() as u64, |offset| {
            let offset = offset as usize;
            memory.get(offset..offset + 16)?.try_into().ok()
        })
    };
    for (offset, bytes, align) in [(16, 100, None), (64, 60, Some(64)), (32, 90, Some(1))] {
        for count in 1..=16 {
            let mut memory = memory(128, offset, bytes, align, 2.5);
            memory[offset - count..offset].fill(b'z');
            let object = content(&memory);
            if count > 8 {
                assert_eq!(object, Content::Unknown, "{offset} {count}");
                continue;
            }
            let object = object.object().expect("an object");
            let known = (object.at, object.bytes, object.record, object.session);
            assert_eq!(known, (0x1000 + offset as u64, bytes, 0xabcdef, 200));
            assert_eq!((object.weight, object.born), (0.0, 0));
        }
        let freed = memory(128, offset, bytes, align, 0.0);
        assert_eq!(found(&freed), None);
        if offset == 16 {
            assert_eq!(content(&freed), Content::Nothing);
        }
    }
    assert_eq!(content(&[0; 128]), Content::Nothing);
}

#[test]
fn bytes_without_a_valid_header_are_not_an_object() {
    assert_eq!(found(&memory(128, 16, 100, None, 0.0)), None);
    assert_eq!(found(&memory(128, 64, 64, Some(64), 0.0)), None);
    // Sizes that do not fit their memory.
    for (room, bytes) in [(128, 113), (32, 17), (1 << 16, 1 << 16)] {
        assert_eq!(
            found(&memory(room, 16, bytes, None, 1.0)),
            None,
            "{room} {bytes}"
        );
    }
    for (bytes, align) in [(65, 64), ((1 << 50) - 1, 64), (64, 128), (64, 32)] {
        assert_eq!(
            found(&memory(128, 64, bytes, Some(align), 1.0)),
            None,
            "{bytes} {align}"
        );
    }
    // A header copied from another address.
    let mut copy = memory(128, 16, 100, None, 1.0);
    copy.rotate_right(48);
    assert_eq!(found(&copy[32..]), None);
    for length in [0, 8, 15, 16, 31, 48] {
        assert_eq!(found(&vec![0; length]), None);
        assert_eq!(found(&vec![0xff; length]), None);
    }
    assert_eq!(find(0x1000, 1 << 47, |_| Some([0; 16])), None);
    assert_eq!(find(0x1000, 1 << 47, |_| Some([0xff; 16])), None);
}
