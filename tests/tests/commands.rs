//! The commands of the guide, as they stand there: each is performed here and shows what it should,
//! or is listed with the reason why it is not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Group, Outcome, Package, Scratch, Session, artifacts, run, wait};

/// Commands and what each prints, or writes into the file that it names with `-o`.
type Performed = &'static [(&'static str, &'static str)];

/// On the machine that it was built on.
const INSTALLING: Performed = &[
    (
        "install -m 755 target/release/mem_profiler target/release/mem_parser /usr/local/bin/",
        "",
    ),
    (
        "install -m 755 target/release/libmem_agent.so /usr/local/lib/",
        "",
    ),
    (
        "mem_profiler completions bash > /etc/bash_completion.d/mem_profiler",
        "",
    ),
    (
        "mkdir -p /usr/local/share/man/man1 && mem_profiler man /usr/local/share/man/man1",
        "",
    ),
];

/// A redis-server that runs, and a server that leaks.
const SESSIONS: Performed = &[
    ("mem_profiler list", "redis-server"),
    (
        "mem_profiler -s 5 -c 1024 -o /tmp/prof_ -p redis-server",
        "succeeded",
    ),
    ("mem_profiler -s 1 -p 'serv*' -p 'redis*' -o m_", "PROCESS"),
    ("mem_profiler why -p redis-server", "live heap"),
    ("mem_profiler -s 60 -p 18140 -o /tmp/prof_", "succeeded"),
    (
        "mem_parser -p /proc/18140/root/usr/bin/redis-server -f /tmp/prof_redis-server.18140.0001.heap -t",
        "File: redis-server",
    ),
    (
        "mem_profiler run --peak --every-growth 20M -o trig_ -- env PYTHONMALLOC=malloc /usr/bin/python3 grow.py",
        "high-water mark",
    ),
    (
        "mem_profiler -s 8 -c 256 --max-overhead 1% -o gov_ -p server",
        "succeeded",
    ),
    (
        "mem_parser -p ./server -f gov_server.19893.0001.heap -t -n 3",
        "open_session",
    ),
    (
        "mem_parser --rss -f rss_server.17618.0001.heap",
        "Resident memory",
    ),
];

/// In a session without an end.
const WITHIN: Performed = &[
    ("mem_profiler leaks -p server", "lost in"),
    (
        "mem_profiler leaks -p server --path open_session",
        "variable sessions",
    ),
    ("mem_profiler dump -p 20028 -o snap_", "snap_server"),
    ("mem_profiler stop -p 20028 -o last_", "last_server"),
];

/// On dumps of redis-server.
const REDIS: Performed = &[
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap -t -n 8",
        "flat%",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap -s -o out.svg",
        "zmalloc",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --flame -o flame.svg",
        "zmalloc",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --diff_base early.heap --flame -o change.svg",
        "setTypeAdd",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --html -o page.html",
        "</html>",
    ),
    (
        "mem_parser -p /usr/bin/redis-server -f redis.heap --peek '^dictAdd$'",
        "zsetAdd",
    ),
    (
        "mem_parser redis.heap --sizes -n 2 --hide '^z(m|c|re)alloc'",
        "16-31 B",
    ),
    (
        "mem_parser redis.heap --threads --hide '^z(m|c|re)alloc'",
        "redis-server\n",
    ),
    (
        "mem_parser redis.heap --temporary -n 4 --hide '^z(m|c|re)alloc'",
        "short-lived",
    ),
];

/// On a series of dumps of the server.
const SERVER: Performed = &[
    (
        "mem_profiler -s 11 --every 2s -o leak_ -p server",
        ".0006.heap",
    ),
    (
        "mem_parser --timeline -p ./server -f leak_server.12476.0006.heap",
        "Live: ",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --tree -n 3",
        "open_session",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --traces",
        "open_session",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --list open_session --source_path .",
        "12:}",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --folded",
        ";open_session",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --proto -o server.pb.gz",
        "",
    ),
    (
        "go tool pprof -top -nodecount=2 server.pb.gz",
        "open_session",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --callgrind",
        "events: inuse_space",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --dot",
        "digraph",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --csv",
        "open_session,",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --json | head -c 420",
        "\"version\":1",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --raw",
        "Period: 1024",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --symbolize -o whole.heap",
        "open_session",
    ),
    ("mem_parser -f whole.heap -t -n 1", "top 1 nodes"),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap --base leak_server.4849.0001.heap -t -n 6",
        "open_session",
    ),
    (
        "mem_parser -p ./server --leaks -n 2 -f leak_server.4849.*.heap",
        "server.cpp:1",
    ),
    (
        "mem_parser -p ./server -f leak_server.4849.0006.heap -t --ci -n 2",
        "±",
    ),
];

