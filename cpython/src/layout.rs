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

/// Layout of one version. All offsets are in bytes; 0 if there is no such field. The offsets
/// determine how many bytes of a frame, a state, a code object or a function must be readable
/// ([`frame_bytes`](Self::frame_bytes) and the like).
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
    /// Thread state: its own record, the outermost one (3.12).
    pub own_record: u64,
    /// Thread state: pointer to the memory chunk that contains its frames. The two words after it
    /// describe the chunk, too.
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
    /// Frame: index of the copy of the bytecode that it runs (`tlbc_index`, thread-local bytecode).
    pub frame_copy: u64,
    /// Code object: pointer to the table of the copies of its bytecode (`co_tlbc`).
    pub copies: u64,
    /// Header size of ASCII strings in bytes.
    pub ascii_header_bytes: u64,
    /// Header size of other compact strings in bytes.
    pub compact_header_bytes: u64,
    /// Units of `f_lasti` per instruction: 2 up to 3.9, where it counts bytes; 1 in 3.10.
    pub lasti_units: u32,
    /// Format of line tables.
    pub table: LineTable,
}

impl Layout {
    /// Returns the number of bytes that are read of a frame, a multiple of 8.
    #[inline]
    #[must_use]
    pub const fn frame_bytes(&self) -> u64 {
        let last = self.frame_previous;
        let last = max(last, self.frame_code);
        let last = max(last, self.frame_instruction);
        let last = max(last, self.frame_function);
        let last = max(last, self.frame_copy);
        // Owners are bytes, and not aligned.
        (max(last, self.last_byte() & !7) + WORD).next_multiple_of(WORD)
    }

    /// Returns the offset of the last single byte that is read of a frame; other fields are words.
    const fn last_byte(&self) -> u64 {
        match self.style {
            Style::Objects => 0,
            Style::Records => self.frame_owner + ENTRY_AFTER_OWNER,
            Style::Entries => self.frame_owner,
        }
    }

    /// Returns the number of bytes that are read of a thread's state.
    #[inline]
    #[must_use]
    pub const fn state_bytes(&self) -> u64 {
        let last = max(self.previous_thread, self.next_thread);
        let last = max(last, self.thread_id);
        let last = max(last, self.frames);
        let last = match self.own_record {
            0 => last,
            record => max(last, record + self.current),
        };
        match self.chunk {
            0 => last + WORD,
            chunk => max(last, chunk + 2 * WORD) + WORD,
        }
    }

    /// Returns the number of bytes that are read of a code object, without its copies of the
    /// instructions.
    #[inline]
    #[must_use]
    pub const fn code_bytes(&self) -> u64 {
        let last = max(self.extra_header_bytes + TYPE_OFFSET, self.first_line);
        let last = max(last, self.file);
        let last = max(last, self.name);
        let last = max(last, self.lines);
        max(last, self.version) + WORD
    }

    /// Returns the number of bytes that are read of a function; 0 if none is.
    #[inline]
    #[must_use]
    pub const fn function_bytes(&self) -> u64 {
        match self.function_version {
            0 => 0,
            version => max(version, self.function_code) + WORD,
        }
    }
}

/// Size of a word in bytes.
const WORD: u64 = 8;

const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

/// Offset of a frame's `is_entry` from its owner (3.11).
pub const ENTRY_AFTER_OWNER: u64 = 4;

/// Offset of an object's type. This and the following offsets are the same in all versions; in
/// free-threaded builds, [`Layout::extra_header_bytes`] must be added.
pub const TYPE_OFFSET: u64 = 8;
/// Offset of the size of a `bytes` object.
pub const BYTES_SIZE_OFFSET: u64 = 16;
/// Offset of the contents of a `bytes` object.
pub const BYTES_CONTENT_OFFSET: u64 = 32;
/// Offset of a type's name.
pub const TYPE_NAME_OFFSET: u64 = 24;
/// Offset of a string's length.
pub const STRING_LENGTH_OFFSET: u64 = 16;
/// Offset of a string's hash, which is -1 if not computed.
pub const STRING_HASH_OFFSET: u64 = 24;
/// Offset of a string's state, which includes the kind of its characters.
pub const STRING_STATE_OFFSET: u64 = 32;

/// Lowest owner that denotes a C frame, which lies on the native stack (3.12 and later).
pub const OWNED_BY_NATIVE: u8 = 3;
/// Upper limit of plausible instruction offsets.
pub const MAX_INSTRUCTION: u64 = 1 << 24;

/// Layout of 3.8 and 3.9.
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
    own_record: 0,
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
    ascii_header_bytes: 48,
    compact_header_bytes: 72,
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
    own_record: 272,
    chunk: 232,
    frame_previous: 8,
    frame_code: 0,
    frame_owner: 70,
    // Code objects have versions instead.
    function_version: 0,
    first_line: 68,
    version: 92,
    instructions: 192,
    ascii_header_bytes: 40,
    compact_header_bytes: 56,
    ..PYTHON_3_11
};

/// Layout of 3.13 and later. Only the fields that the interpreter does not publish are used.
const UNPUBLISHED: Layout = Layout {
    has_record: false,
    own_record: 0,
    instructions: 200,
    ..PYTHON_3_12
};

