//! Searches of a process that keeps running: what one search finds lost may only have been moved at
//! that moment, so only what all of several searches find lost is reported.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use reachability::lost::{self, Found};
use reachability::object::Sampled;

use super::moment::Moment;
use super::search::Search;

/// Time between two searches: longer than pointers are on their way.
const GAP: Duration = Duration::from_millis(300);

/// A process, and what a search in it found.
pub struct Look {
    /// The process.
    pub moment: Moment,
    /// The search.
    pub search: Search,
    /// What it did not come to.
    pub found: Found,
}

/// Looks up to this many times, until nothing is lost that was each time; how often it was looked.
pub fn repeat(
    times: u32,
    mut look: impl FnMut() -> anyhow::Result<Look>,
) -> anyhow::Result<(Look, u32)> {
    let mut last = look()?;
    let mut count = 1;
    while count < times && !last.found.lost.is_empty() {
        let before = identities(&last.found);
        drop(last);
        thread::sleep(GAP);
        last = look()?;
        count += 1;
        last.keep(|object| before.get(&object.at) == Some(&identity(object)));
    }
    if !last.found.lost.is_empty() {
        thread::sleep(GAP);
        last.keep_unfreed();
        last.moment.confirm()?;
    }
    Ok((last, count))
}

impl Look {
    /// Keeps the lost objects that `is_lost` names. The others were reached before: they are
    /// treated as roots, as what leads to them is not known.
    fn keep(&mut self, is_lost: impl Fn(&Sampled) -> bool) {
        let memory = &self.moment.memory;
        self.search
            .excuse(memory, &mut self.found, |lost| !is_lost(&lost.object));
    }

    /// What has been freed since was not lost.
    fn keep_unfreed(&mut self) {
        let (memory, heap) = (&self.moment.memory, &self.search.heap);
        let now: HashMap<u64, Identity> = self
            .found
            .lost
            .iter()
            .filter_map(|lost| lost::sampled(memory, heap, lost.region))
            .map(|object| (object.at, identity(&object)))
            .collect();
        self.keep(|object| now.get(&object.at) == Some(&identity(object)));
    }
}

/// By which an object is known again: record, birth and size. Another one at its address differs in
/// its birth, a tick of the clock, as the searches lie some apart.
type Identity = (u32, u32, u64);

fn identity(object: &Sampled) -> Identity {
    (object.record, object.born, object.bytes)
}

fn identities(found: &Found) -> HashMap<u64, Identity> {
    let lost = found.lost.iter();
    lost.map(|lost| (lost.object.at, identity(&lost.object)))
        .collect()
}
