//! Error bars: where they are shown, and that they are those of the dump.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use profile::variance::half_width;
use profile::{Detail, Function, Line, ProfileBuilder, dump};

fn parser(arguments: &[&str], file: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .args(arguments)
        .arg("-f")
        .arg(file)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a dump in which `main` has 64 kB live through `left` and 36 kB through `right`, sampled
/// at this interval.
fn write(directory: &Path, interval: u64) -> PathBuf {
    let mut builder = ProfileBuilder::new(interval);
    for (address, kilobytes) in [(0x1001, 64.0), (0x2001, 36.0)] {
        let detail = Detail {
            alloc_samples: kilobytes as u64,
            alloc_objects: kilobytes * 10.0,
            alloc_bytes: kilobytes * 1024.0,
            alloc_variance: kilobytes * 1024.0 * 1024.0,
            live_variance: kilobytes * 1024.0 * 1024.0,
            ..Detail::default()
        };
        builder.stack([address, 0x9001], &detail);
    }
    let mut profile = builder.finish();
    for (number, location) in profile.locations.iter_mut().enumerate() {
        let name = ["left", "main", "right"][number];
        profile.functions.push(Function {
            name: name.into(),
            ..Function::default()
        });
        profile.lines.push(Line {
            function: number as u32,
            ..Line::default()
        });
        location.first_line = number as u32;
        location.line_count = 1;
    }
    let path = directory.join(format!("{interval}.heap"));
    dump::write(&profile, &mut File::create(&path).unwrap()).unwrap();
    path
}

#[test]
fn the_table_shows_error_bars_if_requested() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), 1024);
    let table = parser(&["-t", "--ci"], &file);
    let rows: Vec<&str> = table.lines().skip(2).collect();
    // Standard errors of 8, 6 and, together, 10 kB.
    assert_eq!(
        rows,
        [
            "      flat          \u{b1}  flat%   sum%        cum          \u{b1}   cum%",
            "     64KiB   15.91KiB 64.00% 64.00%      64KiB   15.91KiB 64.00%  left",
            "     36KiB   12.07KiB 36.00%   100%      36KiB   12.07KiB 36.00%  right",
            "         0          0     0%   100%     100KiB   19.79KiB   100%  main",
        ]
    );
    // Otherwise, that of the total is stated.
    let stated = "\nSampling error: total \u{b1}19.79KiB at 95 %; -t --ci shows each function's\n";
    for args in [&["-t"][..], &["--tree"], &["--traces"], &["--peek", "left"]] {
        assert!(parser(args, &file).contains(stated), "{args:?}");
    }
    assert!(!table.contains("Sampling error"), "{table}");
    let exact = write(directory.path(), 1);
    assert!(!parser(&["-t"], &exact).contains('\u{b1}'));
}

#[test]
fn output_for_programs_has_error_bars() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), 1024);
    let half = |kilobytes: f64| {
        let bytes = kilobytes * 1024.0;
        half_width(bytes, kilobytes * 1024.0 * 1024.0).round()
    };
    let csv = parser(&["--csv", "--ci"], &file);
    let main = csv.lines().find(|l| l.starts_with("main,")).unwrap();
    assert!(main.ends_with(&format!(",0,{}", half(100.0))), "{main}");
    assert!(csv.starts_with("function,") && csv.contains(",flat \u{b1} (bytes),"));
    let json = parser(&["--json", "--ci"], &file);
    let left = format!("\"flat_error\":{},\"cum_error\":{}", half(64.0), half(64.0));
    assert!(json.contains(&left), "{json}");
    assert!(!parser(&["--json"], &file).contains("flat_error"));
}

#[test]
fn tooltips_have_error_bars_and_boxes_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), 1024);
    let graph = parser(&["-s"], &file);
    assert!(
        graph.contains("at 95 %: flat \u{b1}0, cum \u{b1}19.79 KiB"),
        "{graph}"
    );
    assert!(
        graph.contains("main \u{2192} left (64 KiB \u{b1}15.91 KiB)"),
        "{graph}"
    );
    assert!(!graph.contains("64 KiB \u{b1}15.91 KiB (64.00%)"));
    let boxes = parser(&["-s", "--ci"], &file);
    assert!(boxes.contains("64 KiB \u{b1}15.91 KiB (64.00%)"), "{boxes}");
    let flame = parser(&["--flame"], &file);
    assert!(flame.contains("\u{b1}19.79 KiB at 95 %"), "{flame}");
    assert!(flame.contains("\"variance\":[0,0,"), "{flame}");
    let page = parser(&["--html"], &file);
    assert!(page.contains("\"cum_variance\":[104900000,"), "{page}");
}

#[test]
fn exact_dumps_have_no_error_bars() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), 1);
    let table = parser(&["-t", "--ci"], &file);
    let left = table.lines().find(|l| l.ends_with("left")).unwrap();
    assert!(left.starts_with("     64KiB          0 64.00%"), "{left}");
    for output in ["-s", "--flame"] {
        let picture = parser(&[output, "--ci"], &file);
        let shown = picture.split("<script").next().unwrap();
        assert!(!shown.contains("at 95 %"), "{output}");
    }
    fs::remove_file(file).unwrap();
}

/// The sum of CPU time is known: a function's share varies like a binomial one.
#[test]
fn the_error_of_a_share_of_time_is_binomial() {
    const SAMPLES: f64 = 297.0;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/shop.cpu");
    let csv = parser(&["--csv", "--ci"], &file);
    let rows = csv.lines().skip(1).filter(|line| !line.starts_with('['));
    let rows = rows.map(|line| {
        // Names may contain commas.
        let cells: Vec<&str> = line.rsplit(',').collect();
        let number = |from_end: usize| cells[from_end].parse::<f64>().unwrap();
        (line.to_owned(), [number(7), number(5), number(0)])
    });
    let rows: Vec<(String, [f64; 3])> = rows.collect();
    let total: f64 = rows.iter().map(|(_, [flat, ..])| flat).sum();
    let sample = total / SAMPLES;
    // Time without samples has no error, but is 0.6 % here.
    for (line, [_, value, error]) in &rows {
        let share = value / total;
        let binomial = 1.96 * (SAMPLES * share * (1.0 - share)).sqrt() * sample;
        let most = 1.1 * binomial + 4.0 * sample;
        assert!(
            *error <= most && error * 1.2 >= binomial,
            "{line}: {binomial}"
        );
    }
    assert!(
        rows.iter().any(|(_, [_, cum, _])| *cum > 0.7 * total),
        "{csv}"
    );
}
