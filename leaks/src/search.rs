//! Searches a process's memory for pointers, and finds the objects that they do not reach.

// Decision 35: leaks are searched for in a copy of the process.
use mem_agents::snapshot::NO_CLASS;
use reachability::jemalloc::{self, Globals};
use reachability::lost::{self, Lost, Unreached};
use reachability::mark::{self, Marks};
use reachability::object::Sampled;
use reachability::{Heap, Memory, PointerRules, causes};
use shm_protocol::NodeId;
use shm_protocol::clock::tick_of;
use shm_protocol::layout::{AgentMemory, HeapGlobals};
use shm_protocol::record::{TABLE_FULL, size_class};
use shm_protocol::segment::Session;

use super::exemptions;
use super::memory::MomentMemory;
use super::moment::{Hold, Moment};
use super::options::Options;
use super::roots::{self, Roots};
use super::{Scope, unstopped};

/// Result of a search.
pub struct Search {
    /// All objects of the heap.
    pub heap: Heap,
    /// Roots of the search.
    pub roots: Roots,
    /// Rules for what counts as a pointer.
    pub pointers: PointerRules,
    /// Objects that were reached.
    pub marks: Marks,
}

impl Search {
    /// Follows all pointers of a process. With `trace`, records by which pointer each object was
    /// reached.
    pub fn of(
        moment: &Moment,
        globals: &HeapGlobals,
        agent: AgentMemory,
        options: &Options,
        trace: bool,
    ) -> anyhow::Result<Self> {
        return_freed_tables();
        let memory = &moment.memory;
        let map = jemalloc::read(
            memory,
            &Globals {
                emap: globals.emap,
                arenas: globals.arenas,
                page: globals.page,
            },
        )?;
        let base = memory.word(globals.range_base).unwrap_or(0);
        let size = memory.word(globals.range_size).unwrap_or(0);
        let mut heap = Heap::of(&map, base..base.saturating_add(size));
        drop(map);
        heap.check_table(memory);
        let mut threads = moment.threads.clone();
        if let Hold::Nothing(_) = moment.hold {
            unstopped::complete_threads(&mut threads, memory, &heap, &moment.regions);
        }
        let process = roots::Process {
            memory,
            heap: &heap,
            threads: &threads,
            regions: &moment.regions,
            agent,
        };
        let mut roots = Roots::of(&process, options);
        if options.globals {
            roots.add_kernel_data(&moment.kernel);
        }
        roots.add_exemptions(exemptions::read(memory, &heap, agent.exemptions));
        let pointers = options.pointers(memory, &heap);
        let marks = mark::mark(memory, &heap, &roots.as_mark_roots(&pointers, trace));
        Ok(Self {
            heap,
            roots,
            pointers,
            marks,
        })
    }

    /// Searches again, with the program's declarations as the only roots.
    pub fn restart_from_exemptions(&mut self, memory: &MomentMemory, agent: AgentMemory) {
        let mut roots = Roots::default();
        roots.add_exemptions(exemptions::read(memory, &self.heap, agent.exemptions));
        self.marks = mark::mark(
            memory,
            &self.heap,
            &roots.as_mark_roots(&self.pointers, false),
        );
    }

    /// Returns the lost objects of a session.
    pub fn lost(&self, memory: &MomentMemory, session: &Session, scope: Scope) -> Unreached {
        let wanted = |object: &Sampled| belongs_to_session(object, session);
        let mut found = lost::find(memory, &self.heap, &self.marks, wanted);
        if scope == Scope::Unreachable {
            // What the agent's memory points to, such as jemalloc's cached free objects, is not
            // memory of the program.
            let internal = mark::targets(memory, &self.heap, &self.roots.agent);
            found
                .unknown
                .retain(|region| !internal.get(*region as usize));
        }
        found
    }

    /// Treats the lost objects that `is_excused` selects as roots. They and everything reachable
    /// from them are no longer lost.
    pub fn excuse(
        &mut self,
        memory: &MomentMemory,
        found: &mut Unreached,
        mut is_excused: impl FnMut(&Lost) -> bool,
    ) {
        let all = found.lost.iter().zip(0..);
        let excused = all.filter(|(lost, _)| is_excused(lost));
        let excused: Vec<u32> = excused.map(|(_, index)| index).collect();
        if !excused.is_empty() {
            let heap = &self.heap;
            let marks = &mut self.marks;
            found.excuse(memory, heap, &self.pointers, marks, &excused);
        }
    }

    /// Determines how each object is lost. Returns `None` if that is unknown or irrelevant.
    pub fn causes(
        &self,
        memory: &MomentMemory,
        found: &Unreached,
        scope: Scope,
    ) -> Option<Vec<causes::LossKind>> {
        match scope {
            Scope::Unreachable => causes::classify(memory, &self.heap, &self.pointers, found),
            Scope::Unfreed => None,
        }
    }
}

/// Returns true if an object was sampled in a session. Objects store only the lower 8 bits of the
/// session's number.
pub fn belongs_to_session(object: &Sampled, session: &Session) -> bool {
    if object.weight == 0.0 {
        // The header was overwritten, so the birth is unknown.
        return object.session == session.number as u8;
    }
    let first = tick_of(session.start_ns);
    object.session == session.number as u8 && object.born.wrapping_sub(first) as i32 >= -1
}

/// Returns true if an object's record exists and has its size class. Without this check, unused
/// memory of the allocator that looks like a header could pass for an object. `records` has the
/// leaf and size class of each record.
pub fn is_counted(object: &Sampled, records: &[(NodeId, u32)]) -> bool {
    /// Maximum size in bytes of objects that are not resized in place. Larger ones keep their
    /// record when they are resized.
    const LARGEST_SMALL: u64 = 14 << 10;
    let record = records.get(object.record as usize);
    record.is_some_and(|(_, class)| match object.record {
        // This record has objects of all sizes.
        TABLE_FULL => *class != NO_CLASS,
        _ if object.bytes > LARGEST_SMALL => *class != NO_CLASS,
        _ => *class == size_class(object.bytes),
    })
}

/// Makes glibc return large tables to the kernel when they are dropped. By default, its threshold
/// for that rises each time such a table is freed.
fn return_freed_tables() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_a_matching_record_are_not_counted() {
        let is_object = |records: &[(NodeId, u32)], record, bytes| {
            let object = Sampled {
                at: 0x1000,
                bytes,
                record,
                session: 1,
                weight: 1.0,
                born: 1,
                ignored: false,
            };
            is_counted(&object, records)
        };
        let records = [(0, NO_CLASS), (5, 6), (7, NO_CLASS), (8, 20)];
        for (record, bytes) in [(1, 100), (3, 2_000_000), (3, 300_000)] {
            assert!(is_object(&records, record, bytes), "{record} {bytes}");
        }
        // Another size class; an empty record; no such record; `[table full]` without any sample.
        let others = [
            (1, 128),
            (2, 100),
            (2, 1 << 20),
            (4, 100),
            (0, 0),
            (0, 1 << 20),
        ];
        for (record, bytes) in others {
            assert!(!is_object(&records, record, bytes), "{record} {bytes}");
        }
        let full = [(0, 0)];
        assert!(is_object(&full, 0, 0) && is_object(&full, 0, 1 << 20));
    }
}
