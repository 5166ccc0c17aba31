//! `mem_server`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    mem_server::run()
}
