//! Finds out which loaded modules define a symbol, from their own tables.
//!
//! A definition in a module that the loader searches before this library replaces our function. The
//! first definition in a module after it is the one that the program would use without us. `dlsym`
//! cannot tell which module defines a symbol, and returns an executable's "canonical PLT entry" as
//! if it were a definition.

// Decision 66: operators stand aside where others define one.
mod imported;
mod lazy;
mod name;

pub use name::{Name, hash_of};

use crate::{arch, musl};
use core::cell::OnceCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::offset_of;
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use libc::{Elf64_Phdr, Elf64_Sym};

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;

/// Prefixes of the file names of libraries with C++'s default operators.
static CXX_RUNTIMES: [&[u8]; 4] = [
    b"libstdc++.so",
    b"libc++.so",
    b"libc++abi.so",
    b"libcxxrt.so",
];

/// Prefixes of the file names of glibc and, before 2.34, its parts.
static C_LIBRARY: [&[u8]; 3] = [b"libc.so.6", b"libpthread.so.0", b"libdl.so.2"];

/// Loaded module, as the loader describes it.
pub struct Module {
    bias: u64,
    name: *const c_char,
    headers: *const Elf64_Phdr,
    header_count: usize,
    /// Found when they are first needed.
    tables: OnceCell<Option<Symbols>>,
}

/// Dynamic symbol table of a module, and its hash tables.
struct Symbols {
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    /// `DT_GNU_HASH`; null if there is none.
    gnu_hash: *const u32,
    /// `DT_HASH`; null if there is none.
    hash: *const u32,
}

/// Returns true if modules can be examined. They cannot in a process with a sanitizer, which
/// replaces the loader's functions and may not be initialised, or with musl.
pub fn can_examine() -> bool {
    !arch::has_sanitizer() && !musl::is_here()
}

/// Calls `visit` for each loaded module until it returns false, in the order in which they were
/// loaded. At start-up, the loader searches them in this order, too. Calls the loader. Visits
/// nothing if [`can_examine`] returns false.
pub fn each_module(mut visit: impl FnMut(&Module) -> bool) {
    /// # Safety
    /// `visit` points to the closure.
    unsafe extern "C" fn visit_one<F: FnMut(&Module) -> bool>(
        info: *mut libc::dl_phdr_info,
        _: usize,
        visit: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes the description of a module that stays loaded during the call,
        // and the pointer to the closure.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<F>()) };
        let module = Module {
            bias: info.dlpi_addr,
            name: info.dlpi_name,
            headers: info.dlpi_phdr,
            header_count: usize::from(info.dlpi_phnum),
            tables: OnceCell::new(),
        };
        c_int::from(!visit(&module))
    }
    fn callback<F: FnMut(&Module) -> bool>(
        _: &F,
    ) -> unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int {
        visit_one::<F>
    }
    if !can_examine() {
        return;
    }
    let function = callback(&visit);
    // SAFETY: the loader calls `function` with the closure, which outlives this call.
    unsafe { libc::dl_iterate_phdr(Some(function), (&raw mut visit).cast()) };
}

/// Calls `visit` for each module that the loader searches before this library.
pub fn each_module_before(mut visit: impl FnMut(&Module)) {
    each_module(|module| {
        let is_before = !module.is_ours();
        if is_before {
            visit(module);
        }
        is_before
    });
}

/// Returns the next definition of a symbol (`RTLD_NEXT`), or null. A name that no module after this
/// library defines is not looked up: the loader would allocate an error message, and free it at its
/// next call, by a `malloc` and a `free` that may be the program's own and may look up their next
/// definitions in turn.
#[inline(never)]
pub fn next_definition(name: &CStr) -> *mut c_void {
    if defined_after(&[Name::new(name)]) == 0 {
        return null_mut();
    }
    look_up_next(name)
}

