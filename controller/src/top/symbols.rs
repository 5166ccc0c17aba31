//! Names of functions, found outside the target and kept: an address is looked up once.

use std::collections::HashMap;
use std::rc::Rc;

use blazesym::Pid;
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};

use crate::text;

/// Most addresses that are looked up in one refresh, so that the first one shows soon.
const BATCH: usize = 20_000;

/// Index of a function's name.
pub type FunctionId = u32;

/// Names by address, for one process.
pub struct Symbols {
    symbolizer: Symbolizer,
    pid: i32,
    names: Vec<Rc<str>>,
    ids: HashMap<Rc<str>, FunctionId>,
    /// Functions at an address, innermost first.
    known: HashMap<u64, Rc<[FunctionId]>>,
}

impl Symbols {
    /// Of a live process.
    pub fn new(pid: i32) -> Self {
        Self {
            symbolizer: Symbolizer::new(),
            pid,
            names: Vec::new(),
            ids: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// A function's name.
    pub fn name(&self, id: FunctionId) -> &str {
        self.names.get(id as usize).map_or("?", |name| name)
    }

    /// The number of functions.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The functions at a return address, innermost first, once they were looked up.
    pub fn at(&self, address: u64) -> Option<&Rc<[FunctionId]>> {
        self.known.get(&address)
    }

    /// The number of a name, made if it is new.
    pub fn intern(&mut self, name: &str) -> FunctionId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.names.len() as FunctionId;
        let name: Rc<str> = name.into();
        self.names.push(name.clone());
        self.ids.insert(name, id);
        id
    }

    /// Looks up those of the return addresses that are new; at most so many at a time.
    pub fn resolve(&mut self, addresses: impl Iterator<Item = u64>) {
        let mut new: Vec<u64> = addresses.filter(|a| !self.known.contains_key(a)).collect();
        new.sort_unstable();
        new.dedup();
        new.truncate(BATCH);
        if new.is_empty() {
            return;
        }
        // Inside the call, not behind it.
        let lookup: Vec<u64> = new.iter().map(|address| address.wrapping_sub(1)).collect();
        let process = Process::new(Pid::from(self.pid as u32));
        let found = self
            .symbolizer
            .symbolize(&Source::Process(process), Input::AbsAddr(&lookup));
        let names: Vec<Vec<String>> = found.unwrap_or_default().iter().map(names_of).collect();
        let mut names = names.into_iter();
        for address in new {
            let mut names = names.next().unwrap_or_default();
            if names.is_empty() {
                names.push(format!("0x{address:x}"));
            }
            let functions = names.iter().map(|name| self.intern(name)).collect();
            self.known.insert(address, functions);
        }
    }
}

/// Names of the functions at an address, innermost first; the file where none is known;
/// nothing for an address outside all files.
fn names_of(found: &Symbolized<'_>) -> Vec<String> {
    match found {
        Symbolized::Sym(symbol) => {
            let inlined = symbol.inlined.iter().map(|inlined| inlined.name.as_ref());
            let names = inlined.chain([symbol.name.as_ref()]);
            names.map(|name| text::escape(name.as_bytes())).collect()
        }
        Symbolized::Unknown(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_have_names_and_strangers_addresses() {
        let mut symbols = Symbols::new(std::process::id() as i32);
        let here = own_functions_have_names_and_strangers_addresses as *const () as u64 + 4;
        symbols.resolve([here, 0x10].into_iter());
        let name = |address| {
            symbols
                .name(*symbols.at(address).unwrap().last().unwrap())
                .to_owned()
        };
        assert!(
            name(here).contains("own_functions_have_names"),
            "{}",
            name(here)
        );
        assert_eq!(name(0x10), "0x10");
        assert!(symbols.at(0x20).is_none());
        assert_eq!(symbols.len(), 2);
    }
}