/// After a job was started that is killed.
const POST_MORTEM: Performed = &[
    ("kill -9 29621", ""),
    ("mem_profiler recover -o post_", "ended during the session"),
];

/// A package that was copied to a board.
const UNPACKING: Performed = &[
    ("tar -xJf mem-profiler-0.1.0-aarch64.tar.xz", ""),
    (
        "xz -dc mem-profiler-0.1.0-aarch64.tar.xz | gzip -9 > mem-profiler.tar.gz",
        "",
    ),
    ("sha256sum /opt/mem-profiler.tar.gz", "mem-profiler.tar.gz"),
    (
        "tar -xJf mem-profiler-0.1.0-aarch64.tar.xz -C /opt && mv /opt/mem-profiler-0.1.0-aarch64 /opt/mem-profiler",
        "",
    ),
    (
        ". /opt/mem-profiler/setup.bash && mem_profiler --version",
        "mem_profiler 0",
    ),
    (
        ". /opt/mem-profiler/setup.bash && use_mem_agent planner 'lidar*'",
        "planner:lidar* will carry",
    ),
];

/// On a module that leaks.
const BOARD: Performed = &[
    ("grep VmRSS /proc/$(pidof planner)/status", "VmRSS"),
    ("mem_profiler why -p planner", "live heap"),
    (
        "mem_profiler top --once --sort growth -p planner",
        "Tracker::update",
    ),
    (
        "mem_profiler top --once --sort growth --filter Tracker -p planner",
        "Tracker::predict",
    ),
    (
        "mem_parser -t -n 20 prof_planner.13458.0001.heap",
        "Tracker::update",
    ),
    (
        "mem_parser -t -f prof_planner.13458.0001.heap --symbol-path /srv/board-root",
        "Tracker::update",
    ),
    (
        "/opt/mem-profiler/share/mem-profiler/collect.bash -s 20 -e 4s -p planner -o /tmp",
        "/tmp/mem-profiler-",
    ),
    (
        "tar -xzf /tmp/mem-profiler-vm-20261122-132622.tar.gz && head -n 12 mem-profiler-*/reports/*.leaks.txt",
        "planner.cpp:24 in Tracker::predict",
    ),
];

/// Commands that stay in the background.
const BACKGROUND: &[&str] = &[
    "LD_PRELOAD=/usr/local/lib/libmem_agent.so redis-server --port 7000 &",
    "MEM_PROFILER_START=1 LD_PRELOAD=/usr/local/lib/libmem_agent.so PYTHONMALLOC=malloc python3 job.py &",
];

const LEAKS: &str = "tests/tests/leak_check.rs does it";
const HUNT: &str =
    "the leak hunt: tests/hunt.rs performs it on ujson; the other programs are built for minutes";
const LINE: &str = "needs a board, or a serial line to one";
const PACKAGE: &str =
    "needs a package, which takes deploy/build ten minutes; deploy/smoke-old tries it";

