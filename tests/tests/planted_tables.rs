//! Tables of the parser on dumps of a program that holds known numbers of objects of each kind:
//! every figure follows from the stacks, and the stacks are those of the program, exactly at `-c 1`
//! and within [`BARS`](mem_tests::planted::BARS) error bars at 1024.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mem_tests::figures::{Figure, after, assert_beside, assert_figure, assert_share, below};
use mem_tests::planted::{
    BARS, COLUMNS, Dumped, Function, IN_USE, Inventory, Stack, Stacks, Suspect, suspects_of,
};
use profile::variance::half_width;

/// The program with its two dumps.
struct Planted {
    inventory: Inventory,
    early: Dumped,
    late: Dumped,
}

impl Planted {
    fn at(interval: &'static str) -> Self {
        let mut inventory = Inventory::hold(interval);
        inventory.step("map");
        let early = inventory.dump();
        inventory.step("more");
        let late = inventory.stop();
        Self {
            inventory,
            early,
            late,
        }
    }

    fn late(&self, args: &[&str]) -> String {
        self.inventory.parse(args, &[&self.late.dump])
    }
}

#[test]
fn every_figure_is_exact_where_every_object_is_sampled() {
    check_all("1");
}

#[test]
fn every_figure_is_within_its_bar_at_1024() {
    check_all("1024");
}

fn check_all(interval: &'static str) {
    let planted = Planted::at(interval);
    let (early, late) = (
        planted.inventory.stacks(&planted.early),
        planted.inventory.stacks(&planted.late),
    );
    for check in [tables, base, sizes, threads, suspects, resident, timeline] {
        check(&planted, &early, &late);
    }
    planted.inventory.end();
}

/// Returns the words of a line, with the last `from` on as one.
fn cells(line: &str, from: usize) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (numbers, name) = words.split_at(from.min(words.len()));
    let mut cells: Vec<String> = numbers.iter().map(|word| (*word).to_owned()).collect();
    cells.push(name.join(" "));
    cells
}

/// Checks `-t` and `--ci`, by each column: flat and cumulative values, shares, their running sum,
/// bars, totals and the number of rows.
fn tables(planted: &Planted, _: &Stacks, stacks: &Stacks) {
    let functions = stacks.functions();
    let length = planted.inventory.length(&planted.late);
    for (at, column) in COLUMNS.into_iter().enumerate() {
        for bars in [&[][..], &["--ci"]] {
            let text = planted.late(&[&["-t", "--nodefraction", "0", column], bars].concat());
            table(&text, at, &functions, stacks.total()[at], !bars.is_empty());
            let duration = after(&text, "Duration: ")
                .split(',')
                .next()
                .expect("a length");
            let duration = Figure::read(duration, 2).expect("a length").value;
            assert!(length.holds(duration), "{duration} s, {length:?}");
        }
    }
}

/// Checks a table's rows and its total. Returns the functions that it lists.
fn table(text: &str, at: usize, functions: &BTreeMap<String, Function>, total: f64, bars: bool) {
    let wide = if bars { 7 } else { 5 };
    let shown = after(text, "accounting for ").replace(',', " ");
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert_figure(words[0], total, "what is shown");
    assert_figure(words[words.len() - 2], total, "the total");
    let cell = |text: &str, truth: f64, what: &str| assert_beside(text, words[0], truth, what);
    let (mut sum, mut last, mut listed) = (0.0, f64::INFINITY, 0);
    for line in below(text, "flat%") {
        let row = cells(line, wide);
        let name = row[wide].trim_end_matches(" (inline)").to_owned();
        let function = functions
            .get(&name)
            .unwrap_or_else(|| panic!("{name} in {text}"));
        let (flat, cum) = (function.flat[at], function.cum[at]);
        let what = |of: &str| format!("column {at}, {name}, {of}");
        sum += flat;
        assert!(flat.abs() <= last, "{name} is not in order: {text}");
        last = flat.abs();
        let columns = if bars {
            [0, 2, 3, 4, 6]
        } else {
            [0, 1, 2, 3, 4]
        };
        cell(&row[columns[0]], flat, &what("flat"));
        assert_share(&row[columns[1]], flat, total, &what("flat%"));
        assert_share(&row[columns[2]], sum, total, &what("sum%"));
        cell(&row[columns[3]], cum, &what("cum"));
        assert_share(&row[columns[4]], cum, total, &what("cum%"));
        if bars {
            let flat_bar = half_width(flat, function.flat_variances[at]);
            let cum_bar = half_width(cum, function.cum_variances[at]);
            cell(&row[1], flat_bar, &what("± of flat"));
            cell(&row[5], cum_bar, &what("± of cum"));
        }
        listed += 1;
    }
    let held = functions
        .values()
        .filter(|function| function.cum[at] != 0.0);
    assert_eq!(listed, held.count(), "{text}");
    let samples = after(text, "Total samples = ");
    assert_figure(
        samples.split('±').next().expect("a number"),
        total,
        "total samples",
    );
}

