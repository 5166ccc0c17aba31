//! Where an interpreter's data are: offsets in bytes.

use shm_protocol::codes::LineTable;

/// How frames are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A list of frame objects, each run by a native frame of its own (to 3.10).
    Objects,
    /// A chain of native frames' records, each of which has the frames that it runs (3.11).
    Records,
    /// A list in which a frame on the native stack stands behind those that it runs (from 3.12 on).
    Entries,
}

/// Offsets; 0 in the place of one: there is no such field.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// How frames are linked.
    pub style: Style,
    /// In `_PyRuntime`: the newest interpreter.
    pub interpreters: u64,
    /// In an interpreter: the next one.
    pub next_interpreter: u64,
    /// In an interpreter: the state of its newest thread.
    pub threads: u64,
    /// In a thread's state: that of the next newer one.
    pub previous_thread: u64,
    /// In a thread's state: that of the next older one.
    pub next_thread: u64,
    /// In a thread's state: the thread's number, as the C library has it (`pthread_self`).
    pub thread_id: u64,
    /// In a thread's state: its frames.
    pub frames: u64,
    /// Whether that is a record, which in turn has the frame at `current`.
    pub has_record: bool,
    /// In a record: the innermost of its frames; the next record further out is behind it (3.11).
    pub current: u64,
    /// In a thread's state: the piece of memory that its frames are in.
    pub chunk: u64,
    /// In a frame: the next one further out.
    pub frame_previous: u64,
    /// In a frame: its code object.
    pub frame_code: u64,
    /// In a frame: its instruction.
    pub frame_instruction: u64,
    /// In a frame: a byte that says who has made it.
    pub frame_owner: u64,
    /// In a frame, its function, if `function_version` is not 0.
    pub frame_function: u64,
    /// In a function: its code object.
    pub function_code: u64,
    /// In a function: a version, which is 0 or no other function's, and changes with its code
    /// object.
    pub function_version: u64,
    /// In a code object: the line that it begins at.
    pub first_line: u64,
    /// In a code object: its file.
    pub file: u64,
    /// In a code object: its name.
    pub name: u64,
    /// In a code object: its table of lines.
    pub lines: u64,
    /// In a code object: a version, which is 0 or no other one's of its interpreter.
    pub version: u64,
    /// The first instruction: from 3.11 on in the code object itself.
    pub instructions: u64,
    /// Bytes that the head of an object has more than with a global lock.
    pub more: u64,
    /// In a frame, which copy of the instructions it runs.
    pub frame_copy: u64,
    /// In a code object, where the copies of its instructions are.
    pub copies: u64,
    /// Size of the head of a string of ASCII characters.
    pub ascii: u64,
    /// Size of the head of a string of others.
    pub compact: u64,
    /// Bytes of an instruction's place, in frame objects.
    pub place_unit: u32,
    /// How the lines of a code object are written down.
    pub table: LineTable,
}

/// Heads of objects, the same in all versions; without a global lock, there is [`Layout::more`]
/// first. This is where an object has its type.
pub const TYPE: u64 = 8;
/// Where a `bytes` object has its size.
pub const SIZE: u64 = 16;
/// Where a `bytes` object has its contents.
pub const BYTES: u64 = 32;
/// Where a type has its name.
pub const TYPE_NAME: u64 = 24;
/// Where a string has its length.
pub const LENGTH: u64 = 16;
/// Where a string has its hash, or -1.
pub const HASH: u64 = 24;
/// Where a string says what its characters are.
pub const KIND: u64 = 32;

/// From 3.12 on, the least of a frame's owners that is none that runs Python: a frame on the native
/// stack.
pub const OWNED_BY_NATIVE: u8 = 3;
/// Largest place of an instruction that is believed in.
pub const MOST_PLACE: u64 = 1 << 24;

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

/// The only one with [`Style::Records`].
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
    // Code objects have versions.
    function_version: 0,
    first_line: 68,
    version: 92,
    instructions: 192,
    ascii: 40,
    compact: 56,
    ..PYTHON_3_11
};