/// Commands that are not performed here, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    ("deploy/build", PACKAGE),
    ("dpkg -i mem-profiler-0.1.0-aarch64.deb", PACKAGE),
    (
        "mem_profiler top -p server",
        "takes keys from a terminal: controller/tests/views.rs has one",
    ),
    (
        "docker run -v /usr/local/lib/libmem_agent.so:/opt/libmem_agent.so:ro -e LD_PRELOAD=/opt/libmem_agent.so IMAGE",
        "needs a container daemon; tests/crossing.rs has processes in other namespaces",
    ),
    (
        "scp mem-profiler-0.1.0-aarch64.tar.xz root@board:/opt/",
        LINE,
    ),
    ("cp mem-profiler-0.1.0-aarch64.tar.xz /media/usb/", LINE),
    ("base64 mem-profiler.tar.gz > /dev/ttyUSB0", LINE),
    (
        "stty -echo; base64 -d > /opt/mem-profiler.tar.gz; stty echo",
        LINE,
    ),
    (
        "mem_profiler -s 60 -c 1 -p server -o prof_ &",
        "a session that this test begins by itself",
    ),
    ("mem_profiler run --leak-check -- ./app", LEAKS),
    ("mem_profiler run --leak-check=draconian -- ./app", LEAKS),
    ("docs/hunt/install /tmp/hunt cpp && cd /tmp/hunt", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so ./aria2c --enable-rpc --rpc-listen-port=6801 --pause=true --no-conf -q &",
        HUNT,
    ),
    (
        "~/mem-profiler/docs/hunt/queue_downloads.py 6801 1000000 200 &",
        HUNT,
    ),
    ("ps -C aria2c -o rss=", HUNT),
    ("mem_profiler -s 20 --every 4s -o aria2_ -p aria2c", HUNT),
    ("mem_parser --leaks -n 1 aria2_*.heap", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so venv/bin/python ~/mem-profiler/docs/hunt/worker.py 1000000 100 &",
        HUNT,
    ),
    (
        "mem_profiler -s 10 --every 2s -o worker_ -p 'python3*'",
        HUNT,
    ),
    ("mem_parser --leaks -n 1 worker_*.heap", HUNT),
    (
        "LD_PRELOAD=/usr/local/lib/libmem_agent.so ./mini-redis-server --port 6805 &",
        HUNT,
    ),
    (
        "~/mem-profiler/docs/hunt/subscribe.py 6805 1000000 100 &",
        HUNT,
    ),
    (
        "mem_profiler -s 10 --every 2s -o redis_ -p mini-redis-server",
        HUNT,
    ),
    ("mem_parser --leaks -n 1 redis_*.heap", HUNT),
];

/// The commands in a guide's code blocks: lines of those marked `sh`, without comments, and lines
/// after a prompt.
fn commands(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name);
    let text = fs::read_to_string(path).expect("a guide");
    let (mut commands, mut block) = (Vec::new(), None);
    for line in text.lines().map(str::trim) {
        match (line.strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, Some("sh")) => {
                let command = line.split(" # ").next().unwrap_or(line).trim();
                let is_one = !command.is_empty() && !command.starts_with('#');
                commands.extend(is_one.then(|| command.to_owned()));
            }
            (None, Some(_)) => commands.extend(line.strip_prefix("$ ").map(str::to_owned)),
            (None, None) => {}
        }
    }
    commands
}

#[test]
fn both_languages_have_the_same_commands() {
    assert_eq!(commands("guide.md"), commands("guide.zh.md"));
}

#[test]
fn each_command_is_performed_or_listed_with_a_reason() {
    let guide = commands("guide.md");
    let guide: BTreeSet<&str> = guide.iter().map(String::as_str).collect();
    let scenes = [
        INSTALLING,
        SESSIONS,
        WITHIN,
        REDIS,
        SERVER,
        POST_MORTEM,
        UNPACKING,
        BOARD,
    ];
    let mut known: Vec<&str> = scenes
        .concat()
        .iter()
        .map(|(command, _)| *command)
        .collect();
    known.extend(BACKGROUND);
    known.extend(ELSEWHERE.iter().map(|(command, _)| command));
    let count = known.len();
    let known: BTreeSet<&str> = known.into_iter().collect();
    assert_eq!(known.len(), count, "none is listed twice");
    let new: Vec<_> = guide.difference(&known).collect();
    assert!(new.is_empty(), "not listed in this test: {new:#?}");
    let gone: Vec<_> = known.difference(&guide).collect();
    assert!(gone.is_empty(), "not in the guide: {gone:#?}");
}