/// Checks `--base`: the changes, with the error bars of the samples that differ.
fn base(planted: &Planted, before: &Stacks, stacks: &Stacks) {
    let early = planted.early.dump.to_string_lossy().into_owned();
    let (before, after) = (before.functions(), stacks.functions());
    for (at, column) in COLUMNS.into_iter().enumerate() {
        let args = [
            "--csv",
            "--ci",
            "--nodefraction",
            "0",
            column,
            "--base",
            &early,
        ];
        let text = planted.late(&args);
        let mut changed = after.clone();
        for (name, function) in &before {
            let change = changed.entry(name.clone()).or_default();
            change.flat[at] -= function.flat[at];
            change.cum[at] -= function.cum[at];
        }
        let rows = below(&text, "flat");
        for line in &rows {
            let fields: Vec<&str> = line.split(',').collect();
            let name = fields[0].trim_matches('"');
            let number = |field: usize| fields[field].parse::<f64>().expect("a number");
            let change = &changed[name];
            // Estimates are rounded after they are subtracted.
            let near = |found: f64, truth: f64| (found - truth).abs() <= 2.0;
            assert!(
                near(number(1), change.flat[at]),
                "{column} {line}: {change:?}"
            );
            assert!(
                near(number(3), change.cum[at]),
                "{column} {line}: {change:?}"
            );
            if name == "site_churn" && at == IN_USE {
                // Half of it was freed, and what is left has no part in the error.
                let [early, late] = [&before, &after].map(|all| all[name].flat_variances[at]);
                let bar = half_width(change.flat[at], early - late);
                assert!((number(7) - bar).abs() <= 1.0 + 0.01 * bar, "{line}: {bar}");
            }
        }
        let moved = |name: &str| rows.iter().any(|row| row.starts_with(name));
        assert!(moved("site_once") && !moved("site_crew"), "{text}");
        let truth = planted.late.truth["site_once"].values[at]
            - planted.early.truth["site_once"].values[at];
        assert_eq!(changed["site_once"].flat[at], truth, "{column}");
    }
}

/// Classes of sizes: that of each object by its size in truth.
fn classes(stacks: &Stacks) -> BTreeMap<u32, [f64; 4]> {
    let mut classes: BTreeMap<u32, [f64; 4]> = BTreeMap::new();
    for stack in &stacks.0 {
        let mean = stack.values[1] / stack.values[0];
        let sizes = [
            ("site_holes", 512),
            ("site_churn", 300),
            ("site_moment", 200),
            ("site_crew", 100),
        ];
        let known = sizes.iter().find(|(site, _)| *site == stack.frames[0]);
        let class = match known {
            Some((_, bytes)) => u32::ilog2(*bytes),
            // For powers of two, the mean of the rounded sums is near the power.
            None if stack.frames[0] == "site_power" => mean.log2().round() as u32,
            None => mean.log2().floor() as u32,
        };
        let sum = classes.entry(class).or_default();
        sum.iter_mut()
            .zip(stack.values)
            .for_each(|(sum, more)| *sum += more);
    }
    classes
}

