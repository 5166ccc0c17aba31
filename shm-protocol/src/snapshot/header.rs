//! Header of a segment: identity, commands, status, modules.

use super::{Invalid, text_at, u32_at, u64_at};
use crate::cpu::{CpuParams, CpuSetting};
use crate::layout::{
    ABI_VERSION, AgentMemory, AllocatorStats, CONTROL_BYTES, Control, HEADER_BYTES, HeapGlobals,
    IDENTITY_OFFSET, Identity, MAGIC, MODULE_CAPACITY, MODULE_PATH_BYTES, MODULES_OFFSET, Module,
    ModuleTable, PYTHON_FREE_THREADED, PYTHON_HIDES, Params, STATUS_OFFSET, Status,
};
use crate::segment::Session;
use core::mem::{offset_of, size_of};

/// View of a copy of a segment's first [`HEADER_BYTES`], which [`Header::new`] has checked.
#[derive(Clone, Copy)]
pub struct Header<'a> {
    bytes: &'a [u8],
}

impl<'a> Header<'a> {
    /// Checks the header of a segment whose file has `file_bytes` bytes.
    ///
    /// # Errors
    /// [`Invalid`] if the header is not that of a segment with our layout version.
    pub fn new(bytes: &'a [u8], file_bytes: usize) -> Result<Self, Invalid> {
        if bytes.len() < HEADER_BYTES {
            return Err(Invalid::TooShort);
        }
        let identity = |field: usize| IDENTITY_OFFSET + field;
        if u64_at(bytes, identity(offset_of!(Identity, magic))) != MAGIC {
            return Err(Invalid::NoMagic);
        }
        let version = u32_at(bytes, identity(offset_of!(Identity, abi_version)));
        if version != ABI_VERSION {
            return Err(Invalid::Version(version, ABI_VERSION));
        }
        let header = u32_at(bytes, identity(offset_of!(Identity, header_bytes)));
        let segment = u64_at(bytes, identity(offset_of!(Identity, segment_bytes)));
        let has_tables = segment == file_bytes as u64;
        if header as usize != HEADER_BYTES || (!has_tables && file_bytes != CONTROL_BYTES) {
            return Err(Invalid::Sizes);
        }
        Ok(Self { bytes })
    }

    fn identity64(&self, field: usize) -> u64 {
        u64_at(self.bytes, IDENTITY_OFFSET + field)
    }

    fn identity32(&self, field: usize) -> u32 {
        u32_at(self.bytes, IDENTITY_OFFSET + field)
    }

    /// Returns the seccomp mode and the number of filters at creation, as in `/proc/PID/status`.
    #[must_use]
    pub fn seccomp(&self) -> (u32, u32) {
        (
            self.identity32(offset_of!(Identity, seccomp_mode)),
            self.identity32(offset_of!(Identity, seccomp_filters)),
        )
    }

