//! Comparison with framehop, on registers and stacks that the kernel copied from programs without
//! frame pointers. Both unwinders get the same copy, and nothing beyond its end is read.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection};
use profile::maps::Entry;

use super::opening::best_allowed_config;
use crate::copies::MAX_STACK_BYTES;
use crate::event::{self, Counted, EventConfig};
use crate::memory::Copied;
use crate::record::{self, Record};
use crate::registers::LiveRegisters;
use crate::rings;
use crate::running::Running;
use crate::space::Space;
use crate::walk::{MAX_FRAMES, Unwinder};

/// Number of samples of each program.
const SAMPLES: usize = 1000;
/// Maximum time until a program has used enough CPU time.
const TIMEOUT: Duration = Duration::from_secs(120);
const PERIOD_NS: u64 = 1_000_000;

/// Registers and stack of a sample.
struct Dump {
    live: LiveRegisters,
    stack: Vec<u8>,
}

/// Starts a program without output.
fn start(command: &mut Command) -> Running {
    Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Samples the program until there are enough samples, and leaves it stopped.
fn dumps(program: &Running) -> Vec<Dump> {
    let numbers = proc::processors();
    let config = EventConfig {
        counted: Counted::Time,
        period: PERIOD_NS,
        rate: None,
        stack_bytes: MAX_STACK_BYTES,
        wakes_per_sample: true,
        kernel: true,
        clock: false,
        children: false,
        threads_only: true,
        from_exec: false,
    };
    let config = best_allowed_config(config, &numbers).expect("perf events");
    let processors = rings::processors(&numbers).expect("rings");
    let mut events = Vec::new();
    for processor in &processors {
        for tid in proc::threads(program.pid()) {
            let event = config.open(tid, processor.number).expect("an event");
            event::redirect(&event, &processor.owner).expect("a ring for it");
            events.push(event);
        }
    }
    let begun = Instant::now();
    let mut found = Vec::new();
    let mut executed = 0;
    while found.len() < SAMPLES {
        assert!(begun.elapsed() < TIMEOUT, "{} samples", found.len());
        let mut descriptors: Vec<libc::pollfd> = (processors.iter())
            .map(|processor| libc::pollfd {
                fd: processor.owner.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        let count = descriptors.len() as libc::nfds_t;
        // SAFETY: `descriptors` has `count` entries.
        unsafe { libc::poll(descriptors.as_mut_ptr(), count, 1000) };
        for processor in &processors {
            let mut bytes = Vec::new();
            processor.ring.take(&mut bytes);
            let ends = [bytes.len()];
            for (time, _, record) in record::parse_all(&bytes, &ends, &|_| config.sample_type()) {
                match record {
                    Record::Sample(sample) => found.extend(sample.registers.map(|live| {
                        let stack = sample.stack.to_vec();
                        (time, Dump { live, stack })
                    })),
                    Record::Exec { .. } => executed = executed.max(time),
                    _ => {}
                }
            }
            found.retain(|(time, _)| *time > executed);
        }
    }
    let mut status = 0;
    // SAFETY: the pid is that of our child, which nothing else reaps, and `status` is writable.
    let stopped = unsafe {
        libc::kill(program.pid(), libc::SIGSTOP);
        libc::waitpid(program.pid(), &raw mut status, libc::WUNTRACED)
    };
    assert_eq!(stopped, program.pid());
    assert!(libc::WIFSTOPPED(status), "it has ended: {status:x}");
    found.into_iter().map(|(_, dump)| dump).collect()
}

type Bytes = Rc<[u8]>;

/// framehop, with all modules that a process has mapped.
struct Peer {
    unwinder: UnwinderX86_64<Bytes>,
    cache: CacheX86_64,
}

impl Peer {
    fn of(pid: i32) -> Self {
        let mut unwinder = UnwinderX86_64::new();
        let text = proc::maps(pid).expect("a process that is there");
        for entry in Entry::all(&text) {
            if entry.permissions.contains(&b'x')
                && let Some(module) = module(pid, &entry)
            {
                unwinder.add_module(module);
            }
        }
        Self {
            unwinder,
            cache: CacheX86_64::new(),
        }
    }

    /// Returns the addresses of a stack. Framehop does not distinguish the end of a stack from an
    /// unreadable word.
    fn walk(&mut self, dump: &Dump) -> Vec<u64> {
        let at = dump.live.unwind_registers();
        let pc = dump.live.pc();
        let low = at.sp;
        let mut read = |address: u64| {
            let offset = address.checked_sub(low).ok_or(())?;
            let bytes = usize::try_from(offset).ok();
            let bytes = bytes.and_then(|offset| dump.stack.get(offset..offset.checked_add(8)?));
            let word = bytes.and_then(|bytes| bytes.try_into().ok());
            word.map(u64::from_ne_bytes).ok_or(())
        };
        let mut registers = UnwindRegsX86_64::new(pc, at.sp, at.fp);
        let mut address = FrameAddress::from_instruction_pointer(pc);
        let mut frames = vec![pc];
        while frames.len() < MAX_FRAMES {
            let unwinder = &self.unwinder;
            let cache = &mut self.cache;
            let step = unwinder.unwind_frame(address, &mut registers, cache, &mut read);
            let Some(ip) = step.ok().flatten() else {
                break;
            };
            match FrameAddress::from_return_address(ip) {
                Some(next) => address = next,
                None => break,
            }
            frames.push(ip);
        }
        frames
    }
}

/// Returns the module of a mapping, with its sections.
fn module(pid: i32, entry: &Entry<'_>) -> Option<Module<Bytes>> {
    let name = String::from_utf8_lossy(entry.path).into_owned();
    let bytes = match &*name {
        "[vdso]" => {
            let mut bytes = vec![0; (entry.end - entry.start) as usize];
            capture::read_memory(pid, entry.start, &mut bytes);
            bytes
        }
        _ if entry.inode == 0 => return None,
        _ => {
            let inside = format!("/proc/{pid}/map_files/{:x}-{:x}", entry.start, entry.end);
            fs::read(inside).or_else(|_| fs::read(&name)).ok()?
        }
    };
    let data = &*bytes;
    let elf = ElfFile64::<LittleEndian>::parse(data).ok()?;
    let headers = elf.elf_header().program_headers(LittleEndian, data).ok()?;
    let code = headers.iter().find(|header| {
        let offset = header.p_offset(LittleEndian);
        header.p_type(LittleEndian) == object::elf::PT_LOAD
            && header.p_flags(LittleEndian) & object::elf::PF_X != 0
            && offset & !4095 <= entry.file_offset
            && entry.file_offset < offset + header.p_filesz(LittleEndian)
    })?;
    let address = code.p_vaddr(LittleEndian) + entry.file_offset - code.p_offset(LittleEndian);
    let section = |name: &str| {
        let section = elf.section_by_name(name)?;
        let range = section.address()..section.address() + section.size();
        Some((range, section.data().ok()?.into()))
    };
    let range = |name: &str| section(name).map(|(range, _): (_, Bytes)| range);
    let data = |name: &str| section(name).map(|(_, data)| data);
    let sections = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: range(".text"),
        text: data(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        ..Default::default()
    };
    let bias = entry.start.wrapping_sub(address);
    Some(Module::new(name, entry.start..entry.end, bias, sections))
}

/// Difference between two stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// No difference.
    Equal,
    /// Ours is complete; framehop's is a prefix of it. Framehop follows only the three registers
    /// that nearly all functions need, but for example `_dl_runtime_resolve` needs another one.
    Longer,
    /// Ours is complete; framehop's deviates, and ends at an address where no complete stack ends.
    PeerWrong,
    /// Neither is known to be right.
    Unknown,
}

/// Compares our stack with framehop's. `ends` are the outermost addresses of complete stacks.
fn judge(ours: &[u64], is_whole: bool, theirs: &[u64], ends: &HashSet<u64>) -> Verdict {
    if ours == theirs {
        Verdict::Equal
    } else if is_whole && ours.starts_with(theirs) {
        Verdict::Longer
    } else if is_whole && theirs.last().is_none_or(|end| !ends.contains(end)) {
        Verdict::PeerWrong
    } else {
        Verdict::Unknown
    }
}

/// Unwinds all copies of the program's stacks with both. At least 99 in 100 stacks must be equal.
/// Of the others, ours must be the better one, except for two in a thousand, since the result in
/// code without tables is a matter of luck. Returns how many of ours are complete.
fn compare(program: &Running) -> usize {
    let dumps = dumps(program);
    let mut peer = Peer::of(program.pid());
    let mut space = Space::of(program.pid());
    let mut unwinder = Unwinder::default();
    let pairs = dumps.iter().map(|dump| {
        let mut memory = Copied::new(dump.live.unwind_registers().sp, &dump.stack);
        let walked = unwinder.walk(&mut space, &dump.live, &mut memory);
        let mut ours: Vec<u64> = walked.frames.iter().map(|frame| frame.ip).collect();
        // Framehop reports the pc itself.
        ours[0] = dump.live.pc();
        (ours, walked.cut.is_none(), peer.walk(dump))
    });
    let pairs: Vec<_> = pairs.collect();
    let whole = pairs.iter().filter(|(_, is_whole, _)| *is_whole);
    let ends: HashSet<u64> = (whole.clone())
        .filter_map(|(ours, _, theirs)| ours.last().filter(|_| ours == theirs).copied())
        .collect();
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for (ours, is_whole, theirs) in &pairs {
        let verdict = judge(ours, *is_whole, theirs, &ends);
        if verdict != Verdict::Equal {
            println!("{verdict:?}:\n  ours     {ours:x?}\n  framehop {theirs:x?}");
        }
        *counts.entry(verdict).or_default() += 1;
    }
    let count = |verdict| counts.get(&verdict).copied().unwrap_or(0);
    println!("{counts:?}, {} whole", whole.clone().count());
    assert!(
        count(Verdict::Equal) * 100 >= 99 * pairs.len(),
        "{counts:?}"
    );
    assert!(count(Verdict::Unknown) * 500 <= pairs.len(), "{counts:?}");
    whole.count()
}

/// Like [`compare`], for programs whose stacks are shorter than what the kernel copies.
fn compare_whole(program: &Running) {
    let whole = compare(program);
    assert!(
        whole * 100 >= 99 * SAMPLES,
        "{whole} of {SAMPLES} are whole"
    );
}

fn run(command: &mut Command) {
    assert!(
        command.status().expect("a compiler").success(),
        "{command:?}"
    );
}

const PYTHON: &str = "
import json, re
while True:
    text = json.dumps({str(i): [i, {'k': i}] for i in range(2000)})
    sorted(json.loads(text), key=lambda k: re.sub('1+', 'x', k))
";

#[test]
fn framehop_agrees_on_python() {
    let mut command = Command::new("/usr/bin/python3");
    compare_whole(&start(command.args(["-c", PYTHON])));
}

#[test]
fn framehop_agrees_on_redis() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--unixsocket"]);
    command.arg(&socket).arg("--dir").arg(directory.path());
    let server = start(&mut command);
    let begun = Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed() < TIMEOUT, "no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut load = Command::new("redis-benchmark");
    load.args(["-l", "-q", "-r", "100000", "-t"]);
    load.args(["set,get,lpush,lrange_100,zadd", "-s"]);
    let _load = start(load.arg(&socket));
    compare_whole(&server);
}

const CPP: &str = "
#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <random>
#include <regex>
bool is_it(const std::string &text) { return std::regex_match(text, std::regex(\"a+b*\")); }
";

/// g++'s compiler proper, on a file that keeps it busy for several seconds.
#[test]
fn framehop_agrees_on_cc1plus() {
    let directory = tempfile::tempdir().expect("a directory");
    let [source, input] = ["a.cpp", "a.ii"].map(|name| directory.path().join(name));
    fs::write(&source, CPP).expect("a file");
    let mut command = Command::new("g++");
    run(command
        .args(["-std=c++20", "-E", "-o"])
        .arg(&input)
        .arg(source));
    let output = Command::new("g++").arg("-print-prog-name=cc1plus").output();
    let path = String::from_utf8(output.expect("g++").stdout).expect("a path");
    let mut command = Command::new(path.trim());
    command.args(["-fpreprocessed", "-std=c++20", "-quiet", "-O2", "-o"]);
    compare_whole(&start(command.arg("/dev/null").arg(input)));
}

const RUST: &str = r#"
use std::collections::{BTreeMap, HashMap};
fn count(words: &[String]) -> BTreeMap<String, usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    words.iter().for_each(|word| *counts.entry(word).or_default() += 1);
    counts.into_iter().map(|(word, n)| (format!("{word}:{n}"), n)).collect()
}
fn work() {
    for round in 0u64.. {
        let mut words: Vec<String> = (0..5000).map(|i| (i * round % 977).to_string()).collect();
        words.sort_by_key(|word| word.chars().rev().collect::<String>());
        std::hint::black_box(count(&words));
    }
}
fn main() {
    std::thread::spawn(work);
    work();
}
"#;

#[test]
fn framehop_agrees_on_a_program_in_rust() {
    let directory = tempfile::tempdir().expect("a directory");
    let [source, program] = ["a.rs", "a"].map(|name| directory.path().join(name));
    fs::write(&source, RUST).expect("a file");
    let mut command = Command::new("rustc");
    command.args(["--edition=2024", "-O", "-Cforce-frame-pointers=no", "-o"]);
    run(command.arg(&program).arg(source));
    compare_whole(&start(&mut Command::new(program)));
}

/// The compiler's stacks are larger than what the kernel copies: the copied parts are compared.
#[test]
fn framehop_agrees_on_rustc() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("a.rs");
    let functions = (0..20_000).map(|i| {
        format!(
            "pub fn f{i}(of: &[String]) -> Vec<String> {{
                 let mut all: Vec<_> = of.iter().map(|s| format!(\"{{s}}{i}\")).collect();
                 all.sort();
                 all
             }}\n"
        )
    });
    fs::write(&source, functions.collect::<String>()).expect("a file");
    let mut command = Command::new("rustc");
    command.args(["--crate-type=lib", "--emit=metadata", "--out-dir"]);
    compare(&start(command.arg(directory.path()).arg(source)));
}
