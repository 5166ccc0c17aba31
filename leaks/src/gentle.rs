//! Searches a process while it runs. A single search may miss a pointer that is being moved, so
//! only objects that several searches in a row find lost are reported.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use reachability::lost::{self, Unreached};
use reachability::object::Sampled;

use super::moment::Moment;
use super::search::Search;

/// Time between two searches. A pointer is unlikely to be missing from memory for so long while it
/// is moved.
const SEARCH_INTERVAL: Duration = Duration::from_millis(300);

/// Result of one search.
pub struct SearchResult {
    /// State of the process.
    pub moment: Moment,
    /// Heap, roots and marks.
    pub search: Search,
    /// Lost objects.
    pub found: Unreached,
}

/// Searches up to `times` times, or until no object was lost in all searches so far. Also returns
/// the number of searches.
pub fn repeat(
    times: u32,
    mut search: impl FnMut() -> anyhow::Result<SearchResult>,
) -> anyhow::Result<(SearchResult, u32)> {
    let mut last = search()?;
    let mut count = 1;
    while count < times && !last.found.lost.is_empty() {
        let before = identities(&last.found);
        drop(last);
        thread::sleep(SEARCH_INTERVAL);
        last = search()?;
        count += 1;
        last.keep(|object| before.get(&object.at) == Some(&identity(object)));
    }
    if !last.found.lost.is_empty() {
        thread::sleep(SEARCH_INTERVAL);
        last.keep_unfreed();
        last.moment.confirm()?;
    }
    Ok((last, count))
}

impl SearchResult {
    /// Keeps only the lost objects for which `is_lost` returns true. The other objects were
    /// reachable in an earlier search. They are treated as roots, since the pointers to them are
    /// unknown.
    fn keep(&mut self, is_lost: impl Fn(&Sampled) -> bool) {
        let memory = &self.moment.memory;
        self.search
            .excuse(memory, &mut self.found, |lost| !is_lost(&lost.object));
    }

    /// Drops objects that have been freed since the search: they were not lost.
    fn keep_unfreed(&mut self) {
        let memory = &self.moment.memory;
        let heap = &self.search.heap;
        let now: HashMap<u64, Identity> = self
            .found
            .lost
            .iter()
            .filter_map(|lost| lost::sampled_object(memory, heap, lost.region))
            .map(|object| (object.at, identity(&object)))
            .collect();
        self.keep(|object| now.get(&object.at) == Some(&identity(object)));
    }
}

/// Key to recognise an object: record, birth and size. Another object at the same address differs
/// in birth, since ticks are shorter than the time between searches.
type Identity = (u32, u32, u64);

fn identity(object: &Sampled) -> Identity {
    (object.record, object.born, object.bytes)
}

fn identities(found: &Unreached) -> HashMap<u64, Identity> {
    let lost = found.lost.iter();
    lost.map(|lost| (lost.object.at, identity(&lost.object)))
        .collect()
}
