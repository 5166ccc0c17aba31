//! Layouts of interpreter data: byte offsets of fields.

use shm_protocol::codes::LineTable;

/// Way in which frames are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// List of frame objects, each run by a native frame of its own (up to 3.10).
    Objects,
    /// Chain of records (`_PyCFrame`), one in each native frame of the interpreter, with a pointer
    /// to the innermost of the frames that it runs (3.11).
    Records,
    /// List in which the frames run by one native frame are followed by its entry frame
    /// (`FRAME_OWNED_BY_CSTACK`), which is on the native stack (3.12 and later).
    Entries,
}

/// Layout of one version. All offsets are in bytes; 0 if there is no such field.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Way in which frames are linked.
    pub style: Style,
    /// `_PyRuntime`: pointer to the newest interpreter.
    pub interpreters: u64,
    /// Interpreter: pointer to the next one.
    pub next_interpreter: u64,
    /// Interpreter: pointer to the newest thread's state.
    pub threads: u64,
    /// Thread state: pointer to the next newer one.
    pub previous_thread: u64,
    /// Thread state: pointer to the next older one.
    pub next_thread: u64,
    /// Thread state: thread id, as in the C library (`pthread_self`).
    pub thread_id: u64,
    /// Thread state: pointer to its innermost frame or record.
    pub frames: u64,
    /// True if `frames` points to a record, which has the frame at `current`.
    pub has_record: bool,
    /// Record: pointer to the innermost of its frames; the pointer to the next outer record follows
    /// (3.11).
    pub current: u64,
    /// Thread state: pointer to the memory chunk that contains its frames.
    pub chunk: u64,
    /// Frame: pointer to the next outer one.
    pub frame_previous: u64,
    /// Frame: pointer to its code object.
    pub frame_code: u64,
    /// Frame: pointer to, or offset of, its current instruction.
    pub frame_instruction: u64,
    /// Frame: byte with its owner (`FRAME_OWNED_BY_…`).
    pub frame_owner: u64,
    /// Frame: pointer to its function, if `function_version` is not 0.
    pub frame_function: u64,
    /// Function: pointer to its code object.
    pub function_code: u64,
    /// Function: version; 0, or unique among functions. Changes with its code object.
    pub function_version: u64,
    /// Code object: line at which the function begins.
    pub first_line: u64,
    /// Code object: pointer to its file name.
    pub file: u64,
    /// Code object: pointer to its name.
    pub name: u64,
    /// Code object: pointer to its line table.
    pub lines: u64,
    /// Code object: version; 0, or unique in its interpreter.
    pub version: u64,
    /// Code object: its first instruction (3.11 and later; before, instructions are in another
    /// object).
    pub instructions: u64,
    /// Size in bytes that free-threaded builds add to object headers.
    pub extra_header_bytes: u64,
    /// Frame: which copy of the bytecode it runs (`tlbc_index`, thread-local bytecode).
    pub frame_copy: u64,
    /// Code object: pointer to the table of the copies of its bytecode (`co_tlbc`).
    pub copies: u64,
    /// Header size of ASCII strings in bytes.
    pub ascii: u64,
    /// Header size of other compact strings in bytes.
    pub compact: u64,
    /// Units of `f_lasti` per instruction: 2 up to 3.9, where it counts bytes; 1 in 3.10.
    pub lasti_units: u32,
    /// Format of line tables.
    pub table: LineTable,
}

/// Offset of an object's type. This and the following offsets are the same in all versions; in
/// free-threaded builds, [`Layout::extra_header_bytes`] must be added.
pub const TYPE: u64 = 8;
/// Offset of the size of a `bytes` object.
pub const SIZE: u64 = 16;
/// Offset of the contents of a `bytes` object.
pub const BYTES: u64 = 32;
/// Offset of a type's name.
pub const TYPE_NAME: u64 = 24;
/// Offset of a string's length.
pub const LENGTH: u64 = 16;
/// Offset of a string's hash, which is -1 if not computed.
pub const HASH: u64 = 24;
/// Offset of a string's state, which includes the kind of its characters.
pub const KIND: u64 = 32;

/// First owner that is a C frame, on the native stack (3.12 and later): higher ones are, too.
pub const OWNED_BY_NATIVE: u8 = 3;
/// Upper limit of plausible instruction offsets.
pub const MAX_INSTRUCTION: u64 = 1 << 24;

