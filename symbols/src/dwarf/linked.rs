//! Finds the linkage names of functions whose debug information has only an unqualified name.
//!
//! gcc writes no linkage name for functions with internal linkage: `static` functions, lambdas, and
//! methods of classes in anonymous namespaces; rustc none at all with `debug = "line-tables-only"`.
//! Their symbols have it, unless the file is stripped.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::functions::Function;
use super::image::Image;
use super::table;
use super::units::Units;

/// Returns the linkage names of the addresses' functions that have a matching symbol. `wanted` is
/// sorted. Returns `None` if a symbol table is damaged.
pub fn names(
    image: &Image,
    units: &Units,
    wanted: &[u64],
    functions: &[Option<Function>],
) -> Option<HashMap<u64, Rc<str>>> {
    let mut partial: Vec<(u64, Rc<str>)> = Vec::new();
    for (&address, function) in wanted.iter().zip(functions) {
        let Some(function) = function else { continue };
        let name = units.name(function.die).ok()?;
        if name.scoped.is_some() {
            partial.push((address, name.text));
        }
    }
    if partial.is_empty() {
        return Some(HashMap::new());
    }
    let addresses: Vec<u64> = partial.iter().map(|(address, _)| *address).collect();
    let matches = |address, symbol: &str| {
        let at = addresses.binary_search(&address);
        at.is_ok_and(|at| may_belong(symbol, &partial[at].1))
    };
    let names = table::matching_names(image, &addresses, &units.residency, matches)?;
    // Equal names share their memory, because they are later looked up by address.
    let mut known: HashSet<Rc<str>> = HashSet::new();
    let mut shared = |name: &Rc<str>| {
        let name = without_suffix(name);
        if let Some(known) = known.get(name) {
            return Rc::clone(known);
        }
        let name: Rc<str> = name.into();
        known.insert(Rc::clone(&name));
        name
    };
    let names = names.iter();
    Some(names.map(|(at, name)| (*at, shared(name))).collect())
}

/// Returns true if a symbol may belong to a function of this name. An address may have several
/// symbols, because linkers fold functions with identical code into one.
fn may_belong(symbol: &str, name: &str) -> bool {
    if !is_mangled(symbol) {
        return symbol == name;
    }
    if name.starts_with('{') {
        // Rust's closures and generated functions, which are mangled differently.
        return symbol.starts_with("_R") || symbol.contains("$u7b$");
    }
    let name = name.strip_prefix('~').unwrap_or(name);
    if name.starts_with("operator()") {
        // `cl` is the mangled `operator()`; `E` ends a nested name, `I` begins template arguments.
        return symbol.contains("clE") || symbol.contains("clI");
    }
    if name
        .strip_prefix("operator")
        .is_some_and(|rest| !rest.starts_with(is_letter))
    {
        // The mangled form of an operator depends on its types.
        return true;
    }
    // A mangled name has each identifier after its length.
    let name = name.split('<').next().unwrap_or(name);
    symbol.contains(&format!("{}{name}", name.len()))
}

/// Returns true if a symbol is mangled, as in C++ and Rust.
fn is_mangled(symbol: &str) -> bool {
    symbol.starts_with("_Z") || symbol.starts_with("_R")
}

fn is_letter(letter: char) -> bool {
    letter == '_' || letter == '$' || letter.is_alphanumeric()
}

/// Removes the suffixes of a symbol: those of cloned or split functions (by compilers) and of
/// symbol versions (by linkers).
fn without_suffix(symbol: &str) -> &str {
    if !is_mangled(symbol) {
        return symbol;
    }
    let end = end_of_hash(symbol).or_else(|| symbol.find(['.', '@']));
    &symbol[..end.unwrap_or(symbol.len())]
}

/// Finds the end of a name in Rust's legacy mangling, which ends with a hash. Such names have dots
/// inside.
fn end_of_hash(symbol: &str) -> Option<usize> {
    const DIGITS: usize = 16;
    let start = symbol.rfind("17h")? + "17h".len();
    let hash = symbol.get(start..start + DIGITS)?;
    let ends = symbol[start + DIGITS..].starts_with('E');
    let is_hash = ends && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(start + DIGITS + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_matches_if_its_name_does() {
        let free = "_ZN12_GLOBAL__N_15Cache4freeEv.constprop.0";
        assert!(may_belong(free, "free") && !may_belong(free, "run"));
        assert_eq!(without_suffix(free), "_ZN12_GLOBAL__N_15Cache4freeEv");
        assert!(may_belong("main", "main") && !may_belong("free", "cfree"));
        let lambda = "_ZZ4mainENKUliE_clEi";
        assert!(may_belong(lambda, "operator()") && !may_belong(free, "operator()"));
        let pair = "_ZN12_GLOBAL__N_14makeIlEEPvT_";
        assert!(may_belong(pair, "make<long int>") && may_belong("_ZN1_1SD2Ev", "~S"));
        assert!(may_belong("_ZN1_lsERSoRKNS_1SE", "operator<<"));
        assert!(
            may_belong("_ZNK12_GLOBAL__N_11ScviEv", "operator int")
                && !may_belong(free, "operators")
        );
        assert_eq!(without_suffix("memcpy@@GLIBC_2.14"), "memcpy@@GLIBC_2.14");
        let rust = "_ZN42_$LT$T$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE";
        assert!(may_belong(rust, "fmt<u8>"));
        assert_eq!(without_suffix(&format!("{rust}.llvm.77")), rust);
        let closure = "_RNCNvCsdJWnAVGqR3H_4main4main0";
        assert!(may_belong(closure, "{closure#0}") && !may_belong(free, "{closure#0}"));
    }
}
