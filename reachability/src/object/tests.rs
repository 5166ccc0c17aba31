//! The headers that `agent/src/object.rs` writes, and bytes that are none.

use super::*;

/// Memory of `room` bytes with an object of `bytes` at an offset, its header and, if it has one,
/// its extension before it.
fn memory(room: usize, offset: usize, bytes: u64, align: Option<u64>, weight: f32) -> Vec<u8> {
    let mut memory = vec![0xaa; room];
    let mut put = |at: usize, value: &[u8]| memory[at..at + value.len()].copy_from_slice(value);
    let size = match align {
        None => bytes as u32,
        Some(align) => {
            put(offset - 32, &bytes.to_le_bytes());
            put(offset - 24, &align.to_le_bytes());
            EXTENDED
        }
    };
    put(offset - 16, &size.to_le_bytes());
    put(offset - 12, &(0xabcdef_u32 << 8 | 200).to_le_bytes());
    put(offset - 8, &77_u32.to_le_bytes());
    put(offset - 4, &weight.to_le_bytes());
    memory
}

/// The flag of an object that has all of its size class.
#[test]
fn exact_objects_are_found() {
    for (room, offset, bytes, align) in [
        (1 << 20, 16, 1_000_000, None),
        (16384, 4096, 9000, Some(4096)),
    ] {
        let mut memory = memory(room, offset, bytes, align, 2.5);
        memory[offset - 13] |= (EXACT >> 24) as u8;
        let found = found(&memory).expect("an object");
        assert_eq!((found.bytes, found.ignored), (bytes, false));
        memory[offset - 13] |= (IGNORED >> 24) as u8;
        let found = self::found(&memory).expect("an object");
        assert_eq!((found.bytes, found.ignored), (bytes, true));
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
fn every_shape_is_found() {
    let shapes: [(usize, usize, u64, Option<u64>); 11] = [
        (32, 16, 0, None),
        (32, 16, 8, None),
        (32, 16, 16, None),
        (48, 16, 17, None),
        (128, 16, 100, None),
        (1 << 20, 16, 1_000_000, None),
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

#[test]
fn other_bytes_are_no_object() {
    for weight in [0.0, -1.0, 0.99, f32::NAN, f32::INFINITY] {
        assert_eq!(found(&memory(128, 16, 100, None, weight)), None, "{weight}");
        assert_eq!(
            found(&memory(128, 64, 64, Some(64), weight)),
            None,
            "{weight}"
        );
    }
    // Sizes that do not fit their memory.
    for (room, bytes) in [(128, 113), (32, 17), (1 << 20, 1 << 20)] {
        assert_eq!(
            found(&memory(room, 16, bytes, None, 1.0)),
            None,
            "{room} {bytes}"
        );
    }
    for (bytes, align) in [(65, 64), (u64::MAX, 64), (64, 63), (64, 128), (64, 0)] {
        assert_eq!(
            found(&memory(128, 64, bytes, Some(align), 1.0)),
            None,
            "{bytes} {align}"
        );
    }
    for length in [0, 8, 15, 16, 31, 48] {
        assert_eq!(found(&vec![0; length]), None);
        assert_eq!(found(&vec![0xff; length]), None);
    }
    assert_eq!(find(0x1000, 1 << 47, |_| Some([0; 16])), None);
    assert_eq!(find(0x1000, 1 << 47, |_| Some([0xff; 16])), None);
}
