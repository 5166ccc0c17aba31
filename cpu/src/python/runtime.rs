//! Finds an interpreter's version and the addresses of its data.

use std::ops::RangeInclusive;

use cpython::layout::{self, Layout, RUNTIME_WORDS};

use super::exports::InterpreterSymbols;

/// Interpreter.
pub struct Runtime {
    /// Address of `_PyRuntime`.
    pub at: u64,
    /// Version, as `PY_VERSION_HEX`.
    pub version: u32,
    /// Layout of its data; `None` if the version is not supported.
    pub layout: Option<Layout>,
    /// Start and end of the evaluation loop. A return address in it is above the start, and may
    /// equal the end.
    pub evaluation_loop: RangeInclusive<u64>,
}

impl Runtime {
    /// Reads the interpreter whose symbols have load bias `bias`. Returns `None` if the process's
    /// memory cannot be read there, or not yet.
    pub fn of(pid: i32, symbols: &InterpreterSymbols, bias: u64) -> Option<Self> {
        let at = symbols.runtime.wrapping_add(bias);
        let word = |at: u64| {
            let mut bytes = [0; 8];
            let read = capture::read_memory(pid, at, &mut bytes);
            (read == 8).then(|| u64::from_le_bytes(bytes))
        };
        word(at)?;
        let (version, layout) = match read_published(pid, at) {
            Some(version_and_layout) => version_and_layout,
            None => {
                let version = match symbols.version {
                    Some(version) => {
                        u32::try_from(word(version.wrapping_add(bias))?).unwrap_or(u32::MAX)
                    }
                    None => version_by_functions(symbols),
                };
                (version, layout::for_version(version))
            }
        };
        let (from, to) = symbols.evaluate.unwrap_or_default();
        Some(Self {
            at,
            version,
            layout,
            evaluation_loop: from.wrapping_add(bias)..=to.wrapping_add(bias),
        })
    }
}

/// Reads the version and layout that the interpreter describes itself (3.13 and later).
fn read_published(pid: i32, at: u64) -> Option<(u32, Option<Layout>)> {
    let mut bytes = [[0; 8]; RUNTIME_WORDS];
    let read = capture::read_memory(pid, at, bytes.as_flattened_mut());
    (read == 8 * RUNTIME_WORDS).then_some(())?;
    layout::published(&bytes.map(u64::from_le_bytes))
}

/// Determines the version by the functions that exist; 0 if not known. `_PyRuntime` exists since
/// 3.7. A file with a symbol for the evaluation loop has symbols for the other functions too.
fn version_by_functions(symbols: &InterpreterSymbols) -> u32 {
    let versions = [0x030a_0000, 0x0309_0000, 0x0308_0000];
    let newest = (symbols.first_in.into_iter().zip(versions)).find(|(exists, _)| *exists);
    match newest {
        Some((_, version)) => version,
        None if symbols.evaluate.is_some() => 0x0307_0000,
        None => 0,
    }
}
