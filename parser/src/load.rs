//! Reads files into one symbolized profile.

use std::borrow::Cow;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use profile::{Profile, ReadError, beside, crowding, maps, opening, overwritten, printable};

use crate::combine::{self, Combined};
use crate::files::Sources;
use crate::python::{self, FrameSelection};
use crate::report::format::{Dumps, Needs, Symbols};
use crate::series::{self, FileProfiles};
use crate::view::View;
use crate::{generated, hint, nearest, php, program, stdin, unmapped, untracked};

/// Magic number of programs and libraries.
const ELF: [u8; 4] = *b"\x7fELF";

/// Reads the dumps, combines them as the format requires, and finds symbols. Warnings go to `warn`,
/// even before an error. The error may be a [`NoProgram`](program::NoProgram) or [`Missing`].
pub fn load(sources: &Sources, needs: &Needs, warn: &mut dyn FnMut(String)) -> Result<Combined> {
    let mut sources = Cow::Borrowed(sources);
    // `which python` may be a script that starts the program.
    if let Some(script) = sources.binary.clone().filter(|file| is_script(file)) {
        warn(format!(
            "{} is a script, not the program that it starts: the program that the dump names is used",
            printable::path(&script)
        ));
        sources.to_mut().binary = None;
    }
    let dumps = open_all(&sources.dumps, &sources, needs)?;
    let overwritten = dumps.iter().find_map(overwritten::remark);
    if needs.symbols == Symbols::Unused {
        overwritten.into_iter().for_each(&mut *warn);
        return combine_all(&sources, needs, dumps, warn);
    }
    let mut missing = Vec::new();
    if needs.symbols == Symbols::Required && !can_name(&sources, &dumps) {
        match program::find(&dumps, &sources.dumps, sources.force) {
            Ok(found) => sources.to_mut().binary = found,
            Err(errors) => missing = errors,
        }
    } else if !sources.force
        && let Some(binary) = sources.binary.as_ref()
    {
        for (profile, file) in dumps.iter().zip(&sources.dumps) {
            check_binary(profile, binary, file, warn)?;
        }
    }
    if let Some(at) = missing.iter().position(|e| !e.names_may_be_elsewhere()) {
        return Err(missing.swap_remove(at).into());
    }
    let mut combined = combine_all(&sources, needs, dumps, warn)?;
    let warnings = symbolize(&mut combined.profile, &sources);
    if let Some(error) = missing
        .into_iter()
        .find(|e| e.still_applies_to(&combined.profile))
    {
        return Err(error.into());
    }
    let only_python = sources.python == FrameSelection::PythonOnly && has_python(&combined.profile);
    let hint = match needs.symbols {
        // If no native code is shown, its names are not needed.
        Symbols::Required if !only_python => {
            unnamed_code_hint(&mut combined.profile, &sources, &warnings)
        }
        _ => None,
    };
    if sources.module_names {
        remove_made_up_names(&mut combined.profile);
    }
    let python = match needs.symbols {
        Symbols::Required => {
            python::select_frames(&mut combined.profile, sources.python, needs.merged_stacks)
        }
        _ => None,
    };
    warnings
        .into_iter()
        .chain(hint)
        .chain(python)
        .chain(php::remark(&combined.profile))
        .chain(python::hidden_objects_remark(&combined.profile))
        .chain(overwritten::remark(&combined.profile).or(overwritten))
        .for_each(warn);
    Ok(combined)
}

/// Returns true if the profile has Python frames.
fn has_python(profile: &Profile) -> bool {
    let mut locations = profile.locations.iter();
    locations.any(|location| profile.is_python(location))
}

/// Returns a hint about code without names.
fn unnamed_code_hint(
    profile: &mut Profile,
    sources: &Sources,
    warnings: &[String],
) -> Option<String> {
    if profile.sample_types.is_empty() {
        return None;
    }
    let mut view = View::new(std::mem::take(profile), None).ok()?;
    // A malformed pattern is reported when allocator frames are dropped.
    let hint = match view.drop_allocator_frames() {
        Ok(()) => hint::unnamed_code_hint(&view, sources, warnings)
            .or_else(|| generated::unnamed_code_hint(&view)),
        Err(_) => None,
    };
    *profile = view.into_profile();
    hint
}

/// Removes names made up for code without a symbol (`cc1plus+0x5a1230`), so that it is named after
/// its file only.
fn remove_made_up_names(profile: &mut Profile) {
    for number in 0..profile.locations.len() {
        if profile.is_unnamed(&profile.locations[number]) {
            profile.locations[number].line_count = 0;
        }
    }
}

/// Finds symbols. Returns warnings for the user.
fn symbolize(profile: &mut Profile, sources: &Sources) -> Vec<String> {
    let options = symbols::Options {
        binary: sources.binary.as_deref(),
        force: sources.force,
        demangle: sources.demangle,
        directories: &sources.symbol_directories,
        debuginfod: sources.debuginfod,
        perf_map: sources.perf_map.as_deref(),
    };
    let assign_warning = sources
        .binary
        .as_ref()
        .and_then(|binary| unmapped::assign_to_program(profile, binary));
    symbols::demangle::demangle_profile(profile, sources.demangle);
    let mut warnings = symbols::symbolize(profile, &options);
    warnings.extend(assign_warning);
    if let Some(binary) = &sources.binary {
        rename_program(profile, binary);
    }
    warnings
}

