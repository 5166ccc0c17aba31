//! Name, executable and command line of a process, read while it exists.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use cpu::Process;
use mem_agents::process;
use mem_agents::text;
use proc::Stat;
use profile::FileIdentity;

/// Description of a process for users.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Display name.
    pub name: Vec<u8>,
    /// Path of the executable; `None` if unknown.
    pub exe: Option<PathBuf>,
    /// Command line; empty if unknown.
    pub command_line: Vec<Vec<u8>>,
}

impl Description {
    /// Reads the description of a process. Returns `None` if the process has exited.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let exe = proc::exe(pid);
        let command_line = proc::command_line(pid);
        let name = match &exe {
            Some(exe) => process::display_name(&stat.comm, exe, &command_line),
            // A kernel thread, or a process that we may not examine.
            None => stat.comm,
        };
        Some(Self {
            name,
            exe: exe.map(|exe| std::ffi::OsStr::from_bytes(&exe).into()),
            command_line,
        })
    }

    /// Describes a process that exited before it could be read. Takes the name of its first
    /// file-backed mapping, which is normally the executable.
    pub fn from_mappings(process: &Process) -> Self {
        let path = process.space.ranges().iter().map(|range| &range.path[..]);
        let exe = path.into_iter().find(|path| path.starts_with(b"/"));
        let exe = exe.unwrap_or_default();
        Self {
            name: match text::base_name(exe) {
                b"" => b"process".to_vec(),
                name => name.to_vec(),
            },
            exe: (!exe.is_empty()).then(|| std::ffi::OsStr::from_bytes(exe).into()),
            command_line: Vec::new(),
        }
    }

    /// Returns the executable's path if its file has no build id: users have to pass such a file to
    /// get function names. `None` if it has one, or if the path leads to another file here.
    pub fn exe_without_build_id(&self, process: &Process) -> Option<PathBuf> {
        self.executable_identity(process, u64::MAX)?;
        self.exe.clone()
    }

    /// Returns the identity of the executable's file if it has no build id and can be opened here.
    /// `unix_ns` is a time at which it was mapped.
    pub fn executable_identity(&self, process: &Process, unix_ns: u64) -> Option<FileIdentity> {
        let exe = self.exe.as_ref()?;
        let ranges = process.space.ranges().iter();
        let mut exe_ranges = ranges.filter(|range| *range.path == *exe.as_os_str().as_bytes());
        let inode = exe_ranges.clone().next()?.file.inode;
        if exe_ranges.any(|range| !range.build_id().is_empty()) {
            return None;
        }
        // A deleted file, or one in memory, can be opened only through the process.
        let running = PathBuf::from(format!("/proc/{}/exe", process.pid));
        [exe, &running]
            .into_iter()
            .find_map(|file| FileIdentity::of_mapped(file, inode, unix_ns))
    }

    /// Returns true if the description is plausible for this program. The process may have executed
    /// another program in between.
    pub fn matches(&self, process: &Process) -> bool {
        let ranges = process.space.ranges();
        let exe = self.exe.as_ref().map(|exe| exe.as_os_str().as_bytes());
        ranges.is_empty() || exe.is_none_or(|exe| ranges.iter().any(|range| &*range.path == exe))
    }

    /// Formats the title `NAME (PID)`.
    pub fn title(&self, pid: i32) -> String {
        format!("{} ({pid})", text::escape(&self.name))
    }
}