const OBJECTS: Layout = Layout {
    style: Style::Objects,
    interpreters: 32,
    next_interpreter: 0,
    threads: 8,
    previous_thread: 0,
    next_thread: 8,
    thread_id: 176,
    frames: 24,
    has_record: false,
    current: 0,
    chunk: 0,
    frame_previous: 24,
    frame_code: 32,
    frame_instruction: 104,
    frame_owner: 0,
    frame_function: 0,
    function_code: 0,
    function_version: 0,
    first_line: 40,
    file: 104,
    name: 112,
    lines: 120,
    version: 0,
    instructions: 0,
    extra_header_bytes: 0,
    frame_copy: 0,
    copies: 0,
    ascii: 48,
    compact: 72,
    lasti_units: 2,
    table: LineTable::Increments,
};

const PYTHON_3_10: Layout = Layout {
    frame_instruction: 96,
    lasti_units: 1,
    table: LineTable::Ranges,
    ..OBJECTS
};

/// Layout of 3.11, the only one with [`Style::Records`].
pub const PYTHON_3_11: Layout = Layout {
    style: Style::Records,
    interpreters: 40,
    threads: 16,
    thread_id: 152,
    frames: 56,
    has_record: true,
    current: 8,
    chunk: 296,
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_owner: 64,
    function_code: 48,
    function_version: 128,
    first_line: 72,
    file: 112,
    name: 128,
    lines: 136,
    instructions: 184,
    table: LineTable::Locations,
    ..OBJECTS
};

const PYTHON_3_12: Layout = Layout {
    style: Style::Entries,
    threads: 72,
    thread_id: 136,
    current: 0,
    chunk: 232,
    frame_previous: 8,
    frame_code: 0,
    frame_owner: 70,
    // Code objects have versions instead.
    function_version: 0,
    first_line: 68,
    version: 92,
    instructions: 192,
    ascii: 40,
    compact: 56,
    ..PYTHON_3_11
};

/// Fields of 3.13 and later that the interpreter does not publish.
const LATER: Layout = Layout {
    has_record: false,
    instructions: 200,
    ..PYTHON_3_12
};

/// Fields of free-threaded builds that are not published.
const FREE_THREADED: Layout = Layout {
    // Not used: threads that create code objects at the same time may give them the same version.
    version: 0,
    extra_header_bytes: 16,
    ascii: LATER.ascii + 16,
    compact: LATER.compact + 16,
    ..LATER
};

/// Returns the layout of a version, given as `PY_VERSION_HEX`.
pub fn of_version(version: u32) -> Option<Layout> {
    match version >> 16 {
        0x0308 | 0x0309 => Some(OBJECTS),
        0x030a => Some(PYTHON_3_10),
        0x030b => Some(PYTHON_3_11),
        0x030c => Some(PYTHON_3_12),
        _ => None,
    }
}

/// Returns true if there is a layout for a version.
pub fn is_known(version: u32) -> bool {
    of_version(version).is_some() || groups(version).is_some()
}

/// First word of `_PyRuntime` in versions that publish their layout there, as `_Py_DebugOffsets`
/// (3.13 and later).
pub const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Maximum offset of a frame's fields, in bytes; other fields may be further from their start.
pub const MAX_OFFSET: u64 = 112;
/// Number of words of `_PyRuntime` that are read.
pub const WORDS: usize = 80;

/// Word indices in `_Py_DebugOffsets`: of the first word of each group of offsets, and of fields
/// whose index in their group differs between versions.
struct Groups {
    interpreter: usize,
    thread: usize,
    thread_id: usize,
    chunk: usize,
    frame: usize,
    code: usize,
    /// True if each thread may have its own copy of a code object's instructions.
    has_copies: bool,
}

/// Returns the indices for a version, given as `PY_VERSION_HEX`.
fn groups(version: u32) -> Option<Groups> {
    match version >> 16 {
        0x030d => Some(Groups {
            interpreter: 6,
            thread: 19,
            thread_id: 24,
            chunk: 26,
            frame: 28,
            code: 34,
            has_copies: false,
        }),
        0x030e => Some(Groups {
            interpreter: 6,
            thread: 22,
            thread_id: 27,
            chunk: 29,
            frame: 31,
            code: 39,
            has_copies: true,
        }),
        0x030f => Some(Groups {
            interpreter: 6,
            thread: 22,
            thread_id: 30,
            chunk: 32,
            frame: 39,
            code: 47,
            has_copies: true,
        }),
        _ => None,
    }
}