fn open_all(files: &[PathBuf], sources: &Sources, needs: &Needs) -> Result<Vec<Profile>> {
    let open = |file: &PathBuf| {
        let mut profile = if stdin::is_stdin_path(file) {
            stdin::read()?
        } else {
            profile::open(file).map_err(|error| open_error(file, sources, error))?
        };
        combine::prepare(&mut profile, needs);
        Ok(profile)
    };
    files.iter().map(open).collect()
}

/// Returns the error for a file that could not be read, with the file that was probably meant.
fn open_error(file: &Path, sources: &Sources, error: ReadError) -> anyhow::Error {
    match &error {
        // Files are opened through /proc, so an error may mean that /proc is missing.
        ReadError::Io { error: io, .. } if io.kind() == ErrorKind::NotFound && file.exists() => {
            let file = printable::path(file);
            anyhow!(
                "{file}: cannot be opened: /proc is not mounted, through which files are opened; \
                 mount it first: mount -t proc proc /proc"
            )
        }
        ReadError::Io { error: io, .. } if io.kind() == ErrorKind::NotFound => {
            let near = nearest::file(file);
            let file = file.to_path_buf();
            anyhow::Error::new(Missing { file, error, near })
        }
        ReadError::Io { .. } if file.is_dir() => directory_as_dump(file),
        ReadError::Content { .. } if is_program(file) => program_as_dump(file, sources, error),
        _ => error.into(),
    }
}

/// Returns true if the file is a program or library. A FIFO is not: its contents are consumed.
pub fn is_program(file: &Path) -> bool {
    starts_with(file, &ELF)
}

/// Returns true if the file is a script.
pub fn is_script(file: &Path) -> bool {
    starts_with(file, b"#!")
}

fn starts_with<const N: usize>(file: &Path, magic: &[u8; N]) -> bool {
    let start = || {
        let mut start = [0; N];
        opening::regular(file).ok()?.read_exact(&mut start).ok()?;
        Some(start)
    };
    start().is_some_and(|start| start == *magic)
}

/// Returns the error for a program that was given as a dump.
fn program_as_dump(file: &Path, sources: &Sources, error: ReadError) -> anyhow::Error {
    let path_text = printable::path(file);
    let binary = sources.binary.as_deref();
    match binary.filter(|binary| profile::open(binary).is_ok()) {
        Some(dump) => anyhow!(
            "{path_text} is a program, not a profile, and {dump} is a profile: they seem to be \
             swapped; use -p {path_text} -f {dump}",
            dump = printable::path(dump)
        ),
        None => match error {
            ReadError::Content { name, what } => anyhow!("{name} {what}"),
            other => other.into(),
        },
    }
}

/// Returns the error for a directory that was given as a dump, with the newest dump in it.
fn directory_as_dump(file: &Path) -> anyhow::Error {
    let path_text = printable::path(file);
    match nearest::newest_dump(file) {
        Some(dump) => anyhow!(
            "{path_text}: is a directory; name a dump in it, such as the newest: {}",
            printable::path(&dump)
        ),
        None => anyhow!("{path_text}: is a directory, in which there is no dump; name a file"),
    }
}

/// Error for a dump that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{error}{}", did_you_mean(near.as_deref()))]
pub struct Missing {
    /// Path as given.
    pub file: PathBuf,
    /// Error of reading it.
    pub error: ReadError,
    /// Existing file with a similar name.
    pub near: Option<PathBuf>,
}

fn did_you_mean(near: Option<&Path>) -> String {
    let near = near.map(|file| format!("; did you mean {}?", printable::path(file)));
    near.unwrap_or_default()
}

/// Returns true if the user has said where to find names, or the dumps contain them.
fn can_name(sources: &Sources, dumps: &[Profile]) -> bool {
    let elsewhere = !sources.symbol_directories.is_empty() || sources.debuginfod;
    sources.binary.is_some() || elsewhere || dumps.iter().all(program::is_symbolized)
}

/// Combines the dumps. If the format supports it, combines CPU profiles with heap profiles.
fn combine_all(
    sources: &Sources,
    needs: &Needs,
    dumps: Vec<Profile>,
    warn: &mut dyn FnMut(String),
) -> Result<Combined> {
    let is_cpu_profile = |profile: &Profile| profile.facts.cpu.is_some();
    let has_both_kinds = dumps.iter().any(is_cpu_profile) && !dumps.iter().all(is_cpu_profile);
    if !has_both_kinds {
        return load_one_kind(sources, needs, dumps, warn);
    }
    let with_files = dumps.into_iter().zip(sources.dumps.iter().cloned());
    let (cpu, heap): (Vec<_>, Vec<_>) =
        with_files.partition(|(profile, _)| is_cpu_profile(profile));
    check_cpu_with_heap(sources, needs, &heap, &cpu)?;
    let mut combine = |part: Vec<(Profile, PathBuf)>| {
        let (profiles, files) = part.into_iter().unzip();
        let sources = Sources {
            dumps: files,
            ..sources.clone()
        };
        load_one_kind(&sources, needs, profiles, warn)
    };
    let heap = combine(heap)?;
    let cpu = combine(cpu)?;
    Ok(Combined {
        profile: beside::combine(heap.profile, &cpu.profile),
        series: heap.series,
        base_rule: heap.base_rule,
    })
}

