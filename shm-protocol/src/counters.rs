//! Counters of a session that do not belong to a stack. Each is declared once: field, offset, name
//! in dumps, documentation. A new one needs a line here, code in the agent that counts it, and a
//! line in docs/dump-format.md, which a test checks.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

/// Description of a counter, for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name in dumps.
    pub name: &'static str,
    /// Offset in [`Counters`].
    pub offset: usize,
    /// True if dumps contain the counter even if it is 0.
    pub always: bool,
}

/// Size of [`Counters`] in words.
const WORDS: usize = 16;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $field:ident, $always:literal;)*) => {
        /// Counters. Incremented with locked instructions, since all but the first count rare
        /// events.
        #[repr(C)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $field: AtomicU64,)*
            /// Zero.
            pub reserved: [u64; WORDS - [$(stringify!($field)),*].len()],
        }

        /// Descriptions of all counters.
        pub const ALL: &[Counter] = &[$(Counter {
            name: stringify!($field),
            offset: offset_of!(Counters, $field),
            always: $always,
        }),*];
    };
}

counters! {
    /// Threads that noticed the session.
    threads, true;
    /// Samples counted under `[table full]`.
    table_full, true;
    /// Samples whose free could not be tracked: their objects are not in the range of sampled
    /// objects.
    untracked, true;
    /// Threads that were not sampled, because there was no memory for their state or because of
    /// seccomp's strict mode.
    unsampled_threads, false;
    /// Stacks truncated at code outside every module: JIT, generated.
    truncated_no_module, false;
    /// Stacks truncated at an address for which its module has no unwind data.
    truncated_no_rule, false;
    /// Stacks truncated at unwind data that the unwinder does not support.
    truncated_unsupported, false;
    /// Stacks truncated where the stack pointer would not increase.
    truncated_bad_frame, false;
    /// Stacks truncated at a word outside the readable stack.
    truncated_out_of_stack, false;
    /// Stacks truncated because they have more frames than are kept.
    truncated_too_deep, false;
    /// Samples in `untracked` whose objects jemalloc itself places elsewhere: its internal objects,
    /// and those of exiting threads.
    untracked_elsewhere, false;
    /// Samples whose innermost frames did not fit into the table, so that they are counted at the
    /// nearest caller that did.
    table_merged, false;
    /// Sampled objects that were freed, or resized, with a header that the program had overwritten
    /// by writing before the object.
    overwritten_before, false;
    /// Sampled objects that were freed, or resized, with a header that the program had overwritten
    /// by writing past the end of the preceding object.
    overwritten_behind, false;
    /// Sampled objects with an overwritten header that are not counted as freed, because their
    /// record is not known.
    overwritten_uncounted, false;
    /// Frees of sampled objects that had been freed already, or of addresses inside of them.
    freed_twice, false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_a_line_in_the_description_of_dumps() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dump-format.md");
        let text = std::fs::read_to_string(path).unwrap();
        for counter in ALL {
            let line = std::format!("| `{}` |", counter.name);
            assert!(text.contains(&line), "no line for {}", counter.name);
        }
    }
}