/// A machine as the guide has it, below one directory.
struct Stage {
    scratch: Scratch,
    port: String,
    groups: Vec<Group>,
    /// What stands in the guide, and what is here in its place; the later ones first.
    names: Vec<(&'static str, String)>,
}

impl Stage {
    fn new() -> Self {
        let scratch = Scratch::new();
        for directory in [
            "usr/local/bin",
            "usr/local/lib",
            "etc/bash_completion.d",
            "tmp",
            "opt",
            "srv/board-root",
        ] {
            fs::create_dir_all(scratch.file(directory)).expect("a new directory");
        }
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        for source in ["server.cpp", "planner.cpp"] {
            fs::copy(docs.join("pictures").join(source), scratch.file(source)).expect("a source");
        }
        for (name, script) in [
            (
                "grow.py",
                "import time\nkeep = []\nfor _ in range(60):\n    keep.append([bytes(1000) for _ in range(1000)])\n    time.sleep(0.02)\n",
            ),
            (
                "job.py",
                "import time\nkeep = [bytes(1000) for _ in range(20000)]\ntime.sleep(1000)\n",
            ),
        ] {
            fs::write(scratch.file(name), script).expect("a script");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener
            .local_addr()
            .expect("an address")
            .port()
            .to_string();
        let files = scratch.files().to_str().expect("a path of ours");
        let at = |path: &str| format!("{files}{path}");
        let release = artifacts::profiler();
        let release = release
            .parent()
            .and_then(Path::to_str)
            .expect("a directory");
        let names = vec![
            ("target/release", release.to_owned()),
            ("/usr/local/", at("/usr/local/")),
            ("/etc/", at("/etc/")),
            ("/tmp", at("/tmp")),
            ("/opt", at("/opt")),
            ("/srv", at("/srv")),
            ("vm-20261122-132622", "*".to_owned()),
            ("-s 20 -e 4s", "-s 3 -e 500ms".to_owned()),
            ("--port 7000", format!("--port {port}")),
            ("-s 11 --every 2s", "-s 4 --every 250ms".to_owned()),
            ("-s 5 ", "-s 1 ".to_owned()),
            ("-s 60 ", "-s 1 ".to_owned()),
            ("-s 8 ", "-s 1 ".to_owned()),
        ];
        let groups = Vec::new();
        Self {
            scratch,
            port,
            groups,
            names,
        }
    }

    /// A shell at this place, with what was installed here in its path.
    fn shell(&self, command: &str, more: &str) -> Command {
        // Marks first, so that nothing stands for two things.
        let mut line = command.to_owned();
        for (n, (there, _)) in self.names.iter().enumerate() {
            line = line.replace(there, &format!("\u{1}{n}\u{2}"));
        }
        for (n, (_, here)) in self.names.iter().enumerate() {
            line = line.replace(&format!("\u{1}{n}\u{2}"), here);
        }
        let path = std::env::var("PATH").expect("a path");
        let path = format!("{}:{path}", self.scratch.file("usr/local/bin").display());
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &(line + more)])
            .env("PATH", path)
            .env("MEM_PROFILER_DIR", self.scratch.shared())
            .current_dir(self.scratch.files())
            .stdin(Stdio::null());
        shell
    }

    /// Runs a line that ends in `&`, and gives the number of what it started.
    fn start(&mut self, line: &str) -> String {
        let file = self.scratch.file("started");
        let _ = fs::remove_file(&file);
        let note = "\necho $! >started.part && mv started.part started";
        let mut shell = self.shell(line, note);
        self.groups.push(Group::start(
            shell.stdout(Stdio::null()).stderr(Stdio::null()),
        ));
        let pid = wait::until("a shell", || fs::read_to_string(&file).ok());
        pid.trim().to_owned()
    }

    fn is_listed(&self, pid: &str, state: &str) {
        wait::until("the agent", || {
            let list = run(self.scratch.profiler().arg("list")).stdout;
            let row = |line: &str| line.contains(pid) && line.contains(state);
            list.lines().any(row).then_some(())
        });
    }

    fn perform(&self, scene: Performed) {
        for (command, shows) in scene {
            let outcome = run(&mut self.shell(command, ""));
            assert_eq!(outcome.code, Some(0), "{command}: {outcome:?}");
            let shown = self.shown(command, &outcome);
            assert!(
                shown.contains(shows),
                "{command}: no {shows:?} in {outcome:?}"
            );
        }
    }

    /// What a command printed, and the file that it wrote if that is text.
    fn shown(&self, command: &str, outcome: &Outcome) -> String {
        let file = command.split(" -o ").nth(1).unwrap_or_default();
        let file = self
            .scratch
            .file(file.split(' ').next().unwrap_or_default());
        let written = fs::read_to_string(file).unwrap_or_default();
        format!("{}{}{written}", outcome.stdout, outcome.stderr)
    }

    /// Compiles a program from its source beside it.
    fn compile(&self, name: &str) {
        let here = |name: &str| self.scratch.file(name).display().to_string();
        let (program, source) = (here(name), here(&format!("{name}.cpp")));
        tool("g++", ["-O2", "-g", "-o", &program, &source]);
    }

