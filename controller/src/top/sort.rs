//! The order of the table's rows.

/// Order of the rows, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Live bytes, with what was called.
    #[default]
    Live,
    /// What the function itself holds or used.
    Flat,
    /// Growth of the live bytes.
    Growth,
    /// Rate of allocation.
    Rate,
    /// Mean age of the live objects.
    Age,
    /// CPU time since the last refresh, with what was called.
    Now,
    /// The same for the function itself.
    FlatNow,
    /// CPU time since the beginning, with what was called.
    Cpu,
}

impl Sort {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Live,
        Self::Flat,
        Self::Growth,
        Self::Rate,
        Self::Age,
        Self::Now,
        Self::FlatNow,
        Self::Cpu,
    ];
}