/// Returns the next definition of each symbol, or null. See [`next_definition`]. `hashed` contains
/// the same names with their hashes.
pub fn next_definitions<const COUNT: usize>(
    names: &[&CStr; COUNT],
    hashed: &[Name; COUNT],
) -> [*mut c_void; COUNT] {
    let defined = defined_after(hashed);
    let mut found = [null_mut(); COUNT];
    for (index, name) in names.iter().enumerate() {
        if (defined >> index) & 1 == 1 {
            found[index] = look_up_next(name);
        }
    }
    found
}

/// Returns a bit set with bit `i` set if a module after this library defines `names[i]`. All bits
/// are set if modules cannot be examined. `names` has at most 32 entries.
fn defined_after(names: &[Name]) -> u32 {
    if !can_examine() {
        return u32::MAX;
    }
    let mut is_after = false;
    let mut defined = 0;
    each_module(|module| {
        if is_after {
            for (index, name) in names.iter().enumerate() {
                defined |= u32::from(module.defines(*name)) << index;
            }
        }
        is_after |= module.is_ours();
        true
    });
    defined
}

/// Returns what the loader finds as the next definition, or null.
fn look_up_next(name: &CStr) -> *mut c_void {
    let found = crate::sys::next_symbol(name);
    if found.is_null() {
        // SAFETY: has no arguments; clears the loader's message.
        unsafe { libc::dlerror() };
    }
    found
}

/// Returns true if any module but this library defines a symbol.
#[inline(never)]
pub fn is_defined_by_others(name: Name) -> bool {
    let mut is_defined = false;
    each_module(|module| {
        is_defined = !module.is_ours() && module.defines(name);
        !is_defined
    });
    is_defined
}

/// First definitions of the allocation functions that the C library and C++ runtimes call by name.
/// Null before [`find_first_definitions`].
pub struct FirstDefinitions {
    /// `malloc`
    pub malloc: AtomicPtr<c_void>,
    /// `free`
    pub free: AtomicPtr<c_void>,
    /// `realloc`
    pub realloc: AtomicPtr<c_void>,
    /// `aligned_alloc`
    pub aligned_alloc: AtomicPtr<c_void>,
}

/// The first definitions in this process: another module's, or ours.
pub static FIRST_DEFINITIONS: FirstDefinitions = FirstDefinitions {
    malloc: AtomicPtr::new(null_mut()),
    free: AtomicPtr::new(null_mut()),
    realloc: AtomicPtr::new(null_mut()),
    aligned_alloc: AtomicPtr::new(null_mut()),
};

/// Fills [`FIRST_DEFINITIONS`], at the first allocation of the process. Calls the loader.
pub fn find_first_definitions() {
    for (slot, name) in [
        (&FIRST_DEFINITIONS.malloc, Name::new(c"malloc")),
        (&FIRST_DEFINITIONS.free, Name::new(c"free")),
        (&FIRST_DEFINITIONS.realloc, Name::new(c"realloc")),
        (
            &FIRST_DEFINITIONS.aligned_alloc,
            Name::new(c"aligned_alloc"),
        ),
    ] {
        let mut found = 0;
        each_module(|module| {
            found = module.address_of(name);
            found == 0
        });
        let found = with_exposed_provenance_mut(found as usize);
        slot.store(found, Ordering::Relaxed);
    }
}

/// Returns the address at which a C++ runtime library defines a symbol; null if none does.
pub fn find_in_cxx_runtime(name: Name) -> *mut c_void {
    let mut found = 0;
    each_module(|module| {
        if module.is_cxx_runtime() {
            found = module.address_of(name);
        }
        found == 0
    });
    with_exposed_provenance_mut(found as usize)
}

impl Module {
    fn headers(&self) -> &[Elf64_Phdr] {
        if self.headers.is_null() {
            return &[];
        }
        // SAFETY: the module's program headers, which the loader keeps while it is loaded.
        unsafe { core::slice::from_raw_parts(self.headers, self.header_count) }
    }

