//! Finds the debug information of units that the compiler wrote into files of their own
//! (`-gsplit-dwarf`): `.dwo` files, or a package of them, `PROGRAM.dwp`.
//!
//! These files are untrusted, like the program. A unit is only used if it has the id that the
//! program's own unit states, so another build's file is not.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use foldhash::HashMap;
use gimli::{Dwarf, DwarfPackage, DwarfPackageSections, DwarfSections, DwoId, LittleEndian};

use super::candidates::Candidates;
use super::image::Image;
use super::units::{Slice, SplitUnit, Units};
use super::unpacking::Content;

/// Maximum number of `.dwo` files to open for one program.
const MAX_OBJECTS: usize = 10_000;

/// A unit whose debug information is in another file, except for its address ranges and lines.
pub struct Skeleton {
    /// Number of the unit.
    pub unit: usize,
    /// Identity of the unit in the other file.
    pub id: gimli::DwoId,
    /// The file's name, relative to `directory`.
    pub name: Vec<u8>,
    /// Directory in which the compiler ran.
    pub directory: Vec<u8>,
    /// True if the skeleton itself has functions with what they inline
    /// (`-fsplit-dwarf-inlining`): then nothing is missing without the other file.
    pub has_functions: bool,
}

/// Directories in which companions of a program are searched for.
#[derive(Clone, Copy)]
pub struct SearchPaths<'p> {
    /// The program.
    pub program: &'p Path,
    /// Directories with debug files.
    pub directories: &'p [PathBuf],
}

/// Files with the debug information of skeletons.
#[derive(Default)]
pub struct Files {
    packages: Vec<Image>,
    objects: Vec<Object>,
}

/// A `.dwo` file.
struct Object {
    /// Number of the skeleton.
    unit: usize,
    id: DwoId,
    image: Image,
}

/// Sections of [`Files`].
#[derive(Default)]
pub struct Sections<'i> {
    packages: Vec<DwarfPackageSections<Content<'i>>>,
    objects: Vec<ObjectSections<'i>>,
}

/// Sections of a `.dwo` file.
struct ObjectSections<'i> {
    /// Number of the skeleton.
    unit: usize,
    id: DwoId,
    sections: DwarfSections<Content<'i>>,
}

/// Returns the skeletons among the units that may cover an address.
pub fn skeletons(units: &Units, candidates: &Candidates) -> gimli::Result<Vec<Skeleton>> {
    let mut skeletons = Vec::new();
    for number in candidates.units() {
        let unit = units.open(number)?;
        let Some(id) = unit.dwo_id else { continue };
        let name = unit.dwo_name()?;
        let name = name.and_then(|name| units.dwarf().attr_string(&unit, name).ok());
        let bytes = |text: Option<Slice>| text.map_or_else(Vec::new, |t| t.to_vec());
        let mut entries = unit.entries();
        let has_functions = entries.next_dfs()?.is_some_and(|root| root.has_children());
        skeletons.push(Skeleton {
            unit: number,
            id,
            name: bytes(name),
            directory: bytes(unit.comp_dir),
            has_functions,
        });
    }
    Ok(skeletons)
}

impl Files {
    /// Opens the files of these skeletons that exist, and the program's package. `image` has the
    /// skeletons.
    pub fn find(skeletons: &[Skeleton], image: &Image, search_paths: SearchPaths) -> Self {
        let mut packages: Vec<PathBuf> = Vec::new();
        for path in [search_paths.program, image.path()] {
            packages.push(package_path(path));
            packages.extend(path.canonicalize().map(|path| package_path(&path)));
            let name = package_path(Path::new(path.file_name().unwrap_or_default()));
            packages.extend(
                search_paths
                    .directories
                    .iter()
                    .map(|directory| directory.join(&name)),
            );
        }
        packages.sort();
        packages.dedup();
        let has_index = |image: &Image| image.section(".debug_cu_index").is_some();
        let packages = packages.iter().filter_map(|path| Image::open_part(path));
        let object = |skeleton: &Skeleton| {
            let mut candidates = candidates(skeleton, image, search_paths).into_iter();
            Some(Object {
                unit: skeleton.unit,
                id: skeleton.id,
                image: candidates.find_map(|path| Image::open_part(&path))?,
            })
        };
        let skeletons = skeletons.iter().take(MAX_OBJECTS);
        Self {
            packages: packages.filter(has_index).collect(),
            objects: skeletons.filter_map(object).collect(),
        }
    }

