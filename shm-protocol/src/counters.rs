//! Counters of a session apart from its stacks, each declared once: field, offset, name in dumps,
//! documentation. To add one, add a line, and count it in the agent: it is
//! in every dump then. docs/dump-format.md has a line for each, which a test compares.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

/// A counter as a reader finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name in dumps.
    pub name: &'static str,
    /// Offset in [`Counters`].
    pub offset: usize,
    /// Whether a dump has it although it is 0.
    pub always: bool,
}

/// Words of [`Counters`].
const WORDS: usize = 16;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $field:ident, $always:literal;)*) => {
        /// The counters. Added to with locked instructions: all are rare but the first.
        #[repr(C)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $field: AtomicU64,)*
            /// Zero.
            pub reserved: [u64; WORDS - [$(stringify!($field)),*].len()],
        }

        /// All counters.
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
    /// Samples whose free could not be tracked: their objects are not in the range of sampled objects.
    untracked, true;
    /// Threads that were not sampled: no memory for what that takes, or seccomp's strict mode.
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
    /// Those of `untracked` whose objects jemalloc allocates elsewhere, whatever is requested: those of
    /// threads that are ending, and its own.
    untracked_elsewhere, false;
    /// Samples whose innermost frames found no room in the table: counted at the nearest caller that did.
    table_merged, false;
    /// Sampled objects that were freed, or resized, with a header that the program had overwritten by writing
    /// before the object.
    overwritten_before, false;
    /// The same, by writing behind the object before it.
    overwritten_behind, false;
    /// Those of the two above that are not counted as freed, since their record is not known.
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
