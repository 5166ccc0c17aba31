//! Memory to read in one system call.

use std::ops::Range;

/// Memory to read in one system call.
#[derive(Default)]
pub struct Batch {
    pub extents: Vec<u32>,
    pub pieces: Vec<Piece>,
    /// Addresses and lengths of all pieces; adjacent ones are joined.
    pub wanted: Vec<(u64, usize)>,
    /// Regions of all pieces.
    pub regions: Vec<u32>,
    /// Size of all pieces in bytes.
    pub bytes: usize,
}

/// Regions of one extent.
pub struct Piece {
    pub at: u64,
    pub len: usize,
    pub extent: u32,
    /// Indices of its regions in the batch.
    pub regions: Range<usize>,
    /// True if the piece is a whole extent.
    pub is_whole: bool,
}

impl Batch {
    pub fn clear(&mut self) {
        self.extents.clear();
        self.pieces.clear();
        self.wanted.clear();
        self.regions.clear();
        self.bytes = 0;
    }

    pub fn add(&mut self, at: u64, len: usize, extent: u32, regions: Range<usize>, is_whole: bool) {
        self.bytes += len;
        self.pieces.push(Piece {
            at,
            len,
            extent,
            regions,
            is_whole,
        });
    }

    /// Orders the pieces by address and determines what to read.
    pub fn join(&mut self) {
        self.pieces.sort_unstable_by_key(|piece| piece.at);
        for piece in &self.pieces {
            match self.wanted.last_mut() {
                Some((at, len)) if *at + *len as u64 == piece.at => *len += piece.len,
                _ => self.wanted.push((piece.at, piece.len)),
            }
        }
    }
}
