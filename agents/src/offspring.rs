//! Follows the children that processes fork during a session, for programs that keep sessions
//! running without writing dumps of them (the server, `top`).
//!
//! A forked child continues the session by itself, with the deadline that its parent had. This
//! module finds such children, extends their sessions as long as the parent's is extended, and ends
//! them with it. If the program dies, the deadline ends them. Profiles of exited children are
//! removed, except for some that `recover` may write.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use shm_protocol::layout::BANK_HEADER_BYTES;

use crate::discovery::{Discovery, Found, Life};
use crate::lineage::{MAX_FINAL_SCANS, MAX_REACHED, is_alive, self_started_session};
use crate::segment::Entry;
use crate::target::{Deadline, Polled, RENEWAL_INTERVAL, Target};

/// Time between checks of the shared directory for new names.
const NAMES_INTERVAL: Duration = Duration::from_secs(1);
/// Time between complete scans, which include other mount namespaces.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of exited children per session whose profiles are kept.
const MAX_KEPT: usize = 8;
/// Minimum number of bytes that an exited child has allocated if its profile is kept.
const MIN_KEPT_BYTES: f64 = (1 << 20) as f64;
/// Number of remembered segments above which deleted ones are forgotten.
const MAX_KNOWN: usize = 1 << 10;

/// Key of a session: device and inode of the segment in which it was started.
pub type Root = (u64, u64);

/// End of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Known end.
    At(Instant),
    /// The session lasts until it is stopped, or for as long as somebody needs it.
    Unknown,
}

/// Children of all sessions of one program.
#[derive(Default)]
pub struct Offspring {
    discovery: Discovery,
    families: HashMap<Root, Family>,
    /// Processes with one of the sessions, by pid in their own namespace and that namespace's
    /// inode.
    reached: HashMap<(u32, u64), Reached>,
    /// Segments that have been examined.
    known: HashSet<Entry>,
    /// Time of the last check for new names.
    last_names_check: Option<Instant>,
    /// Time of the last complete scan.
    last_search: Option<Instant>,
}

/// Session with the children that continue it.
struct Family {
    /// Start of the session, in ns of the segment's clock.
    start_ns: u64,
    /// CPU budget for sampling, as a fraction. `None`: fixed interval.
    max_overhead: Option<f64>,
    /// End of the session, even if the process in which it was started has exited. `None`: unknown.
    until: Option<Instant>,
    /// True if the process in which the session was started has exited.
    is_orphaned: bool,
    children: Vec<Child>,
    /// Exited children whose profiles are kept, oldest first.
    kept: VecDeque<Found>,
}

/// Process with one of the sessions.
struct Reached {
    root: Root,
    pid: i32,
}

/// Running child that continues a session.
struct Child {
    target: Target,
    /// Time at which the session must be extended next.
    renewal: Instant,
}

/// Returns the deadline of a session that is extended periodically. If its end `until` is known,
/// the deadline lies shortly after it, so that the caller ends the session before the agent does.
pub fn deadline(until: Option<Instant>, now: Instant) -> u64 {
    const GRACE: Duration = Duration::from_secs(1);
    let rolling = Deadline::ns_after(None);
    let left = until.map(|until| until.saturating_duration_since(now) + GRACE);
    left.map_or(rolling, |left| {
        rolling.min(Deadline::ns_after(Some(left)) | 1)
    })
}

impl Offspring {
    /// Registers a session that has been started.
    pub fn begin(&mut self, target: &Target, max_overhead: Option<f64>) -> Root {
        let root = target.agent.file;
        let family = Family {
            start_ns: target.session.start_ns,
            max_overhead,
            until: None,
            is_orphaned: false,
            children: Vec::new(),
            kept: VecDeque::new(),
        };
        self.families.insert(root, family);
        let pid = target.agent.pid;
        self.reached
            .insert(process_key(&target.agent), Reached { root, pid });
        root
    }

