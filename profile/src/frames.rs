//! Patterns for the names of allocation functions, which heap reports hide.

use std::sync::LazyLock;

/// Pattern of the frames that are hidden in stacks of this project's dumps: allocation functions,
/// by their full names.
///
/// The agent's stacks begin where the program calls the allocator, so only the frames of that call
/// itself are hidden. A program's own function `allocate` is shown, and so is Go's runtime. pprof's
/// pattern ([`FOREIGN_ALLOCATOR_FRAMES`]), used for other formats, would hide what these call.
pub(crate) static ALLOCATOR_FRAMES: LazyLock<String> = LazyLock::new(|| {
    [
        "calloc",
        "malloc",
        "memalign",
        "(__)?posix_memalign",
        "pvalloc",
        "valloc",
        "realloc",
        "__libc_malloc",
        "__builtin_(vec_)?(new|delete)",
        "__gnu_cxx::new_allocator::allocate",
        "__malloc_alloc_template::allocate",
        "simple_alloc::allocate",
        r"operator new(\[\])?",
    ]
    .join("|")
});

/// Pattern of the frames that are hidden at the leaf end of stacks that Go's runtime recorded: its
/// own functions, as in the profiles that Go programs write themselves.
pub(crate) const GO_FRAMES: &str = r"runtime\..*|internal/runtime/.*";

/// Pattern of allocator frames that pprof removes from the leaf end of heap stacks. Must be
/// pprof's, or numbers would differ from it.
pub(crate) static FOREIGN_ALLOCATOR_FRAMES: LazyLock<String> = LazyLock::new(|| {
    let posix = [
        "calloc",
        "cfree",
        "malloc",
        "free",
        "memalign",
        "do_memalign",
    ];
    let posix_rest = [
        "(__)?posix_memalign",
        "pvalloc",
        "valloc",
        "realloc",
        "__libc_malloc",
    ];
    let tcmalloc = [
        "tcmalloc::.*",
        "tc_(c|p?v|re|m)alloc",
        "tc_c?free",
        "tc_(posix_)?memalign",
    ];
    let tcmalloc_new = ["tc_new(array)?(_nothrow)?", "tc_delete(array)?"];
    let darwin = ["malloc_zone_(malloc|calloc|valloc|realloc|memalign|free)"];
    let other = [
        r"runtime\..*",
        "BaseArena::.*",
        "(::)?do_malloc(_no_errno|_pages)?",
        "DoSampledAllocation",
        "MallocedMemBlock::MallocedMemBlock",
        "_M_allocate",
        "__builtin_(vec_)?(new|delete)",
        "__gnu_cxx::new_allocator::allocate",
        "__malloc_alloc_template::allocate",
        "allocate",
        "cpp_alloc",
        r"operator new(\[\])?",
        "simple_alloc::allocate",
    ];
    let groups: [&[&str]; 6] = [
        &posix,
        &posix_rest,
        &tcmalloc,
        &tcmalloc_new,
        &darwin,
        &other,
    ];
    groups.concat().join("|")
});

/// Exceptions from [`FOREIGN_ALLOCATOR_FRAMES`]: Go runtime frames that occur in the middle of
/// stacks.
pub(crate) const ALLOCATOR_KEEP: &str = r"runtime\.panic|runtime\.reflectcall|runtime\.call[0-9]*";
