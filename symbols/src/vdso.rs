//! Names of the kernel's own code in each process, the vdso.
//!
//! It is in no file, but the running kernel maps the same one into this
//! process: if its build id is that of the profiled one, its symbols are taken
//! from here. Otherwise its frames are called `[vdso]`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use heap_format::{Mapping, Profile, maps};

use super::elf::Elf;
use super::frame::Frames;
use super::names::Names;
use super::reader::{self, Request};

/// Its name in the maps.
const NAME: &str = "[vdso]";
/// It is a few pages.
const MOST_BYTES: u64 = 1 << 20;

/// Names those of `locations` that lie in it. Returns a warning for the user.
pub fn name(profile: &Profile, locations: &[usize], names: &mut Names) -> Option<String> {
    let mapping_of = |number: usize| {
        let mapping = profile.locations[number].mapping as usize;
        let mapping = profile.mappings.get(mapping);
        mapping.filter(|m| m.path == Path::new(NAME))
    };
    let inside: Vec<(usize, &Mapping)> = locations
        .iter()
        .filter_map(|&n| Some((n, mapping_of(n)?)))
        .collect();
    let (_, mapping) = inside.first()?;
    let own = Copy::make()
        .filter(|own| !mapping.build_id.is_empty() && own.elf.build_id == mapping.build_id);
    let mut found = Frames::new();
    let mut warning = None;
    if let Some(own) = own {
        let address = |&(n, m): &(usize, &Mapping)| {
            let offset = profile.locations[n].address.wrapping_sub(m.start);
            own.elf.address_of(offset).unwrap_or(u64::MAX)
        };
        let request = Request {
            path: own.path.clone(),
            module: None,
            addresses: inside.iter().map(address).collect(),
            tables_only: false,
        };
        match reader::read(&[request], &[]).pop() {
            Some(Ok(reading)) => found = reading.frames,
            Some(Err(error)) => warning = Some(error.to_string()),
            None => {}
        }
    }
    for (i, (number, _)) in inside.iter().enumerate() {
        match found.get(i).filter(|frames| !frames.is_empty()) {
            Some(frames) => names.add(*number, frames),
            None => names.add_name(*number, NAME),
        }
    }
    warning
}

/// This process's own one as a file, which is gone when this is.
struct Copy {
    path: PathBuf,
    elf: Elf,
}

impl Copy {
    fn make() -> Option<Self> {
        let text = std::fs::read("/proc/self/maps").ok()?;
        let mapping = maps::parse(&text)
            .into_iter()
            .find(|m| m.path == Path::new(NAME))?;
        let size = mapping.end.checked_sub(mapping.start)?;
        let mut bytes = vec![0; usize::try_from(size.min(MOST_BYTES)).ok()?];
        let memory = File::open("/proc/self/mem").ok()?;
        memory.read_exact_at(&mut bytes, mapping.start).ok()?;
        let name = format!("mem_parser.{}.vdso", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        // Only a file that no other user has put there.
        let mut file = options.write(true).create_new(true).open(&path).ok()?;
        let copy = Self {
            path,
            elf: Elf::default(),
        };
        file.write_all(&bytes).ok()?;
        let elf = Elf::open(&copy.path).ok()?;
        Some(Self {
            path: copy.take(),
            elf,
        })
    }

    fn take(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // Nothing is lost if it stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
