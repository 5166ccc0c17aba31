//! Divides a process's resident anonymous memory: by owner, or by jemalloc's statistics alone.

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
    pub fn from_statistics(stat: impl Fn(&str) -> u64) -> Self {
        let allocated = stat("allocated");
        let active = stat("active");
        let metadata = stat("metadata");
        Self {
            live: allocated,
            fragmentation: active.saturating_sub(allocated),
            dirty: stat("resident").saturating_sub(active.saturating_add(metadata)),
            metadata,
            retained: stat("retained"),
        }
    }

    /// Divides `anonymous` bytes, whose owners are not known, into the parts of the heap. Returns the
    /// parts and the rest.
    ///
    /// jemalloc also counts pages as resident that were never touched, especially of its metadata. So
    /// each part is limited to what the earlier parts leave of `anonymous`. The rest includes the
    /// growth of the heap since the statistics were taken.
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

/// Resident anonymous memory by owner, in bytes. The owner of a page is determined by its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByOwner {
    /// Allocator's pages with objects.
    pub heap_in_use: u64,
    /// Allocator's pages without objects.
    pub heap_unused: u64,
    /// Allocator's metadata.
    pub heap_metadata: u64,
    /// Agent's mappings.
    pub agent: u64,
    /// Stacks of those threads whose stack pointers are known.
    pub stacks: u64,
    /// Program's own mappings, and other stacks.
    pub own_mappings: u64,
}

/// Names of the counters in a dump, which counts stacks as own mappings.
const NAMES: [&str; 5] = [
    "heap_in_use",
    "heap_unused",
    "heap_metadata",
    "agent",
    "own_mappings",
];

impl ByOwner {
    /// Returns the counters of a dump, with their names.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let mapped = self.own_mappings.saturating_add(self.stacks);
        let heap = [self.heap_in_use, self.heap_unused, self.heap_metadata];
        let values = heap.into_iter().chain([self.agent, mapped]);
        NAMES.into_iter().zip(values)
    }

    /// Reads the counters of a dump. Returns `None` if one is missing.
    pub fn from_counters(counter: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        let [in_use, unused, metadata, agent, own] = NAMES.map(counter);
        Some(Self {
            heap_in_use: in_use?,
            heap_unused: unused?,
            heap_metadata: metadata?,
            agent: agent?,
            stacks: 0,
            own_mappings: own?,
        })
    }

    /// Returns the memory of the heap.
    #[must_use]
    pub fn heap(&self) -> u64 {
        let parts = [self.heap_in_use, self.heap_unused, self.heap_metadata];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Limits the memory of all owners together to `anonymous`, which was read at another moment.
    /// Returns the rest, which has no owner here.
    pub fn limit(&mut self, anonymous: u64) -> u64 {
        let mut rest = anonymous;
        let owners = [
            &mut self.own_mappings,
            &mut self.stacks,
            &mut self.agent,
            &mut self.heap_metadata,
            &mut self.heap_unused,
            &mut self.heap_in_use,
        ];
        for bytes in owners {
            *bytes = (*bytes).min(rest);
            rest -= *bytes;
        }
        rest
    }

    /// Returns the parts of the heap. `figures` are jemalloc's statistics, if they were taken at
    /// the same moment.
    pub fn heap_parts(&self, figures: Option<&Heap>) -> Vec<Part> {
        let part = |name, bytes, remark| Part {
            name,
            bytes,
            counted: None,
            remark,
        };
        let in_use = self.heap_in_use;
        let mut parts = match figures {
            None => vec![part(
                "live heap",
                in_use,
                "objects in use, holes between them",
            )],
            Some(figures) => {
                let holes = figures.fragmentation.min(in_use);
                vec![
                    part("live heap", in_use - holes, "objects in use: touched pages"),
                    part("fragmentation", holes, "holes between live objects"),
                ]
            }
        };
        parts.push(part("dirty pages", self.heap_unused, "freed, kept"));
        let metadata = self.heap_metadata;
        parts.push(part("allocator metadata", metadata, "bookkeeping"));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_divide_the_heap() {
        let heap = Heap::from_statistics(|name| match name {
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

    #[test]
    fn owners_never_exceed_anonymous_memory() {
        let owners = ByOwner {
            heap_in_use: 100,
            heap_unused: 20,
            heap_metadata: 5,
            agent: 7,
            stacks: 3,
            own_mappings: 50,
        };
        let figures = Heap::from_statistics(|name| match name {
            "allocated" => 900,
            "active" => 910,
            _ => 0,
        });
        let sizes = |owners: &ByOwner, figures| {
            let parts = owners.heap_parts(figures);
            parts.iter().map(|part| part.bytes).collect::<Vec<_>>()
        };
        // Most pages of the live objects were never touched.
        assert_eq!(sizes(&owners, Some(&figures)), [90, 10, 20, 5]);
        assert_eq!(sizes(&owners, None), [100, 20, 5]);
        let mut limited = owners;
        assert_eq!((limited.limit(200), limited), (15, owners));
        // The parts were read slightly later than the sum.
        assert_eq!(limited.limit(100), 0);
        assert_eq!(sizes(&limited, None), [15, 20, 5]);
        let recorded: std::collections::HashMap<_, _> = owners.counters().collect();
        let read = ByOwner::from_counters(|name| recorded.get(name).copied());
        let expected = ByOwner {
            stacks: 0,
            own_mappings: 53,
            ..owners
        };
        assert_eq!(read, Some(expected));
        assert_eq!(ByOwner::from_counters(|_| None), None);
    }
}