/// From 3.13 on, the interpreter itself publishes most of it.
const LATER: Layout = Layout {
    has_record: false,
    instructions: 200,
    ..PYTHON_3_12
};

/// Without a global lock. Threads that make code objects at a time may give them one version.
const UNLOCKED: Layout = Layout {
    version: 0,
    more: 16,
    ascii: LATER.ascii + 16,
    compact: LATER.compact + 16,
    ..LATER
};

/// By version, as `PY_VERSION_HEX` has it.
pub fn of_version(version: u32) -> Option<Layout> {
    match version >> 16 {
        0x0308 | 0x0309 => Some(OBJECTS),
        0x030a => Some(PYTHON_3_10),
        0x030b => Some(PYTHON_3_11),
        0x030c => Some(PYTHON_3_12),
        _ => None,
    }
}

/// Whether there is a layout for a version.
pub fn is_known(version: u32) -> bool {
    of_version(version).is_some() || groups(version).is_some()
}

/// What `_PyRuntime` begins with, in versions that describe themselves.
pub const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Where in a frame the last of its fields may be that are read.
pub const MOST_OFFSET: u64 = 112;
/// Words of it that are read.
pub const WORDS: usize = 80;

/// The first words of the groups in it, and places in the group of a thread's state that differ.
struct Groups {
    interpreter: usize,
    thread: usize,
    thread_id: usize,
    chunk: usize,
    frame: usize,
    code: usize,
    /// Whether each thread may have its own copy of a code object's instructions.
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

/// Version and layout by the first words of `_PyRuntime`, where it describes itself; the layout of
/// a version that is not known is not.
pub fn told(words: &[u64; WORDS]) -> Option<(u32, Option<Layout>)> {
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
    let offset = |word: usize| Some(words[word]).filter(|offset| *offset < 1 << 20);
    let in_frame = |word: usize| offset(groups.frame + word).filter(|at| *at <= MOST_OFFSET);
    let (frame_copy, copies) = match groups.has_copies && of.more != 0 {
        true => (in_frame(7)?, offset(groups.code + 10)?),
        false => (0, 0),
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
        frame_previous: in_frame(1)?,
        frame_code: in_frame(2)?,
        frame_instruction: in_frame(3)?,
        frame_owner: in_frame(5)?,
        file: offset(groups.code + 1)?,
        name: offset(groups.code + 3)?,
        lines: offset(groups.code + 4)?,
        first_line: offset(groups.code + 5)?,
        instructions: offset(groups.code + 9)?,
        frame_copy,
        copies,
        ..*of
    };
    Some(layout)
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
            let Some((told, Some(layout))) = told(&words(version, 0)) else {
                panic!("{version:x}");
            };
            assert_eq!(u64::from(told), version);
            assert_eq!(layout.frame_previous, first + 1);
        }
    }

    #[test]
    fn builds_without_a_global_lock_and_later_versions_are_distinguished() {
        for (version, copies) in [(0x030d_00f0, 0), (0x030e_00f0, 49)] {
            let Some((_, Some(layout))) = told(&words(version, 1)) else {
                panic!("{version:x}");
            };
            assert_eq!((layout.more, layout.copies), (16, copies));
        }
        assert!(!is_known(0x0307_00f0) && is_known(0x0308_00f0));
        assert!(is_known(0x030f_00f0) && !is_known(0x0310_00a1));
        let later = told(&words(0x0310_00a1, 0));
        assert!(matches!(later, Some((0x0310_00a1, None))));
        let mut far = words(0x030e_00f0, 0);
        far[5] = 1 << 20;
        assert!(matches!(told(&far), Some((_, None))));
        // For a frame, less is read where there is none.
        let mut far = words(0x030e_00f0, 1);
        far[32] = MOST_OFFSET + 1;
        assert!(matches!(told(&far), Some((_, None))));
        let mut other = words(0x030d_00f0, 0);
        other[0] = 0;
        assert!(told(&other).is_none());
    }
}
