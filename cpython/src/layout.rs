//! Layouts of interpreter data: byte offsets of fields.

use shm_protocol::codes::LineTable;

/// Way in which frames are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// List of frame objects, each run by a native frame of its own (to 3.10).
    Objects,
    /// Chain of records in native frames, each of which has the frames that it runs (3.11).
    Records,
    /// List in which an entry frame on the native stack follows the frames that its native frame
    /// runs (from 3.12 on).
    Entries,
}

/// Layout of one version. All offsets are in bytes; 0 if there is no such field. How much must be
/// readable of a frame, a state, a code object or a function follows from the offsets
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
    /// Thread state: pointer to the memory chunk that contains its frames. The two words behind it
    /// are the chunk's, too.
    pub chunk: u64,
    /// Frame: pointer to the next outer one.
    pub frame_previous: u64,
    /// Frame: pointer to its code object.
    pub frame_code: u64,
    /// Frame: pointer to, or offset of, its current instruction.
    pub frame_instruction: u64,
    /// Frame: byte that says who owns it.
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
    /// Code object: first instruction, from 3.11 on in the code object itself.
    pub instructions: u64,
    /// Additional bytes in object headers of free-threaded builds.
    pub more: u64,
    /// Frame: index of the copy of the instructions that it runs.
    pub frame_copy: u64,
    /// Code object: pointer to the copies of its instructions.
    pub copies: u64,
    /// Header size of ASCII strings in bytes.
    pub ascii: u64,
    /// Header size of other compact strings in bytes.
    pub compact: u64,
    /// Size in bytes of the unit of instruction offsets, in frame objects.
    pub place_unit: u32,
    /// Format of line tables.
    pub table: LineTable,
}

impl Layout {
    /// Returns the number of bytes that are read of a frame, a multiple of 8.
    #[inline]
    #[must_use]
    pub const fn frame_bytes(&self) -> u64 {
        let last = self.frame_previous;
        let last = larger(last, self.frame_code);
        let last = larger(last, self.frame_instruction);
        let last = larger(last, self.frame_function);
        let last = larger(last, self.frame_copy);
        // Owners are bytes, and not aligned.
        (larger(last, self.last_byte() & !7) + WORD).next_multiple_of(WORD)
    }

    /// Returns the offset of the last byte of a frame that is read as one.
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
        let last = larger(self.previous_thread, self.next_thread);
        let last = larger(last, self.thread_id);
        let last = larger(last, self.frames);
        let last = match self.own_record {
            0 => last,
            record => larger(last, record + self.current),
        };
        match self.chunk {
            0 => last + WORD,
            chunk => larger(last, chunk + 2 * WORD) + WORD,
        }
    }

    /// Returns the number of bytes that are read of a code object, without its copies of the
    /// instructions.
    #[inline]
    #[must_use]
    pub const fn code_bytes(&self) -> u64 {
        let last = larger(self.more + TYPE, self.first_line);
        let last = larger(last, self.file);
        let last = larger(last, self.name);
        let last = larger(last, self.lines);
        larger(last, self.version) + WORD
    }

    /// Returns the number of bytes that are read of a function; 0 if none is.
    #[inline]
    #[must_use]
    pub const fn function_bytes(&self) -> u64 {
        match self.function_version {
            0 => 0,
            version => larger(version, self.function_code) + WORD,
        }
    }
}

/// Size of a word in bytes.
const WORD: u64 = 8;

const fn larger(one: u64, other: u64) -> u64 {
    if one > other { one } else { other }
}

/// Offset of a frame's `is_entry` from its owner (3.11).
pub const ENTRY_AFTER_OWNER: u64 = 4;
/// Offset of an object's type. The same in all versions, like the following offsets; in
/// free-threaded builds, [`Layout::more`] must be added.
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

/// 3.12+: owners from 3 on are C frames, on the native stack.
pub const OWNED_BY_NATIVE: u8 = 3;
/// Upper limit of plausible instruction offsets.
pub const MAX_PLACE: u64 = 1 << 24;

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
    more: 0,
    frame_copy: 0,
    copies: 0,
    ascii: 48,
    compact: 72,
    place_unit: 2,
    table: LineTable::Increments,
};

const PYTHON_3_10: Layout = Layout {
    frame_instruction: 96,
    place_unit: 1,
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
    ascii: 40,
    compact: 56,
    ..PYTHON_3_11
};

