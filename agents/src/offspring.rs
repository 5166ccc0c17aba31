//! Children that continue with the sessions of some processes by themselves, for a program that
//! keeps sessions going without writing dumps of them (a server, `top`).
//!
//! A child begins with its parent's deadline. Here it is found, its session is extended for as long
//! as the parent's is, and ended with it. If nobody is left to do that, the deadline ends it. Of the
//! children that have ended, only some profiles are kept, for `recover`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use shm_protocol::layout::BANK_HEADER_BYTES;

use crate::discovery::{Discovery, Found, Life};
use crate::lineage::{LAST_LOOKS, MAX_REACHED, is_alive, session_by_birth};
use crate::segment::Entry;
use crate::target::{Deadline, Look, RENEWAL, Target};

/// Time between checks of the shared directory for new names.
const GLANCE: Duration = Duration::from_secs(1);
/// Time between searches for new processes everywhere, other namespaces included.
const SEARCH: Duration = Duration::from_secs(10);
/// Maximum number of profiles that are kept of the ended children of one session.
const MAX_KEPT: usize = 8;
/// Least bytes that a child allocated if its profile is kept.
const MIN_KEPT_BYTES: f64 = (1 << 20) as f64;
/// Number of segments that are remembered as seen before those that are gone are forgotten.
const MAX_KNOWN: usize = 1 << 10;

/// Identity of a session that is kept going: the segment's device and inode.
pub type Root = (u64, u64);

/// The children of all sessions of one program.
#[derive(Default)]
pub struct Offspring {
    discovery: Discovery,
    families: HashMap<Root, Family>,
    /// Processes that the sessions have reached, by their own pids and the namespaces of those.
    reached: HashMap<(u32, u64), Reached>,
    known: HashSet<Entry>,
    last_glance: Option<Instant>,
    last_search: Option<Instant>,
}

/// A session with the children that continue it.
struct Family {
    start_ns: u64,
    max_overhead: Option<f64>,
    /// When the session ends, if it outlives the process that it was begun in.
    until: Option<Instant>,
    is_orphaned: bool,
    children: Vec<Child>,
    /// Ended children whose profiles are kept, oldest first.
    kept: VecDeque<Found>,
}

/// A process that a session has reached.
struct Reached {
    root: Root,
    pid: i32,
}

struct Child {
    target: Target,
    renewal: Instant,
}

/// The deadline of a session that is extended from time to time, and ends at a time that is known
/// or not. The caller ends it at that time, shortly before the agent would.
pub fn deadline(until: Option<Instant>, now: Instant) -> u64 {
    const GRACE: Duration = Duration::from_secs(1);
    let rolling = Deadline::ns_after(None);
    let left = until.map(|until| until.saturating_duration_since(now) + GRACE);
    left.map_or(rolling, |left| {
        rolling.min(Deadline::ns_after(Some(left)) | 1)
    })
}

