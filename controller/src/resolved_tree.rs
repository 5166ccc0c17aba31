//! A snapshot's tree whose nodes are resolved to locations of a profile, each once: walking
//! a hundred thousand stacks costs one small read a frame.

use heap_format::LocationId;
use shm_protocol::tree::{FIRST_NODE, NodeId, ROOT};

use crate::snapshot::{MAX_DEPTH, Snapshot};

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
    /// A frame and its caller's node, which is older.
    Frame {
        location: LocationId,
        caller: NodeId,
    },
}

impl<'a> ResolvedTree<'a> {
    /// A tree of which no node is visited yet.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let links = vec![Link::Unvisited; snapshot.node_count().max(FIRST_NODE as usize)];
        Self { snapshot, links }
    }

    /// Appends the locations of the stack that ends in `leaf`, leaf first; `resolve` finds
    /// that of an address. Returns whether the stack reaches the thread's start.
    pub fn stack(
        &mut self,
        leaf: NodeId,
        out: &mut Vec<LocationId>,
        mut resolve: impl FnMut(u64) -> LocationId,
    ) -> bool {
        let (start, mut at) = (out.len(), leaf);
        while out.len() - start < MAX_DEPTH {
            let Some(link) = self.links.get_mut(at as usize) else {
                return false;
            };
            if matches!(link, Link::Unvisited) {
                *link = match self.snapshot.node(at) {
                    Some((caller, address)) => Link::Frame {
                        location: resolve(address),
                        caller,
                    },
                    None => Link::End { whole: at == ROOT },
                };
            }
            match *link {
                Link::Frame { location, caller } => {
                    out.push(location);
                    at = caller;
                }
                Link::End { whole } => return whole && out.len() > start,
                Link::Unvisited => return false,
            }
        }
        false
    }
}
