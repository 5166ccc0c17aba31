//! Explains what keeps an object alive: the chain of pointers from a root to the object, and how
//! much that root alone keeps.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use mem_agents::discovery::Agent;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use reachability::PointerRules;
use reachability::lost;
use reachability::mark;
use reachability::object::Sampled;
use reachability::path::{self, Path};
use shm_protocol::NodeId;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use super::memory::MomentMemory;
use super::search::{belongs_to_session, is_counted};
use super::stacks::Sum;
use super::{Method, Moment, Options, Search, globals};

/// Maximum number of stacks for which an object is explained.
const MAX_STACKS: usize = 3;

/// Objects to explain.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Object that contains this address.
    Address(u64),
    /// Largest object of each of these stacks.
    Stacks(HashSet<NodeId>),
}

/// Explanation for one object.
#[derive(Debug)]
pub struct Holder {
    /// Address of the object.
    pub at: u64,
    /// Size of the object, in bytes.
    pub bytes: u64,
    /// Leaf node of the object's stack, if it is sampled.
    pub node: Option<NodeId>,
    /// Chain of pointers to the object; `None` if nothing leads to it.
    pub chain: Option<Chain>,
}

/// Chain of pointers from a root.
#[derive(Debug)]
pub struct Chain {
    /// Name of the root, for display.
    pub root: String,
    /// Sampled objects that only this root keeps alive.
    pub alone: Sum,
    /// Objects of the chain; the last one is the object that is explained.
    pub links: Vec<Link>,
}

/// Object in a chain.
#[derive(Debug)]
pub struct Link {
    /// Address of the object.
    pub at: u64,
    /// Size of the object, in bytes.
    pub bytes: u64,
    /// Leaf node of the object's stack, if it is sampled.
    pub node: Option<NodeId>,
    /// Offset of the pointer to the next object, in bytes; `None` for the last object.
    pub offset: Option<u64>,
}

/// Finds the chains that keep objects alive. Returns an empty list if there is no such object.
pub fn holders(
    agent: &Agent,
    header: &Header<'_>,
    session: &Session,
    method: Method,
    options: &Options,
    wanted: &Wanted,
) -> anyhow::Result<Vec<Holder>> {
    let globals = globals(header)?;
    agent.confirm()?;
    let moment = Moment::of(agent, method)?;
    let stacks = Snapshot::read_stacks(&agent.segment, session)?;
    let agent_memory = header.agent_memory();
    let search = Search::of(&moment, &globals, agent_memory, options, true);
    let search = search.or_else(|error| moment.confirm().and(Err(error)))?;
    let finder = Finder {
        pid: agent.pid,
        memory: &moment.memory,
        search: &search,
        session,
        stacks: &stacks,
    };
    let holders = finder.find(wanted);
    moment.confirm()?;
    moment.hold.release();
    Ok(holders)
}

/// Largest object of a stack.
#[derive(Default)]
struct Largest {
    /// Estimated size of all objects of the stack, in bytes.
    stack_bytes: f64,
    /// Size of the largest object, in bytes.
    object_bytes: u64,
    /// Region of the largest object.
    region: u32,
}

/// State of one query.
struct Finder<'a> {
    pid: i32,
    memory: &'a MomentMemory,
    search: &'a Search,
    session: &'a Session,
    stacks: &'a [(NodeId, u32)],
}

/// Object in a region.
struct ObjectInfo {
    /// Address of the object.
    at: u64,
    /// Size of the object, in bytes.
    bytes: u64,
    /// Leaf node of the object's stack, if it is sampled.
    node: Option<NodeId>,
}

