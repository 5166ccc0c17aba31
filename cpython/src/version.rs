//! Description of an interpreter for users.

use core::fmt;

/// State of reading an interpreter's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Supported version; no stack was read yet.
    Detected,
    /// Frames were read and have names.
    Named,
    /// Interpreter was unloaded.
    Gone,
    /// Version is not supported.
    Unknown,
    /// The interpreter's data do not match its version.
    Differs,
}

/// Description of an interpreter, displayed for users and in dump metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Version, as `PY_VERSION_HEX`; without a release level if it was recognised by its functions
    /// alone.
    pub version: u32,
    /// True for free-threaded builds.
    pub is_free_threaded: bool,
    /// State of reading its frames.
    pub state: State,
}

impl fmt::Display for Description {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, micro, release] = self.version.to_be_bytes();
        match self.version {
            0 => to.write_str("?")?,
            _ => write!(to, "{major}.{minor}")?,
        }
        // The release level (high nibble) is 0 if only the interpreter's functions were recognised:
        // they do not reveal the patch level.
        if release >> 4 != 0 {
            write!(to, ".{micro}")?;
        }
        if self.is_free_threaded {
            to.write_str(", free-threaded")?;
        }
        to.write_str(match self.state {
            State::Detected => ": no frame seen yet",
            State::Named => ": named",
            State::Gone => ": unloaded, later frames not shown",
            State::Unknown => ": unsupported version, frames not shown",
            State::Differs => ": data do not match its version, frames not shown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn descriptions_show_the_patch_level_if_known() {
        let mut description = Description {
            version: 0x030b_02f0,
            is_free_threaded: false,
            state: State::Named,
        };
        assert_eq!(description.to_string(), "3.11.2: named");
        description.version = 0x0309_0000;
        description.state = State::Detected;
        assert_eq!(description.to_string(), "3.9: no frame seen yet");
        description.version = 0x030d_01c2;
        description.is_free_threaded = true;
        assert_eq!(
            description.to_string(),
            "3.13.1, free-threaded: no frame seen yet"
        );
        description.version = 0;
        description.is_free_threaded = false;
        description.state = State::Unknown;
        let unknown = "?: unsupported version, frames not shown";
        assert_eq!(description.to_string(), unknown);
    }
}
