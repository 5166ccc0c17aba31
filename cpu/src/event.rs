//! `perf_event_open(2)` without a library: attributes of events, and their descriptors.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const TYPE_SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const TASK_CLOCK: u64 = 1;
const ALL_FAULTS: u64 = 2;
const MINOR_FAULTS: u64 = 5;
const MAJOR_FAULTS: u64 = 6;
const DUMMY: u64 = 9;

const SAMPLE_IP: u64 = 1;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
pub(crate) const SAMPLE_ADDRESS: u64 = 1 << 3;
pub(crate) const SAMPLE_READ: u64 = 1 << 4;
pub(crate) const SAMPLE_CALLCHAIN: u64 = 1 << 5;
pub(crate) const SAMPLE_PERIOD: u64 = 1 << 8;
const SAMPLE_REGS_USER: u64 = 1 << 12;
const SAMPLE_STACK_USER: u64 = 1 << 13;
const SAMPLE_IDENTIFIER: u64 = 1 << 16;
/// Fields that every sample has.
pub(crate) const SAMPLE_ALWAYS: u64 =
    SAMPLE_IDENTIFIER | SAMPLE_IP | SAMPLE_TID | SAMPLE_TIME | SAMPLE_REGS_USER | SAMPLE_STACK_USER;

/// Flags of the attributes, by bit.
mod flag {
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const EXCLUDE_IDLE: u64 = 1 << 7;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const FREQUENCY: u64 = 1 << 10;
    pub const INHERIT_STAT: u64 = 1 << 11;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const DISABLED: u64 = 1;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const INHERIT_THREAD: u64 = 1 << 35;
}

const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
/// `_IOR('$', 7, __u64 *)`
const IOC_ID: libc::c_ulong = 0x8008_2407;

/// `struct perf_event_attr` as of Linux 3.19 (`PERF_ATTR_SIZE_VER4`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
    config2: u64,
    branches: u64,
    registers: u64,
    stack_bytes: u32,
    clock: i32,
    interrupt_registers: u64,
}

/// Quantity that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// CPU time.
    Time,
    /// Page faults, counted when they begin.
    AllFaults,
    /// Page faults that need no I/O.
    MinorFaults,
    /// Page faults that read from a disk or from swap.
    MajorFaults,
}

impl Counted {
    fn is_faults(self) -> bool {
        self != Self::Time
    }
}

/// Configuration of the sampling events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventConfig {
    /// Quantity that is counted.
    pub counted: Counted,
    /// Sampling period: CPU time in nanoseconds, or a number of faults.
    pub period: u64,
    /// Number of samples per second that the kernel aims at by adapting the period. `None`: the
    /// period is fixed.
    pub rate: Option<u64>,
    /// Size of stack copies in bytes.
    pub stack_bytes: u32,
    /// True if each sample makes the ring readable.
    pub wakes_per_sample: bool,
    /// True if the kernel is sampled too.
    pub kernel: bool,
    /// True if samples carry their thread's clock.
    pub clock: bool,
    /// True if children of the process are sampled too, not only its threads.
    pub children: bool,
    /// True if the kernel can restrict inheritance to threads.
    pub threads_only: bool,
    /// True if counting starts only with the thread's exec.
    pub from_exec: bool,
}

impl EventConfig {
    /// Returns the fields of samples.
    pub(crate) fn sample_type(&self) -> u64 {
        let kernel = if self.kernel { SAMPLE_CALLCHAIN } else { 0 };
        let clock = if self.clock { SAMPLE_READ } else { 0 };
        let fault = if self.counted.is_faults() {
            SAMPLE_ADDRESS
        } else {
            0
        };
        // Software events with this field and a fixed period would sample every event.
        let period = if self.rate.is_some() {
            SAMPLE_PERIOD
        } else {
            0
        };
        SAMPLE_ALWAYS | kernel | clock | fault | period
    }