    /// Extends and ends sessions of children as needed. Must be called several times a second.
    /// Returns warnings.
    pub fn tick(&mut self, now: Instant) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_over = |family: &Family| {
            let is_late = family.until.is_some_and(|until| now >= until);
            family.is_orphaned && (family.children.is_empty() || is_late)
        };
        let ended: Vec<Root> = (self.families.iter())
            .filter_map(|(root, family)| is_over(family).then_some(*root))
            .collect();
        ended.into_iter().for_each(|root| self.end(root));
        if self.families.is_empty() {
            return warnings;
        }
        for family in self.families.values_mut() {
            warnings.append(&mut family.tick(now));
        }
        let is_due = |last: Option<Instant>, period| last.is_none_or(|last| now - last >= period);
        if is_due(self.last_names_check, NAMES_INTERVAL) {
            self.last_names_check = Some(now);
            if is_due(self.last_search, SCAN_INTERVAL) || self.discovery.has_new(&self.known) {
                self.last_search = Some(now);
                self.search(now);
            }
        }
        warnings
    }

    /// Sets the end of a session. The end remains in force if the process in which the session was
    /// started exits first.
    pub fn extend(&mut self, root: Root, until: Option<Instant>) {
        if let Some(family) = self.families.get_mut(&root) {
            family.until = until;
        }
    }

    /// Records that the process in which a session was started has exited; its children continue.
    pub fn orphan(&mut self, root: Root) {
        if let Some(family) = self.families.get_mut(&root) {
            family.is_orphaned = true;
        }
    }

    /// Returns the end of the session that a process continues, or `None` if the process is not a
    /// running child of one of the sessions.
    pub fn session_end(&self, pid: i32) -> Option<SessionEnd> {
        let is_parent = |family: &&Family| {
            let mut children = family.children.iter();
            children.any(|child| child.target.agent.pid == pid)
        };
        let family = self.families.values().find(is_parent)?;
        Some(family.until.map_or(SessionEnd::Unknown, SessionEnd::At))
    }

    /// Returns true if there is no session.
    pub fn is_empty(&self) -> bool {
        self.families.is_empty()
    }

    /// Returns true if a process is a running child of one of the sessions.
    pub fn has(&self, pid: i32) -> bool {
        let mut children = self.families.values().flat_map(|family| &family.children);
        children.any(|child| child.target.agent.pid == pid)
    }

    /// Ends the session in one child. Returns false if the process is not a child.
    pub fn end_child(&mut self, pid: i32) -> bool {
        for family in self.families.values_mut() {
            let children = &mut family.children;
            let index = children.iter().position(|c| c.target.agent.pid == pid);
            if let Some(index) = index {
                end_session(&mut children.swap_remove(index).target);
                return true;
            }
        }
        false
    }

    /// Ends a session in all children, after it has ended in the process in which it was started.
    pub fn end(&mut self, root: Root) {
        if !self.families.contains_key(&root) {
            return;
        }
        // A child that creates its segment at this moment is not missed: it checks the parent's
        // session after creating the segment, and we search after the session was turned off.
        for _ in 0..MAX_FINAL_SCANS {
            let Some(family) = self.families.get_mut(&root) else {
                break;
            };
            for mut child in family.children.drain(..) {
                end_session(&mut child.target);
            }
            self.search(Instant::now());
            let is_empty = |family: &Family| family.children.is_empty();
            if self.families.get(&root).is_none_or(is_empty) {
                break;
            }
        }
        self.families.remove(&root);
        self.reached.retain(|_, reached| reached.root != root);
    }

    /// Ends all sessions.
    pub fn end_all(&mut self) {
        let roots: Vec<Root> = self.families.keys().copied().collect();
        roots.into_iter().for_each(|root| self.end(root));
    }

    /// Searches for new children.
    fn search(&mut self, now: Instant) {
        let scan = self.discovery.scan_except(&self.known);
        // A segment that a scan misses once is found again by a later one; `take_over` ignores it
        // then.
        scan.forget_gone(&mut self.known, MAX_KNOWN);
        self.known.extend(&scan.settled);
        let mut rest = scan.found;
        // Repeats, since a child found may itself have children.
        loop {
            let reached = &self.reached;
            let parent = |found: &Found| (found.forked_from, found.namespace);
            let is_child =
                |found: &Found| found.forked_from != 0 && reached.contains_key(&parent(found));
            let (children, strangers): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_child);
            if children.is_empty() {
                self.known.extend(strangers.iter().map(|found| found.entry));
                return self.forget_ended();
            }
            for found in children {
                let root = self.reached[&parent(&found)].root;
                self.take_over(root, found, now);
            }
            rest = strangers;
        }
    }

    /// Forgets exited processes. Must be called after a search for their children.
    fn forget_ended(&mut self) {
        if self.reached.len() > MAX_REACHED {
            self.reached.retain(|_, reached| is_alive(reached.pid));
        }
    }

    /// Takes over the session of a child.
    fn take_over(&mut self, root: Root, found: Found, now: Instant) {
        let entry = found.entry;
        self.known.insert(entry);
        let Some(family) = self.families.get_mut(&root) else {
            return;
        };
        let is_known = family
            .children
            .iter()
            .any(|c| c.target.agent.file == found.file)
            || family.kept.iter().any(|kept| kept.file == found.file);
        let Ok(agent) = found.open() else { return };
        if is_known || self_started_session(&agent, family.start_ns).is_none() {
            return;
        }
        if agent.life == Life::Running && agent.confirm().is_err() {
            if !is_alive(agent.pid) {
                // The child has exited since the scan. The next search finds it dead.
                self.known.remove(&entry);
            }
            return;
        }
        let pid = agent.pid;
        self.reached
            .insert(process_key(&agent), Reached { root, pid });
        match Target::adopt(agent) {
            Ok(Some(target)) => {
                let target = target.with_max_overhead(family.max_overhead);
                family.children.push(Child {
                    target,
                    renewal: now,
                });
            }
            // The session has not started yet. The next search tries again.
            Ok(None) => drop(self.known.remove(&entry)),
            // Another controller has locked the segment and takes care of it.
            Err(_) => {}
        }
    }
}

