//! Sampling variances of the differences between two dumps of one session.
//!
//! Objects that are live in both dumps were sampled once, with the same weights. So the error of a
//! difference is only that of objects that were allocated or freed in between.

use crate::profile::Profile;

/// Columns of what is live, each with that of what was allocated.
const PAIRS: [(&str, &str); 2] = [
    ("inuse_objects", "alloc_objects"),
    ("inuse_space", "alloc_space"),
];

/// Variances of one stack's values in one dump.
#[derive(Clone, Copy)]
struct Dump {
    live: f64,
    allocated: f64,
}

impl Dump {
    fn freed(self) -> f64 {
        self.allocated - self.live
    }

    /// Returns the variance of the change of the live value up to a later dump.
    ///
    /// All that is freed in between counts as if it had been live at this dump: an upper bound.
    fn change(self, later: Self) -> f64 {
        let freed = (later.freed() - self.freed()).max(0.0);
        let common = (self.live - freed).clamp(0.0, later.live.max(0.0));
        (self.live + later.live - 2.0 * common).max(0.0)
    }
}

/// Sets the variances of a difference, from its own of the later dump and those of the earlier one.
/// Adds them up in columns that no column of allocations belongs to.
pub fn set_variances(difference: &mut Profile, earlier: &[f64]) {
    let columns = difference.sample_types.len();
    let allocated: Vec<Option<usize>> = (difference.sample_types.iter())
        .map(|kind| {
            let pair = PAIRS.iter().find(|(live, _)| *live == kind.kind)?;
            difference.type_index(pair.1)
        })
        .collect();
    let is_allocated: Vec<bool> = (0..columns)
        .map(|column| allocated.contains(&Some(column)))
        .collect();
    let rows = difference.variances.chunks_exact_mut(columns.max(1));
    for (late, early) in rows.zip(earlier.chunks_exact(columns.max(1))) {
        let own = late.to_vec();
        for (column, variance) in late.iter_mut().enumerate() {
            *variance = match allocated[column] {
                // Sums only grow within a session.
                Some(of) if early[of] <= own[of] => {
                    let [before, after] = [early, &own].map(|row| Dump {
                        live: row[column],
                        allocated: row[of],
                    });
                    before.change(after)
                }
                None if is_allocated[column] && early[column] <= own[column] => {
                    own[column] - early[column]
                }
                _ => own[column] + early[column],
            };
        }
    }
}
