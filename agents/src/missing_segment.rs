//! Explains why a process that carries the agent has no segment that we can find.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use proc::{Stat, Status};
use profile::maps::Entry;
use shm_protocol::layout::{CONTROL_BYTES, MIN_MEMORY_LIMIT};
use shm_protocol::pattern;
use shm_protocol::segment::{DEFAULT_DIR, DIR_VARIABLE, FILE_PREFIX};
use symbols::Elf;

use crate::agent_file;
use crate::mappings;
use crate::process;
use crate::segment::default_directory;
use crate::text;

/// Returns the cause, as a clause that follows "the process carries the agent, but".
pub fn reason(pid: i32) -> String {
    let environment = proc::environment(pid).unwrap_or_default();
    if leaves_out(pid, &environment) {
        return "its environment leaves it out: add its name to MEM_PROFILER_ONLY, and restart it"
            .to_owned();
    }
    if preloads_malloc_debug(&environment) {
        return "libc_malloc_debug.so checks the C library's allocator, which it keeps: start it without"
            .to_owned();
    }
    if let Some(limit) = proc::memory_limit(pid).filter(|limit| *limit < MIN_MEMORY_LIMIT) {
        return format!(
            "it is left alone, as it may have only {} of memory (ulimit -v or -d): raise that to {} or more, \
             and restart it",
            text::bytes(limit as f64),
            text::bytes(MIN_MEMORY_LIMIT as f64)
        );
    }
    if !proc::is_ours() {
        return "the /proc here shows the pids of another pid namespace: mount its own (mount -t proc proc /proc), or run mem_profiler outside"
            .to_owned();
    }
    if let Some(tool) = emulator(pid) {
        return format!("{tool} runs it, with an allocator of its own: start it without");
    }
    let maps = proc::maps(pid).unwrap_or_default();
    if is_starting(pid, &maps) {
        return "its loader has not come to the agent's constructor yet: try again later"
            .to_owned();
    }
    if let Some(limit) = process::file_size_limit(pid).filter(|limit| *limit < CONTROL_BYTES as u64)
    {
        return format!(
            "it may write no file of more than {limit} bytes (ulimit -f), and its segment is one: \
             raise the limit, and restart it"
        );
    }
    let ours = default_directory();
    if let Some(unopened) = explain_unopened(pid, &ours) {
        return unopened;
    }
    let root = proc::directory(pid).join("root");
    if let Some(directory) = other_directory(pid) {
        return in_directory(pid, &root, &directory).unwrap_or_else(|| {
            format!(
                "its segment is in {}, and mem_profiler looks in {}: set MEM_PROFILER_DIR to the former",
                text::path(&directory),
                text::path(&ours)
            )
        });
    }
    in_directory(pid, &root, &ours).unwrap_or_else(|| {
        let directory = text::path(ours);
        if is_deleted(&maps) {
            format!("its segment in {directory} was deleted: restart it")
        } else if proc::is_forked(pid) {
            format!(
                "it is a forked child without a segment in {directory}, as it has allocated less \
                 than 64 KiB: try again later"
            )
        } else if let Some(library) = linked_allocator(&maps) {
            format!(
                "it calls functions of {library}, an allocator that it keeps, or {directory} was full or not \
                 writable when it started"
            )
        } else {
            format!(
                "there is no segment of it in {directory}, which was missing, full or not writable when it \
                 started: restart it"
            )
        }
    })
}

/// Returns true if a process's environment names programs with the agent, but not this one.
pub fn is_left_out(pid: i32) -> bool {
    leaves_out(pid, &proc::environment(pid).unwrap_or_default())
}

/// Returns true if `MEM_PROFILER_ONLY` in an environment names programs, but not this process. The
/// agent makes the same comparison when the process starts.
fn leaves_out(pid: i32, environment: &[u8]) -> bool {
    let only = proc::value(environment, "MEM_PROFILER_ONLY").unwrap_or_default();
    let comm = Stat::of(pid).map(|stat| stat.comm).unwrap_or_default();
    let exe = proc::exe(pid).unwrap_or_default();
    let exe = exe.strip_suffix(b" (deleted)").unwrap_or(&exe);
    let names = [&comm[..], text::base_name(exe)];
    !only.is_empty() && !names.iter().any(|name| pattern::any_covers(only, name))
}

/// Returns true if an environment preloads glibc's checker of its own allocator, beside which the
/// agent does nothing.
fn preloads_malloc_debug(environment: &[u8]) -> bool {
    let mut names = agent_file::ld_preload_entries(environment).map(text::base_name);
    names.any(|name| name.starts_with(b"libc_malloc_debug.so"))
}

