//! Sort orders of the table.

/// Sort order of the rows, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Live bytes, including callees.
    #[default]
    Live,
    /// Live bytes or CPU time of the function itself.
    Flat,
    /// Growth of the live bytes.
    Growth,
    /// Rate of allocation.
    Rate,
    /// Mean age of the live objects.
    Age,
    /// CPU time since the last refresh, including callees.
    Now,
    /// CPU time of the function itself since the last refresh.
    FlatNow,
    /// CPU time since the start, including callees.
    Cpu,
}

impl Sort {
    /// All sort orders.
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
