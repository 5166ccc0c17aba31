//! The output that is asked for: a flag for each format.

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use mem_parser::filters::pattern;
use mem_parser::report::FORMATS;
use mem_parser::{Format, Output};

/// The output asked for: one, or none for the table.
#[derive(Debug)]
pub struct Report {
    format: &'static Format,
    pattern: Option<String>,
}

impl Report {
    /// Ending of the file that the output goes to where standard output cannot show it.
    pub fn ending(&self) -> Option<&'static str> {
        self.format.ending
    }

    /// The output.
    pub fn output(&self) -> Result<Output> {
        let pattern = pattern(self.format.flag, self.pattern.as_deref())?;
        Ok(Output::new(self.format, pattern))
    }
}

/// The flags of all formats.
impl Args for Report {
    fn augment_args(command: Command) -> Command {
        let command = command.next_help_heading("Outputs (one of these, or the table)");
        FORMATS.iter().fold(command, |command, format| {
            let action = match format.takes_pattern {
                true => ArgAction::Set,
                false => ArgAction::SetTrue,
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
        let given = |format: &&&'static Format| match format.takes_pattern {
            true => matches.contains_id(format.flag),
            false => matches.get_flag(format.flag),
        };
        let wanted = FORMATS.iter().find(given).or(FORMATS.first());
        let format = *wanted.ok_or_else(|| clap::Error::new(ErrorKind::InvalidValue))?;
        let pattern = format
            .takes_pattern
            .then(|| matches.get_one(format.flag).cloned());
        Ok(Self {
            format,
            pattern: pattern.flatten(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
