//! Profiles from standard input, which is called `-` on the command line.

use std::io::{self, BufRead, BufReader, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Result, bail};
use profile::{Profile, STANDARD_INPUT, printable};

/// Path that stands for standard input. A file of that name is `./-`.
pub const PATH: &str = "-";

/// Returns true if a path stands for standard input.
pub fn is_stdin_path(path: &Path) -> bool {
    path == Path::new(PATH)
}

/// Returns the name of a dump for messages.
pub fn display_name(dump: &Path) -> String {
    if is_stdin_path(dump) {
        STANDARD_INPUT.to_owned()
    } else {
        printable::path(dump)
    }
}

/// Returns true if standard input is a pipe or a file with contents, so that a profile may come from
/// it.
pub fn may_have_profile() -> bool {
    let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else {
        return false;
    };
    let about = std::fs::File::from(stdin).metadata();
    about.is_ok_and(|about| {
        about.file_type().is_fifo() || about.file_type().is_file() && about.len() > 0
    })
}

/// Reads a profile from standard input.
pub fn read() -> Result<Profile> {
    let input = io::stdin();
    if input.is_terminal() {
        bail!(
            "standard input is a terminal; send a profile through a pipe (perf script | mem_parser \
             --flame -), or name a file"
        );
    }
    let mut input = BufReader::new(input.lock());
    if input.fill_buf().is_ok_and(<[u8]>::is_empty) {
        bail!(
            "standard input is empty: the program before the pipe printed nothing; see what it says \
             when it runs alone, or name a file"
        );
    }
    Ok(profile::read_from(input, STANDARD_INPUT)?)
}
