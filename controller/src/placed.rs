//! A snapshot's tree with the place of each node found once: walking a hundred thousand
//! stacks costs one small read a frame.

use heap_format::Place;
use shm_protocol::tree::{FIRST_NODE, NodeId, ROOT};

use crate::snapshot::{MAX_DEPTH, Snapshot};

/// The tree.
pub struct PlacedTree<'a> {
    snapshot: &'a Snapshot,
    /// For each node what was found out about it.
    links: Vec<Link>,
}

/// What is known of a node.
#[derive(Clone, Copy)]
enum Link {
    /// Nobody asked yet.
    Unseen,
    /// The end of a stack: the root, where it is whole, or a damaged node.
    End { whole: bool },
    /// A frame and its caller's node, which is older.
    Frame { place: Place, caller: NodeId },
}

impl<'a> PlacedTree<'a> {
    /// Nothing is looked at yet.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let links = vec![Link::Unseen; snapshot.node_count().max(FIRST_NODE as usize)];
        Self { snapshot, links }
    }

    /// Appends the places of the stack that ends in `leaf`, leaf first; `place` finds that
    /// of an address. Whether the stack goes on to the thread's start.
    pub fn stack(
        &mut self,
        leaf: NodeId,
        out: &mut Vec<Place>,
        mut place: impl FnMut(u64) -> Place,
    ) -> bool {
        let (start, mut at) = (out.len(), leaf);
        while out.len() - start < MAX_DEPTH {
            let Some(link) = self.links.get_mut(at as usize) else {
                return false;
            };
            if matches!(link, Link::Unseen) {
                *link = match self.snapshot.node(at) {
                    Some((caller, address)) => Link::Frame {
                        place: place(address),
                        caller,
                    },
                    None => Link::End { whole: at == ROOT },
                };
            }
            match *link {
                Link::Frame { place, caller } => {
                    out.push(place);
                    at = caller;
                }
                Link::End { whole } => return whole && out.len() > start,
                Link::Unseen => return false,
            }
        }
        false
    }
}