impl Family {
    fn tick(&mut self, now: Instant) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut index = 0;
        while index < self.children.len() {
            let child = &mut self.children[index];
            let result = child.target.poll();
            warnings.append(&mut child.target.take_warnings());
            let mut continues = matches!(result, Ok(Polled::Counting));
            if continues && now >= child.renewal {
                child.renewal = now + RENEWAL_INTERVAL;
                let until = deadline(self.until, now);
                continues = child.target.publish(until).is_ok();
            }
            if continues {
                index += 1;
            } else {
                let child = self.children.swap_remove(index);
                self.finish_child(child.target);
            }
        }
        warnings
    }

    /// Handles a child that has exited or whose session was ended by someone else. Keeps the
    /// profile if it may be wanted.
    fn finish_child(&mut self, mut target: Target) {
        target.update_life();
        if target.agent.life == Life::Running {
            // The program that ended the session collects the profile.
            return;
        }
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = (target.agent.segment).bank(target.session.number, &mut buffer);
        let bytes = bank.map_or(0.0, |bank| bank.totals().alloc_bytes);
        if bytes < MIN_KEPT_BYTES {
            // If the removal fails, `clean` removes it later.
            let _ = target.release();
            return;
        }
        self.kept.push_back((*target.agent).clone());
        drop(target);
        if self.kept.len() > MAX_KEPT
            && let Some(oldest) = self.kept.pop_front()
        {
            remove_segment(oldest);
        }
    }
}

/// Removes the segment of an exited child, unless another controller has locked it.
fn remove_segment(found: Found) {
    let target = found.open().ok().map(Target::adopt);
    if let Some(Ok(Some(target))) = target {
        let _ = target.release();
    }
}

/// Ends a child's session and discards its profile.
fn end_session(target: &mut Target) {
    // If stopping fails, the deadline ends the session within a minute.
    let _ = target.stop();
    target.update_life();
    let _ = target.release();
}

fn process_key(found: &Found) -> (u32, u64) {
    (found.entry.name.pid as u32, found.namespace)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use forge::{Forged, start_of};

    use super::*;

    #[test]
    fn many_ended_processes_are_forgotten() {
        let pid = std::process::id();
        let mut offspring = Offspring::default();
        let mut put = |process_key: u32, pid: i32| {
            let reached = Reached { root: (1, 1), pid };
            offspring.reached.insert((process_key, 1), reached);
        };
        put(pid, pid.cast_signed());
        // Pids that no process has.
        for number in 0..MAX_REACHED as u32 {
            put(number + (1 << 23), i32::MAX - number.cast_signed());
        }
        offspring.forget_ended();
        assert!(offspring.reached.len() == 1 && offspring.reached.contains_key(&(pid, 1)));
    }

    /// A child may exit between the scan that finds it running and the check of its maps.
    #[test]
    fn a_child_that_exits_while_it_is_examined_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        wait_for_exec(pid);
        let mut forged = Forged::of(pid, start_of(pid));
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        forged.exe = exe.into_os_string().into_encoded_bytes();
        forged.make_with_stacks(directory.path(), 1, 1);
        let root = (1, 1);
        let mut offspring = Offspring {
            discovery: Discovery::in_directory(directory.path().into()),
            ..Offspring::default()
        };
        let family = Family {
            start_ns: 0,
            max_overhead: None,
            until: None,
            is_orphaned: false,
            children: Vec::new(),
            kept: VecDeque::new(),
        };
        offspring.families.insert(root, family);
        let next = |offspring: &Offspring| {
            let scan = offspring.discovery.scan_except(&offspring.known);
            scan.found.into_iter().next()
        };
        let found = next(&offspring).expect("a child");
        assert_eq!(found.life, Life::Running);
        child.kill().unwrap();
        child.wait().unwrap();
        offspring.take_over(root, found, Instant::now());
        assert!(offspring.families[&root].children.is_empty());
        let found = next(&offspring).expect("the dead child");
        assert_eq!(found.life, Life::Dead);
        offspring.take_over(root, found, Instant::now());
        let family = offspring.families.get_mut(&root).unwrap();
        assert_eq!(family.children.len(), 1);
        assert!(family.tick(Instant::now()).is_empty());
        assert!(family.children.is_empty());
        // The child allocated little, so its profile is not kept.
        assert!(next(&offspring).is_none());
    }

    /// Waits until a child that was just spawned runs its own program.
    fn wait_for_exec(pid: u32) {
        let own_exe = std::fs::read_link("/proc/self/exe").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::read_link(format!("/proc/{pid}/exe")).unwrap() == own_exe {
            assert!(Instant::now() < deadline, "the child does not start");
            std::thread::yield_now();
        }
    }
}