    /// A package's file, with the programs under test.
    fn pack(&self) {
        let name = "mem-profiler-0.1.0-aarch64";
        Package::unpack(&self.scratch, name);
        // Links become what they lead to.
        let line = format!("tar -ch {name} | xz -0 >{name}.tar.xz && rm -r {name}");
        assert_eq!(run(&mut self.shell(&line, "")).code, Some(0));
        fs::write(self.scratch.file("opt/mem-profiler.tar.gz"), "received").expect("a file");
    }

    fn start_planner(&mut self) {
        self.compile("planner");
        let line = ". /opt/mem-profiler/setup.bash && use_mem_agent planner && exec ./planner &";
        let pid = self.start(line);
        self.is_listed(&pid, "idle");
        let program = self.scratch.file("planner");
        fs::copy(program, self.scratch.file("srv/board-root/planner")).expect("a copy");
        self.names.push(("$(pidof planner)", pid.clone()));
        self.names.push(("13458", pid));
        let dumped = run(&mut self.shell("mem_profiler -s 1 -o prof_ -p planner", ""));
        assert_eq!(dumped.code, Some(0), "{dumped:?}");
    }

    fn start_servers(&mut self) {
        let redis = self.start(BACKGROUND[0]);
        self.is_listed(&redis, "idle");
        self.compile("server");
        let server = self.start("LD_PRELOAD=/usr/local/lib/libmem_agent.so ./server &");
        self.is_listed(&server, "idle");
        self.names.push(("18140", redis));
        for pid in ["4849", "12476", "20028", "17618", "19893"] {
            self.names.push((pid, server.clone()));
        }
    }

    fn pid(&self, in_guide: &str) -> u32 {
        let (_, pid) = self
            .names
            .iter()
            .find(|(name, _)| *name == in_guide)
            .expect("a pid");
        pid.parse().expect("a number")
    }

    /// early.heap and redis.heap, of one session.
    fn profile_redis(&self) {
        let pid = self.pid("18140");
        let session = Session::of(&self.scratch, pid, "64");
        for (load, name) in [("set", "early.heap"), ("hset,zadd,sadd", "redis.heap")] {
            let load = [
                "-p", &self.port, "-q", "-n", "4000", "-r", "2000", "-t", load,
            ];
            tool("redis-benchmark", load);
            let dumped =
                run(self
                    .scratch
                    .profiler()
                    .args(["dump", "-o", "once_", "-p", &pid.to_string()]));
            fs::rename(
                self.scratch.files().join(dumped.dump()),
                self.scratch.file(name),
            )
            .expect("a dump");
        }
        assert_eq!(session.stop().code, Some(0));
    }

    /// A dump of the server with a prefix.
    fn profile_server(&self, prefix: &str) -> PathBuf {
        let pid = self.pid("17618").to_string();
        run(self
            .scratch
            .profiler()
            .args(["-s", "0.3", "-o", prefix, "-p", &pid]))
        .dump()
    }
}

#[test]
fn each_command_does_what_the_guide_shows() {
    let mut stage = Stage::new();
    stage.perform(INSTALLING);
    for made in [
        "etc/bash_completion.d/mem_profiler",
        "usr/local/share/man/man1/mem_profiler.1",
    ] {
        assert!(
            fs::metadata(stage.scratch.file(made)).is_ok_and(|file| file.len() > 0),
            "{made}"
        );
    }
    stage.start_servers();
    stage.profile_server("rss_");
    stage.perform(SESSIONS);
    let session = Session::of(&stage.scratch, stage.pid("20028"), "1024");
    // It loses a session of its users once it has a thousand.
    wait::until("something lost", || {
        let leaks = run(&mut stage.shell("mem_profiler leaks -p server", ""));
        leaks.stdout.contains("lost in").then_some(())
    });
    stage.perform(WITHIN);
    assert_eq!(session.wait().code, Some(0));
    stage.profile_redis();
    stage.perform(REDIS);
    stage.perform(SERVER);
    let job = stage.start(BACKGROUND[1]);
    stage.is_listed(&job, "sampling");
    stage.names.push(("29621", job));
    stage.perform(POST_MORTEM);
    stage.pack();
    stage.perform(UNPACKING);
    stage.start_planner();
    stage.perform(BOARD);
}
