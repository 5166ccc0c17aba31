//! A snapshot's tree whose nodes are resolved to locations of a profile, each once: walking
//! a hundred thousand stacks costs one small read a frame.

use heap_format::LocationId;
use shm_protocol::snapshot::thread_of;
use shm_protocol::tree::{FIRST_NODE, NodeId, ROOT};

use crate::snapshot::{MAX_DEPTH, Snapshot, StackEnd};

/// A stack tree and the locations of the nodes visited so far.
pub struct ResolvedTree<'a> {
    snapshot: &'a Snapshot,
    /// By node.
    links: Vec<Link>,
}

/// A node's frame and caller, as far as known.
#[derive(Clone, Copy)]
enum Link {
    /// Not visited yet.
    Unvisited,
    /// The end of a stack: the root, where it is whole, or a damaged node.
    End { whole: bool },
    /// A frame, unless it is not shown, and its caller's node, which is older.
    Frame {
        location: Option<LocationId>,
        caller: NodeId,
    },
    /// The node above a thread's stacks: its index, and the root.
    Thread { index: u32, root: NodeId },
}

impl<'a> ResolvedTree<'a> {
    /// A tree of which no node is visited yet.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let links = vec![Link::Unvisited; snapshot.node_count().max(FIRST_NODE as usize)];
        Self { snapshot, links }
    }

    /// Appends the locations of the stack that ends in `leaf`, leaf first; `resolve` finds
    /// that of an address.
    pub fn stack(
        &mut self,
        leaf: NodeId,
        out: &mut Vec<LocationId>,
        mut resolve: impl FnMut(u64) -> LocationId,
    ) -> StackEnd {
        let (start, mut at) = (out.len(), leaf);
        let mut thread = None;
        let mut whole = false;
        while out.len() - start < MAX_DEPTH {
            let Some(link) = self.links.get_mut(at as usize) else {
                break;
            };
            if matches!(link, Link::Unvisited) {
                *link = match self.snapshot.node(at) {
                    Some((caller, address)) => match thread_of(address) {
                        Some(index) => Link::Thread {
                            index,
                            root: caller,
                        },
                        None => Link::Frame {
                            location: (!self.snapshot.is_shim(address)).then(|| resolve(address)),
                            caller,
                        },
                    },
                    None => Link::End { whole: at == ROOT },
                };
            }
            match *link {
                Link::Frame { location, caller } => {
                    out.extend(location);
                    at = caller;
                }
                Link::Thread { index, root } => {
                    thread = Some(index);
                    at = root;
                }
                Link::End { whole: at_root } => {
                    whole = at_root && out.len() > start;
                    break;
                }
                Link::Unvisited => break,
            }
        }
        StackEnd { whole, thread }
    }
}
