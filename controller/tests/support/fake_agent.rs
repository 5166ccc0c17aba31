//! Process that maintains a segment as the agent does, with samples whose sums tests know. Can be
//! made to misbehave:
//!
//! `fake_agent [silent | version N | truncate | corrupt | exit-after MS | stacks N |
//! called NAME | holds FILE]`

use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use shm_protocol::bank::{Bank, Geometry};
use shm_protocol::clock::{now_ns, tick_of};
use shm_protocol::layout::{
    ABI_VERSION, Control, HEADER_BYTES, IDENTITY_OFFSET, Identity, MAGIC, STATUS_OFFSET, Status,
};
use shm_protocol::record::{FreeSample, NewSample, RecordKey};
use shm_protocol::tree::{PathNode, ROOT};

const BYTES: usize = 64 << 20;

/// A mapped segment.
struct Mapping {
    base: *mut u8,
}

fn main() {
    let arguments = std::env::args_os().skip(1);
    let arguments: Vec<String> = arguments.filter_map(|a| a.into_string().ok()).collect();
    let mode = arguments.first().map_or("", String::as_str);
    let number = |at: usize| {
        arguments
            .get(at)
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let version = if mode == "version" {
        number(1) as u32
    } else {
        ABI_VERSION
    };
    if mode == "holds" {
        return hold(std::path::Path::new(&arguments[1]));
    }
    let (path, mapping) = make(version);
    let end = (mode == "exit-after").then(|| Instant::now() + Duration::from_millis(number(1)));
    match mode {
        "truncate" => drop(
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(4096),
        ),
        "called" => {
            let name = std::ffi::CString::new(arguments[1].clone()).unwrap();
            // SAFETY: the name is NUL-terminated.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        }
        "corrupt" => std::fs::write(&path, vec![0xa5; BYTES]).unwrap(),
        _ => {}
    }
    // The parent waits for this line.
    println!("ready");
    let mut threads_seen = 0;
    while end.is_none_or(|end| Instant::now() < end) {
        match mode {
            "truncate" | "corrupt" | "version" => std::thread::sleep(Duration::from_millis(5)),
            "silent" => burn(Duration::from_millis(5)),
            "stacks" => count_many(&mapping, number(1)),
            _ => count(&mapping, &mut threads_seen),
        }
    }
    status(&mapping).exited.store(1, Release);
}

/// Maps a file until this process is killed.
fn hold(path: &std::path::Path) {
    use std::os::fd::AsRawFd;
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).open(path).unwrap();
    // Maps the file for writing, as an agent maps its segment.
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED;
    // SAFETY: the kernel chooses a free range for a new mapping of an open file.
    let base = unsafe {
        let fd = file.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), 4096, protection, flags, fd, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    println!("ready");
    loop {
        std::thread::park();
    }
}

fn make(version: u32) -> (std::path::PathBuf, Mapping) {
    let pid = std::process::id();
    // The process's name may contain any characters.
    let stat = std::fs::read("/proc/self/stat").unwrap();
    let stat = String::from_utf8_lossy(&stat);
    let fields = stat[stat.rfind(')').unwrap() + 2..]
        .split(' ')
        .collect::<Vec<_>>();
    let start: u64 = fields[19].parse().unwrap();
    let dir = std::env::var_os("MEM_PROFILER_DIR").unwrap_or("/dev/shm".into());
    let path = std::path::Path::new(&dir).join(format!("mem_profiler.{pid}.{start}.0"));
    let mapping = create(&path);
    let exe = std::env::current_exe()
        .unwrap()
        .into_os_string()
        .into_encoded_bytes();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot: Vec<u8> = boot.bytes().filter(u8::is_ascii_hexdigit).collect();
    let write_field = |field: usize, bytes: &[u8]| {
        // SAFETY: the identity page is mapped and ours alone until the magic is stored.
        unsafe {
            let field_address = mapping.base.add(IDENTITY_OFFSET + field);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), field_address, bytes.len());
        }
    };
    write_field(offset_of!(Identity, abi_version), &version.to_le_bytes());
    write_field(
        offset_of!(Identity, header_bytes),
        &(HEADER_BYTES as u32).to_le_bytes(),
    );
    write_field(
        offset_of!(Identity, segment_bytes),
        &(BYTES as u64).to_le_bytes(),
    );
    write_field(offset_of!(Identity, pid), &pid.to_le_bytes());
    write_field(offset_of!(Identity, start_time), &start.to_le_bytes());
    for (i, pair) in boot.chunks(2).enumerate() {
        let byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        write_field(offset_of!(Identity, boot_id) + i, &[byte]);
    }
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_str().unwrap();
    let namespace = namespace.trim_matches(|c: char| !c.is_ascii_digit());
    let namespace: u64 = namespace.parse().unwrap();
    write_field(
        offset_of!(Identity, pid_namespace),
        &namespace.to_le_bytes(),
    );
    write_field(offset_of!(Identity, created_ns), &now_ns().to_le_bytes());
    write_field(offset_of!(Identity, exe), &exe);
    write_field(
        offset_of!(Identity, exe_len),
        &(exe.len() as u32).to_le_bytes(),
    );
    write_field(offset_of!(Identity, agent_version), b"0.0.0-fake");
    write_field(offset_of!(Identity, magic), &MAGIC.to_le_bytes());
    (path, mapping)
}