    /// Returns the loaded segment that contains an address.
    fn segment_of(&self, address: u64) -> Option<&Elf64_Phdr> {
        let offset = address.wrapping_sub(self.bias);
        let is_loaded = |h: &&Elf64_Phdr| h.p_type == libc::PT_LOAD;
        let contains = |h: &&Elf64_Phdr| offset.wrapping_sub(h.p_vaddr) < h.p_memsz;
        self.headers().iter().filter(is_loaded).find(contains)
    }

    /// Returns true if an address is in this module.
    pub fn contains(&self, address: *const c_void) -> bool {
        self.segment_of(address.addr() as u64).is_some()
    }

    /// Returns true if this is the agent's library.
    pub fn is_ours(&self) -> bool {
        // The address of a function of ours might resolve to another module's function of that
        // name.
        self.contains((&raw const CXX_RUNTIMES).cast())
    }

    /// Returns true if this is a library with C++'s default operators, by its file name.
    pub fn is_cxx_runtime(&self) -> bool {
        self.is_called_one_of(&CXX_RUNTIMES)
    }

    /// Returns true if the file name has one of these prefixes.
    fn is_called_one_of(&self, names: &[&[u8]]) -> bool {
        if self.name.is_null() {
            return false;
        }
        // SAFETY: the loader's terminated string.
        let path = unsafe { CStr::from_ptr(self.name) }.to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        names.iter().any(|name| file.starts_with(name))
    }

    /// Returns true if the module defines a symbol.
    pub fn defines(&self, name: Name) -> bool {
        self.address_of(name) != 0
    }

    /// Returns the address of a symbol that the module defines; 0 if it defines none.
    fn address_of(&self, name: Name) -> u64 {
        let found = self.symbols().and_then(|symbols| symbols.find(name));
        // SAFETY: an entry of the module's symbol table.
        found.map_or(0, |at| unsafe { (*at).st_value.wrapping_add(self.bias) })
    }

    /// Calls `visit` for each of the names under which the module defines a function, with the
    /// index of the name and the function's address. Called at start-up, after the module was
    /// relocated.
    pub fn each_defined<'a>(
        &self,
        names: impl Iterator<Item = Name<'a>>,
        mut visit: impl FnMut(usize, *mut c_void),
    ) {
        let Some(symbols) = self.symbols() else {
            return;
        };
        for (index, name) in names.enumerate() {
            let Some(symbol) = symbols.find(name) else {
                continue;
            };
            // SAFETY: an entry of the module's symbol table.
            let symbol = unsafe { &*symbol };
            let address = symbol.st_value.wrapping_add(self.bias);
            match symbol.st_info & 0xf {
                STT_NOTYPE | STT_FUNC => {
                    visit(index, with_exposed_provenance_mut(address as usize))
                }
                // SAFETY: the resolver of a module that was relocated.
                STT_GNU_IFUNC => visit(index, unsafe { arch::ifunc_target(address) }),
                _ => {}
            }
        }
    }

    /// Returns true if this is a part of the C library, by its file name.
    pub fn is_c_library(&self) -> bool {
        self.is_called_one_of(&C_LIBRARY)
    }

    fn symbols(&self) -> Option<&Symbols> {
        self.tables.get_or_init(|| self.find_tables()).as_ref()
    }

    #[inline(never)]
    fn find_tables(&self) -> Option<Symbols> {
        let values = self.dynamic_values([DT_SYMTAB, DT_STRTAB, DT_GNU_HASH, DT_HASH])?;
        let [symbols, strings, gnu_hash, hash] = values.map(|value| self.address_in(value));
        (symbols != 0 && strings != 0).then_some(Symbols {
            symbols: symbols as *const Elf64_Sym,
            strings: strings as *const c_char,
            gnu_hash: gnu_hash as *const u32,
            hash: hash as *const u32,
        })
    }

    /// Returns the values of these tags in the dynamic section; 0 for those that it lacks.
    fn dynamic_values<const N: usize>(&self, tags: [u64; N]) -> Option<[u64; N]> {
        let is_dynamic = |h: &&Elf64_Phdr| h.p_type == libc::PT_DYNAMIC;
        let dynamic = self.headers().iter().find(is_dynamic)?;
        let mut at = self.bias.wrapping_add(dynamic.p_vaddr) as *const [u64; 2];
        let mut values = [0; N];
        // SAFETY: the module's dynamic section, which ends with an entry of tag 0.
        unsafe {
            while (*at)[0] != 0 {
                let [tag, value] = *at;
                if let Some(index) = tags.iter().position(|known| *known == tag) {
                    values[index] = value;
                }
                at = at.add(1);
            }
        }
        Some(values)
    }

    /// Converts a value of the dynamic section into an address. glibc has already done so, unless
    /// the section is read-only.
    fn address_in(&self, value: u64) -> u64 {
        let is_offset = value != 0 && value < self.bias;
        value + if is_offset { self.bias } else { 0 }
    }
}