    /// Loads the sections with debug information.
    pub fn sections<'i>(&'i self) -> Sections<'i> {
        let package = |image: &'i Image| -> gimli::Result<_> {
            DwarfPackageSections::load(|id| {
                // All of them, because an index has each unit's part of every section.
                let name = id.dwo_name().unwrap_or(id.name());
                let section = image.section(name);
                let data = section.map_or(Some(Content::File(&[])), |section| image.data(section));
                data.ok_or(gimli::Error::Io)
            })
        };
        let object = |object: &'i Object| {
            let debug_section =
                |id: gimli::SectionId| object.image.debug_section(id, id.dwo_name()).ok_or(());
            Some(ObjectSections {
                unit: object.unit,
                id: object.id,
                sections: DwarfSections::load(debug_section).ok()?,
            })
        };
        let packages = self.packages.iter();
        Sections {
            packages: packages.filter_map(|image| package(image).ok()).collect(),
            objects: self.objects.iter().filter_map(object).collect(),
        }
    }
}

impl<'i> Sections<'i> {
    /// Returns the units of skeletons, by their numbers. `parent` is the debug information of the
    /// file that has the skeletons.
    pub fn units<'a>(
        &'a self,
        skeletons: &[Skeleton],
        parent: &Dwarf<Slice<'a>>,
    ) -> HashMap<usize, SplitUnit<'a>> {
        let mut units = HashMap::default();
        let empty = Slice::new(&[], LittleEndian);
        let borrow = |bytes: &'a Content<'i>| Slice::new(bytes, LittleEndian);
        for sections in &self.packages {
            let package: gimli::Result<DwarfPackage<_>> = sections.borrow(borrow, empty);
            let Ok(package) = package else { continue };
            for skeleton in skeletons {
                let dwarf = package.find_cu(skeleton.id, parent);
                let unit = dwarf
                    .ok()
                    .flatten()
                    .and_then(|dwarf| find_unit(dwarf, skeleton.id));
                units.extend(unit.map(|unit| (skeleton.unit, unit)));
            }
        }
        for object in &self.objects {
            let mut dwarf = object.sections.borrow(borrow);
            dwarf.make_dwo(parent);
            units.extend(find_unit(dwarf, object.id).map(|unit| (object.unit, unit)));
        }
        units
    }
}

/// Returns the unit with this id, if the file has it.
fn find_unit(dwarf: Dwarf<Slice<'_>>, id: DwoId) -> Option<SplitUnit<'_>> {
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().ok()? {
        if dwarf.unit(header).ok()?.dwo_id == Some(id) {
            return Some(SplitUnit { dwarf, header });
        }
    }
    None
}

/// Returns the name of the package of a program.
fn package_path(program: &Path) -> PathBuf {
    let mut name = program.as_os_str().to_owned();
    name.push(".dwp");
    name.into()
}

/// Returns the paths at which a `.dwo` file may be: where the compiler wrote it, beside the
/// program, and in the directories given, by its whole path or by its name.
fn candidates(skeleton: &Skeleton, image: &Image, search_paths: SearchPaths) -> Vec<PathBuf> {
    let name = Path::new(OsStr::from_bytes(&skeleton.name));
    if name.as_os_str().is_empty() {
        return Vec::new();
    }
    let whole = Path::new(OsStr::from_bytes(&skeleton.directory)).join(name);
    let below = whole.strip_prefix("/").unwrap_or(&whole);
    let file = Path::new(name.file_name().unwrap_or_default());
    let mut candidates = vec![whole.clone()];
    let programs = [search_paths.program, image.path()].map(Path::parent);
    let directories = programs.into_iter().flatten();
    for directory in directories.chain(search_paths.directories.iter().map(PathBuf::as_path)) {
        candidates.extend([
            directory.join(below),
            directory.join(name),
            directory.join(file),
        ]);
    }
    candidates.dedup();
    candidates
}
