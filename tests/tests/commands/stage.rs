//! Machine as the guide describes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Group, Outcome, Package, Scratch, Session, artifacts, run, wait};

use crate::listed::{BACKGROUND, Performed};

/// A machine as the guide has it, below one directory.
pub struct Stage {
    pub scratch: Scratch,
    port: String,
    groups: Vec<Group>,
    /// What stands in the guide, and what is here in its place; the later ones first.
    pub names: Vec<(&'static str, String)>,
}

impl Stage {
    pub fn new() -> Self {
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
            ("-s 30 ", "-s 2 ".to_owned()),
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

    /// Returns a shell at this place, with what was installed here in its path.
    pub fn shell(&self, command: &str, more: &str) -> Command {
        // Marks first, so that nothing stands for two things.
        let mut line = command.to_owned();
        for (n, (there, _)) in self.names.iter().enumerate() {
            line = line.replace(there, &format!("\u{1}{n}\u{2}"));
        }
        for (n, (_, here)) in self.names.iter().enumerate() {
            line = line.replace(&format!("\u{1}{n}\u{2}"), here);
        }
        let path = std::env::var("PATH").expect("a path");
        // The guide's machine has no shims of version managers.
        let local = self.scratch.file("usr/local/bin");
        let path = format!("{}:/usr/bin:/bin:{path}", local.display());
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
    pub fn start(&mut self, line: &str) -> String {
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

    pub fn is_listed(&self, pid: &str, state: &str) {
        wait::until("the agent", || {
            let list = run(self.scratch.profiler().arg("list")).stdout;
            let row = |line: &str| line.contains(pid) && line.contains(state);
            list.lines().any(row).then_some(())
        });
    }

    pub fn perform(&self, scene: Performed) {
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

    /// Returns what a command printed, and the file that it wrote if that is text.
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

    /// Compiles `app`, which holds a mebibyte more if it is the newer build.
    fn build_app(&self, is_newer: bool) {
        let source = format!(
            "#include <stdlib.h>\n\
             static void use(void *memory) {{ asm volatile(\"\" : : \"r\"(memory) : \"memory\"); }}\n\
             __attribute__((noinline)) void grow_more() {{\n\
                 void *more = malloc(1 << 20);\n\
                 use(more), free(more);\n\
             }}\n\
             int main() {{\n\
                 void *first = malloc(1 << 16);\n\
                 if ({is_newer}) grow_more();\n\
                 use(first), free(first);\n\
             }}\n"
        );
        fs::write(self.scratch.file("app.cpp"), source).expect("a source");
        self.compile("app");
    }

    /// Builds the older `app`, writes its peak to base.heap, and builds the newer `app`.
    pub fn build_twice(&self) {
        self.build_app(false);
        let line =
            "mem_profiler run -c 1 --peak -o base_ -- ./app && mv base_app.*.0001.heap base.heap";
        let outcome = run(&mut self.shell(line, ""));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        self.build_app(true);
    }

    /// Makes the file of a package, with the programs under test.
    pub fn pack(&self) {
        let name = "mem-profiler-0.1.0-aarch64";
        Package::unpack(&self.scratch, name);
        // Links become what they lead to.
        let line = format!("tar -ch {name} | xz -0 >{name}.tar.xz && rm -r {name}");
        assert_eq!(run(&mut self.shell(&line, "")).code, Some(0));
        fs::write(self.scratch.file("opt/mem-profiler.tar.gz"), "received").expect("a file");
    }

    pub fn start_planner(&mut self) {
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

    pub fn start_servers(&mut self) {
        let redis = self.start(BACKGROUND[0]);
        self.is_listed(&redis, "idle");
        self.compile("server");
        let server = self.start("LD_PRELOAD=/usr/local/lib/libmem_agent.so ./server &");
        self.is_listed(&server, "idle");
        // Another redis-server of this machine may be idle, and has no samples then.
        self.names
            .push(("cpu -p redis-server", format!("cpu -p {redis}")));
        for pid in ["18140", "9910"] {
            self.names.push((pid, redis.clone()));
        }
        for pid in ["4849", "12476", "20028", "8241", "19893"] {
            self.names.push((pid, server.clone()));
        }
    }

    pub fn pid(&self, in_guide: &str) -> u32 {
        let (_, pid) = self
            .names
            .iter()
            .find(|(name, _)| *name == in_guide)
            .expect("a pid");
        pid.parse().expect("a number")
    }

    /// Writes early.heap and redis.heap in one session.
    pub fn profile_redis(&self) {
        let pid = self.pid("9910");
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

    /// Keeps redis-server busy until this is dropped.
    pub fn load_redis(&self) -> Group {
        let mut load = Command::new("redis-benchmark");
        load.args(["-p", &self.port, "-q", "-l", "-r", "2000", "-t", "set,zadd"]);
        Group::start(load.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Returns a dump of the server with a prefix.
    pub fn profile_server(&self, prefix: &str) -> PathBuf {
        let pid = self.pid("8241").to_string();
        run(self
            .scratch
            .profiler()
            .args(["-s", "0.3", "-o", prefix, "-p", &pid]))
        .dump()
    }
}