fn create(path: &std::path::Path) -> Mapping {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .unwrap();
    file.set_len(BYTES as u64).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses a free range for a new mapping of an open file.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    Mapping { base: base.cast() }
}

fn control(mapping: &Mapping) -> &Control {
    // SAFETY: the segment is mapped until exit, and any bytes are valid for the page's atomics.
    unsafe { &*mapping.base.cast() }
}

fn status(mapping: &Mapping) -> &Status {
    // SAFETY: the segment is mapped until exit, and any bytes are valid for the page's atomics.
    unsafe { &*mapping.base.add(STATUS_OFFSET).cast() }
}

/// Counts an allocation of 1000 bytes on each of two stacks, and a free of one of them.
fn count(mapping: &Mapping, epoch_seen: &mut u32) {
    std::thread::sleep(Duration::from_millis(1));
    let control = control(mapping);
    let epoch = control.epoch(Acquire);
    if epoch == 0 {
        *epoch_seen = 0;
        return;
    }
    let params = control.params_of(epoch);
    let session = params.session.load(Relaxed);
    let deadline = params.deadline_ns.load(Relaxed);
    if deadline != 0 && now_ns() >= deadline {
        control.epoch.store(0, Release);
        status(mapping).ended_ns.store(now_ns(), Relaxed);
        status(mapping).ended_session.store(session, Release);
        return;
    }
    let geometry = Geometry::of_segment(BYTES);
    // SAFETY: the controller reserved the bank before it published the session.
    let bank = unsafe { Bank::at(mapping.base.add(geometry.bank_offset(session)), geometry) };
    if *epoch_seen != epoch {
        *epoch_seen = epoch;
        bank.header.counters.threads.fetch_add(1, Relaxed);
    }
    let tick = tick_of(now_ns()).wrapping_sub(tick_of(params.start_ns.load(Relaxed)));
    let born = NewSample {
        bytes: 1000,
        weight: 2.0,
        tick,
    };
    let limit = bank.node_limit();
    let Some(outer) = bank.tree.child(PathNode::root(ROOT), 0x40_1000, limit) else {
        return;
    };
    for leaf in [0x40_2000, 0x40_3000] {
        let Some(node) = bank.tree.child(outer, leaf, limit) else {
            return;
        };
        let record = bank.record_of(RecordKey::new(node.node, 9), 0);
        bank.count_new(record, 0, &born, true);
        if leaf == 0x40_3000 {
            bank.count_free(record, 0, &FreeSample { born, tick }, true);
        }
    }
}

/// Counts an allocation on each of `stacks` stacks of thirty frames.
fn count_many(mapping: &Mapping, stacks: u64) {
    std::thread::sleep(Duration::from_millis(20));
    let control = control(mapping);
    let epoch = control.epoch(Acquire);
    let params = control.params_of(epoch);
    let session = params.session.load(Relaxed);
    if epoch == 0 || session == 0 {
        return;
    }
    let geometry = Geometry::of_segment(BYTES);
    // SAFETY: the controller reserved the bank before it published the session.
    let bank = unsafe { Bank::at(mapping.base.add(geometry.bank_offset(session)), geometry) };
    let born = NewSample {
        bytes: 64,
        weight: 16.5,
        tick: 1,
    };
    for stack in 0..stacks {
        let frame = |depth: u64| 0x40_0000 + depth * 0x1_0000 + (stack >> depth.min(20)) % 4096;
        let mut node = PathNode::root(ROOT);
        for depth in (0..30).rev() {
            let Some(child) = bank.tree.child(node, frame(depth), bank.node_limit()) else {
                return;
            };
            node = child;
        }
        bank.count_new(
            bank.record_of(RecordKey::new(node.node, 6), 0),
            0,
            &born,
            true,
        );
    }
}

fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
