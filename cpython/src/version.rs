//! Description of an interpreter for users.

use core::fmt;

/// State of frame names of an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Supported version; no stack was read yet.
    Met,
    /// Frames are named.
    Named,
    /// Interpreter was unloaded.
    Gone,
    /// Version is not supported.
    Unknown,
    /// Data are inconsistent with its version.
    Differs,
}

/// Description of an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Version, as `PY_VERSION_HEX`; without a release level if it was recognised by its functions
    /// alone.
    pub version: u32,
    /// True for free-threaded builds.
    pub is_unlocked: bool,
    /// State of its frame names.
    pub state: State,
}

impl fmt::Display for Description {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [release, major, minor, micro] =
            [4, 24, 16, 8].map(|shift| self.version >> shift & 0xff);
        match self.version {
            0 => to.write_str("?")?,
            _ => write!(to, "{major}.{minor}")?,
        }
        // Functions do not reveal the patch level.
        if release & 15 != 0 {
            write!(to, ".{micro}")?;
        }
        if self.is_unlocked {
            to.write_str(", free-threaded")?;
        }
        to.write_str(match self.state {
            State::Met => ": no frame seen yet",
            State::Named => ": named",
            State::Gone => ": unloaded: frames after that are left out",
            State::Unknown => ": a version that is not known: its frames are left out",
            State::Differs => {
                ": its data differ from those of its version: its frames are left out"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_version_has_a_patch_where_it_is_known() {
        let mut told = Description {
            version: 0x030b_02f0,
            is_unlocked: false,
            state: State::Named,
        };
        assert_eq!(told.to_string(), "3.11.2: named");
        (told.version, told.state) = (0x0309_0000, State::Met);
        assert_eq!(told.to_string(), "3.9: no frame seen yet");
        (told.version, told.is_unlocked) = (0x030d_01c2, true);
        assert_eq!(told.to_string(), "3.13.1, free-threaded: no frame seen yet");
        (told.version, told.is_unlocked, told.state) = (0, false, State::Unknown);
        let unknown = "?: a version that is not known: its frames are left out";
        assert_eq!(told.to_string(), unknown);
    }
}