/// Returns an error if a CPU profile cannot be shown together with a heap profile.
fn check_cpu_with_heap(
    sources: &Sources,
    needs: &Needs,
    heap: &[(Profile, PathBuf)],
    cpu: &[(Profile, PathBuf)],
) -> Result<()> {
    let [(heap, heap_file), (cpu, cpu_file)] = [&heap[0], &cpu[0]];
    let heap_name = stdin::display_name(heap_file);
    let cpu_name = stdin::display_name(cpu_file);
    if !needs.accepts_cpu_profile {
        bail!(
            "{heap_name} is of memory and {cpu_name} of time: only --html shows both, on one page"
        );
    }
    if !heap.is_memory_profile() {
        bail!("{heap_name} is not a heap profile, so {cpu_name} cannot be shown beside it");
    }
    if !sources.base.is_empty() {
        bail!("{heap_name} and {cpu_name} are shown side by side only without a base");
    }
    match series::process_difference(heap, cpu).filter(|_| !sources.force) {
        Some(what) => {
            bail!(
                "{heap_name} and {cpu_name} are not of one process: {what} \
                 (--force shows them anyway)"
            )
        }
        None => Ok(()),
    }
}

/// Combines dumps that are all heap profiles or all CPU profiles.
fn load_one_kind(
    sources: &Sources,
    needs: &Needs,
    mut dumps: Vec<Profile>,
    warn: &mut dyn FnMut(String),
) -> Result<Combined> {
    let mut bases = open_all(&sources.base, sources, needs)?;
    combine::align_fractions(&mut dumps, &mut bases);
    untracked::remark_of_all(dumps.iter().chain(&bases))
        .into_iter()
        .for_each(&mut *warn);
    let all = dumps.iter().chain(&bases);
    let crowded = all.map(|dump| (crowding::without_room(dump), dump));
    let worst = crowded.max_by(|a, b| a.0.total_cmp(&b.0));
    worst
        .and_then(|(_, dump)| crowding::remark(dump))
        .into_iter()
        .for_each(&mut *warn);
    match needs.dumps {
        Dumps::Series => {
            // A base is only an earlier dump of the series.
            bases.append(&mut dumps);
            let files = sources.base.iter().chain(&sources.dumps);
            combine::in_order(bases, files.cloned().collect(), sources.force)
        }
        Dumps::Single if dumps.len() + bases.len() > 1 => {
            let flag = needs.flag;
            bail!("--{flag} shows one moment: give it one dump")
        }
        Dumps::Single | Dumps::Sum | Dumps::SeparateBase => {
            if !sources.force {
                series::check_base(
                    FileProfiles {
                        profiles: &dumps,
                        files: &sources.dumps,
                    },
                    FileProfiles {
                        profiles: &bases,
                        files: &sources.base,
                    },
                )?;
                dumps = series::keep_last_of_sessions(dumps, &sources.dumps, warn);
                bases = series::keep_last_of_sessions(bases, &sources.base, warn);
            }
            combine::sum(dumps, &bases, sources.base_rule, needs)
        }
    }
}

/// Warns about a binary that may not be the profiled one, and refuses one that certainly is not.
fn check_binary(
    profile: &Profile,
    binary: &Path,
    file: &Path,
    warn: &mut dyn FnMut(String),
) -> Result<()> {
    if let Some(warning) = symbols::doubt_binary(profile, binary) {
        warn(warning);
    }
    let checked = symbols::check_binary(profile, binary, &stdin::display_name(file));
    checked.map_err(|error| match nearest::file(binary) {
        Some(near) if binary.try_exists().is_ok_and(|there| !there) => {
            anyhow!("{error}{}", did_you_mean(Some(&near)))
        }
        _ => error.into(),
    })
}

/// Renames the program's mapping to the path given by the user.
fn rename_program(profile: &mut Profile, binary: &Path) {
    let Some(main) = symbols::main_mapping(profile) else {
        return;
    };
    let path = maps::strip_deleted(&profile.mappings[main].path)
        .0
        .to_path_buf();
    for mapping in &mut profile.mappings {
        if maps::strip_deleted(&mapping.path).0 == path {
            mapping.path = binary.to_path_buf();
        }
    }
    move_to_front(profile, main);
}

/// Moves a mapping to the front: readers of pprof's format take the first one for the program.
fn move_to_front(profile: &mut Profile, mapping: usize) {
    profile.mappings.swap(0, mapping);
    let mapping = mapping as u32;
    for location in &mut profile.locations {
        location.mapping = match location.mapping {
            0 => mapping,
            m if m == mapping => 0,
            m => m,
        };
    }
}
