//! All samples, locations and mappings as text. Equal to `pprof -raw`.

use std::fmt::Write;

use anyhow::Result;
use profile::{LabelValue, NO_MAPPING, Profile};

use super::format::{Format, Needs};
use profile::printable::{self, printable};

/// `--raw`.
pub const FORMAT: Format = Format {
    needs: Needs {
        merged_stacks: true,
        ..Needs::TABLE
    },
    ..Format::conversion("raw", "Samples, locations and mappings as text", render)
};

fn render(profile: &Profile) -> Result<Vec<u8>> {
    let mut out = String::new();
    header(profile, &mut out);
    samples(profile, &mut out);
    locations(profile, &mut out);
    mappings(profile, &mut out);
    Ok(printable::text(&out).into_owned().into_bytes())
}

// Writing to a string cannot fail, here and below.
fn header(profile: &Profile, out: &mut String) {
    for comment in &profile.comments {
        let _ = writeln!(out, "Comment: {}", printable(comment));
    }
    if let Some(period) = &profile.period_type {
        let _ = writeln!(
            out,
            "PeriodType: {} {}",
            printable(&period.kind),
            printable(&period.unit)
        );
    }
    let _ = writeln!(out, "Period: {}", profile.period);
}

fn samples(profile: &Profile, out: &mut String) {
    *out += "Samples:\n";
    let default = profile.default_type;
    let columns: Vec<String> = profile
        .sample_types
        .iter()
        .enumerate()
        .map(|(i, t)| {
            let mark = if i == default && i + 1 != profile.sample_types.len() {
                "[dflt]"
            } else {
                ""
            };
            format!("{}/{}{mark}", printable(&t.kind), printable(&t.unit))
        })
        .collect();
    let _ = writeln!(out, "{}", columns.join(" "));
    for (i, frames) in profile.stacks.iter().enumerate() {
        for value in profile.values_of(i) {
            let _ = write!(out, " {value:>10}");
        }
        *out += ": ";
        for frame in frames {
            let _ = write!(out, "{} ", frame + 1);
        }
        out.push('\n');
        labels(profile, i, out);
    }
}

fn labels(profile: &Profile, stack: usize, out: &mut String) {
    let start = profile
        .labels
        .partition_point(|l| (l.stack as usize) < stack);
    let labels_of_stack = profile.labels[start..]
        .iter()
        .take_while(|l| l.stack as usize == stack);
    let mut texts = Vec::new();
    let mut numbers = Vec::new();
    for label in labels_of_stack {
        match &label.value {
            LabelValue::Text(text) => texts.push(format!("{}:[{text}]", label.key)),
            LabelValue::Number(n, unit) if unit.is_empty() => {
                numbers.push(format!("{}:[{n}]", label.key));
            }
            LabelValue::Number(n, unit) => numbers.push(format!("{}:[{n} {unit}]", label.key)),
        }
    }
    numbers.extend(
        profile
            .block_sizes
            .get(stack)
            .map(|size| format!("bytes:[{size}]")),
    );
    for mut kind in [texts, numbers] {
        kind.sort();
        if !kind.is_empty() {
            let _ = writeln!(out, "                {}", printable(&kind.join(" ")));
        }
    }
}

fn locations(profile: &Profile, out: &mut String) {
    *out += "Locations\n";
    for (i, location) in profile.locations.iter().enumerate() {
        let mut start = format!("{:>6}: {:#x} ", i + 1, location.address);
        if location.mapping != NO_MAPPING {
            let _ = write!(start, "M={} ", location.mapping + 1);
        }
        let lines = profile.lines_of(location);
        if lines.is_empty() {
            let _ = writeln!(out, "{start}");
        }
        for line in lines {
            let f = &profile.functions[line.function as usize];
            let name = printable(&f.name);
            let file = printable(&f.file);
            let _ = write!(out, "{start}{name} {file}:{} s={}", line.line, f.start_line);
            if f.name != f.system_name {
                let _ = write!(out, "({})", printable(&f.system_name));
            }
            out.push('\n');
            start = " ".repeat(13);
        }
    }
}

fn mappings(profile: &Profile, out: &mut String) {
    *out += "Mappings\n";
    for (i, m) in profile.mappings.iter().enumerate() {
        let path = m.path.to_string_lossy();
        let _ = writeln!(
            out,
            "{}: {:#x}/{:#x}/{:#x} {} {}{}",
            i + 1,
            m.start,
            m.end,
            m.file_offset,
            printable(&path),
            m.build_id,
            if m.past { " [unloaded]" } else { "" },
        );
    }
}
