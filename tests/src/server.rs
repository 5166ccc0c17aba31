//! `mem_profiler serve`, and a client that sends given requests.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use profile::Profile;

use crate::{Scratch, Target};

/// Longest time that a client waits for bytes.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// A server for the processes of one test.
pub struct Server {
    target: Target,
    client: Client,
}

/// Client of a server.
pub struct Client {
    /// `127.0.0.1:PORT`.
    pub address: String,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Response to a client.
pub struct Answer {
    /// The status code; 0 if the connection was closed without one.
    pub status: u16,
    /// The head in lower case.
    pub head: String,
    /// The content.
    pub body: Vec<u8>,
}

impl Answer {
    /// Parses the bytes received over a connection.
    pub fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = bytes.split_at(end.map_or(bytes.len(), |end| end + 4));
        let head = String::from_utf8_lossy(head).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head,
            body: body.to_vec(),
        }
    }

    /// Returns the content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Parses the content as a profile.
    #[track_caller]
    pub fn profile(&self) -> Profile {
        let status = self.status;
        profile::read(&self.body, "answer")
            .unwrap_or_else(|error| panic!("{status} {error}: {}", self.text()))
    }

    /// Returns the text of an answer that must have this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> String {
        let text = self.text();
        assert_eq!(self.status, status, "{}{text}", self.head);
        text
    }
}

/// Returns the total of each column.
pub fn totals(profile: &Profile) -> BTreeMap<String, i64> {
    let types = profile.sample_types.iter().enumerate();
    types
        .map(|(column, t)| (t.kind.clone(), profile.total(column)))
        .collect()
}

impl Server {
    /// Starts a server with these options.
    pub fn start(scratch: &Scratch, options: &[&str]) -> Self {
        Self::by(scratch.profiler(), options)
    }

    /// Starts a server by a command that runs `mem_profiler`.
    pub fn by(mut command: Command, options: &[&str]) -> Self {
        command
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(options);
        Self::listening(command)
    }

    fn listening(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        let mut target = Target::start(&mut command);
        let line = target.hear();
        let address = line.strip_prefix("serving at http://").expect(&line);
        let address = address.trim_end_matches('/').to_owned();
        Self {
            client: Client { address },
            target,
        }
    }

    /// Starts a program with many sites under the server. It is idle after it has allocated.
    pub fn quiet(&self, scratch: &Scratch) -> (Target, PathBuf) {
        let program = scratch.compile("truth.cpp", &[]);
        let mut target = Target::start(&mut scratch.preloaded(&program));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid();
        let started = self.post(&format!("/api/start?pid={pid}&interval=512"));
        started.expect(200);
        scratch.wait_for_sampling(pid);
        target.say("go 2000 4 1024");
        target.hear_until("done");
        (target, program)
    }

    /// Starts a server at the address of an earlier one, which has ended.
    pub fn again(scratch: &Scratch, address: &str) -> Self {
        let mut command = scratch.profiler();
        command.args(["serve", "--listen", address]);
        Self::listening(command)
    }

    /// Returns the pid of the server.
    pub fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Ends the server as Ctrl-C does. It must exit successfully.
    pub fn stop(mut self) {
        self.target.signal(libc::SIGINT);
        let status = self.target.ended();
        assert!(status.success(), "the server: {status}");
    }
}

impl Client {
    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns a connection to the server.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("the server listens");
        stream
            .set_read_timeout(Some(READ_TIMEOUT))
            .expect("a socket");
        stream
    }

    /// Sends bytes, and reads until the server closes the connection.
    pub fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may answer and close the connection before all bytes have arrived.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        Answer::of(&answer)
    }

    /// Sends a request with these lines in its head.
    pub fn ask(&self, method: &str, path: &str, lines: &str, body: &[u8]) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\
             {lines}\r\n",
            self.address,
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat())
    }

    /// Gets a path.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", b"")
    }

    /// Posts to a path, as a client that changes something does.
    pub fn post(&self, path: &str) -> Answer {
        self.ask("POST", path, "X-Mem-Profiler: 1\r\n", b"")
    }
}
