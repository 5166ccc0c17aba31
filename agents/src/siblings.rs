//! Finds the other programs of this project, which are installed in the same directory.

use std::path::PathBuf;

use crate::text;

/// Name of the agent's file.
pub const AGENT: &str = "libmem_agent.so";

/// Returns the path of program `name` in this program's directory. If it is not there, returns the
/// bare name, which is looked up in `PATH`.
pub fn program(name: &str) -> PathBuf {
    let exe = std::env::current_exe().ok();
    let path = exe.map(|exe| exe.with_file_name(name));
    path.filter(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

/// Returns the paths at which the agent is searched for: in this program's directory, and in the
/// library directories next to it.
pub fn agent_places() -> Vec<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or("/".as_ref()).to_owned();
    ["", "../lib", "../lib/mem-profiler"]
        .iter()
        .map(|place| directory.join(place).join(AGENT))
        .collect()
}

/// Returns the variable assignment that preloads the agent, with the path of the agent that belongs
/// to this program.
pub fn preload() -> String {
    let found = agent_places();
    let found = found.iter().find_map(|path| path.canonicalize().ok());
    let agent = found.map_or_else(
        || format!("/path/to/{AGENT}"),
        |path| text::shell_word(&path),
    );
    format!("LD_PRELOAD={agent}")
}
