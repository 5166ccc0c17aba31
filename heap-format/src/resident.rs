//! Divides a process's resident memory by jemalloc's statistics.

/// A part of the resident memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the part.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// Size by the allocator's statistics, if that is more than can be resident.
    pub counted: Option<u64>,
    /// Explanation for users.
    pub remark: &'static str,
}

impl Part {
    /// Returns the explanation, and the counted size if that is more than can be resident.
    pub fn note(&self, bytes: impl Fn(u64) -> String) -> String {
        match self.counted {
            None => self.remark.to_owned(),
            Some(counted) => format!("{} ({} counted)", self.remark, bytes(counted)),
        }
    }
}

/// Parts of the heap by jemalloc's statistics, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Live objects, each rounded up to its size class.
    pub live: u64,
    /// Space between live objects in active pages.
    pub fragmentation: u64,
    /// Freed pages that were not returned to the kernel.
    pub dirty: u64,
    /// The allocator's metadata.
    pub metadata: u64,
    /// Address space kept for reuse; not resident.
    pub retained: u64,
}

impl Heap {
    /// Computes the parts. `stat` returns the statistic with a name of jemalloc, or 0.
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

    /// Divides this much anonymous memory into the parts. Returns them, and the rest that belongs
    /// to none of them.
    ///
    /// jemalloc counts pages as resident that were never touched, above all of its metadata, so no
    /// part is taken to be larger than what the parts before leave of `anonymous`. Live objects are
    /// counted whole, including untouched pages, so the rest certainly belongs to none of the
    /// parts.
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