    fn attributes(&self) -> PerfEventAttr {
        let flag_if = |condition: bool, flags: u64| if condition { flags } else { 0 };
        PerfEventAttr {
            kind: TYPE_SOFTWARE,
            size: size_of::<PerfEventAttr>() as u32,
            config: match self.counted {
                Counted::Time => TASK_CLOCK,
                Counted::AllFaults => ALL_FAULTS,
                Counted::MinorFaults => MINOR_FAULTS,
                Counted::MajorFaults => MAJOR_FAULTS,
            },
            period: self.rate.unwrap_or(self.period),
            sample_type: self.sample_type(),
            flags: flag::INHERIT
                | flag::INHERIT_STAT
                | flag::MMAP
                | flag::MMAP2
                | flag::COMM
                | flag::COMM_EXEC
                | flag::TASK
                | flag::SAMPLE_ID_ALL
                | flag::EXCLUDE_CALLCHAIN_USER
                | flag_if(self.rate.is_some(), flag::FREQUENCY)
                | flag_if(!self.kernel, flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV)
                | flag_if(!self.children && self.threads_only, flag::INHERIT_THREAD)
                | flag_if(self.from_exec, flag::DISABLED | flag::ENABLE_ON_EXEC),
            wakeup: u32::from(self.wakes_per_sample),
            registers: crate::registers::MASK,
            stack_bytes: self.stack_bytes,
            ..PerfEventAttr::default()
        }
    }

    /// Opens an event that samples everything that runs on a processor.
    pub(crate) fn open_processor(&self, cpu: u32) -> io::Result<OwnedFd> {
        let mut attributes = self.attributes();
        attributes.config = CPU_CLOCK;
        attributes.flags &= !(flag::INHERIT | flag::INHERIT_STAT | flag::INHERIT_THREAD);
        attributes.flags |= flag::EXCLUDE_IDLE;
        open(&attributes, -1, cpu)
    }

    /// Opens an event for a thread on a processor.
    pub(crate) fn open(&self, tid: i32, cpu: u32) -> io::Result<OwnedFd> {
        open(&self.attributes(), tid, cpu)
    }
}

/// Opens an event that never occurs. It owns a processor's ring, which therefore outlives the
/// events that write to it. The ring becomes readable after `wakeup` bytes.
pub(crate) fn dummy(cpu: u32, wakeup: u32) -> io::Result<OwnedFd> {
    let attributes = PerfEventAttr {
        kind: TYPE_SOFTWARE,
        size: size_of::<PerfEventAttr>() as u32,
        config: DUMMY,
        flags: flag::WATERMARK | flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV,
        wakeup,
        ..PerfEventAttr::default()
    };
    open(&attributes, 0, cpu)
}

fn open(attributes: &PerfEventAttr, tid: i32, cpu: u32) -> io::Result<OwnedFd> {
    let none: libc::c_int = -1;
    let attributes: *const PerfEventAttr = attributes;
    // SAFETY: the kernel only reads the struct, whose size it contains. A returned descriptor is
    // owned by nobody else.
    unsafe {
        let number = libc::SYS_perf_event_open;
        let fd = libc::syscall(number, attributes, tid, cpu, none, FLAG_FD_CLOEXEC);
        match fd {
            0.. => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Makes an event write to the ring of another one.
pub(crate) fn redirect(event: &OwnedFd, ring: &OwnedFd) -> io::Result<()> {
    // SAFETY: this request takes a descriptor, and no pointers.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_OUTPUT as _, ring.as_raw_fd()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the id by which records refer to an event.
pub(crate) fn id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: the kernel writes a word to `id`.
    match unsafe { libc::ioctl(event.as_raw_fd(), IOC_ID as _, &raw mut id) } {
        0 => Ok(id),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the count of an event in ns, including the events inherited from it.
pub(crate) fn value(event: &OwnedFd) -> io::Result<u64> {
    let mut word = 0u64;
    // SAFETY: `word` is writable for the given size.
    let read = unsafe { libc::read(event.as_raw_fd(), (&raw mut word).cast(), size_of::<u64>()) };
    match read {
        8 => Ok(word),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_the_size_of_the_kernels_struct() {
        assert_eq!(size_of::<PerfEventAttr>(), 104);
    }
}
