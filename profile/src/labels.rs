//! Labels derived from other facts of a profile: threads and losses.

use crate::leaks::{LEAK_GROUP_LABEL, LEAK_LABEL, Lost};
use crate::profile::{Label, LabelValue, OTHER_THREADS, Profile, THREAD_LABEL, Thread};

impl Profile {
    /// Labels each stack with the name of its thread, if the dump distinguishes several, and with
    /// the kind of its loss.
    pub(crate) fn label_stacks(&mut self) {
        let count = self.stacks.len();
        let tells_threads = self.facts.threads.len() > 1 && self.threads.len() == count;
        let threads = if tells_threads {
            &self.threads[..]
        } else {
            &[]
        };
        let losses = if self.losses.len() == count {
            &self.losses[..]
        } else {
            &[]
        };
        if threads.is_empty() && losses.is_empty() {
            return;
        }
        // The kernel keeps 15 bytes. A crafted name is shortened, since it is copied for each
        // stack.
        let short = |thread: &Thread| thread.title().chars().take(64).collect();
        let names: Vec<String> = self.facts.threads.iter().map(short).collect();
        let name = |number: u32| {
            let known = (number as usize)
                .checked_sub(1)
                .and_then(|at| names.get(at));
            known.cloned().unwrap_or_else(|| OTHER_THREADS.to_owned())
        };
        let thread = |stack: usize| {
            threads.get(stack).map(|&number| Label {
                stack: stack as u32,
                key: THREAD_LABEL.to_owned(),
                value: LabelValue::Text(name(number)),
            })
        };
        let lost = |stack: usize| {
            let loss = losses.get(stack).copied().unwrap_or_default();
            loss_labels(loss, stack as u32)
        };
        let labels = |stack| thread(stack).into_iter().chain(lost(stack));
        self.labels = (0..count).flat_map(labels).collect();
    }
}

/// Returns the labels of a stack whose objects are lost.
fn loss_labels(lost: Lost, stack: u32) -> impl Iterator<Item = Label> {
    let how = lost.how.map(|how| Label {
        stack,
        key: LEAK_LABEL.to_owned(),
        value: LabelValue::Text(how.word().to_owned()),
    });
    let is_grouped = lost.how.is_some() && lost.group != 0;
    let group = is_grouped.then(|| Label {
        stack,
        key: LEAK_GROUP_LABEL.to_owned(),
        value: LabelValue::Number(lost.group.into(), String::new()),
    });
    how.into_iter().chain(group)
}
