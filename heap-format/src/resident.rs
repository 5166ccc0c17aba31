//! The heap's share of a process's resident memory, by jemalloc's statistics.

/// A part of what is resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the part.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// A remark for people.
    pub remark: &'static str,
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
    /// above all, so no part is taken to be larger than what the kernel says is left.
    pub fn within(&self, anonymous: u64) -> ([Part; 4], u64) {
        let mut rest = anonymous;
        let mut part = |name, bytes: u64, remark| {
            let bytes = bytes.min(rest);
            rest -= bytes;
            Part {
                name,
                bytes,
                remark,
            }
        };
        let parts = [
            part("live heap", self.live, "objects in use"),
            part(
                "fragmentation",
                self.fragmentation,
                "holes between live objects",
            ),
            part(
                "dirty pages",
                self.dirty,
                "freed, not given back to the system yet",
            ),
            part(
                "allocator metadata",
                self.metadata,
                "bookkeeping of the allocator",
            ),
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
        assert_eq!(rest, 0);
        assert_eq!(heap.within(1000).1, 830);
    }
}
