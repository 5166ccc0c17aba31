//! Makes HTML pages of dumps with `mem_parser`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use mem_agents::siblings;
use mem_agents::text;

/// Name of the program that makes pages.
const PARSER: &str = "mem_parser";

/// Makes the page of a dump, in the same directory.
pub fn make(dump: &Path) -> anyhow::Result<PathBuf> {
    make_with_cpu(dump, None)
}

/// Returns the path of a dump's page.
pub fn path_for(dump: &Path) -> PathBuf {
    dump.with_extension("html")
}

/// Makes the page of a dump and a CPU profile of the same process, in the dump's directory.
pub fn make_with_cpu(dump: &Path, cpu: Option<&Path>) -> anyhow::Result<PathBuf> {
    let page = path_for(dump);
    let parser = siblings::program(PARSER);
    let mut command = Command::new(&parser);
    command
        .arg("--html")
        .arg("-f")
        .arg(dump)
        .args(cpu)
        .arg("-o")
        .arg(&page);
    let status = command.stdin(Stdio::null()).status();
    let status = status.with_context(|| {
        format!(
            "{} cannot be run: install it beside mem_profiler",
            text::path(&parser)
        )
    })?;
    if !status.success() {
        bail!("no page of {}: mem_parser says why", text::path(dump));
    }
    Ok(page)
}

/// Opens a page in the user's browser.
pub fn open(page: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("xdg-open");
    let command = command.arg(page).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status();
    if !status.is_ok_and(|status| status.success()) {
        bail!(
            "no browser can be started here (xdg-open): open {} in one",
            text::path(page)
        );
    }
    Ok(())
}
