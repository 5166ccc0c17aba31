//! Maps the nodes of a snapshot's tree to locations of a profile, each node once. Walking a hundred
//! thousand stacks then costs one small read per frame.

use profile::LocationId;
use shm_protocol::snapshot::thread_of;
use shm_protocol::tree::{FIRST_NODE, NodeId, ROOT};

use crate::snapshot::{MAX_DEPTH, Snapshot, StackEnd};

/// Stack tree with the locations of the nodes visited so far.
pub struct ResolvedTree<'a> {
    snapshot: &'a Snapshot,
    /// Links by node number.
    links: Vec<Link>,
}

/// Resolution state of a node.
#[derive(Clone, Copy)]
enum Link {
    /// Not visited.
    Unvisited,
    /// End of a stack: the root (`whole`), or a damaged node.
    End { whole: bool },
    /// Frame and its caller's node, which has a lower number. `None` for a frame that is not shown.
    Frame {
        location: Option<LocationId>,
        caller: NodeId,
    },
    /// Node between the root and the stacks of one thread.
    Thread { index: u32, root: NodeId },
}

impl<'a> ResolvedTree<'a> {
    /// Creates a tree without visited nodes.
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let links = vec![Link::Unvisited; snapshot.node_count().max(FIRST_NODE as usize)];
        Self { snapshot, links }
    }

    /// Appends the locations of the stack with leaf node `leaf`, innermost first. `resolve` maps an
    /// address to its location.
    pub fn stack(
        &mut self,
        leaf: NodeId,
        out: &mut Vec<LocationId>,
        mut resolve: impl FnMut(u64) -> LocationId,
    ) -> StackEnd {
        let start = out.len();
        let mut node = leaf;
        let mut thread = None;
        let mut whole = false;
        while out.len() - start < MAX_DEPTH {
            let Some(link) = self.links.get_mut(node as usize) else {
                break;
            };
            if matches!(link, Link::Unvisited) {
                *link = match self.snapshot.node(node) {
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
                    None => Link::End {
                        whole: node == ROOT,
                    },
                };
            }
            match *link {
                Link::Frame { location, caller } => {
                    out.extend(location);
                    node = caller;
                }
                Link::Thread { index, root } => {
                    thread = Some(index);
                    node = root;
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