/// Like [`UNPUBLISHED`], for free-threaded builds.
const UNPUBLISHED_FREE_THREADED: Layout = Layout {
    // Not used: threads that create code objects at the same time may give them the same version.
    version: 0,
    extra_header_bytes: 16,
    ascii_header_bytes: UNPUBLISHED.ascii_header_bytes + 16,
    compact_header_bytes: UNPUBLISHED.compact_header_bytes + 16,
    ..UNPUBLISHED
};

/// Returns the layout of a version, given as `PY_VERSION_HEX`.
pub fn for_version(version: u32) -> Option<Layout> {
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
    for_version(version).is_some() || groups(version).is_some()
}

/// First word of `_PyRuntime` in versions that publish their layout there, as `_Py_DebugOffsets`
/// (3.13 and later).
pub const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Maximum number of bytes that are read of a frame.
pub const MAX_FRAME_BYTES: u64 = 120;
/// Maximum number of bytes that are read of a thread's state.
pub const MAX_STATE_BYTES: u64 = 4096;
/// Maximum number of bytes that are read of a code object.
pub const MAX_CODE_BYTES: u64 = 512;
/// Upper limit of offsets in `_PyRuntime` and in interpreters.
const OFFSET_LIMIT: u64 = 1 << 20;
/// Number of words of `_PyRuntime` that are read.
pub const RUNTIME_WORDS: usize = 80;

/// Word indices in `_Py_DebugOffsets`: of the first word of each group of offsets, and of the
/// fields whose index within a group differs between versions.
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
pub fn published(words: &[u64; RUNTIME_WORDS]) -> Option<(u32, Option<Layout>)> {
    let [cookie, version, free_threaded, ..] = *words;
    if cookie != COOKIE {
        return None;
    }
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    let base = match free_threaded {
        0 => &UNPUBLISHED,
        _ => &UNPUBLISHED_FREE_THREADED,
    };
    Some((version, from_words(version, words, base)))
}

/// Builds a layout from the offsets in `_Py_DebugOffsets`; `base` has the fields that are not
/// published. Returns `None` if the version is not supported or an offset is implausible.
fn from_words(version: u32, words: &[u64; RUNTIME_WORDS], base: &Layout) -> Option<Layout> {
    let groups = groups(version)?;
    let offset = |word: usize| Some(words[word]).filter(|offset| *offset < OFFSET_LIMIT);
    let (frame_copy, copies) = if groups.has_copies && base.extra_header_bytes != 0 {
        // `tlbc_index` and `co_tlbc`.
        (offset(groups.frame + 7)?, offset(groups.code + 10)?)
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
        frame_previous: offset(groups.frame + 1)?,
        frame_code: offset(groups.frame + 2)?, // executable
        frame_instruction: offset(groups.frame + 3)?, // instr_ptr
        frame_owner: offset(groups.frame + 5)?,
        file: offset(groups.code + 1)?,
        name: offset(groups.code + 3)?,  // qualname
        lines: offset(groups.code + 4)?, // linetable
        first_line: offset(groups.code + 5)?,
        instructions: offset(groups.code + 9)?, // co_code_adaptive
        frame_copy,
        copies,
        ..*base
    };
    let fits = layout.frame_bytes() <= MAX_FRAME_BYTES
        && layout.state_bytes() <= MAX_STATE_BYTES
        && layout.code_bytes() <= MAX_CODE_BYTES;
    fits.then_some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(version: u64, free_threaded: u64) -> [u64; RUNTIME_WORDS] {
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
        let mut other = words(0x030d_00f0, 0);
        other[0] = 0;
        assert!(published(&other).is_none());
    }

    /// Each published offset that leads into a frame, a state or a code object, at its limit and
    /// beyond it.
    #[test]
    fn offsets_beyond_what_is_read_are_refused() {
        const VERSION: u64 = 0x030e_00f0;
        let groups = groups(VERSION as u32).expect("a known version");
        let frame = [1, 2, 3, 5, 7].map(|word| (groups.frame + word, MAX_FRAME_BYTES));
        let state = [1, 2, 4].map(|word| (groups.thread + word, MAX_STATE_BYTES));
        let thread_id = [(groups.thread_id, MAX_STATE_BYTES)];
        let code = [1, 3, 4, 5].map(|word| (groups.code + word, MAX_CODE_BYTES));
        let chunk = [(groups.chunk, MAX_STATE_BYTES - 16)];
        let all = frame.iter().chain(&state).chain(&thread_id);
        for (word, limit) in all.chain(&code).chain(&chunk).copied() {
            for (offset, is_accepted) in [(limit - 8, true), (limit - 7, false), (limit, false)] {
                let mut words = words(VERSION, 1);
                words[word] = offset;
                let Some((_, layout)) = published(&words) else {
                    panic!("word {word}");
                };
                // The owner is one byte.
                let is_accepted = is_accepted || (word == groups.frame + 5 && offset < limit);
                assert_eq!(
                    layout.is_some(),
                    is_accepted,
                    "word {word}, offset {offset}"
                );
            }
        }
    }

    #[test]
    fn what_is_read_covers_all_fields() {
        let bytes = |version| {
            let layout = for_version(version).expect("a known version");
            [
                layout.frame_bytes(),
                layout.state_bytes(),
                layout.code_bytes(),
                layout.function_bytes(),
            ]
        };
        assert_eq!(bytes(0x0309_0000), [112, 184, 128, 0]);
        assert_eq!(bytes(0x030b_0000), [72, 320, 144, 136]);
        assert_eq!(bytes(0x030c_0000), [72, 280, 144, 0]);
    }
}
