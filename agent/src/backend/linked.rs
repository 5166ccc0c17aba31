//! Recognises programs that call the allocator that they are linked with (tcmalloc, mimalloc,
//! oneTBB) by its own names, such as `tc_malloc`. The agent does not replace these names, and a
//! program may free by one name what it allocated by another.

use crate::definitions::{self, Name};
use crate::sys;

/// Allocator that a program can be linked with instead of the C library's.
struct Allocator {
    /// Function that only the library with its `malloc` defines.
    marker: Name<'static>,
    /// Beginning of its functions' names.
    prefix: &'static [u8],
}

const ALLOCATORS: [Allocator; 3] = [
    Allocator {
        marker: Name::new(c"tc_malloc"),
        prefix: b"tc_",
    },
    Allocator {
        marker: Name::new(c"mi_malloc"),
        prefix: b"mi_",
    },
    // oneTBB's, whose `malloc` is in a library of its own.
    Allocator {
        marker: Name::new(c"__TBB_malloc_proxy"),
        prefix: b"scalable_",
    },
];

/// Parts of the names of functions that return or take objects.
const PARTS: [&[u8]; 5] = [b"alloc", b"free", b"new", b"delete", b"dup"];

const MALLOC: Name<'static> = Name::new(c"malloc");

/// Returns true if a module calls such an allocator by its own names, other than the allocator's
/// own libraries. Calls the loader. Keeps `errno`.
pub fn is_called_by_own_names() -> bool {
    let saved = sys::errno();
    let is_called = search();
    sys::set_errno(saved);
    is_called
}

/// Searches the loaded modules for such an allocator, and then for its callers.
fn search() -> bool {
    let mut present = [false; ALLOCATORS.len()];
    definitions::each_module(|module| {
        for (present, allocator) in present.iter_mut().zip(&ALLOCATORS) {
            *present |= module.defines(allocator.marker) && module.defines(MALLOC);
        }
        true
    });
    if present == [false; ALLOCATORS.len()] {
        return false;
    }
    let is_of_present = |name: &[u8]| {
        let mut names = present.iter().zip(&ALLOCATORS);
        names.any(|(present, allocator)| *present && name.starts_with(allocator.prefix))
            && PARTS.iter().any(|part| contains(name, part))
    };
    let mut is_called = false;
    definitions::each_module(|module| {
        let may_call = !module.is_ours() && !module.defines(MALLOC);
        is_called = may_call && module.imports(is_of_present);
        !is_called
    });
    is_called
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}
