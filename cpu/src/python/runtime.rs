//! The interpreter of a process: its version, and where its data are.

use cpython::layout::{self, Layout, WORDS};

use super::exports::Names;

/// Maximum number of bytes of a code object that are read.
pub const MOST_CODE: u64 = 512;

/// An interpreter.
pub struct Runtime {
    /// Address of `_PyRuntime`.
    pub at: u64,
    /// In the form of `PY_VERSION_HEX`.
    pub version: u32,
    /// `None`: this version is not known.
    pub layout: Option<Layout>,
    /// Return addresses into its evaluation loop: after the first of these, to the second.
    pub loop_at: (u64, u64),
}

impl Runtime {
    /// The one whose names are at these addresses plus `bias`; `None`: the process's memory cannot be
    /// read there, maybe not yet.
    pub fn of(pid: i32, names: &Names, bias: u64) -> Option<Self> {
        let at = names.runtime.wrapping_add(bias);
        let word = |at: u64| {
            let mut bytes = [0; 8];
            let read = capture::read_memory(pid, at, &mut bytes);
            (read == 8).then(|| u64::from_le_bytes(bytes))
        };
        word(at)?;
        let (version, layout) = match told(pid, at) {
            Some(told) => told,
            None => {
                let version = match names.version {
                    Some(version) => {
                        u32::try_from(word(version.wrapping_add(bias))?).unwrap_or(u32::MAX)
                    }
                    None => by_functions(names),
                };
                (version, layout::of_version(version))
            }
        };
        let (from, to) = names.evaluate.unwrap_or_default();
        Some(Self {
            at,
            version,
            layout: layout.filter(is_near),
            loop_at: (from.wrapping_add(bias), to.wrapping_add(bias)),
        })
    }
}

/// What an interpreter says of itself.
fn told(pid: i32, at: u64) -> Option<(u32, Option<Layout>)> {
    let mut bytes = [[0; 8]; WORDS];
    let read = capture::read_memory(pid, at, bytes.as_flattened_mut());
    (read == 8 * WORDS).then_some(())?;
    layout::told(&bytes.map(u64::from_le_bytes))
}

/// By functions that came with a version; 0: not known. `_PyRuntime` came with 3.7, and who shows the
/// evaluation loop shows the other functions, too.
fn by_functions(names: &Names) -> u32 {
    let versions = [0x030a_0000, 0x0309_0000, 0x0308_0000];
    let mut first = names.first_in.into_iter().zip(versions);
    let oldest = names.evaluate.map_or(0, |_| 0x0307_0000);
    first
        .find(|(is_there, _)| *is_there)
        .map_or(oldest, |(_, v)| v)
}

/// Whether a code object's fields are where they can be.
fn is_near(layout: &Layout) -> bool {
    let fields = [
        layout.name,
        layout.file,
        layout.lines,
        layout.first_line,
        layout.version,
    ];
    fields.iter().all(|field| field + 8 <= MOST_CODE)
}