impl Finder<'_> {
    fn find(&self, wanted: &Wanted) -> Vec<Holder> {
        let regions = match wanted {
            Wanted::Address(address) => {
                let region = self.search.heap.find(*address);
                region.map(|(_, region)| region).into_iter().collect()
            }
            Wanted::Stacks(nodes) => self.largest(nodes),
        };
        regions.into_iter().map(|r| self.holder(r)).collect()
    }

    fn pointers(&self) -> &PointerRules {
        &self.search.pointers
    }

    fn belongs_to_session(&self, object: &Sampled) -> bool {
        belongs_to_session(object, self.session) && is_counted(object, self.stacks)
    }

    /// Returns the leaf node of a sampled object's stack.
    fn node(&self, object: &Sampled) -> Option<NodeId> {
        let stack = self.stacks.get(object.record as usize);
        let stack = stack.filter(|_| self.belongs_to_session(object));
        stack.map(|(node, _)| *node)
    }

    /// Returns the region of the largest reachable object of each stack, for the stacks with the
    /// most bytes. Uses lost objects if none is reachable.
    fn largest(&self, nodes: &HashSet<NodeId>) -> Vec<u32> {
        let is_wanted = |object: &Sampled| self.node(object).is_some_and(|n| nodes.contains(&n));
        let marks = &self.search.marks;
        for reached in [true, false] {
            let heap = &self.search.heap;
            let is_searched = |region| marks.has(region) == reached;
            let found = lost::find_if(self.memory, heap, is_searched, is_wanted).lost;
            let mut stacks: HashMap<NodeId, Largest> = HashMap::new();
            for lost in found {
                let object = lost.object;
                let node = self.node(&object).unwrap_or(0);
                let stack = stacks.entry(node).or_default();
                stack.stack_bytes += f64::from(object.weight) * object.bytes as f64;
                if object.bytes >= stack.object_bytes {
                    stack.object_bytes = object.bytes;
                    stack.region = lost.region;
                }
            }
            let mut stacks: Vec<Largest> = stacks.into_values().collect();
            stacks.sort_by(|a, b| {
                let by_bytes = b.stack_bytes.total_cmp(&a.stack_bytes);
                by_bytes.then(a.region.cmp(&b.region))
            });
            if !stacks.is_empty() {
                let largest = stacks.into_iter().take(MAX_STACKS);
                return largest.map(|stack| stack.region).collect();
            }
        }
        Vec::new()
    }

    fn holder(&self, region: u32) -> Holder {
        let heap = &self.search.heap;
        let ObjectInfo { at, bytes, node } = self.describe(region);
        let path = path::chain_to(
            self.memory,
            heap,
            self.pointers(),
            &self.search.marks,
            region,
        );
        Holder {
            at,
            bytes,
            node,
            chain: path.map(|path| self.chain(&path)),
        }
    }

    fn chain(&self, path: &Path) -> Chain {
        let (root, root_range) = self.root(path);
        let mut links = Vec::new();
        for step in &path.steps {
            let ObjectInfo { at, bytes, node } = self.describe(step.region);
            let pointer = step.offset.map(|offset| step.at + offset);
            links.push(Link {
                at,
                bytes,
                node,
                offset: pointer.map(|pointer| pointer.saturating_sub(at)),
            });
        }
        Chain {
            root,
            alone: self.kept_alone(path.root, root_range),
            links,
        }
    }

    /// Describes the object in a region.
    fn describe(&self, region: u32) -> ObjectInfo {
        let heap = &self.search.heap;
        if let Some(object) = lost::sampled_object(self.memory, heap, region) {
            return ObjectInfo {
                at: object.at,
                bytes: object.bytes,
                node: self.node(&object),
            };
        }
        let (at, bytes) = heap.region(region).unwrap_or_default();
        ObjectInfo {
            at,
            bytes,
            node: None,
        }
    }

    /// Returns the address of the word with the first pointer of a chain, or `None` if it is not in
    /// memory (a register or a word from the kernel).
    fn pointer(&self, path: &Path) -> Option<u64> {
        let ranges = self.search.roots.ranges.iter();
        let mut root_ranges = ranges.filter(|(_, number)| *number == path.root);
        let first = path.steps.first()?.region;
        let heap = &self.search.heap;
        root_ranges.find_map(|(range, _)| {
            path::find_pointer(self.memory, heap, self.pointers(), range.clone(), first)
        })
    }

    /// Returns the name of a chain's root and its address range: that of the variable, or else of
    /// the word that holds the pointer. The range is `None` if the root is not in memory.
    fn root(&self, path: &Path) -> (String, Option<Range<u64>>) {
        let Some(root) = self.search.roots.roots.get(path.root as usize) else {
            return ("a root".to_owned(), None);
        };
        let Some(at) = self.pointer(path) else {
            return (root.name.clone(), None);
        };
        let module = root.module.as_ref();
        let variable =
            module.and_then(|(path, base)| Some((path, self.variable(path, at, *base)?)));
        let Some((path, variable)) = variable else {
            return (format!("{}, at {at:#x}", root.name), Some(at..at + 8));
        };
        let style = symbols::demangle::Style::Simple;
        let name = symbols::demangle::demangle(&variable.name, style);
        let offset = match variable.offset {
            0 => String::new(),
            offset => format!(" + {offset:#x}"),
        };
        let module = text::escape(text::base_name(path));
        let name = text::escape(name.as_bytes());
        let start = at - variable.offset;
        let root_range = start..start.saturating_add(variable.size);
        (
            format!("variable {name}{offset} of {module}"),
            Some(root_range),
        )
    }

    /// Finds the variable at an address in the symbols of the file `path`, which is mapped at
    /// `base`.
    fn variable(&self, path: &[u8], at: u64, base: u64) -> Option<symbols::Variable> {
        let file = proc::directory(self.pid).join("root");
        let name = std::ffi::OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path));
        let variable = symbols::variable(&file.join(name), at.checked_sub(base)?);
        variable.ok().flatten()
    }

    /// Sums the sampled objects that are reachable only from the memory at `root_range` or, if that
    /// is `None`, from the words of the root.
    fn kept_alone(&self, root: u32, root_range: Option<Range<u64>>) -> Sum {
        let roots = &self.search.roots;
        let words = roots.words.iter().copied();
        let words: Vec<_> = words
            .filter(|w| root_range.is_some() || w.1 != root)
            .collect();
        let root_range = root_range.unwrap_or(0..0);
        // Parts of a root's range that are outside `root_range`.
        let other_parts = |(range, number): &(Range<u64>, u32)| {
            let below = range.start..range.end.min(root_range.start);
            let above = range.start.max(root_range.end)..range.end;
            let parts = if root_range.is_empty() {
                [range.clone(), 0..0]
            } else {
                [below, above]
            };
            let number = *number;
            let parts = parts.into_iter().filter(|part| part.start < part.end);
            parts.map(move |part| (part, number))
        };
        let ranges: Vec<_> = roots.ranges.iter().flat_map(other_parts).collect();
        let other_roots = mark::Roots {
            words: &words,
            ranges: &ranges,
            pointers: self.pointers(),
            trace: false,
        };
        let heap = &self.search.heap;
        let all_marks = &self.search.marks;
        let other_marks = mark::mark(self.memory, heap, &other_roots);
        let is_searched = |region| all_marks.has(region) && !other_marks.has(region);
        let wanted = |object: &Sampled| self.belongs_to_session(object);
        let found = lost::find_if(self.memory, heap, is_searched, wanted);
        let mut sum = Sum::default();
        found.lost.iter().for_each(|lost| sum.add(lost));
        sum
    }
}
