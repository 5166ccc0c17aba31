//! Options that select the output: a flag for each format.

use std::path::Path;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use mem_parser::filters::pattern;
use mem_parser::report::FORMATS;
use mem_parser::{Format, Output};
use profile::printable;

/// The requested output; the table by default.
#[derive(Debug)]
pub struct Report {
    format: &'static Format,
    pattern: Option<String>,
    /// Set if a flag requested the format.
    given: bool,
}

impl Report {
    /// Returns the extension of the output file if standard output cannot show the format.
    pub fn extension(&self) -> Option<&'static str> {
        self.format.extension
    }

    /// If no flag requested an output, chooses the format by the extension of the output file.
    pub fn choose_for(&mut self, file: &Path) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_lowercase();
        let has_ending = |format: &&Format| {
            let before = format
                .extension
                .and_then(|extension| name.strip_suffix(extension));
            before.is_some_and(|before| before.ends_with('.'))
        };
        let fitting = FORMATS.iter().copied().filter(has_ending);
        // Looks for the longest extension: a flame graph's `.flame.svg` also ends in `.svg`.
        let longest = fitting.max_by_key(|format| format.extension.map_or(0, str::len));
        let extension = Path::new(&name).extension();
        // Other formats are named by their flag: x.json, x.csv, x.dot.
        let is_named = |format: &&Format| {
            !format.takes_pattern && extension.is_some_and(|extension| extension == format.flag)
        };
        let named = || FORMATS.iter().copied().find(is_named);
        if !self.given
            && let Some(format) = longest.or_else(named)
        {
            self.format = format;
        }
    }

    /// Returns an error if the file has the extension of a picture format that is not supported.
    pub fn check_name(file: &Path) -> Result<()> {
        const PICTURES: [&str; 6] = ["png", "jpg", "jpeg", "gif", "webp", "pdf"];
        let extension = file.extension().unwrap_or_default().to_string_lossy();
        let is_other = PICTURES.contains(&&*extension.to_lowercase());
        anyhow::ensure!(
            !is_other,
            "-o {}: pictures are written as SVG; call it {}, which rsvg-convert or a browser converts",
            printable::path(file),
            printable::path(&file.with_extension("svg"))
        );
        Ok(())
    }

    /// Returns the output.
    pub fn output(&self) -> Result<Output> {
        let pattern = pattern(self.format.flag, self.pattern.as_deref())?;
        Ok(Output::new(self.format, pattern))
    }
}

/// Adds the flags of all formats.
impl Args for Report {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("Outputs (one of these, or the table)");
        FORMATS.iter().fold(command, |command, format| {
            let action = if format.takes_pattern {
                ArgAction::Set
            } else {
                ArgAction::SetTrue
            };
            let mut arg = Arg::new(format.flag)
                .long(format.flag)
                .help(format.help)
                .value_name("PATTERN")
                .action(action)
                .group("output_kind");
            arg = format.short.into_iter().fold(arg, Arg::short);
            arg = format.alias.into_iter().fold(arg, Arg::visible_alias);
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Report {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |format: &&&'static Format| {
            if format.takes_pattern {
                matches.contains_id(format.flag)
            } else {
                matches.get_flag(format.flag)
            }
        };
        let requested = FORMATS.iter().find(given);
        let format = *requested
            .or(FORMATS.first())
            .ok_or_else(|| clap::Error::new(ErrorKind::InvalidValue))?;
        let pattern = format
            .takes_pattern
            .then(|| matches.get_one(format.flag).cloned());
        Ok(Self {
            format,
            pattern: pattern.flatten(),
            given: requested.is_some(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
