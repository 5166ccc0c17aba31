//! The heap's share of a process's resident memory, by jemalloc's statistics.

/// A part of what is resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the part.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// What the allocator counts of it, where that is more than can be resident.
    pub counted: Option<u64>,
    /// A remark for people.
    pub remark: &'static str,
}

impl Part {
    /// The remark, and what the allocator counts where that is more than what is resident.
    pub fn note(&self, bytes: impl Fn(u64) -> String) -> String {
        match self.counted {
            None => self.remark.to_owned(),
            Some(counted) => format!("{} ({} counted)", self.remark, bytes(counted)),
        }
    }
}

/// The heap as jemalloc's statistics divide it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Objects of the program, each rounded up to its size class.
    pub live: u64,
    /// Holes between live objects.
    pub fragmentation: u64,
    /// Pages that were freed and not given back yet.
    pub dirty: u64,
    /// The allocator's own bookkeeping.
    pub metadata: u64,
    /// Address space kept for reuse; not resident.
    pub retained: u64,
}

impl Heap {
    /// From the statistics; `stat` gives one by its name in jemalloc, or 0.
    pub fn of(stat: impl Fn(&str) -> u64) -> Self {
        let (allocated, active) = (stat("allocated"), stat("active"));
        let metadata = stat("metadata");
        Self {
            live: allocated,
            fragmentation: active.saturating_sub(allocated),
            dirty: stat("resident").saturating_sub(active.saturating_add(metadata)),
            metadata,
            retained: stat("retained"),
        }
    }

    /// The resident parts of a process with this much anonymous memory, and how much of that
    /// is none of them. jemalloc counts pages as resident that it never touched, bookkeeping
    /// above all, so no part is taken to be larger than what the kernel says is left. Objects in use are counted
    /// whole, also what of them was never touched: the rest is what is certainly none of them.
    pub fn within(&self, anonymous: u64) -> ([Part; 4], u64) {
        let mut rest = anonymous;
        let mut part = |name, counted: u64, remark| {
            let bytes = counted.min(rest);
            rest -= bytes;
            Part {
                name,
                bytes,
                counted: (counted > bytes).then_some(counted),
                remark,
            }
        };
        let parts = [
            part("live heap", self.live, "objects in use, touched or not"),
            part(
                "fragmentation",
                self.fragmentation,
                "holes between live objects",
            ),
            part("dirty pages", self.dirty, "freed, kept"),
            part("allocator metadata", self.metadata, "bookkeeping"),
        ];
        (parts, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_divide_the_heap() {
        let heap = Heap::of(|name| match name {
            "allocated" => 100,
            "active" => 130,
            "metadata" => 20,
            "resident" => 170,
            "retained" => 50,
            _ => 0,
        });
        assert_eq!((heap.live, heap.fragmentation), (100, 30));
        assert_eq!((heap.dirty, heap.metadata, heap.retained), (20, 20, 50));
        let (parts, rest) = heap.within(140);
        assert_eq!(parts.map(|part| part.bytes), [100, 30, 10, 0]);
        let counted = parts.map(|part| part.counted);
        assert_eq!(counted, [None, None, Some(20), Some(20)]);
        assert_eq!(rest, 0);
        assert_eq!(heap.within(1000).1, 830);
    }
}