    /// Returns the size of the segment once it has tables.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.identity64(offset_of!(Identity, segment_bytes))
    }

    /// Returns the pid in the process's own pid namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.identity32(offset_of!(Identity, pid))
    }

    /// Returns the effective user id at creation.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.identity32(offset_of!(Identity, uid))
    }

    /// Returns the process's start time (field 22 of `/proc/PID/stat`).
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.identity64(offset_of!(Identity, start_time))
    }

    /// Returns the boot id of the kernel that the process ran under.
    #[must_use]
    pub fn boot_id(&self) -> &'a [u8] {
        text_at(
            self.bytes,
            IDENTITY_OFFSET + offset_of!(Identity, boot_id),
            16,
            16,
        )
    }

    /// Returns the creation time, Unix ns.
    #[must_use]
    pub fn created_unix_ns(&self) -> u64 {
        self.identity64(offset_of!(Identity, created_unix_ns))
    }

    /// Returns the creation time in ns of [`crate::clock::now_ns`].
    #[must_use]
    pub fn created_ns(&self) -> u64 {
        self.identity64(offset_of!(Identity, created_ns))
    }

    /// Returns true if the program kept its own allocator.
    #[must_use]
    pub fn system_allocator(&self) -> bool {
        self.identity32(offset_of!(Identity, allocator)) == 1
    }

    /// Returns the pid of the parent if this is the segment of a forked child, else 0.
    #[must_use]
    pub fn forked_from(&self) -> u32 {
        self.identity32(offset_of!(Identity, forked_from))
    }

    /// Returns the inode of the pid namespace in which the pid is valid; 0 if not known.
    #[must_use]
    pub fn pid_namespace(&self) -> u64 {
        self.identity64(offset_of!(Identity, pid_namespace))
    }

    /// Returns the process's command name at creation; may be any bytes.
    #[must_use]
    pub fn comm(&self) -> &'a [u8] {
        let at = IDENTITY_OFFSET + offset_of!(Identity, comm);
        let text = text_at(self.bytes, at, 16, 16);
        text.split(|b| *b == 0).next().unwrap_or_default()
    }

    /// Returns the path of the executable as the process saw it; may be any bytes.
    #[must_use]
    pub fn exe(&self) -> &'a [u8] {
        let len = self.identity32(offset_of!(Identity, exe_len)) as usize;
        text_at(
            self.bytes,
            IDENTITY_OFFSET + offset_of!(Identity, exe),
            len,
            1024,
        )
    }

    /// Returns the build id of the executable; may be empty.
    #[must_use]
    pub fn exe_build_id(&self) -> &'a [u8] {
        let len = self.identity32(offset_of!(Identity, exe_build_id_len)) as usize;
        text_at(
            self.bytes,
            IDENTITY_OFFSET + offset_of!(Identity, exe_build_id),
            len,
            32,
        )
    }

    /// Returns the version of the agent.
    #[must_use]
    pub fn agent_version(&self) -> &'a [u8] {
        let at = IDENTITY_OFFSET + offset_of!(Identity, agent_version);
        let text = text_at(self.bytes, at, 32, 32);
        text.split(|b| *b == 0).next().unwrap_or_default()
    }

    /// Returns the addresses of the allocator's data, or `None` if not known. If the program keeps
    /// its own allocator, they lead only to the objects that are sampled.
    #[must_use]
    pub fn heap(&self) -> Option<HeapGlobals> {
        let field = |field: usize| self.identity64(offset_of!(Identity, heap) + field);
        let globals = HeapGlobals {
            emap: field(offset_of!(HeapGlobals, emap)),
            arenas: field(offset_of!(HeapGlobals, arenas)),
            page: field(offset_of!(HeapGlobals, page)),
            range_base: field(offset_of!(HeapGlobals, range_base)),
            range_size: field(offset_of!(HeapGlobals, range_size)),
        };
        (globals != HeapGlobals::default()).then_some(globals)
    }

    /// Returns the location of the agent's own memory in the process.
    #[must_use]
    pub fn agent_memory(&self) -> AgentMemory {
        let field = |field: usize| self.identity64(offset_of!(Identity, agent_memory) + field);
        AgentMemory {
            start: field(offset_of!(AgentMemory, start)),
            end: field(offset_of!(AgentMemory, end)),
            variables: field(offset_of!(AgentMemory, variables)),
            variables_bytes: field(offset_of!(AgentMemory, variables_bytes)),
            thread: field(offset_of!(AgentMemory, thread)),
            thread_bytes: field(offset_of!(AgentMemory, thread_bytes)),
            spare: field(offset_of!(AgentMemory, spare)),
            spare_count: field(offset_of!(AgentMemory, spare_count)),
            exemptions: field(offset_of!(AgentMemory, exemptions)),
            own: field(offset_of!(AgentMemory, own)),
            own_count: field(offset_of!(AgentMemory, own_count)),
        }
    }

    /// Returns the lowest byte of the epoch in force; 0 if sampling is off.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.bytes[offset_of!(Control, epoch)]
    }

    /// Returns the last session that was published, whether it is running or not. Returns `None`
    /// before the first.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        self.session_of(self.bytes[offset_of!(Control, last_epoch)])
    }

    /// Returns the last session that was not a probe. Its bank may hold another session by now.
    #[must_use]
    pub fn profiled(&self) -> Option<Session> {
        let last = self.session()?;
        if !last.is_probe() {
            return Some(last);
        }
        // Probes do not overwrite the parameters of the session before them.
        let before = self.session_of(self.bytes[offset_of!(Control, last_epoch)] ^ 1)?;
        (!before.is_probe() && before.number < last.number).then_some(before)
    }

    /// Returns the session whose epochs have the parity of `last`, the lowest byte of an epoch.
    /// Returns `None` if `last` is 0.
    fn session_of(&self, last: u8) -> Option<Session> {
        let at = offset_of!(Control, params) + usize::from(last & 1) * size_of::<Params>();
        let field = |field: usize| u64_at(self.bytes, at + field);
        let at = offset_of!(Control, cpu) + usize::from(last & 1) * size_of::<CpuParams>();
        let cpu = |field: usize| u64_at(self.bytes, at + field);
        let session = Session {
            number: field(offset_of!(Params, session)),
            interval: field(offset_of!(Params, interval)),
            deadline_ns: field(offset_of!(Params, deadline_ns)),
            start_ns: field(offset_of!(Params, start_ns)),
            start_unix_ns: field(offset_of!(Params, start_unix_ns)),
            controller_pid: field(offset_of!(Params, controller_pid)),
            range_limit: field(offset_of!(Params, range_limit)),
            thinning: field(offset_of!(Params, thinning)),
            max_overhead: field(offset_of!(Params, max_overhead)),
            cpu: CpuSetting {
                rate: cpu(offset_of!(CpuParams, rate)),
                avoid: cpu(offset_of!(CpuParams, avoid)),
            },
        };
        (last != 0 && session.number != 0).then_some(session)
    }

    fn status(&self, field: usize) -> u64 {
        u64_at(self.bytes, STATUS_OFFSET + field)
    }

    /// Returns the number of the last session that ended while its process lived, and its end in ns
    /// of [`crate::clock::now_ns`].
    #[must_use]
    pub fn ended(&self) -> (u64, u64) {
        (
            self.status(offset_of!(Status, ended_session)),
            self.status(offset_of!(Status, ended_ns)),
        )
    }

    /// Returns the number of the last session whose profile was written.
    #[must_use]
    pub fn collected_session(&self) -> u64 {
        self.status(offset_of!(Status, collected_session))
    }

    /// Returns true if the process exited normally.
    #[must_use]
    pub fn exited(&self) -> bool {
        self.status(offset_of!(Status, exited)) != 0
    }

    /// Returns the time at which the process exited normally, in ns of [`crate::clock::now_ns`];
    /// `None` if it has not, or at an unknown time.
    #[must_use]
    pub fn exited_ns(&self) -> Option<u64> {
        Some(self.status(offset_of!(Status, exited))).filter(|&at| at > 1)
    }

    /// Returns the address space reserved for sampled objects, in bytes.
    #[must_use]
    pub fn range_bytes(&self) -> u64 {
        self.status(offset_of!(Status, range_bytes))
    }

    /// Returns the reason why the agent does not sample (one of the layout's `REFUSES_` constants,
    /// or 0), and the `errno` that belongs to it.
    #[must_use]
    pub fn refuses(&self) -> (u32, u32) {
        let at = STATUS_OFFSET + offset_of!(Status, refuses);
        let errno = STATUS_OFFSET + offset_of!(Status, refuses_errno);
        (u32_at(self.bytes, at), u32_at(self.bytes, errno))
    }

    /// Returns the version of the Python interpreter, as `PY_VERSION_HEX`, and one of the `PYTHON_`
    /// constants. Returns `None` if no interpreter was found.
    #[must_use]
    pub fn python(&self) -> Option<(u32, u32)> {
        let field = |field: usize| u32_at(self.bytes, STATUS_OFFSET + field);
        let version = field(offset_of!(Status, python_version));
        let state = field(offset_of!(Status, python)) & !(PYTHON_HIDES | PYTHON_FREE_THREADED);
        (version != 0).then_some((version, state))
    }

    /// Returns true if the interpreter is a build without the global interpreter lock.
    #[must_use]
    pub fn python_is_free_threaded(&self) -> bool {
        let at = STATUS_OFFSET + offset_of!(Status, python);
        u32_at(self.bytes, at) & PYTHON_FREE_THREADED != 0
    }

    /// Returns true if the interpreter's environment makes it allocate small objects with its own
    /// allocator. Returns `None` if there is no interpreter.
    #[must_use]
    pub fn python_hides(&self) -> Option<bool> {
        let at = STATUS_OFFSET + offset_of!(Status, python);
        self.python()
            .map(|_| u32_at(self.bytes, at) & PYTHON_HIDES != 0)
    }

    /// Returns the number of modules that did not fit into the table.
    #[must_use]
    pub fn modules_lost(&self) -> u64 {
        self.status(offset_of!(Status, modules_lost))
    }

    /// Returns the time at which a sampling thread last refreshed the allocator's statistics, in ns
    /// of [`crate::clock::now_ns`]. This happens once a second while there are samples.
    #[must_use]
    pub fn last_sign_of_life(&self) -> Option<u64> {
        let taken = offset_of!(AllocatorStats, taken_ns);
        Some(self.status(offset_of!(Status, allocator) + taken)).filter(|taken| *taken != 0)
    }

    /// Returns the time of the allocator's statistics in ns of [`crate::clock::now_ns`], and their
    /// names and values in bytes. Returns `None` if there are none yet, or if the program keeps its
    /// own allocator.
    #[must_use]
    pub fn allocator_stats(&self) -> Option<(u64, [(&'static str, u64); 6])> {
        let field = |field: usize| self.status(offset_of!(Status, allocator) + field);
        let taken = self.last_sign_of_life()?;
        (!self.system_allocator()).then(|| {
            let stats = [
                ("allocated", field(offset_of!(AllocatorStats, allocated))),
                ("active", field(offset_of!(AllocatorStats, active))),
                ("metadata", field(offset_of!(AllocatorStats, metadata))),
                ("resident", field(offset_of!(AllocatorStats, resident))),
                ("mapped", field(offset_of!(AllocatorStats, mapped))),
                ("retained", field(offset_of!(AllocatorStats, retained))),
            ];
            (taken, stats)
        })
    }

    /// Returns the modules, in order of discovery.
    pub fn modules(&self) -> impl Iterator<Item = ModuleView<'a>> + use<'a> {
        let bytes = self.bytes;
        let count = u32_at(bytes, MODULES_OFFSET + offset_of!(ModuleTable, count)) as usize;
        (0..count.min(MODULE_CAPACITY)).filter_map(move |i| ModuleView::at(bytes, i))
    }
}

/// Executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleView<'a> {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// Path as the process saw it; may be any bytes.
    pub path: &'a [u8],
    /// Build id; may be empty.
    pub build_id: &'a [u8],
    /// Tick at which the module was found to be unloaded; `None` while it is mapped.
    pub unloaded_tick: Option<u32>,
    /// Number of earlier modules at the same addresses.
    pub instance: u32,
}