/// Returns version and layout from the first words of `_PyRuntime`, if it publishes them. The
/// layout is `None` for an unsupported version.
pub fn published(words: &[u64; WORDS]) -> Option<(u32, Option<Layout>)> {
    let [cookie, version, free_threaded, ..] = *words;
    if cookie != COOKIE {
        return None;
    }
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    let base = match free_threaded {
        0 => &LATER,
        _ => &FREE_THREADED,
    };
    Some((version, from_words(version, words, base)))
}

/// Builds a layout from the offsets in `_Py_DebugOffsets`; `base` has the fields that it lacks.
/// Returns `None` if the version is not supported or an offset is implausible.
fn from_words(version: u32, words: &[u64; WORDS], base: &Layout) -> Option<Layout> {
    let groups = groups(version)?;
    let offset = |word: usize| Some(words[word]).filter(|offset| *offset < 1 << 20);
    let in_frame = |word: usize| offset(groups.frame + word).filter(|at| *at <= MAX_OFFSET);
    let (frame_copy, copies) = if groups.has_copies && base.extra_header_bytes != 0 {
        // `tlbc_index` and `co_tlbc`.
        (in_frame(7)?, offset(groups.code + 10)?)
    } else {
        (0, 0)
    };
    // The comments give CPython's names of fields in each group where ours differ.
    let layout = Layout {
        interpreters: offset(5)?, // runtime_state.interpreters_head
        next_interpreter: offset(groups.interpreter + 2)?,
        threads: offset(groups.interpreter + 3)?, // threads_head
        previous_thread: offset(groups.thread + 1)?, // prev
        next_thread: offset(groups.thread + 2)?,
        frames: offset(groups.thread + 4)?, // current_frame
        thread_id: offset(groups.thread_id)?,
        chunk: offset(groups.chunk)?, // datastack_chunk
        frame_previous: in_frame(1)?,
        frame_code: in_frame(2)?,        // executable
        frame_instruction: in_frame(3)?, // instr_ptr
        frame_owner: in_frame(5)?,
        file: offset(groups.code + 1)?,
        name: offset(groups.code + 3)?,  // qualname
        lines: offset(groups.code + 4)?, // linetable
        first_line: offset(groups.code + 5)?,
        instructions: offset(groups.code + 9)?, // co_code_adaptive
        frame_copy,
        copies,
        ..*base
    };
    Some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(version: u64, free_threaded: u64) -> [u64; WORDS] {
        let mut words = core::array::from_fn(|index| index as u64);
        words[0] = COOKIE;
        words[1] = version;
        words[2] = free_threaded;
        words
    }

    #[test]
    fn published_offsets_are_used() {
        for (version, first) in [(0x030d_00f0, 28), (0x030e_00f0, 31), (0x030f_00f0, 39)] {
            let Some((published, Some(layout))) = published(&words(version, 0)) else {
                panic!("{version:x}");
            };
            assert_eq!(u64::from(published), version);
            assert_eq!(layout.frame_previous, first + 1);
        }
    }

    #[test]
    fn free_threaded_builds_and_unsupported_versions_are_recognised() {
        for (version, copies) in [(0x030d_00f0, 0), (0x030e_00f0, 49)] {
            let Some((_, Some(layout))) = published(&words(version, 1)) else {
                panic!("{version:x}");
            };
            assert_eq!((layout.extra_header_bytes, layout.copies), (16, copies));
        }
        assert!(!is_known(0x0307_00f0) && is_known(0x0308_00f0));
        assert!(is_known(0x030f_00f0) && !is_known(0x0310_00a1));
        let later = published(&words(0x0310_00a1, 0));
        assert!(matches!(later, Some((0x0310_00a1, None))));
        let mut far = words(0x030e_00f0, 0);
        far[5] = 1 << 20;
        assert!(matches!(published(&far), Some((_, None))));
        // A frame's offsets have a lower limit: where there is no frame, that many zero bytes are
        // read instead.
        let mut far = words(0x030e_00f0, 1);
        far[32] = MAX_OFFSET + 1;
        assert!(matches!(published(&far), Some((_, None))));
        let mut other = words(0x030d_00f0, 0);
        other[0] = 0;
        assert!(published(&other).is_none());
    }
}
