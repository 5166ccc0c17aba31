//! Reads what V8 writes: `.cpuprofile` and `.heapprofile` of node, Chrome and Deno.
//!
//! Both are JSON with a tree of calls. A CPU profile lists the nodes, which name their children or
//! their parent, with the node of each sample and the times between samples; a heap profile has
//! nodes inside nodes.

use std::collections::HashMap;

use crate::error::Fault;
use crate::json::Json;
use crate::profile::{Format, Function, Line, Location, Mapping, Profile};
use crate::value_type::ValueType;

/// Maximum number of frames of a stack. V8 records at most 255.
const MAX_FRAMES: usize = 1 << 10;
/// Maximum number of frames of all stacks for each byte of the input. A node of a real profile takes
/// more than 100 bytes.
const MAX_FRAMES_PER_BYTE: usize = 2;
/// Number of frames that any input may have.
const MIN_FRAMES: usize = 1 << 16;
/// Name of the root node, which stands for no code.
const ROOT: &[u8] = b"(root)";
/// Name of functions without one.
const ANONYMOUS: &[u8] = b"(anonymous)";
/// Path of the mapping of all functions: that of code from a JIT compiler.
const JIT_CODE: &str = "//anon";
/// Marks the index of something that does not exist.
const NONE: u32 = u32::MAX;

/// Returns true if a file starts like one of V8's profiles.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    let has = |word: &[u8]| memchr::memmem::find(start, word).is_some();
    let is_tree = has(b"\"nodes\"") || has(b"\"head\"");
    // Traces and heap snapshots have such nodes inside.
    let is_other = has(b"\"traceEvents\"") || has(b"\"ph\"") || has(b"\"snapshot\"");
    let is_object = start.trim_ascii_start().starts_with(b"{");
    is_object && is_tree && has(b"\"callFrame\"") && !is_other
}

/// Reads a profile.
pub(crate) fn read(bytes: &[u8]) -> Result<Profile, Fault> {
    let mut tree = Tree::default();
    tree.read(&mut Json::new(bytes))?;
    if tree.nodes.is_empty() {
        return Err(Fault::whole("has no calls in it"));
    }
    let max_frames = MIN_FRAMES + bytes.len().saturating_mul(MAX_FRAMES_PER_BYTE);
    let indices = tree.link_callers()?;
    tree.into_profile(&indices, max_frames)
}

/// Function of a node (V8's `callFrame`).
#[derive(Default, PartialEq, Eq, Hash)]
struct CallFrame {
    name: Vec<u8>,
    url: Vec<u8>,
    /// First line of the function, from 1; 0 if unknown.
    line: u32,
}

impl CallFrame {
    fn read(json: &mut Json) -> Result<Self, Fault> {
        let mut frame = Self::default();
        json.expect(b'{')?;
        while let Some(key) = json.key()? {
            match &*key {
                b"functionName" => frame.name = json.string()?.into_owned(),
                b"url" => frame.url = json.string()?.into_owned(),
                // From 0; -1 for functions of V8 itself.
                b"lineNumber" => frame.line = (json.number()? + 1.0) as u32,
                _ => json.skip()?,
            }
        }
        Ok(frame)
    }

    fn function(&self) -> Function {
        let name = if self.name.is_empty() {
            ANONYMOUS
        } else {
            &self.name
        };
        Function {
            name: String::from_utf8_lossy(name).into_owned(),
            file: path_in_url(&self.url),
            start_line: self.line,
            ..Function::default()
        }
    }
}

