//! Known leaks: which stacks of a process the suppressions name.
//!
//! Functions are named by a child, which a process with a second thread must not have: before the
//! capture, not while it lasts.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use heap_format::{Location, Profile};
use mem_agents::collect;
use mem_agents::snapshot::Snapshot;
use mem_agents::waiting;
use shm_protocol::NodeId;
use shm_protocol::snapshot::Header;
use symbols::apart::{self, Code};
use symbols::demangle::{Style, demangle};

use super::suppressions::Suppressions;

/// Addresses that are named at a time.
const BATCH: usize = 200_000;
/// Longest time that this takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of names and templates that are compared: some seconds.
const MOST_COMPARED: u64 = 1 << 34;

/// Which stacks are known, as far as they were examined.
pub struct Known<'a> {
    suppressions: &'a Suppressions,
    pid: i32,
    /// By the leaf of a stack, the template that names it.
    stacks: HashMap<NodeId, Option<usize>>,
    addresses: HashMap<u64, Option<usize>>,
    texts: HashMap<Rc<str>, Option<usize>>,
    /// Bytes that may still be compared.
    left: u64,
    trouble: Option<String>,
}

impl<'a> Known<'a> {
    /// Of a process.
    pub fn new(suppressions: &'a Suppressions, pid: i32) -> Self {
        Self {
            suppressions,
            pid,
            stacks: HashMap::new(),
            addresses: HashMap::new(),
            texts: HashMap::new(),
            left: MOST_COMPARED,
            trouble: None,
        }
    }

    /// The template that a stack matches; `None`: it has not been examined.
    pub fn template(&self, leaf: NodeId) -> Option<Option<usize>> {
        self.stacks.get(&leaf).copied()
    }

    /// What went wrong, once.
    pub fn trouble(&mut self) -> Option<String> {
        let exhausted = (self.left == 0).then(|| {
            "too many suppressions for so many names: some were not tried; join some with *".into()
        });
        self.trouble.take().or(exhausted)
    }

    /// Looks at those stacks of a session that are new.
    pub fn learn(&mut self, snapshot: &Snapshot, header: &Header<'_>) {
        let leaves = snapshot.records().iter().map(|record| record.node);
        let mut leaves: Vec<NodeId> = leaves.filter(|l| !self.stacks.contains_key(l)).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let mut stack = Vec::new();
        let mut new = Vec::new();
        for &leaf in &leaves {
            snapshot.addresses(leaf, &mut stack);
            new.extend(stack.iter().filter(|a| !self.addresses.contains_key(a)));
            if new.len() >= BATCH {
                self.name(&mut new, header);
            }
        }
        self.name(&mut new, header);
        for leaf in leaves {
            snapshot.addresses(leaf, &mut stack);
            let mut frames = stack.iter().filter_map(|a| self.addresses.get(a));
            let template = frames.find_map(|template| *template);
            self.stacks.insert(leaf, template);
        }
    }

    /// Looks at the code of some return addresses, and takes them out of the list.
    fn name(&mut self, addresses: &mut Vec<u64>, header: &Header<'_>) {
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return;
        }
        let profile = collect::code(header, self.pid, addresses, &[]);
        let location = |stack: usize| profile.stacks.get(stack).first().copied();
        let locations: Vec<_> = (0..addresses.len()).map(location).collect();
        let modules: Vec<Rc<str>> = profile
            .locations
            .iter()
            .map(|l| module(&profile, l))
            .collect();
        let code = apart::code(profile, &OPTIONS, PATIENCE, waiting::is_ending);
        let code = code.unwrap_or_else(|error| {
            self.trouble = Some(error.to_string());
            Vec::new()
        });
        for (address, location) in addresses.drain(..).zip(locations) {
            let location = location.map_or(usize::MAX, |location| location as usize);
            let frames = code.get(location).map_or(&[][..], |frames| frames);
            let template = self.of_frames(modules.get(location), frames);
            self.addresses.insert(address, template);
        }
    }

    /// The template for the code of an address: by its module, then by each function there, then
    /// its file.
    fn of_frames(&mut self, module: Option<&Rc<str>>, frames: &[Code]) -> Option<usize> {
        if let Some(found) = module.and_then(|module| self.of_text(module)) {
            return Some(found);
        }
        frames.iter().find_map(|code| {
            self.of_function(&code.name)
                .or_else(|| self.of_text(&code.file))
        })
    }

    /// A function is known by its whole name, and by the one that reports show.
    fn of_function(&mut self, name: &Rc<str>) -> Option<usize> {
        if let Some(known) = self.texts.get(name) {
            return *known;
        }
        let mut of = |style| {
            self.suppressions
                .first(&demangle(name, style), &mut self.left)
        };
        let found = of(Style::Full).or_else(|| of(Style::Simple));
        self.texts.insert(name.clone(), found);
        found
    }

    fn of_text(&mut self, text: &Rc<str>) -> Option<usize> {
        if let Some(known) = self.texts.get(text) {
            return *known;
        }
        let found = self.suppressions.first(text, &mut self.left);
        self.texts.insert(text.clone(), found);
        found
    }
}

const OPTIONS: symbols::Options<'static> = symbols::Options {
    binary: None,
    force: false,
    demangle: Style::None,
    directories: &[],
    debuginfod: false,
    perf_map: None,
};

/// The path of the file that code lies in; empty: in none.
fn module(profile: &Profile, location: &Location) -> Rc<str> {
    let mapping = profile.mappings.get(location.mapping as usize);
    let path = mapping.map_or(&b""[..], |mapping| mapping.path.as_os_str().as_bytes());
    String::from_utf8_lossy(path).into()
}