/// Returns the class of a row: the power of two that its first size is.
fn class(name: &str) -> u32 {
    let mut words = name.split(' ');
    let least = words
        .next()
        .expect("sizes")
        .split('-')
        .next()
        .expect("a size");
    let least: f64 = least.parse().expect("a size");
    let unit = name.rsplit(' ').next().expect("a unit");
    // The unit is that of the second size: 512-1024 KiB.
    let scale = Figure::read(&format!("1 {unit}"), 0).expect("a unit").value;
    (least * scale).max(1.0).log2().round() as u32
}

/// Returns the first of sizes in a row, with its unit.
fn first_size(words: &[&str]) -> String {
    let unit = words.get(1).filter(|word| word.parse::<f64>().is_err());
    format!("{} {}", words[0], unit.unwrap_or(&""))
}

/// Checks `--sizes`: the histogram, and the size classes of each function.
fn sizes(planted: &Planted, _: &Stacks, stacks: &Stacks) {
    let text = planted.late(&["--sizes"]);
    let (truth, total) = (classes(stacks), stacks.total()[IN_USE]);
    let rows = below(&text, "short-lived");
    let mut listed = 0;
    for line in rows.iter().take_while(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words[..2].join(" ");
        let values = &truth[&class(&name)];
        let end = words
            .iter()
            .position(|word| word.ends_with('%'))
            .expect("a share");
        assert_figure(&first_size(&words[2..end]), values[IN_USE], &name);
        assert_share(words[end], values[IN_USE], total, &name);
        let short = Figure::read(words[end + 1], 0).expect("a share");
        assert!((0.0..=1.0).contains(&short.value), "{line}");
        let is_mixed =
            name.starts_with("128-") || name.starts_with("256-") || name.starts_with("512-1023");
        assert!(
            short.value == 0.0 || is_mixed,
            "only freed objects were short-lived: {line}"
        );
        listed += 1;
    }
    assert_eq!(
        listed,
        truth.values().filter(|values| values[1] > 0.0).count(),
        "{text}"
    );
    let own = stacks.from_own_code();
    let functions = own.functions();
    let pairs: Vec<&str> = below(&text, "the sizes of what it allocates");
    for pair in pairs.chunks(2).filter(|pair| pair.len() == 2) {
        let words: Vec<&str> = pair[0].split_whitespace().collect();
        let end = words
            .iter()
            .position(|word| word.ends_with('%'))
            .expect("a share");
        let name = words[end + 1..].join(" ");
        let flat = functions[&name].flat[IN_USE];
        assert_figure(&first_size(&words[..end]), flat, &name);
        assert_share(words[end], flat, total, &name);
        for part in pair[1]
            .trim()
            .split(", ")
            .filter(|part| !part.ends_with("more"))
        {
            let (range, share) = part.rsplit_once(' ').expect("sizes and a share");
            let of_class = classes(&Stacks(own.of(&name).cloned().collect()));
            assert_share(
                share,
                of_class[&class(range)][IN_USE],
                flat,
                &format!("{name}, {part}"),
            );
        }
    }
    // Each power of two is the first size of its class, and there are four.
    for row in rows.iter().filter(|row| row.contains(" KiB ")) {
        let name: String = row.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let class = class(&name);
        if (17..=20).contains(&class) {
            assert_eq!(truth[&class][IN_USE], f64::from(4 << class), "{name}");
        }
    }
}

