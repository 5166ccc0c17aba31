//! Names code in the vdso, the code that the kernel maps into each process.
//!
//! The vdso is in no file. The running kernel maps it into this process as well, so its symbols are
//! read from there if both have the same build id. Otherwise its frames are named
//! `[vdso]`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use profile::{Mapping, Profile, maps};

use super::elf::Elf;
use super::frame::Frames;
use super::names::Names;
use super::reader::{self, Request};

/// Name of the vdso in `/proc/PID/maps`.
const NAME: &str = "[vdso]";
/// Bytes read of the vdso, which is a few pages.
const MAX_BYTES: u64 = 1 << 20;

/// Names those of `locations` that lie in the vdso. Returns a warning for the user.
pub fn name(profile: &Profile, locations: &[usize], names: &mut Names) -> Option<String> {
    let mapping_of = |number: usize| {
        let mapping = profile.locations[number].mapping as usize;
        let mapping = profile.mappings.get(mapping);
        mapping.filter(|m| m.path == Path::new(NAME))
    };
    let in_vdso: Vec<(usize, &Mapping)> = locations
        .iter()
        .filter_map(|&n| Some((n, mapping_of(n)?)))
        .collect();
    let (_, mapping) = in_vdso.first()?;
    let vdso_file = VdsoFile::make().filter(|vdso_file| {
        !mapping.build_id.is_empty() && vdso_file.elf.build_id == mapping.build_id
    });
    let mut found = Frames::new();
    let mut warning = None;
    if let Some(vdso_file) = vdso_file {
        let address = |&(n, m): &(usize, &Mapping)| {
            let offset = profile.locations[n].address.wrapping_sub(m.start);
            vdso_file.elf.address_of(offset).unwrap_or(u64::MAX)
        };
        let request = Request {
            path: vdso_file.path.clone(),
            module: None,
            addresses: in_vdso.iter().map(address).collect(),
            tables_only: false,
        };
        match reader::read(&[request], &[]).pop() {
            Some(Ok(reading)) => found = reading.frames,
            Some(Err(error)) => warning = Some(error.to_string()),
            None => {}
        }
    }
    for (i, (number, _)) in in_vdso.iter().enumerate() {
        match found.get(i).filter(|frames| !frames.is_empty()) {
            Some(frames) => names.add(*number, frames),
            None => names.add_name(*number, NAME),
        }
    }
    warning
}

/// This process's vdso as a temporary file, deleted on drop.
struct VdsoFile {
    path: PathBuf,
    elf: Elf,
}

impl VdsoFile {
    fn make() -> Option<Self> {
        let text = std::fs::read("/proc/self/maps").ok()?;
        let mapping = maps::parse(&text)
            .into_iter()
            .find(|m| m.path == Path::new(NAME))?;
        let size = mapping.end.checked_sub(mapping.start)?;
        let mut bytes = vec![0; usize::try_from(size.min(MAX_BYTES)).ok()?];
        let memory = File::open("/proc/self/mem").ok()?;
        memory.read_exact_at(&mut bytes, mapping.start).ok()?;
        let name = format!("mem_parser.{}.vdso", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        // `create_new` fails if another user has created a file there.
        let mut file = options.write(true).create_new(true).open(&path).ok()?;
        let vdso_file = Self {
            path,
            elf: Elf::default(),
        };
        file.write_all(&bytes).ok()?;
        let elf = Elf::open(&vdso_file.path).ok()?;
        Some(Self {
            path: vdso_file.take(),
            elf,
        })
    }

    fn take(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for VdsoFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // A leftover file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