/// Returns the path in a URL of a file, and other URLs as they are.
fn path_in_url(url: &[u8]) -> String {
    let Some(path) = url.strip_prefix(b"file://") else {
        return String::from_utf8_lossy(url).into_owned();
    };
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, others)) = rest.split_first() {
        let digits = others.get(..2).filter(|_| first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &others[2..];
            }
            None => {
                decoded.push(first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Node of the tree of calls.
struct Node {
    /// Number in the file; 0 if it has none.
    id: u64,
    /// Number of the caller, in files whose nodes name it; otherwise 0.
    caller: u64,
    /// Index of the caller, or [`NONE`].
    parent: u32,
    /// Index of the function, or [`NONE`].
    call_frame: u32,
    /// Bytes, or number of samples.
    self_value: f64,
}

/// A number among the children of a node.
struct Link {
    /// Index of the node.
    parent: u32,
    /// Number of the child.
    child: u64,
}

/// Nodes and samples that have been read so far.
#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    call_frames: HashMap<CallFrame, u32>,
    links: Vec<Link>,
    /// Number of the node of each sample.
    samples: Vec<u64>,
    /// Time before each sample, in microseconds.
    deltas: Vec<f64>,
    /// Times of the beginning and the end, in microseconds.
    start: Option<f64>,
    end: Option<f64>,
    /// True if nodes have bytes.
    is_heap: bool,
}

/// Container whose items are being read.
enum Container {
    /// Object of a node, by its index.
    Node(u32),
    /// List of the children of the node with this index, or of all nodes ([`NONE`]).
    Nodes(u32),
}

/// Kind of an item in a node's object.
enum Item {
    Field,
    /// A list of children, of which the beginning was read.
    Children,
    /// The object's end.
    End,
}

impl Tree {
    /// Reads the object that has the nodes. V8's inspector protocol wraps it in other objects.
    fn read(&mut self, json: &mut Json) -> Result<(), Fault> {
        json.expect(b'{')?;
        while let Some(key) = json.key()? {
            match &*key {
                b"result" | b"profile" => json.expect(b'{')?,
                b"head" => {
                    json.expect(b'{')?;
                    let head = self.add_node(NONE);
                    self.read_nodes(json, Container::Node(head))?;
                }
                b"nodes" => {
                    json.expect(b'[')?;
                    self.read_nodes(json, Container::Nodes(NONE))?;
                }
                b"samples" => {
                    json.expect(b'[')?;
                    while !json.consume_if_next(b']')? {
                        match json.peek()? {
                            // Samples of a heap profile, which the sizes of its nodes include.
                            b'{' => json.skip()?,
                            _ => self.samples.push(json.number()? as u64),
                        }
                    }
                }
                b"timeDeltas" => {
                    json.expect(b'[')?;
                    while !json.consume_if_next(b']')? {
                        self.deltas.push(json.number()?);
                    }
                }
                b"startTime" => self.start = Some(json.number()?),
                b"endTime" => self.end = Some(json.number()?),
                _ => json.skip()?,
            }
        }
        Ok(())
    }

    fn add_node(&mut self, parent: u32) -> u32 {
        self.nodes.push(Node {
            id: 0,
            caller: 0,
            parent,
            call_frame: NONE,
            self_value: 0.0,
        });
        self.nodes.len() as u32 - 1
    }

    /// Reads a container of nodes up to its end, with all that are inside.
    fn read_nodes(&mut self, json: &mut Json, outermost: Container) -> Result<(), Fault> {
        let mut open = vec![outermost];
        while let Some(innermost) = open.last() {
            match *innermost {
                Container::Nodes(_) if json.consume_if_next(b']')? => {
                    open.pop();
                }
                Container::Nodes(parent) if json.consume_if_next(b'{')? => {
                    let node = self.add_node(parent);
                    open.push(Container::Node(node));
                }
                Container::Nodes(parent) => {
                    let child = json.number()? as u64;
                    self.links.push(Link { parent, child });
                }
                Container::Node(node) => match self.read_item(json, node)? {
                    Item::Field => {}
                    Item::Children => open.push(Container::Nodes(node)),
                    Item::End => {
                        open.pop();
                    }
                },
            }
            if open.len() > 2 * MAX_FRAMES {
                return Err(too_deep());
            }
        }
        Ok(())
    }

    /// Reads an item of a node's object.
    fn read_item(&mut self, json: &mut Json, node: u32) -> Result<Item, Fault> {
        let Some(key) = json.key()? else {
            return Ok(Item::End);
        };
        let node = &mut self.nodes[node as usize];
        match &*key {
            b"id" => node.id = json.number()? as u64,
            b"parent" => node.caller = json.number()? as u64,
            b"hitCount" => node.self_value = json.number()?,
            b"selfSize" => {
                self.is_heap = true;
                node.self_value = json.number()?;
            }
            b"callFrame" => {
                let next = self.call_frames.len() as u32;
                node.call_frame = *self
                    .call_frames
                    .entry(CallFrame::read(json)?)
                    .or_insert(next);
            }
            b"children" => {
                json.expect(b'[')?;
                return Ok(Item::Children);
            }
            _ => json.skip()?,
        }
        Ok(Item::Field)
    }

    /// Finds the caller of each node. Returns the indices of nodes by their numbers.
    fn link_callers(&mut self) -> Result<HashMap<u64, u32>, Fault> {
        let numbered = self.nodes.iter().zip(0..);
        let indices: HashMap<u64, u32> = numbered.map(|(node, index)| (node.id, index)).collect();
        for link in &self.links {
            // A child that the file does not list has no samples.
            if let Some(&child) = indices.get(&link.child) {
                self.nodes[child as usize].parent = link.parent;
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.caller != 0) {
            let parent = indices.get(&node.caller).copied();
            node.parent = parent.ok_or_else(|| unknown(node.caller))?;
        }
        Ok(indices)
    }

    /// Returns the columns, each with a value for every node.
    fn node_values(&self, indices: &HashMap<u64, u32>) -> Result<Vec<Vec<i64>>, Fault> {
        let own = self.nodes.iter().map(|node| node.self_value.round() as i64);
        if self.is_heap || self.samples.is_empty() {
            return Ok(vec![own.collect()]);
        }
        let mut counts = vec![0_i64; self.nodes.len()];
        let mut times = vec![0_i64; self.nodes.len()];
        for (number, nanoseconds) in self.samples.iter().zip(self.durations()) {
            let node = *indices.get(number).ok_or_else(|| unknown(*number))? as usize;
            counts[node] += 1;
            times[node] = times[node].saturating_add(nanoseconds);
        }
        if self.deltas.is_empty() {
            return Ok(vec![counts]);
        }
        Ok(vec![counts, times])
    }

    /// Returns the nanoseconds from each sample to the next one, or to the end for the last one.
    fn durations(&self) -> Vec<i64> {
        let mut now = self.start.unwrap_or_default();
        let deltas = self.deltas.iter().copied().chain(std::iter::repeat(0.0));
        let taken: Vec<f64> = (deltas.take(self.samples.len()))
            .map(|delta| {
                now += delta;
                now
            })
            .collect();
        // Samples of several threads of V8 are not always written in order.
        let mut order: Vec<usize> = (0..taken.len()).collect();
        order.sort_by(|&a, &b| taken[a].total_cmp(&taken[b]));
        let mut durations = vec![0; taken.len()];
        for (position, &sample) in order.iter().enumerate() {
            let next = order
                .get(position + 1)
                .map(|&next| taken[next])
                .or(self.end);
            let microseconds = next.map_or(0.0, |next| (next - taken[sample]).max(0.0));
            durations[sample] = (microseconds * 1e3).round() as i64;
        }
        durations
    }

    /// Makes a profile of the nodes that have values. Its stacks may have `max_frames` together.
    fn into_profile(
        mut self,
        indices: &HashMap<u64, u32>,
        max_frames: usize,
    ) -> Result<Profile, Fault> {
        let columns = self.node_values(indices)?;
        let types = match (self.is_heap, columns.len()) {
            (true, _) => vec![ValueType::new("inuse_space", "bytes")],
            (false, 1) => vec![ValueType::new("samples", "count")],
            (false, _) => vec![
                ValueType::new("samples", "count"),
                ValueType::new("wall", "nanoseconds"),
            ],
        };
        let mut profile = Profile {
            format: Format::V8,
            default_type: types.len() - 1,
            sample_types: types,
            ..Profile::default()
        };
        let unknown_frame = self.call_frames.len() as u32;
        let unknown_frame = *self
            .call_frames
            .entry(CallFrame::default())
            .or_insert(unknown_frame);
        let root = self.call_frames.keys().find(|frame| frame.name == ROOT);
        let root = root.and_then(|root| self.call_frames.get(root)).copied();
        let mut frames = 0;
        for (index, node) in self.nodes.iter().enumerate() {
            if columns.iter().all(|values| values[index] == 0) {
                continue;
            }
            let mut next = Some(node);
            let mut depth = 0;
            while let Some(node) = next {
                let caller = self.nodes.get(node.parent as usize);
                let frame = Some(node.call_frame).filter(|&frame| frame != NONE);
                // Bytes of the root itself are shown as such.
                if caller.is_some() || depth == 0 || frame != root {
                    profile.stacks.push_frame(frame.unwrap_or(unknown_frame));
                    depth += 1;
                }
                next = caller;
                if depth > MAX_FRAMES {
                    return Err(too_deep());
                }
            }
            profile.stacks.close();
            profile
                .values
                .extend(columns.iter().map(|values| values[index]));
            frames += depth;
            if frames > max_frames {
                return Err(Fault::whole(
                    "has more frames than a file of its size can have: it was not written by V8",
                ));
            }
        }
        if let (false, Some(start), Some(end)) = (self.is_heap, self.start, self.end) {
            profile.facts.duration_ns = Some(((end - start).max(0.0) * 1e3) as u64);
        }
        add_functions(&mut profile, self.call_frames);
        Ok(profile)
    }
}

/// Adds the functions, each with a location of the same index.
fn add_functions(profile: &mut Profile, call_frames: HashMap<CallFrame, u32>) {
    let mut call_frames: Vec<(CallFrame, u32)> = call_frames.into_iter().collect();
    call_frames.sort_by_key(|&(_, index)| index);
    profile.mappings.push(Mapping {
        path: JIT_CODE.into(),
        end: call_frames.len() as u64 + 1,
        ..Mapping::default()
    });
    for (call_frame, index) in call_frames {
        profile.functions.push(call_frame.function());
        profile.lines.push(Line {
            function: index,
            ..Line::default()
        });
        profile.locations.push(Location {
            address: u64::from(index) + 1,
            mapping: 0,
            first_line: index,
            line_count: 1,
        });
    }
}

fn too_deep() -> Fault {
    Fault::whole(format!(
        "has stacks of more than {MAX_FRAMES} frames: it was not written by V8"
    ))
}

fn unknown(number: u64) -> Fault {
    Fault::whole(format!(
        "is damaged: it refers to node {number}, which it does not have"
    ))
}