/// Checks `--threads`: the memory that the main thread and each of the other threads allocated.
fn threads(planted: &Planted, _: &Stacks, stacks: &Stacks) {
    let text = planted.late(&["--threads", "--inuse_objects"]);
    let total = stacks.total()[2];
    let row = |thread: &str| {
        let rows = below(&text, "thread, and");
        let line = rows
            .iter()
            .find(|line| line.split_whitespace().last() == Some(thread));
        let words = cells(
            line.unwrap_or_else(|| panic!("{thread} is not in {text}")),
            3,
        );
        let value: f64 = words[0].parse().expect("a number");
        assert_share(&words[2], value, total, thread);
        value
    };
    let crew: Vec<f64> = ["crew-1", "crew-2", "crew-3"].map(row).to_vec();
    assert_eq!(crew.iter().sum::<f64>(), stacks.sum("site_crew").values[2]);
    assert_eq!(row("inventory") + crew.iter().sum::<f64>(), total);
    if planted.inventory.interval == "1" {
        assert_eq!(crew, [1000.0, 2000.0, 3000.0]);
    }
}

/// Checks `--leaks` of one dump and of two: score, live bytes, error bars, objects, share that is
/// kept, ages, lifetimes and growth.
fn suspects(planted: &Planted, before: &Stacks, stacks: &Stacks) {
    let inventory = &planted.inventory;
    let one = inventory.parse(&["--leaks", "-n", "50"], &[&planted.late.dump]);
    let dumps: [&Path; 2] = [&planted.early.dump, &planted.late.dump];
    let two = inventory.parse(&["--leaks", "-n", "50"], &dumps);
    let apart = {
        let ([asked, given], [first, last]) = (planted.early.taken, planted.late.taken);
        [(first - given).as_secs_f64(), (last - asked).as_secs_f64()]
    };
    let span = after(&two, "2 dumps in ");
    let span = Figure::read(span, 2).expect("a time");
    assert!(
        (apart[0] - 0.012..=apart[1] + 0.012).contains(&span.value),
        "{span:?} {apart:?}"
    );
    let unit = after(&two, "growth/")
        .split(' ')
        .next()
        .expect("a unit")
        .to_owned();
    let per = [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("day", 86_400.0)];
    let per = per
        .iter()
        .find(|(name, _)| *name == unit)
        .expect("a unit")
        .1;
    for (text, is_series) in [(&one, false), (&two, true)] {
        let live: f64 = stacks.total()[IN_USE];
        let shown = after(text, "Showing ")
            .replace(" stacks, ", " ")
            .replace(" live;", " of");
        let sums: Vec<&str> = shown.split(" of ").collect();
        assert_figure(sums[2], live, "live in all");
        let rows = suspects_of(text);
        let held = stacks.0.iter().filter(|stack| stack.values[IN_USE] > 0.0);
        let held: BTreeSet<&[String]> = held.map(|stack| &stack.frames[..]).collect();
        assert_eq!(rows.len(), held.len(), "{text}");
        for row in &rows {
            let name = &row.frames[0];
            let sum = stacks.sum_of(&row.frames);
            let what = |of: &str| format!("{name}, {of}");
            assert_figure(&row.numbers[1], sum.values[IN_USE], &what("live"));
            let bar = half_width(sum.values[IN_USE], sum.variances[IN_USE]);
            assert_figure(&row.numbers[2], bar, &what("±"));
            assert_figure(&row.numbers[3], sum.values[2], &what("objects"));
            let kept = sum.values[IN_USE] / sum.values[1];
            let shown = Figure::read(&row.numbers[4], 1).expect("a share");
            assert!(
                (shown.value - kept).abs() <= 0.000_51,
                "{name}, kept: {shown:?}, {kept}"
            );
            let (age, lifetime) = (sum.ages / sum.live, sum.lifetimes / sum.freed);
            assert_near(&row.numbers[5], age, &what("age"));
            if sum.freed > 0.0 {
                assert_near(&row.numbers[7], lifetime, &what("freed after"));
            } else {
                assert_eq!(row.numbers[7], "never", "{name}");
            }
            let of_row = |stack: &&Stack| stack.frames == row.frames && stack.live > 0.0;
            let parts: Vec<&Stack> = stacks.0.iter().filter(of_row).collect();
            if let [part] = parts[..] {
                match part.age_bar {
                    Some(bar) => assert_near(&row.numbers[6], bar, &what("± of the age")),
                    None => assert_eq!(row.numbers[6], "-", "{name}"),
                }
            }
            let older = if sum.freed > 0.0 {
                age / (age + lifetime)
            } else {
                1.0
            };
            let score = Figure::read(&row.numbers[0], 2).expect("a score").value;
            if is_series {
                growth(planted, before, stacks, row, [per, span.value, span.half]);
                assert!(score <= sum.values[IN_USE] + 6000.0, "{name}: {score}");
            } else {
                assert!(
                    (score / (sum.values[IN_USE] * kept * older) - 1.0).abs() < 0.01,
                    "{name}: {score}"
                );
            }
        }
    }
    ages(planted, stacks);
}

