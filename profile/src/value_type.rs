//! Types of the columns of a profile.

/// Kind and unit of a column of sample values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValueType {
    /// `inuse_space`, `alloc_objects`, `cpu`, …
    pub kind: String,
    /// `bytes`, `count`, `nanoseconds`, …
    pub unit: String,
}

impl ValueType {
    /// Creates a value type from its two names.
    pub fn new(kind: &str, unit: &str) -> Self {
        Self {
            kind: kind.into(),
            unit: unit.into(),
        }
    }
}

/// Returns the four columns of a heap profile, in pprof's order.
pub fn heap_sample_types() -> Vec<ValueType> {
    [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ]
    .map(|(kind, unit)| ValueType::new(kind, unit))
    .to_vec()
}

/// Returns the columns of heap text without values of allocated objects, with pprof's names. They
/// hold what is in use, or for `growth` the growth of the heap.
pub(crate) fn plain_sample_types() -> Vec<ValueType> {
    [("objects", "count"), ("space", "bytes")]
        .map(|(kind, unit)| ValueType::new(kind, unit))
        .to_vec()
}