/// Returns true if the agent's constructor has not begun: all pages of the agent's variables are
/// still mapped from the file. The constructor maps the segment, or private memory, over some.
fn is_starting(pid: i32, maps: &[u8]) -> bool {
    let variables = |agent: &Path| {
        let file = agent_file::path_in(pid, agent.as_os_str().as_bytes())?;
        Elf::open(&file).ok()?.last_file_range()
    };
    let Some(agent) = agent_file::mapped(pid, maps) else {
        return false;
    };
    let Some(variables) = variables(&agent) else {
        return false;
    };
    // A file that was replaced has another path in the maps, and other contents.
    let of_agent: Vec<Entry<'_>> = Entry::all(maps)
        .filter(|entry| entry.path == agent.as_os_str().as_bytes())
        .collect();
    let is_mapped = |offset: u64| {
        of_agent.iter().any(|entry| {
            let distance = offset.checked_sub(entry.file_offset);
            distance.is_some_and(|distance| distance < entry.end.saturating_sub(entry.start))
        })
    };
    let page = proc::page_size();
    let mut offset = variables.start / page * page;
    while offset < variables.end {
        if !is_mapped(offset) {
            return false;
        }
        offset += page;
    }
    true
}

/// Returns the name of a mapped library that is an allocator with function names of its own, such
/// as `tc_malloc`. If a program calls such functions, it keeps that allocator.
fn linked_allocator(maps: &[u8]) -> Option<String> {
    const NAMES: [&[u8]; 3] = [b"libtcmalloc", b"libmimalloc", b"libtbbmalloc"];
    let mut files = Entry::all(maps).map(|entry| text::base_name(entry.path));
    let name = files.find(|file| NAMES.iter().any(|name| file.starts_with(name)))?;
    Some(text::path(OsStr::from_bytes(name)))
}

/// Returns true if the file of the process's segment was deleted. The segment of a parent does not
/// count, since a child maps it read-only.
fn is_deleted(maps: &[u8]) -> bool {
    mappings::written_files(maps).any(|entry| {
        entry.path.ends_with(b" (deleted)")
            && text::base_name(entry.path).starts_with(FILE_PREFIX.as_bytes())
    })
}

/// Explains that the process has a segment which we may not open.
fn explain_unopened(pid: i32, directory: &Path) -> Option<String> {
    let prefix = format!("{FILE_PREFIX}{pid}.");
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut segments =
        entries.filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes()));
    let denied = |path: &PathBuf| {
        let opened = fs::File::open(path);
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    let path = segments.find_map(|entry| Some(entry.path()).filter(denied))?;
    let owner = process::user_name(fs::symlink_metadata(&path).ok()?.uid());
    Some(format!(
        "its segment {} belongs to user {owner} and may not be opened: run mem_profiler as {owner}, or with \
         CAP_DAC_OVERRIDE and CAP_SYS_PTRACE",
        text::path(&path)
    ))
}

/// Returns the directory of a process's segment according to its environment, unless it is the one
/// that we search.
pub fn other_directory(pid: i32) -> Option<PathBuf> {
    let environment = proc::environment(pid)?;
    let named = proc::value(&environment, DIR_VARIABLE).filter(|name| !name.is_empty());
    let directory = named.map_or(DEFAULT_DIR.as_bytes(), |name| name);
    let directory = PathBuf::from(OsStr::from_bytes(directory));
    (directory.is_absolute() && directory != default_directory()).then_some(directory)
}

/// Explains what is wrong now with a segment directory, as the process sees it.
fn in_directory(pid: i32, root: &Path, directory: &Path) -> Option<String> {
    // Without access to its root directory, nothing can be said.
    fs::metadata(root).ok()?;
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let name = text::path(directory);
    let (root_note, there) = match proc::other_root(pid) {
        Some(other) => {
            let root_note = format!("its root directory is {}, and ", text::path(other));
            (root_note, "there")
        }
        None => (String::new(), "where it runs"),
    };
    let is_proc = statfs(&inside(Path::new("/proc")))
        .is_ok_and(|stat| stat.filesystem_type() == PROC_SUPER_MAGIC);
    let metadata = match fs::metadata(inside(directory)) {
        Ok(_) if !is_proc => {
            return Some(format!(
                "{root_note}/proc is not mounted {there}: mount it, and restart it"
            ));
        }
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let proc = if is_proc { "" } else { " and mount /proc" };
            return Some(format!(
                "{root_note}{name} is missing {there}: create it{proc} there, and restart it"
            ));
        }
        Err(_) => return None,
    };
    if !metadata.is_dir() {
        return Some(format!(
            "{root_note}{name} is not a directory {there}: create one, and restart it"
        ));
    }
    let user = Status::of(pid)?.uid();
    (!may_write(&metadata, user)).then(|| {
        format!("{root_note}its user may not write to {name} {there}: permit that, and restart it")
    })
}

/// Returns true if a user may create files in a directory, judged by its mode alone. Assumes that
/// the user may be in the directory's group.
fn may_write(directory: &fs::Metadata, user: u32) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let mode = directory.permissions().mode();
    let bits = if directory.uid() == user {
        0o300
    } else {
        0o033
    };
    user == 0 || mode & bits & 0o222 != 0
}

/// Returns the name of the emulator that runs the process, if it is a known one.
fn emulator(pid: i32) -> Option<&'static str> {
    let exe = PathBuf::from(OsStr::from_bytes(&proc::exe(pid)?));
    let name = exe.file_name()?.to_str()?;
    if exe.components().any(|part| part.as_os_str() == "valgrind") {
        Some("valgrind")
    } else if name.starts_with("qemu-") {
        Some("qemu")
    } else {
        None
    }
}