/// Checks a time to its printed digits, and to the thousandths from which it is computed.
#[track_caller]
fn assert_near(text: &str, truth: f64, what: &str) {
    if text == "< 4 ms" {
        assert!(truth < 0.0041, "{what}: {truth}");
        return;
    }
    let figure = Figure::read(text, 2).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(
        (figure.value - truth).abs() <= figure.half + 1e-4 * truth,
        "{what}: {text}, {truth}"
    );
}

/// Checks the growth over the time between the dumps, and the remark on it.
fn growth(planted: &Planted, before: &Stacks, stacks: &Stacks, row: &Suspect, times: [f64; 3]) {
    let [per, span, half] = times;
    let name = row.frames[0].as_str();
    let of = |stacks: &Stacks| stacks.sum_of(&row.frames).values[IN_USE];
    let change = of(stacks) - of(before);
    let rate = Figure::read(&row.growth[0], 2).expect("a rate");
    let found = rate.value / per * span;
    let allowed = (rate.half / per * span) + change.abs() * half / span + 2.0;
    assert!(
        (found - change).abs() <= allowed,
        "{name} grew by {change}: {:?}, {span} s",
        row.growth
    );
    let bar = Figure::read(&row.growth[1], 2).expect("a bar").value / per * span;
    // By construction, there are 20 more objects of 64 KiB, and 1000 fewer of 300 bytes.
    let (verdict, truth) = match (name, row.frames[1].as_str()) {
        ("site_once", "more") => ("grew", f64::from(20 << 16)),
        ("site_churn", _) => ("shrinks", -300_000.0),
        _ => ("level", 0.0),
    };
    assert_eq!(row.verdict, verdict, "{name}: {:?}", row.growth);
    let off = (change - truth).abs();
    if planted.inventory.interval != "1" && name == "site_churn" {
        assert!(off <= BARS * bar, "{name}: {change} ± {bar}, off by {off}");
    } else {
        assert!(off <= 2.0 && bar < 2.0, "{name}: {change} ± {bar}");
    }
}

/// Ages are those of objects that were allocated at a known time.
fn ages(planted: &Planted, stacks: &Stacks) {
    let age = planted.inventory.age(&planted.late);
    for site in [
        "site_power",
        "site_holes",
        "site_churn",
        "site_crew",
        "site_lost",
    ] {
        let sum = stacks.sum(site);
        let found = sum.ages / sum.live;
        assert!(age.holds(found), "{site}: {found} s, {age:?}");
    }
    // A third of these were allocated after the first dump.
    let once = stacks.sum("site_once");
    let found = once.ages / once.live;
    assert!(
        found <= age.most && found >= age.least * 2.0 / 3.0,
        "{found} {age:?}"
    );
}

