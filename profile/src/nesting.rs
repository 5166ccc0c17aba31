//! Sampling errors of the differences between two dumps.
//!
//! Within a session, objects that are live in both dumps were sampled once, with the same weights.
//! So the error of a difference is only that of objects that were allocated or freed in between.
//! Dumps of different sessions are independent.

use crate::profile::Profile;
use crate::variance::SamplingError;

/// Columns of live values, each with the column of the allocated ones.
const PAIRS: [(&str, &str); 2] = [
    ("inuse_objects", "alloc_objects"),
    ("inuse_space", "alloc_space"),
];

/// Role of a column in the difference between two dumps of a session.
#[derive(Clone, Copy)]
enum Role {
    /// Live values, with the column of the allocated ones.
    Live { allocated: usize },
    /// Allocated values, which only grow.
    Allocated,
    /// Anything else.
    Other,
}

/// Live and allocated values of one stack in one dump, or the variances of these values.
#[derive(Clone, Copy)]
struct LiveAndAllocated {
    live: f64,
    allocated: f64,
}

impl LiveAndAllocated {
    fn from_row(row: &[f64], live: usize, allocated: usize) -> Self {
        Self {
            live: row[live],
            allocated: row[allocated],
        }
    }

    fn freed(self) -> f64 {
        self.allocated - self.live
    }

    /// Returns an upper bound of what is live in only one of this dump and a later one. Assumes that
    /// all that was freed in between was live in this dump.
    fn change(self, later: Self) -> f64 {
        let freed = (later.freed() - self.freed()).max(0.0);
        let common = (self.live - freed).clamp(0.0, later.live.max(0.0));
        (self.live + later.live - 2.0 * common).max(0.0)
    }
}

/// Absolute values and variances of a stack in one dump, by column.
pub struct StackRow {
    values: Vec<f64>,
    variances: Vec<f64>,
}

impl StackRow {
    /// Wraps the values and variances of a stack.
    pub fn new(values: impl Iterator<Item = i64>, variances: &[f64]) -> Self {
        Self {
            values: values.map(|value| value.unsigned_abs() as f64).collect(),
            variances: variances.to_vec(),
        }
    }
}

/// Computes the errors of differences between the rows of two dumps with the same columns.
pub struct Nesting {
    roles: Vec<Role>,
}

impl Nesting {
    /// Treats the dumps as independent: they are of different sessions.
    pub fn independent(profile: &Profile) -> Self {
        Self {
            roles: vec![Role::Other; profile.sample_types.len()],
        }
    }

    /// Treats the dumps as nested: they are of one session.
    pub fn of_session(profile: &Profile) -> Self {
        let role = |kind: &str| {
            let as_live = PAIRS.iter().find(|(live, _)| *live == kind);
            let allocated = as_live.and_then(|(_, allocated)| profile.type_index(allocated));
            match allocated {
                Some(allocated) => Role::Live { allocated },
                None if PAIRS.iter().any(|(_, allocated)| *allocated == kind) => Role::Allocated,
                None => Role::Other,
            }
        };
        let kinds = profile.sample_types.iter();
        Self {
            roles: kinds.map(|kind| role(&kind.kind)).collect(),
        }
    }

    /// Returns the errors of the differences between two rows, by column.
    pub fn errors(&self, early: &StackRow, late: &StackRow) -> impl Iterator<Item = SamplingError> {
        (0..self.roles.len()).map(|column| self.error(column, early, late))
    }

    fn error(&self, column: usize, early: &StackRow, late: &StackRow) -> SamplingError {
        let allocated = match self.roles[column] {
            Role::Live { allocated } => Some(allocated),
            Role::Allocated => Some(column),
            Role::Other => None,
        };
        // The variance of allocated values only grows within a session.
        let is_nested = allocated.is_some_and(|at| early.variances[at] <= late.variances[at]);
        let difference = |early: &[f64], late: &[f64]| match self.roles[column] {
            Role::Live { allocated } if is_nested => {
                LiveAndAllocated::from_row(early, column, allocated)
                    .change(LiveAndAllocated::from_row(late, column, allocated))
            }
            Role::Allocated if is_nested => (late[column] - early[column]).max(0.0),
            _ => early[column] + late[column],
        };
        SamplingError {
            variance: difference(&early.variances, &late.variances),
            turnover: difference(&early.values, &late.values),
            whole: 0.0,
        }
    }
}
