//! Finds the stacks of a process that match suppressions.
//!
//! Function names are looked up in a child process. This is done before the capture, not during it,
//! because forking is unsafe while a second thread runs.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use mem_agents::collect;
use mem_agents::snapshot::Snapshot;
use mem_agents::waiting;
use profile::{Location, Profile};
use shm_protocol::NodeId;
use shm_protocol::snapshot::Header;
use symbols::demangle::{Style, demangle};
use symbols::sandboxed::{self, Code};

use super::suppressions::Suppressions;

/// Maximum number of addresses per lookup.
const BATCH: usize = 200_000;
/// Maximum time of one lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of names and templates that are compared. Comparing that much takes a
/// few seconds.
const MAX_COMPARED_BYTES: u64 = 1 << 34;

/// Result of comparing a stack with the suppressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackMatch {
    /// The stack was not compared.
    Unexamined,
    /// No template matches the stack.
    NoTemplate,
    /// The template with this index matches the stack.
    Template(usize),
}

/// Cache of the suppressions that match the stacks examined so far.
pub struct SuppressionCache<'a> {
    suppressions: &'a Suppressions,
    pid: i32,
    /// Index of the matching template by the leaf node of a stack; `None` if no template matches.
    stacks: HashMap<NodeId, Option<usize>>,
    /// Index of the matching template by return address.
    addresses: HashMap<u64, Option<usize>>,
    /// Index of the matching template by function name, file or module.
    texts: HashMap<Rc<str>, Option<usize>>,
    /// Number of bytes that may still be compared.
    bytes_left: u64,
    /// Last error of a lookup, for display.
    error: Option<String>,
}

impl<'a> SuppressionCache<'a> {
    /// Creates an empty cache for a process.
    pub fn new(suppressions: &'a Suppressions, pid: i32) -> Self {
        Self {
            suppressions,
            pid,
            stacks: HashMap::new(),
            addresses: HashMap::new(),
            texts: HashMap::new(),
            bytes_left: MAX_COMPARED_BYTES,
            error: None,
        }
    }

    /// Returns the result for the stack with this leaf node.
    pub fn match_of(&self, leaf: NodeId) -> StackMatch {
        match self.stacks.get(&leaf) {
            None => StackMatch::Unexamined,
            Some(None) => StackMatch::NoTemplate,
            Some(Some(template)) => StackMatch::Template(*template),
        }
    }

    /// Returns the last error and clears it.
    pub fn take_error(&mut self) -> Option<String> {
        let exhausted = (self.bytes_left == 0).then(|| {
            "too many suppressions for so many names: some were not tried; join some with *".into()
        });
        self.error.take().or(exhausted)
    }

    /// Examines the new stacks of a session.
    pub fn examine(&mut self, snapshot: &Snapshot, header: &Header<'_>) {
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
                self.match_addresses(&mut new, header);
            }
        }
        self.match_addresses(&mut new, header);
        for leaf in leaves {
            snapshot.addresses(leaf, &mut stack);
            let mut frames = stack.iter().filter_map(|a| self.addresses.get(a));
            let template = frames.find_map(|template| *template);
            self.stacks.insert(leaf, template);
        }
    }

    /// Finds the templates that match the code at these return addresses, and empties the list.
    fn match_addresses(&mut self, addresses: &mut Vec<u64>, header: &Header<'_>) {
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return;
        }
        let profile = collect::profile_of_addresses(header, self.pid, addresses, &[]);
        let location = |stack: usize| profile.stacks.get(stack).first().copied();
        let locations: Vec<_> = (0..addresses.len()).map(location).collect();
        let modules: Vec<Rc<str>> = profile
            .locations
            .iter()
            .map(|l| module(&profile, l))
            .collect();
        let code = sandboxed::code(profile, &OPTIONS, LOOKUP_TIMEOUT, waiting::is_end_requested);
        let code = code.unwrap_or_else(|error| {
            self.error = Some(error.to_string());
            Vec::new()
        });
        for (address, location) in addresses.drain(..).zip(locations) {
            let location = location.map_or(usize::MAX, |location| location as usize);
            let frames = code.get(location).map_or(&[][..], |frames| frames);
            let template = self.match_frames(modules.get(location), frames);
            self.addresses.insert(address, template);
        }
    }

    /// Returns the first template that matches the code of an address: its module, then each
    /// function, then that function's file.
    fn match_frames(&mut self, module: Option<&Rc<str>>, frames: &[Code]) -> Option<usize> {
        if let Some(found) = module.and_then(|module| self.match_text(module)) {
            return Some(found);
        }
        frames.iter().find_map(|code| {
            self.match_function(&code.name)
                .or_else(|| self.match_text(&code.file))
        })
    }

    /// Returns the first template that matches a function's full name or the short name that
    /// reports show.
    fn match_function(&mut self, name: &Rc<str>) -> Option<usize> {
        if let Some(known) = self.texts.get(name) {
            return *known;
        }
        let mut first = |style| {
            self.suppressions
                .first_match(&demangle(name, style), &mut self.bytes_left)
        };
        let found = first(Style::Full).or_else(|| first(Style::Simple));
        self.texts.insert(name.clone(), found);
        found
    }

    fn match_text(&mut self, text: &Rc<str>) -> Option<usize> {
        if let Some(known) = self.texts.get(text) {
            return *known;
        }
        let found = self.suppressions.first_match(text, &mut self.bytes_left);
        self.texts.insert(text.clone(), found);
        found
    }
}

/// Options of the lookups: mangled names, and no downloads.
const OPTIONS: symbols::Options<'static> = symbols::Options {
    binary: None,
    force: false,
    demangle: Style::None,
    directories: &[],
    debuginfod: false,
    perf_map: None,
};

/// Returns the path of the file that contains the code; empty if unknown.
fn module(profile: &Profile, location: &Location) -> Rc<str> {
    let mapping = profile.mappings.get(location.mapping as usize);
    let path = mapping.map_or(&b""[..], |mapping| mapping.path.as_os_str().as_bytes());
    String::from_utf8_lossy(path).into()
}
