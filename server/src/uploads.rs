//! Profiles that users have sent, which the live page compares with the present: those of another
//! day, of another machine, or of another version of the program.
//!
//! Uploads are files in a temporary directory of this server, which is removed at its end. They are
//! untrusted, so `mem_parser` reads them, in a child process with limits.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::job::{self, Job, Program};
use crate::reply::{Reply, Step};
use crate::request::Request;

/// Maximum number of profiles that are kept. The oldest are removed.
const MAX_UPLOADS: usize = 8;
/// Maximum size of a profile before compression, in bytes.
const MAX_PROFILE_BYTES: u64 = 256 << 20;
/// Maximum length of a name, in characters.
const MAX_NAME_CHARS: usize = 80;
/// Maximum time to check a profile.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// The profiles that users have sent.
pub struct Uploads {
    directory: Option<TempDir>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of profiles received so far.
    received: u64,
    /// Kept profiles, the oldest first.
    uploads: VecDeque<Upload>,
}

/// Profile that a user has sent.
struct Upload {
    id: u64,
    /// Name of the user's file.
    name: String,
    at: SystemTime,
    path: PathBuf,
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The directory is removed at the end in any case.
        let _ = fs::remove_file(&self.path);
    }
}

impl Uploads {
    /// Creates an empty set. Without a directory for temporary files, nothing can be sent.
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().ok(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the profiles as JSON.
    pub fn list(&self) -> Value {
        self.state().uploads.iter().map(Upload::to_json).collect()
    }

    /// Returns the open file of a profile, which stays readable if the profile is removed.
    pub fn open(&self, id: u64) -> Result<File, Reply> {
        let state = self.state();
        let found = state.uploads.iter().find(|upload| upload.id == id);
        let file = found.and_then(|upload| File::open(&upload.path).ok());
        file.ok_or_else(|| {
            let why = "this profile is not kept any more: send it again, or reload the page";
            Reply::refusal(404, why)
        })
    }

    /// Keeps a profile that was checked, compressed.
    fn add(&self, name: String, mut content: impl Read) -> io::Result<Value> {
        let missing = || io::Error::other("this server has no temporary directory");
        let directory = self.directory.as_ref().ok_or_else(missing)?;
        let mut state = self.state();
        state.received += 1;
        let upload = Upload {
            id: state.received,
            name,
            at: SystemTime::now(),
            path: directory.path().join(state.received.to_string()),
        };
        let mut out = GzEncoder::new(File::create_new(&upload.path)?, Compression::fast());
        io::copy(&mut content, &mut out)?;
        out.finish()?;
        let json = upload.to_json();
        state.uploads.push_back(upload);
        if state.uploads.len() > MAX_UPLOADS {
            state.uploads.pop_front();
        }
        Ok(json)
    }
}

impl Upload {
    fn to_json(&self) -> Value {
        let since = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({ "id": self.id, "name": self.name, "at": since.as_millis() as u64 })
    }
}

/// Receives a profile in the body of a request, checks it, and keeps it. `?name=` is the name of
/// the user's file.
pub fn receive(uploads: &Arc<Uploads>, request: &Request) -> Result<Step, Reply> {
    let name = request.value("name").unwrap_or("a profile");
    let name: String = mem_agents::text::line(name)
        .chars()
        .take(MAX_NAME_CHARS)
        .collect();
    let failed = |error: io::Error| Reply::temporary_file_error(&error);
    let directory = job::directory()?;
    fs::write(directory.path().join("sent"), &request.body).map_err(failed)?;
    let permit = job::permit()?;
    let job = Job::start(Program::Parser, &directory, CHECK_TIMEOUT, |command| {
        // Looks up names now, so that the files of this machine are not read for them later.
        command.args(["-f", "sent", "--symbolize", "-o", "checked"]);
    })?;
    let uploads = Arc::clone(uploads);
    let refused = {
        let name = name.clone();
        move |message: &str| {
            let why = format!("{name}: {}", message.replace("sent: ", ""));
            Some(Err(Reply::refusal(400, why)))
        }
    };
    Ok(job.then_or(
        Duration::ZERO,
        move |job| {
            drop(permit);
            let checked = File::open(job.path().join("checked")).map_err(failed)?;
            if checked.metadata().map_err(failed)?.len() > MAX_PROFILE_BYTES {
                let why = format!("{name}: the profile has more than {MAX_PROFILE_BYTES} bytes");
                return Err(Reply::refusal(413, why));
            }
            let added = uploads.add(name, checked).map_err(failed)?;
            Ok(Reply::json(&added))
        },
        refused,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_profiles_are_kept() {
        let uploads = Uploads::new();
        for number in 0..30 {
            uploads.add(format!("{number}.heap"), &b"text"[..]).unwrap();
        }
        let list = uploads.list();
        assert_eq!(list.as_array().map(Vec::len), Some(MAX_UPLOADS));
        assert_eq!(list[MAX_UPLOADS - 1]["name"], "29.heap");
        assert!(uploads.open(30).is_ok() && uploads.open(1).is_err());
        let directory = uploads.directory.as_ref().unwrap().path();
        assert_eq!(fs::read_dir(directory).unwrap().count(), MAX_UPLOADS);
    }
}