/// Fields of 3.13 and later that are not published by the interpreter itself.
const LATER: Layout = Layout {
    has_record: false,
    own_record: 0,
    instructions: 200,
    ..PYTHON_3_12
};

/// Fields of free-threaded builds that are not published. Threads that create code objects at the
/// same time may give them the same version.
const UNLOCKED: Layout = Layout {
    version: 0,
    more: 16,
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

/// First word of `_PyRuntime` in versions that publish their layout.
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
pub const WORDS: usize = 80;

/// Indices of groups of offsets in `_PyRuntime`, and indices in the thread state's group that
/// differ between versions.
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

fn groups(version: u32) -> Option<Groups> {
    let (thread, thread_id, chunk, frame, code) = match version >> 16 {
        0x030d => (19, 5, 7, 28, 34),
        0x030e => (22, 5, 7, 31, 39),
        0x030f => (22, 8, 10, 39, 47),
        _ => return None,
    };
    Some(Groups {
        interpreter: 6,
        thread,
        thread_id: thread + thread_id,
        chunk: thread + chunk,
        frame,
        code,
        has_copies: version >> 16 > 0x030d,
    })
}

/// Returns version and layout from the first words of `_PyRuntime`, if it publishes them. The
/// layout is `None` for an unsupported version.
pub fn published(words: &[u64; WORDS]) -> Option<(u32, Option<Layout>)> {
    let [cookie, version, threaded, ..] = *words;
    if cookie != COOKIE {
        return None;
    }
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    let of = match threaded {
        0 => &LATER,
        _ => &UNLOCKED,
    };
    Some((version, by_words(version, words, of)))
}

fn by_words(version: u32, words: &[u64; WORDS], of: &Layout) -> Option<Layout> {
    let groups = groups(version)?;
    let offset = |word: usize| Some(words[word]).filter(|offset| *offset < OFFSET_LIMIT);
    let (frame_copy, copies) = if groups.has_copies && of.more != 0 {
        (offset(groups.frame + 7)?, offset(groups.code + 10)?)
    } else {
        (0, 0)
    };
    let layout = Layout {
        interpreters: offset(5)?,
        next_interpreter: offset(groups.interpreter + 2)?,
        threads: offset(groups.interpreter + 3)?,
        previous_thread: offset(groups.thread + 1)?,
        next_thread: offset(groups.thread + 2)?,
        frames: offset(groups.thread + 4)?,
        thread_id: offset(groups.thread_id)?,
        chunk: offset(groups.chunk)?,
        frame_previous: offset(groups.frame + 1)?,
        frame_code: offset(groups.frame + 2)?,
        frame_instruction: offset(groups.frame + 3)?,
        frame_owner: offset(groups.frame + 5)?,
        file: offset(groups.code + 1)?,
        name: offset(groups.code + 3)?,
        lines: offset(groups.code + 4)?,
        first_line: offset(groups.code + 5)?,
        instructions: offset(groups.code + 9)?,
        frame_copy,
        copies,
        ..*of
    };
    let is_near = layout.frame_bytes() <= MAX_FRAME_BYTES
        && layout.state_bytes() <= MAX_STATE_BYTES
        && layout.code_bytes() <= MAX_CODE_BYTES;
    is_near.then_some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(version: u64, threaded: u64) -> [u64; WORDS] {
        let mut words = core::array::from_fn(|place| place as u64);
        [words[0], words[1], words[2]] = [COOKIE, version, threaded];
        words
    }

    #[test]
    fn offsets_are_the_interpreters_own() {
        for (version, first) in [(0x030d_00f0, 28), (0x030e_00f0, 31), (0x030f_00f0, 39)] {
            let Some((published, Some(layout))) = published(&words(version, 0)) else {
                panic!("{version:x}");
            };
            assert_eq!(u64::from(published), version);
            assert_eq!(layout.frame_previous, first + 1);
        }
    }

    #[test]
    fn builds_without_a_global_lock_and_later_versions_are_distinguished() {
        for (version, copies) in [(0x030d_00f0, 0), (0x030e_00f0, 49)] {
            let Some((_, Some(layout))) = published(&words(version, 1)) else {
                panic!("{version:x}");
            };
            assert_eq!((layout.more, layout.copies), (16, copies));
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
            let layout = of_version(version).expect("a known version");
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