impl Symbols {
    /// Returns the entry of a symbol that the module defines.
    fn find(&self, name: Name) -> Option<*const Elf64_Sym> {
        // SAFETY: complete tables of a loaded module, which the loader itself searches.
        unsafe {
            match (self.gnu_hash.is_null(), self.hash.is_null()) {
                (false, _) => self.find_by_gnu_hash(name),
                (true, false) => self.find_by_hash(name),
                (true, true) => None,
            }
        }
    }

    /// Returns a symbol if it is defined and has this name.
    ///
    /// # Safety
    /// `index` is in the table.
    unsafe fn defined(&self, index: u32, name: Name) -> Option<*const Elf64_Sym> {
        // SAFETY: the entry is in the table, and its name in the string table.
        unsafe {
            let symbol = self.symbols.add(index as usize);
            let symbol_name = self.strings.add((*symbol).st_name as usize);
            let is_defined = (*symbol).st_shndx != 0 && (*symbol).st_value != 0;
            (is_defined && name.is(symbol_name)).then_some(symbol)
        }
    }

    /// Looks a name up in `DT_GNU_HASH`.
    ///
    /// # Safety
    /// The table exists.
    unsafe fn find_by_gnu_hash(&self, name: Name) -> Option<*const Elf64_Sym> {
        let hash = name.hash();
        let table = self.gnu_hash;
        // SAFETY: the first words say where the bloom filter, the buckets and the chains are.
        unsafe {
            let [buckets, first, words, shift] = *table.cast::<[u32; 4]>();
            let bloom = table.add(4).cast::<u64>();
            let word = *bloom.add(((hash / 64) & words.wrapping_sub(1)) as usize);
            let has = |bit: u32| (word >> (bit % 64)) & 1 == 1;
            if buckets == 0 || !has(hash) || !has(hash.checked_shr(shift).unwrap_or(0)) {
                return None;
            }
            let heads = table.add(4 + 2 * words as usize);
            let chains = heads.add(buckets as usize);
            let mut index = *heads.add((hash % buckets) as usize);
            while index >= first {
                let link = *chains.add((index - first) as usize);
                if (link | 1) == (hash | 1)
                    && let Some(found) = self.defined(index, name)
                {
                    return Some(found);
                }
                if link & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        None
    }

    /// Calls `visit` with each defined symbol. Needs `DT_GNU_HASH`, which this library has.
    fn each_defined(&self, mut visit: impl FnMut(*const Elf64_Sym)) {
        let table = self.gnu_hash;
        if table.is_null() {
            return;
        }
        // SAFETY: the first words say where the buckets and the chains are.
        unsafe {
            let [buckets, first, words, _] = *table.cast::<[u32; 4]>();
            let heads = table.add(4 + 2 * words as usize);
            let chains = heads.add(buckets as usize);
            for bucket in 0..buckets as usize {
                let mut index = *heads.add(bucket);
                while index >= first {
                    visit(self.symbols.add(index as usize));
                    if *chains.add((index - first) as usize) & 1 == 1 {
                        break;
                    }
                    index += 1;
                }
            }
        }
    }

    /// Looks a name up in `DT_HASH`.
    ///
    /// # Safety
    /// The table exists.
    #[cold]
    unsafe fn find_by_hash(&self, name: Name) -> Option<*const Elf64_Sym> {
        let add = |hash: u32, byte: &u8| {
            let hash = (hash << 4).wrapping_add(u32::from(*byte));
            let high = hash & 0xf000_0000;
            (hash ^ (high >> 24)) & !high
        };
        let hash = name.to_bytes().iter().fold(0, add);
        // SAFETY: the buckets and the chains follow the first two words.
        unsafe {
            let [buckets, _] = *self.hash.cast::<[u32; 2]>();
            let heads = self.hash.add(2);
            let chains = heads.add(buckets as usize);
            if buckets == 0 {
                return None;
            }
            let mut index = *heads.add((hash % buckets) as usize);
            while index != 0 {
                if let Some(found) = self.defined(index, name) {
                    return Some(found);
                }
                index = *chains.add(index as usize);
            }
        }
        None
    }
}

/// Symbols of this library that are to be hidden.
pub enum Hidden<I> {
    /// All of them.
    All,
    /// Symbols with these names.
    Named(I),
}

/// Hides symbols of this library from the loader: references that are bound or looked up later get
/// the definition that they would have without us. Called at start-up. Changes `errno`.
///
/// The loader ignores symbols with value 0. If the symbol table shares its segment with code, which
/// cannot be made writable, nothing is hidden.
pub fn hide<'a>(hidden: Hidden<impl Iterator<Item = Name<'a>>>) {
    let mut hidden = Some(hidden);
    each_module(|module| {
        let is_ours = module.is_ours();
        if is_ours
            && let Some(symbols) = module.symbols()
            && let Some(hidden) = hidden.take()
        {
            hide_in(module, symbols, hidden);
        }
        !is_ours
    });
}

/// Hides symbols in the table of this library.
fn hide_in<'a>(module: &Module, symbols: &Symbols, hidden: Hidden<impl Iterator<Item = Name<'a>>>) {
    let start = symbols.symbols as u64;
    let mut end = start;
    symbols.each_defined(|symbol| end = end.max(symbol as u64 + size_of::<Elf64_Sym>() as u64));
    let segment = module.segment_of(start);
    let is_data = |segment: &&Elf64_Phdr| segment.p_flags & libc::PF_X == 0;
    let Some(segment) = segment.filter(is_data) else {
        return;
    };
    if end > module.bias + segment.p_vaddr + segment.p_filesz {
        return;
    }
    // SAFETY: only reads the auxiliary vector.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) }.max(1);
    let first = start & !(page - 1);
    let bytes = (end.next_multiple_of(page) - first) as usize;
    let allow = |access| {
        // SAFETY: pages of our own that have no code; they stay readable.
        unsafe { libc::mprotect(first as *mut c_void, bytes, access) == 0 }
    };
    if !allow(libc::PROT_READ | libc::PROT_WRITE) {
        return;
    }
    let hide = |symbol: *const Elf64_Sym| {
        let value = (symbol as u64 + offset_of!(Elf64_Sym, st_value) as u64) as *mut u64;
        // SAFETY: an entry of our own table, in pages that were made writable. The store is
        // atomic, because another thread's lookup may read the value.
        unsafe { AtomicU64::from_ptr(value).store(0, Ordering::Relaxed) };
    };
    match hidden {
        Hidden::All => symbols.each_defined(hide),
        Hidden::Named(names) => names.filter_map(|name| symbols.find(name)).for_each(hide),
    }
    allow(libc::PROT_READ);
}