impl<'a> ModuleView<'a> {
    fn at(bytes: &'a [u8], index: usize) -> Option<Self> {
        let base = MODULES_OFFSET + offset_of!(ModuleTable, entries) + index * size_of::<Module>();
        let paths = MODULES_OFFSET + offset_of!(ModuleTable, paths);
        let u64_field = |field: usize| u64_at(bytes, base + field);
        let u32_field = |field: usize| u32_at(bytes, base + field);
        if u32_field(offset_of!(Module, ready)) != 1 {
            return None;
        }
        let path_at = (u32_field(offset_of!(Module, path_offset)) as usize).min(MODULE_PATH_BYTES);
        let path_len = u32_field(offset_of!(Module, path_len)) as usize;
        let id_len = u32_field(offset_of!(Module, build_id_len)) as usize;
        let module = Self {
            start: u64_field(offset_of!(Module, start)),
            end: u64_field(offset_of!(Module, end)),
            file_offset: u64_field(offset_of!(Module, file_offset)),
            path: text_at(
                bytes,
                paths + path_at,
                path_len,
                MODULE_PATH_BYTES - path_at,
            ),
            build_id: text_at(bytes, base + offset_of!(Module, build_id), id_len, 32),
            unloaded_tick: Some(u32_field(offset_of!(Module, unloaded_tick)))
                .filter(|tick| *tick != 0),
            instance: u32_field(offset_of!(Module, instance)),
        };
        (module.start < module.end).then_some(module)
    }
}