/// Checks `--rss`: the parts add up to the resident memory, and so does the map of the address
/// space.
fn resident(planted: &Planted, _: &Stacks, stacks: &Stacks) {
    let text = planted.late(&["--rss"]);
    let profile = profile::open(&planted.late.dump).expect("a dump");
    let facts = &profile.facts;
    let memory = |name: &str| facts.memory[name] as f64;
    let all = memory("rss_anon") + memory("rss_file") + memory("rss_shmem");
    let headline = after(&text, "Resident memory: ");
    let mut words = headline.split(", ");
    assert_figure(words.next().expect("a size"), all, "resident");
    let most = words.next().and_then(|text| text.strip_prefix("at most "));
    assert_figure(most.expect("the peak"), memory("peak"), "the peak");
    let (mut parts, mut shares) = (0.0, 0.0);
    for line in below(&text, "size  share")
        .iter()
        .take_while(|line| !line.is_empty())
    {
        let Some(end) = line.find('%').filter(|end| *end < 20) else {
            continue;
        };
        let (size, share) = line[..=end]
            .trim()
            .rsplit_once(' ')
            .expect("a size and a share");
        let size = Figure::read(size, 2).expect("a size");
        parts += size.value;
        let share = Figure::read(share, 2).expect("a share");
        shares += share.value;
        assert!((share.value - size.value / all).abs() <= 0.0006, "{line}");
    }
    assert!(
        (parts / all - 1.0).abs() < 0.002,
        "{parts} in parts of {all}: {text}"
    );
    assert!((shares - 1.0).abs() < 0.002, "{text}");
    let sampled = stacks.total()[IN_USE];
    let mut lines = text
        .lines()
        .filter(|line| line.contains("the samples") || line.contains("since the session"));
    if let Some(line) = lines.next() {
        let line = line.trim();
        let end = line.find("  ").or_else(|| line.find(" ±")).expect("a size");
        assert_figure(
            line[..end].split('±').next().expect("a size"),
            sampled,
            "by samples",
        );
    }
    // The program's own memory is resident, whatever else is.
    let own: f64 = planted
        .late
        .truth
        .values()
        .map(|site| site.values[IN_USE])
        .sum();
    assert!(all >= own + f64::from(24 << 20), "{all} {own}");
    let (mut sizes, mut count) = (0.0, 0.0);
    for line in below(&text, "size mappings") {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() < 4 {
            continue;
        }
        sizes += Figure::read(&words[..2].join(" "), 2)
            .expect("a size")
            .value;
        count += words[2].parse::<f64>().expect("a number");
    }
    let entries: Vec<_> = profile::maps::Entry::all(&facts.maps_text).collect();
    let truth: f64 = entries
        .iter()
        .map(|entry| (entry.end - entry.start) as f64)
        .sum();
    assert_eq!(count, entries.len() as f64, "{text}");
    assert!((sizes / truth - 1.0).abs() < 1e-3, "{sizes} {truth}");
}

/// Checks `--timeline`: the peak, when all objects of the holes were live; the end, and the sum of
/// all allocations.
fn timeline(planted: &Planted, _: &Stacks, stacks: &Stacks) {
    let text = planted.late(&["--timeline"]);
    let live = after(&text, "Live: ");
    let [peak, end] = [" at most", " at the end"].map(|what| {
        let before = live.split(what).next().expect("a size");
        before.rsplit("; ").next().expect("a size").to_owned()
    });
    let with_bar = |text: &str, column: usize, what: &str| {
        let (value, bar) = text.split_once(" ± ").unwrap_or((text, "0"));
        assert_figure(value, stacks.total()[column], what);
        let truth = half_width(stacks.total()[column], stacks.total_variances()[column]);
        assert_figure(bar, truth, &format!("± of {what}"));
    };
    with_bar(&end, IN_USE, "at the end");
    let allocated = after(&text, "Allocated: ");
    let (all, rate) = allocated.split_once(", ").expect("a sum and a rate");
    with_bar(all, 1, "allocated");
    let length = planted.inventory.length(&planted.late);
    let rate = Figure::read(rate.trim_end_matches("/s"), 2)
        .expect("a rate")
        .value;
    assert!(
        length.holds(stacks.total()[1] / rate),
        "{allocated} {length:?}"
    );
    if planted.inventory.interval == "1" {
        let truth = |site: &str, at: usize| planted.late.truth[site].values[at];
        // Before the holes were made, and before the second half of the churn was freed.
        let first = f64::from(40 * (64 << 10)) + truth("site_power", 1) + truth("site_holes", 1);
        let second = stacks.total()[IN_USE] + truth("site_churn", 3);
        assert_figure(&peak, first.max(second), "the peak");
    }
}
