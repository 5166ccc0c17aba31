//! Leak suspects as a table: stacks whose objects stay, age and grow, worst first.

use std::fmt::Write;

use anyhow::{Result, bail};

use super::context::Context;
use super::format::{Dumps, Format, Needs};
use crate::breakdown;
use crate::date::format_time;
use crate::measure::{self, Style};
use crate::suspects::growth::Growth;
use crate::suspects::{self, Found, Suspect};
use crate::untracked;
use profile::printable::printable;

/// `--leaks`.
pub const FORMAT: Format = Format {
    style: Style::Own,
    needs: Needs {
        variance: true,
        dumps: Dumps::Series,
        heap_only: true,
        ..Needs::TABLE
    },
    ..Format::report(
        "leaks",
        "Leak suspects: stacks that stay, age and, with several dumps of one session, grow",
        render,
    )
};

const SEPARATOR: &str = "-----------+-------------------------------------------------------\n";

/// Default number of suspects shown.
const DEFAULT_ROWS: usize = 20;

/// Units of time for growth rates, smallest first: name and seconds.
const RATE_UNITS: [(&str, f64); 4] = [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("day", 86_400.0)];

/// Minimum change of the fastest stack per unit of time, in bytes. The smallest unit of time in which
/// it changes by this much is used.
const MIN_GROWTH_BYTES: f64 = 1_048_576.0;

/// Renders the table.
fn render(context: &Context) -> Result<String> {
    let series = context.series;
    let Some(found) = suspects::find(context.view, context.nodes, &series.moments) else {
        bail!("--leaks needs a heap profile that counts the objects in use");
    };
    let max_rows = context.max_rows(DEFAULT_ROWS);
    let printer = Printer::new(context, &found);
    let mut out = String::new();
    printer.header(&mut out, &found, max_rows);
    for suspect in found.suspects.iter().take(max_rows) {
        printer.row(&mut out, suspect);
    }
    out += SEPARATOR;
    Ok(out)
}

struct Printer<'a> {
    context: &'a Context<'a>,
    /// Unit of time for growth rates: name and seconds. `None` for a single dump.
    rate: Option<(&'static str, f64)>,
}

impl<'a> Printer<'a> {
    fn new(context: &'a Context<'a>, found: &Found) -> Self {
        let rates = found.suspects.iter().filter_map(|s| s.growth);
        let fastest = rates.map(|g| g.rate.abs()).reduce(f64::max);
        let rate = fastest.map(|fastest| {
            if !context.series.timed {
                return ("dump", 1.0);
            }
            let shows = |(_, seconds): &&(&str, f64)| fastest * seconds >= MIN_GROWTH_BYTES;
            *RATE_UNITS.iter().find(shows).unwrap_or(&RATE_UNITS[3])
        });
        Self { context, rate }
    }

    fn header(&self, out: &mut String, found: &Found, max_rows: usize) {
        let context = self.context;
        let mut lines = context.identity();
        let profile = context.view.profile();
        lines.extend(
            profile
                .facts
                .start_unix_ns
                .map(|at| format!("Time: {}", format_time(at))),
        );
        lines.extend(context.filters());
        lines.push(self.dumps());
        let suspects = &found.suspects;
        if suspects.iter().any(|s| s.age.is_none()) {
            lines.push("This format has no ages: the score is what is kept".into());
        }
        let untracked = untracked::remark(profile);
        lines.extend(untracked.map(|text| format!("Not followed: {text}")));
        let overwritten = profile::overwritten::remark(profile);
        lines.extend(overwritten.map(|text| format!("Overwritten: {text}")));
        let examined: f64 = suspects.iter().map(|s| s.bytes).sum();
        let shown: f64 = suspects.iter().take(max_rows).map(|s| s.bytes).sum();
        lines.push(format!(
            "Showing {} of {} stacks, {} of {} live; \u{b1} at 95 %",
            suspects.len().min(max_rows),
            found.stacks(),
            self.bytes(shown),
            self.bytes(examined + found.others.bytes),
        ));
        for line in lines {
            *out += &line;
            out.push('\n');
        }
        *out += "      score        live           \u{b1}    objects   kept       age         \u{b1} freed after";
        if let Some((unit, _)) = self.rate {
            let growth = format!("growth/{unit}");
            // Writing to a string cannot fail, here and below.
            let _ = write!(out, " {growth:>12}           \u{b1}  growth is");
        }
        out.push('\n');
    }

    /// Describes the number of dumps and the time that they cover.
    fn dumps(&self) -> String {
        let series = &self.context.series;
        match (series.moments.len(), series.timed) {
            (0 | 1, _) => "Leak suspects of one dump; more of one session show growth".into(),
            (n, true) => {
                let span = series.moments.last().copied().unwrap_or(0.0);
                let span = Style::Own.label((span * 1e9) as i64, "nanoseconds", "auto");
                format!("Leak suspects of {n} dumps in {span}")
            }
            (n, false) => format!("Leak suspects of {n} dumps, which have no times"),
        }
    }

    fn row(&self, out: &mut String, suspect: &Suspect) {
        *out += SEPARATOR;
        let time = |ms: Option<f64>, none: &str| ms.map_or(none.to_owned(), measure::lifetime);
        let never = if suspect.age.is_some() { "never" } else { "-" };
        let _ = write!(
            out,
            "{:>11} {:>11} {:>11} {:>10}{:>6}% {:>9} {:>9} {:>11}",
            self.bytes(suspect.score),
            self.bytes(suspect.bytes),
            self.bytes(suspect.error),
            // Adding 0.0 avoids printing -0 for a small negative rest.
            suspect.objects.round() + 0.0,
            format!(
                "{}{:.1}",
                breakdown::few_samples_mark(suspect.has_few_samples),
                suspect.kept * 100.0
            ),
            time(suspect.age, "-"),
            suspect
                .age_error
                .map_or("-".to_owned(), measure::time_error),
            time(suspect.lifetime, never),
        );
        if let Some(growth) = &suspect.growth {
            self.growth(out, growth);
        }
        out.push('\n');
        if let Some(site) = &suspect.site {
            let file = printable(&site.file);
            let function = printable(&site.function);
            let _ = writeln!(out, "             at {file}:{} in {function}", site.line);
        }
        for &entry in &suspect.entries {
            let _ = writeln!(
                out,
                "             {}",
                printable(self.context.nodes.name(entry))
            );
        }
    }

    fn growth(&self, out: &mut String, growth: &Growth) {
        let per = self.rate.map_or(1.0, |(_, seconds)| seconds);
        let _ = write!(
            out,
            " {:>12} {:>11}  {}",
            self.bytes(growth.rate * per),
            self.bytes(growth.error * per),
            growth.verdict.word(),
        );
    }

    fn bytes(&self, value: f64) -> String {
        let value = self.context.divide(value.round() as i64);
        Style::Own.label(value, "bytes", &self.context.options.unit)
    }
}
