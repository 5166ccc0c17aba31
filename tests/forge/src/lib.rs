//! Forged segments, for tests of their readers.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use shm_protocol::layout::{
    ABI_VERSION, BankHeader, HEADER_BYTES, IDENTITY_OFFSET, Identity, MAGIC, Node, Record,
};
use shm_protocol::segment::{SegmentFile, Session};

/// Claims of a forged segment.
pub struct Forged {
    /// Pid and start time in the file name.
    pub named: (u32, u64),
    /// Pid and start time inside the segment.
    pub inside: (u32, u64),
    /// Inode of the pid namespace.
    pub namespace: u64,
    /// Creation time, in nanoseconds.
    pub created_ns: u64,
    /// Name of the process.
    pub comm: Vec<u8>,
    /// Path of the program.
    pub exe: Vec<u8>,
    /// Number of the program among those that the process has executed.
    pub image: u32,
    /// Size of the segment.
    pub bytes: usize,
}

/// Returns the start time of a process.
pub fn start_of(pid: u32) -> u64 {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat[stat.rfind(')').unwrap() + 2..].split(' ');
    fields.nth(19).unwrap().parse().unwrap()
}

/// Returns the inode of our pid namespace.
pub fn namespace() -> u64 {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let digits = link
        .to_str()
        .unwrap()
        .trim_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap()
}

impl Forged {
    /// Returns the claims that a process's own agent would make.
    pub fn of(pid: u32, start: u64) -> Self {
        Self {
            named: (pid, start),
            inside: (pid, start),
            namespace: namespace(),
            created_ns: shm_protocol::clock::now_ns(),
            comm: b"forged".to_vec(),
            exe: b"/usr/bin/forged".to_vec(),
            image: 7,
            bytes: 1 << 20,
        }
    }

    /// Returns the claims of a process that is gone.
    pub fn of_dead() -> Self {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let (pid, start) = (child.id(), start_of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        Self::of(pid, start)
    }

    /// Makes the file, sparse but for the identity.
    pub fn make(&self, dir: &Path) -> PathBuf {
        let (pid, start) = self.named;
        let path = dir.join(format!("mem_profiler.{pid}.{start}.{}", self.image));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap();
        file.set_len(self.bytes as u64).unwrap();
        let put = |field: usize, bytes: &[u8]| {
            let at = (IDENTITY_OFFSET + field) as u64;
            file.write_all_at(bytes, at).unwrap();
        };
        put(
            offset_of!(Identity, abi_version),
            &ABI_VERSION.to_le_bytes(),
        );
        let header = (HEADER_BYTES as u32).to_le_bytes();
        put(offset_of!(Identity, header_bytes), &header);
        let bytes = (self.bytes as u64).to_le_bytes();
        put(offset_of!(Identity, segment_bytes), &bytes);
        put(offset_of!(Identity, pid), &self.inside.0.to_le_bytes());
        put(
            offset_of!(Identity, start_time),
            &self.inside.1.to_le_bytes(),
        );
        put(
            offset_of!(Identity, pid_namespace),
            &self.namespace.to_le_bytes(),
        );
        put(
            offset_of!(Identity, created_ns),
            &self.created_ns.to_le_bytes(),
        );
        put(offset_of!(Identity, boot_id), &boot_id());
        put(offset_of!(Identity, comm), &self.comm);
        put(offset_of!(Identity, exe), &self.exe);
        let length = (self.exe.len() as u32).to_le_bytes();
        put(offset_of!(Identity, exe_len), &length);
        put(offset_of!(Identity, agent_version), b"0.0.0\x1b[31m\n");
        put(offset_of!(Identity, magic), &MAGIC.to_le_bytes());
        path
    }

    /// Creates the segment with a session of `stacks` stacks, all on one path of `depth` frames.
    pub fn make_with_stacks(&self, dir: &Path, stacks: u32, depth: u32) -> PathBuf {
        let path = self.make(dir);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let view = SegmentFile::new(file.as_raw_fd(), self.bytes as u64).unwrap();
        let session = Session {
            number: 1,
            interval: 1024,
            deadline_ns: 2,
            start_ns: shm_protocol::clock::now_ns(),
            start_unix_ns: shm_protocol::clock::unix_ns(),
            controller_pid: 0,
            range_limit: 0,
            thinning: 0,
            max_overhead: 0,
            cpu: Default::default(),
        };
        view.publish(&session).unwrap();
        let geometry = view.geometry();
        let base = geometry.bank_offset(1) as u64;
        let put = |at: usize, bytes: &[u8]| file.write_all_at(bytes, base + at as u64).unwrap();
        put(offset_of!(BankHeader, session), &1u64.to_le_bytes());
        put(offset_of!(BankHeader, reserved_step), &[u8::MAX]);
        put(offset_of!(BankHeader, node_count), &depth.to_le_bytes());
        put(offset_of!(BankHeader, record_count), &stacks.to_le_bytes());
        // Samples of the first shard: without any nobody would look further.
        put(
            offset_of!(BankHeader, totals),
            &u64::from(stacks).to_le_bytes(),
        );
        for node in 0..depth {
            let at = geometry.nodes_offset() + (node as usize + 2) * size_of::<Node>();
            let parent = if node == 0 { 0 } else { node + 1 };
            put(at, &(0x40_0000 + u64::from(node) * 16).to_le_bytes());
            put(at + offset_of!(Node, parent), &parent.to_le_bytes());
        }
        for stack in 0..stacks {
            let at = geometry.records_offset() + (stack as usize + 1) * size_of::<Record>();
            put(at, &(depth + 1 - stack).to_le_bytes());
            for field in [
                offset_of!(Record, alloc_samples),
                offset_of!(Record, alloc_objects),
            ] {
                put(at + field, &(1u64 << 20).to_le_bytes());
            }
            put(
                at + offset_of!(Record, alloc_bytes),
                &(1u64 << 30).to_le_bytes(),
            );
        }
        path
    }
}

fn boot_id() -> Vec<u8> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let id = shm_protocol::clock::parse_boot_id(text.as_bytes()).unwrap();
    id.to_vec()
}

/// Gives a file to a user who owns nothing else.
pub fn give_to_nobody(path: &Path) {
    std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
}

/// Returns true if tests may act as other users.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
