//! Pages of `/report` that several viewers share.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use crate::history_file::Key;
use crate::reply::Reply;

/// Content security policy in addition to the page's own, which allows only its scripts.
const POLICY: &str = "frame-ancestors 'self'; base-uri 'none'; form-action 'none'";
/// Time for which a page of a running session is also shown to other viewers.
const SHARE_TIME: Duration = Duration::from_secs(3);
/// Maximum number of pages that are kept.
const MAX_PAGES: usize = 8;

/// Pages that several viewers share.
#[derive(Default)]
pub struct Reports {
    pages: Mutex<HashMap<Subject, Page>>,
}

/// Subject of a page: a process, and the moments that are shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    pub process: Key,
    /// Profile that is subtracted.
    pub from: Option<Base>,
    /// Snapshot that is shown; `None` for the present.
    pub to: Option<u64>,
}

/// Profile that is subtracted from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// Snapshot of the process.
    Snapshot(u64),
    /// Profile that a user has sent.
    Upload(u64),
    /// Profile of another process, which may have ended.
    Process(i32),
}

impl Base {
    /// Parses `ID` of a snapshot, `uID` of a profile that was sent, or `pPID`.
    pub fn parse(text: &str) -> Result<Self, Reply> {
        let parsed = match text.split_at_checked(1) {
            Some(("u", id)) => id.parse().ok().map(Self::Upload),
            Some(("p", pid)) => pid.parse().ok().map(Self::Process),
            _ => text.parse().ok().map(Self::Snapshot),
        };
        let why =
            "from must be the number of a moment, uNUMBER of a profile that was sent, or pPID";
        parsed.ok_or_else(|| Reply::refusal(400, why))
    }
}

/// A page, or the work on it.
enum Page {
    /// A request is making the page, as long as the claim of [`Reports::claim`] exists.
    InProgress(Weak<()>),
    Finished(Arc<FinishedPage>),
}

/// A page that was made.
pub struct FinishedPage {
    at: Instant,
    /// Directory with the compressed page.
    directory: TempDir,
    /// Time of the profile, for the header `Last-Modified`.
    time: String,
}

/// File of a page in its directory.
const PAGE: &str = "page.html.gz";

impl Reports {
    fn pages(&self) -> MutexGuard<'_, HashMap<Subject, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a page that is recent enough.
    pub fn recent(&self, subject: &Subject) -> Option<Arc<FinishedPage>> {
        match self.pages().get(subject) {
            // Moments that have passed do not change.
            Some(Page::Finished(made)) => {
                let is_recent = subject.to.is_some() || made.at.elapsed() < SHARE_TIME;
                is_recent.then(|| Arc::clone(made))
            }
            _ => None,
        }
    }

    /// Returns the right to make a page, unless another request is making it.
    pub fn claim(&self, subject: &Subject) -> Option<Arc<()>> {
        let mut pages = self.pages();
        // Removes claims of requests that have failed, or whose clients have left.
        pages.retain(
            |_, page| !matches!(page, Page::InProgress(maker) if maker.strong_count() == 0),
        );
        if let Some(Page::InProgress(maker)) = pages.get(subject)
            && maker.upgrade().is_some()
        {
            return None;
        }
        let claim = Arc::new(());
        pages.insert(subject.clone(), Page::InProgress(Arc::downgrade(&claim)));
        Some(claim)
    }

    /// Adds a page, and removes the oldest one if there are too many.
    pub fn add(&self, subject: Subject, made: FinishedPage) -> Arc<FinishedPage> {
        let made = Arc::new(made);
        let mut pages = self.pages();
        pages.insert(subject, Page::Finished(Arc::clone(&made)));
        while pages.len() > MAX_PAGES {
            let oldest = pages.iter().filter_map(|(subject, page)| match page {
                Page::Finished(made) => Some((made.at, subject.clone())),
                Page::InProgress(_) => None,
            });
            let Some((_, oldest)) = oldest.min_by_key(|(time, _)| *time) else {
                break;
            };
            pages.remove(&oldest);
        }
        made
    }
}

impl FinishedPage {
    /// Moves a page from the directory of its job to one of its own, compressed.
    pub fn store(job: &Path, time: String) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut page = BufReader::new(File::open(job.join("page.html"))?);
        let packed = File::create(directory.path().join(PAGE))?;
        let mut packed = GzEncoder::new(packed, Compression::fast());
        io::copy(&mut page, &mut packed)?;
        packed.finish()?;
        Ok(Self {
            at: Instant::now(),
            directory,
            time,
        })
    }

    /// Sends the page, as a download if it has a name.
    pub fn reply(&self, name: Option<&str>) -> Result<Reply, Reply> {
        let failed = |error: io::Error| Reply::temporary_file_error(&error);
        let page = self.directory.path().join(PAGE);
        let mut reply = Reply::gzipped_file("text/html; charset=utf-8", &page)
            .map_err(failed)?
            .with_header("Content-Security-Policy", POLICY.to_owned())
            .with_header("Cache-Control", "no-store".to_owned())
            .with_header("Last-Modified", self.time.clone());
        if let Some(name) = name {
            reply = reply.with_header(
                "Content-Disposition",
                format!("attachment; filename=\"{name}\""),
            );
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(created_ns: u64) -> Subject {
        Subject {
            process: Key { pid: 1, created_ns },
            from: None,
            to: None,
        }
    }

    fn made() -> FinishedPage {
        FinishedPage {
            at: Instant::now(),
            directory: tempfile::tempdir().unwrap(),
            time: String::new(),
        }
    }

    #[test]
    fn a_page_is_made_by_one_request_at_a_time() {
        let reports = Reports::default();
        let claim = reports.claim(&subject(1)).unwrap();
        assert!(reports.claim(&subject(1)).is_none());
        assert!(reports.claim(&subject(2)).is_some());
        // Its client has left.
        drop(claim);
        assert!(reports.claim(&subject(3)).is_some());
        assert_eq!(reports.pages().len(), 1);
        let claim = reports.claim(&subject(1));
        assert!(claim.is_some() && reports.recent(&subject(1)).is_none());
        reports.add(subject(1), made());
        assert!(reports.recent(&subject(1)).is_some());
    }

    #[test]
    fn bases_are_moments_or_other_profiles() {
        let parse = |text| Base::parse(text).ok();
        assert_eq!(parse("12"), Some(Base::Snapshot(12)));
        assert_eq!(parse("u3"), Some(Base::Upload(3)));
        assert_eq!(parse("p4"), Some(Base::Process(4)));
        for wrong in ["", "u", "x1", "-1", "u-1", "1u", "é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_oldest_pages_are_dropped() {
        let reports = Reports::default();
        for number in 0..30 {
            reports.add(subject(number), made());
        }
        assert_eq!(reports.pages().len(), MAX_PAGES);
        assert!(reports.recent(&subject(29)).is_some());
        assert!(reports.recent(&subject(0)).is_none());
    }
}
