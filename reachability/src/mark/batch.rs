//! Batches of memory that are read in one system call.

use std::ops::Range;

/// Batch of memory that is read in one system call.
#[derive(Default)]
pub struct Batch {
    /// Indices of the extents that are read.
    pub extents: Vec<u32>,
    pub pieces: Vec<Piece>,
    /// Addresses and lengths of all pieces; adjacent ones are joined.
    pub wanted: Vec<(u64, usize)>,
    /// Regions of all pieces.
    pub regions: Vec<u32>,
    /// Size of all pieces in bytes.
    pub bytes: usize,
}

/// Contiguous memory of one extent.
pub struct Piece {
    /// Address.
    pub at: u64,
    /// Length in bytes.
    pub len: usize,
    pub extent: u32,
    /// Indices in [`Batch::regions`] of the piece's regions.
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

    /// Sorts the pieces by address and joins adjacent ones into `wanted`.
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