impl Offspring {
    /// A session has begun.
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
            .insert(key(&target.agent), Reached { root, pid });
        root
    }

    /// Looks after all children; several times a second. Gives warnings.
    pub fn tick(&mut self, now: Instant) -> Vec<String> {
        let mut warnings = Vec::new();
        let over = |family: &Family| {
            let is_late = family.until.is_some_and(|until| now >= until);
            family.is_orphaned && (family.children.is_empty() || is_late)
        };
        let ended: Vec<Root> = (self.families.iter())
            .filter_map(|(root, family)| over(family).then_some(*root))
            .collect();
        ended.into_iter().for_each(|root| self.end(root));
        if self.families.is_empty() {
            return warnings;
        }
        for family in self.families.values_mut() {
            warnings.append(&mut family.tick(now));
        }
        let is_due = |last: Option<Instant>, period| last.is_none_or(|last| now - last >= period);
        if is_due(self.last_glance, GLANCE) {
            self.last_glance = Some(now);
            if is_due(self.last_search, SEARCH) || self.discovery.has_new(&self.known) {
                self.last_search = Some(now);
                self.search(now);
            }
        }
        warnings
    }

    /// Until when a session lasts: also without the process that it was begun in.
    pub fn extend(&mut self, root: Root, until: Option<Instant>) {
        if let Some(family) = self.families.get_mut(&root) {
            family.until = until;
        }
    }

    /// The process that a session was begun in has ended: its children continue.
    pub fn orphan(&mut self, root: Root) {
        if let Some(family) = self.families.get_mut(&root) {
            family.is_orphaned = true;
        }
    }

    /// Whether a process is a child that is looked after.
    pub fn has(&self, pid: i32) -> bool {
        let mut children = self.families.values().flat_map(|family| &family.children);
        children.any(|child| child.target.agent.pid == pid)
    }

    /// Ends the session in one child. Whether that was one.
    pub fn end_child(&mut self, pid: i32) -> bool {
        for family in self.families.values_mut() {
            let children = &mut family.children;
            let at = children.iter().position(|c| c.target.agent.pid == pid);
            if let Some(at) = at {
                end(&mut children.swap_remove(at).target);
                return true;
            }
        }
        false
    }

    /// Ends a session, which is over where it was begun, in all children.
    pub fn end(&mut self, root: Root) {
        if !self.families.contains_key(&root) {
            return;
        }
        // A child that makes its segment now finds the session over, or is found here: it looks
        // after it has made the segment, and we after the session was turned off.
        for _ in 0..LAST_LOOKS {
            let Some(family) = self.families.get_mut(&root) else {
                break;
            };
            for mut child in family.children.drain(..) {
                end(&mut child.target);
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

    /// Ends all.
    pub fn end_all(&mut self) {
        let roots: Vec<Root> = self.families.keys().copied().collect();
        roots.into_iter().for_each(|root| self.end(root));
    }

    /// Looks for children that are new.
    fn search(&mut self, now: Instant) {
        let scan = self.discovery.scan_except(&self.known);
        // Should one that is looked after be missing for once, it is found again, and not taken twice.
        scan.forget_gone(&mut self.known, MAX_KNOWN);
        self.known.extend(&scan.settled);
        let mut rest = scan.found;
        // Children of children, too.
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
                self.take(root, found, now);
            }
            rest = strangers;
        }
    }

    /// Forgets reached processes that have ended, whose children have been found by now.
    fn forget_ended(&mut self) {
        if self.reached.len() > MAX_REACHED {
            self.reached.retain(|_, reached| is_alive(reached.pid));
        }
    }

    fn take(&mut self, root: Root, found: Found, now: Instant) {
        let entry = found.entry;
        self.known.insert(entry);
        let Some(family) = self.families.get_mut(&root) else {
            return;
        };
        let is_taken = family
            .children
            .iter()
            .any(|c| c.target.agent.file == found.file)
            || family.kept.iter().any(|kept| kept.file == found.file);
        let Ok(agent) = found.open() else { return };
        let is_ours = session_by_birth(&agent, family.start_ns).is_some()
            && (agent.life != Life::Running || agent.confirm().is_ok());
        if is_taken || !is_ours {
            return;
        }
        let pid = agent.pid;
        self.reached.insert(key(&agent), Reached { root, pid });
        match Target::adopt(agent) {
            Ok(Some(target)) => {
                let target = target.limited(family.max_overhead);
                family.children.push(Child {
                    target,
                    renewal: now,
                });
            }
            // Not begun yet: the next search asks again.
            Ok(None) => drop(self.known.remove(&entry)),
            // Where another controller has it, that looks after it.
            Err(_) => {}
        }
    }
}

impl Family {
    fn tick(&mut self, now: Instant) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut at = 0;
        while at < self.children.len() {
            let child = &mut self.children[at];
            let looked = child.target.look();
            warnings.append(&mut child.target.take_warnings());
            let mut goes_on = matches!(looked, Ok(Look::Counting));
            if goes_on && now >= child.renewal {
                child.renewal = now + RENEWAL;
                let until = deadline(self.until, now);
                goes_on = child.target.publish(until).is_ok();
            }
            match goes_on {
                true => at += 1,
                false => {
                    let child = self.children.swap_remove(at);
                    self.lay_down(child.target);
                }
            }
        }
        warnings
    }

    /// A child has ended, or somebody has ended its session: keeps its profile if that may be wanted.
    fn lay_down(&mut self, mut target: Target) {
        target.settle_life();
        if target.agent.life == Life::Running {
            // Its profile is for whoever has stopped it.
            return;
        }
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = (target.agent.segment).bank(target.session.number, &mut buffer);
        let bytes = bank.map_or(0.0, |bank| bank.totals().alloc_bytes);
        if bytes < MIN_KEPT_BYTES {
            // Where it cannot be removed, `clean` does so later.
            let _ = target.release();
            return;
        }
        self.kept.push_back((*target.agent).clone());
        drop(target);
        if self.kept.len() > MAX_KEPT
            && let Some(oldest) = self.kept.pop_front()
        {
            forget(oldest);
        }
    }
}

/// Removes what an ended child left, unless somebody has done so or is about to.
fn forget(found: Found) {
    let target = found.open().ok().map(Target::adopt);
    if let Some(Ok(Some(target))) = target {
        let _ = target.release();
    }
}

/// Ends a child's session, whose profile is not wanted.
fn end(target: &mut Target) {
    // Where that fails, it ends by itself within a minute.
    let _ = target.stop();
    target.settle_life();
    let _ = target.release();
}

fn key(found: &Found) -> (u32, u64) {
    (found.entry.name.pid as u32, found.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ended_processes_are_forgotten() {
        let own = std::process::id();
        let mut offspring = Offspring::default();
        let mut put = |key: u32, pid: i32| {
            let reached = Reached { root: (1, 1), pid };
            offspring.reached.insert((key, 1), reached);
        };
        put(own, own.cast_signed());
        // Numbers that no process has.
        for number in 0..MAX_REACHED as u32 {
            put(number + (1 << 23), i32::MAX - number.cast_signed());
        }
        offspring.forget_ended();
        assert!(offspring.reached.len() == 1 && offspring.reached.contains_key(&(own, 1)));
    }
}
