//! A server with one program, for tests of the live page.

use std::fs;
use std::path::PathBuf;

use crate::{Browser, Scratch, Server, Target};

/// Expression for the document of the report that is shown.
pub const REPORT: &str = "document.querySelector('iframe.report:not(.next)').contentDocument";

/// A server, a program that waits for commands, and the program's file.
pub struct Stage {
    /// Directories of the test.
    pub scratch: Scratch,
    /// The server.
    pub server: Server,
    /// The program, which is idle until it gets a command.
    pub target: Target,
    /// The program's file.
    pub program: PathBuf,
}

impl Stage {
    /// Starts the server, and the program under a name.
    pub fn new(name: &str) -> Self {
        Self::of("truth.cpp", name, &["-c", "512"])
    }

    /// Starts a server with these options, and another program under a name.
    pub fn of(source: &str, name: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let server = Server::start(&scratch, options);
        let compiled = scratch.compile(source, &[]);
        let program = scratch.file(name);
        fs::rename(&compiled, &program).expect("a file of ours");
        let mut target = Target::start(&mut scratch.preloaded(&program));
        assert_eq!(target.hear(), "ready");
        Self {
            scratch,
            server,
            target,
            program,
        }
    }

    /// Makes the program allocate objects that stay in use.
    pub fn allocate(&mut self, objects: u32) {
        self.target.say(&format!("go {objects} 4 1024"));
        self.target.hear_until("done");
    }

    /// Starts a session without a fixed end.
    pub fn start(&mut self) {
        let pid = self.target.pid();
        let path = format!("/api/start?pid={pid}");
        self.server.post(&path).expect(200);
        self.scratch.wait_for_sampling(pid);
    }

    /// Returns the address of the program's page, with more parameters.
    pub fn link(&self, more: &str) -> String {
        let name = self.program.file_name().expect("a name").to_string_lossy();
        let pid = self.target.pid();
        self.server
            .url(&format!("/#/process?name={name}&pid={pid}{more}"))
    }

    /// Starts a session, makes the program allocate, and opens its page with the report.
    pub fn show(&mut self) -> Browser {
        self.start();
        self.allocate(2000);
        let mut browser = Browser::open(&self.link(""));
        Self::has_report(&mut browser);
        browser
    }

    /// Starts the program `count` more times.
    pub fn start_others(&self, count: usize) -> Vec<Target> {
        let others = (0..count).map(|_| {
            let mut other = Target::start(&mut self.scratch.preloaded(&self.program));
            assert_eq!(other.hear(), "ready");
            other
        });
        others.collect()
    }

    /// Waits until the report shows the program's functions.
    pub fn has_report(browser: &mut Browser) {
        browser.until(&format!(
            "[...{REPORT}.querySelectorAll('#flame .frame')].some((g) => g.textContent.startsWith('site_'))"
        ));
    }
}
