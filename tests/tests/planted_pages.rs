//! Pictures and page of the parser for a program that holds known numbers of objects of each kind:
//! every figure follows from the stacks, which are compared with the truth.

use std::collections::{BTreeMap, BTreeSet};

use mem_tests::figures::{
    Figure, after, assert_beside, assert_figure, assert_printed, assert_share,
};
use mem_tests::planted::{COLUMNS, Dumped, IN_USE, Inventory, Stacks};
use profile::variance::half_width;
use serde_json::Value;

#[test]
fn pictures_and_pages_are_exact_where_every_object_is_sampled() {
    check_all("1");
}

#[test]
fn pictures_and_pages_show_the_estimates_at_1024() {
    check_all("1024");
}

fn check_all(interval: &'static str) {
    let mut inventory = Inventory::hold(interval);
    let early = inventory.dump();
    inventory.step("more");
    let late = inventory.stop();
    let (before, stacks) = (inventory.stacks(&early), inventory.stacks(&late));
    call_graph(&inventory, &late, &stacks);
    flame_graph(&inventory, &late, &stacks);
    let page = page(&inventory, &late, &[]);
    flame_of_page(&page, &stacks);
    functions(&page, &stacks);
    sizes(&page, &stacks);
    suspects(&page, &stacks);
    time(&page, &inventory, &late, &stacks);
    threads(&page, &inventory, &stacks);
    temporary(&page, &inventory, &stacks);
    allocator(&page, &late, &stacks);
    growth(&inventory, [&early, &late], [&before, &stacks]);
    inventory.end();
}

/// Contents of a picture's titles, and what follows each up to the next.
fn titles(svg: &str) -> Vec<(Vec<&str>, &str)> {
    let parts = svg.split("<title>").skip(1);
    parts
        .map(|part| {
            let (title, rest) = part.split_once("</title>").expect("a title's end");
            (title.lines().collect(), rest)
        })
        .collect()
}

/// Checks a size with its share in brackets: `2.50 MiB (18.72%)`.
#[track_caller]
fn assert_sized(text: &str, value: f64, total: f64, what: &str) {
    let (size, share) = text.split_once(" (").unwrap_or((text, ""));
    assert_figure(size, value, what);
    if !share.is_empty() {
        assert_share(share.trim_end_matches(')'), value, total, what);
    }
}

/// Checks `-s`: legend, nodes and edges.
fn call_graph(inventory: &Inventory, late: &Dumped, stacks: &Stacks) {
    let all = [
        "-s",
        "--nodefraction",
        "0",
        "--edgefraction",
        "0",
        "-o",
        "-",
    ];
    let svg = inventory.parse(&all, &[&late.dump]);
    let total = stacks.total()[IN_USE];
    let legend = svg.split("class=\"legend\"").nth(1).expect("a legend");
    let legend = legend.split("</g>").next().expect("its end");
    let line = |label: &str| {
        after(legend, label)
            .split('<')
            .next()
            .expect("text")
            .to_owned()
    };
    let megabytes = line("Total MB: ");
    let megabytes = megabytes.split(" (").next().expect("a number");
    assert_printed(&format!("{megabytes} MiB"), 1, total, "the legend");
    let shown = line("accounting for ");
    let parts: Vec<&str> = shown.trim_end_matches(" total").split([',', 'o']).collect();
    assert_figure(parts[0], total, "what is shown");
    assert_figure(
        shown
            .rsplit("of ")
            .next()
            .expect("a size")
            .trim_end_matches(" total"),
        total,
        "of all",
    );
    let functions = stacks.functions();
    let mut edges: BTreeMap<(&str, &str), [f64; 2]> = BTreeMap::new();
    for stack in &stacks.0 {
        for pair in stack.frames.windows(2) {
            let edge = edges.entry((&pair[1], &pair[0])).or_default();
            edge[0] += stack.values[IN_USE];
            edge[1] += stack.variances[IN_USE];
        }
    }
    let (mut nodes, mut arrows) = (0, 0);
    for (lines, rest) in titles(&svg) {
        let values = lines.iter().find_map(|line| line.strip_prefix("flat "));
        if let Some((from, to)) = lines[0].split_once(" → ") {
            let [value, variance] = edges[&(plain(from), plain(to))];
            assert_figure(lines[1], value, lines[0]);
            let (_, bar) = lines[2].rsplit_once('±').unwrap_or(("", "0"));
            assert_beside(
                bar.trim_end_matches(')'),
                lines[1],
                half_width(value, variance),
                lines[0],
            );
            arrows += 1;
        } else if let Some(values) = values {
            let (flat, cum) = values.split_once(", cum ").expect("both");
            let function = &functions[plain(lines[0])];
            assert_sized(flat, function.flat[IN_USE], total, lines[0]);
            assert_sized(cum, function.cum[IN_USE], total, lines[0]);
            assert!(
                rest.contains(flat.split(" (").next().expect("a size")),
                "{lines:?}: {rest}"
            );
            let bars = lines
                .iter()
                .find_map(|line| line.strip_prefix("at 95 %: flat ±"));
            let (flat_bar, cum_bar) =
                bars.map_or(("0", "0"), |bars| bars.split_once(", cum ±").expect("both"));
            let cum = cum.split(" (").next().expect("a size");
            let flat_truth = half_width(function.flat[IN_USE], function.flat_variances[IN_USE]);
            let cum_truth = half_width(function.cum[IN_USE], function.cum_variances[IN_USE]);
            assert_beside(flat_bar, cum, flat_truth, lines[0]);
            assert_beside(cum_bar, cum, cum_truth, lines[0]);
            nodes += 1;
        }
    }
    let held = functions
        .values()
        .filter(|function| function.cum[IN_USE] > 0.0);
    assert_eq!(nodes, held.count(), "nodes");
    assert_eq!(
        arrows,
        edges.values().filter(|edge| edge[0] > 0.0).count(),
        "edges"
    );
}

/// Returns a function's name without what is said of it.
fn plain(name: &str) -> &str {
    name.trim_end_matches(" (inline)")
        .trim_end_matches(" (inlined)")
}

/// Returns the bytes in use, with their variances, of each path from the outermost function on.
fn paths(stacks: &Stacks) -> BTreeMap<Vec<String>, [f64; 2]> {
    let mut paths: BTreeMap<Vec<String>, [f64; 2]> = BTreeMap::new();
    for stack in &stacks.0 {
        let outermost_first: Vec<String> = stack.frames.iter().rev().cloned().collect();
        for end in 1..=outermost_first.len() {
            let path = paths.entry(outermost_first[..end].to_vec()).or_default();
            path[0] += stack.values[IN_USE];
            path[1] += stack.variances[IN_USE];
        }
    }
    paths
}

/// Checks `--flame`: each frame's title and width, and the remark on frames that are too narrow.
fn flame_graph(inventory: &Inventory, late: &Dumped, stacks: &Stacks) {
    let svg = inventory.parse(&["--flame", "-o", "-"], &[&late.dump]);
    let total = stacks.total()[IN_USE];
    let mut left: Vec<(String, [f64; 2])> = paths(stacks)
        .into_iter()
        .filter(|(_, value)| value[0] > 0.0)
        .map(|(path, value)| (path.last().expect("a function").clone(), value))
        .collect();
    let total_line = after(&svg, "Total: ").split('<').next().expect("text");
    assert_sized(total_line, total, total, "the total");
    let mut width_of_all = 0.0;
    for (lines, rest) in titles(&svg) {
        let width = after(rest, "width=\"").split('"').next().expect("a width");
        let width: f64 = width.parse().expect("a width");
        let bar = lines
            .iter()
            .find_map(|line| line.strip_prefix('±')?.strip_suffix(" at 95 %"));
        let sizes = lines
            .iter()
            .rfind(|line| line.contains('%') && !line.starts_with('±'));
        let (name, text) = (plain(lines[0]), sizes.expect("a size"));
        if name == "all" {
            width_of_all = width;
            assert_sized(text, total, total, name);
            let variance = stacks.total_variances()[IN_USE];
            assert_figure(bar.unwrap_or("0"), half_width(total, variance), name);
            continue;
        }
        let size = text.split(" (").next().expect("a size");
        let size = Figure::read(size, 2).unwrap_or_else(|| panic!("{lines:?}"));
        let found = left
            .iter()
            .position(|(of, value)| of == name && size.is(value[0]));
        let (_, [value, variance]) =
            left.swap_remove(found.unwrap_or_else(|| panic!("{lines:?}: {left:?}")));
        assert_sized(text, value, total, name);
        assert_figure(bar.unwrap_or("0"), half_width(value, variance), name);
        // Frames are separated by part of a pixel.
        let drawn = value / total * width_of_all;
        assert!(
            (drawn - 0.7..=drawn + 0.01).contains(&width),
            "{lines:?}: {width} of {width_of_all}"
        );
    }
    let narrow = total / 5000.0;
    assert!(
        left.iter().all(|(_, [value, _])| *value < narrow),
        "not drawn: {left:?}"
    );
}

/// Returns the data of the page.
fn page(inventory: &Inventory, late: &Dumped, more: &[&str]) -> Value {
    let html = inventory.parse(&[&["--html", "-o", "-"], more].concat(), &[&late.dump]);
    let data = html.split("id=\"profile\">").nth(1).expect("data");
    serde_json::from_str(data.split("</script>").next().expect("its end")).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

fn list(value: &Value) -> &Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is no list"))
}

/// Returns four values of the page, which are rounded.
fn values(value: &Value) -> [f64; 4] {
    std::array::from_fn(|at| number(&value[at]))
}

/// Checks the flame graph of the page: each frame's own value, in each column.
fn flame_of_page(page: &Value, stacks: &Stacks) {
    let flame = &page["flame"];
    let (names, parents) = (list(&flame["names"]), list(&flame["parent"]));
    let path = |mut node: usize| {
        let mut path = Vec::new();
        while node != 0 {
            let name = number(&flame["name"][node]) as usize;
            path.insert(0, text(&names[name]).to_owned());
            node = number(&parents[node]) as usize;
        }
        path
    };
    for (at, column) in COLUMNS.into_iter().enumerate() {
        let mut own: BTreeMap<Vec<String>, f64> = BTreeMap::new();
        for stack in &stacks.0 {
            let path = stack.frames.iter().rev().cloned().collect();
            *own.entry(path).or_default() += stack.values[at];
        }
        let of_column = &flame["columns"][at];
        assert_eq!(
            number(&of_column["totals"]["now"]),
            stacks.total()[at],
            "{column}"
        );
        let mut sum = 0.0;
        for (node, value) in list(&of_column["plus"]).iter().enumerate() {
            let (path, value) = (path(node), number(value));
            let truth = own.get(&path).copied().unwrap_or(0.0);
            assert_eq!(value, truth, "{column} of {path:?}");
            sum += value;
        }
        assert_eq!(sum, stacks.total()[at], "{column} of all frames");
    }
}

/// Checks the table of functions: flat and cumulative values in each column.
fn functions(page: &Value, stacks: &Stacks) {
    let (table, functions) = (&page["functions"], stacks.functions());
    let names = list(&table["names"]);
    assert_eq!(
        names.len() + number(&table["left_out"]) as usize,
        functions.len()
    );
    for (at, column) in COLUMNS.into_iter().enumerate() {
        for (row, name) in names.iter().enumerate() {
            let function = &functions[text(name)];
            let of = |what: &str| number(&table["columns"][at][what][row]);
            assert_eq!(of("flat"), function.flat[at], "{column} of {name}");
            assert_eq!(of("cum"), function.cum[at], "{column} of {name}");
        }
    }
}

/// Sizes: the classes of all objects, and those of the powers of two.
fn sizes(page: &Value, stacks: &Stacks) {
    let sizes = &page["sizes"];
    let mut sum = [0.0; 4];
    for row in list(&sizes["all"]) {
        sum.iter_mut()
            .zip(values(&row["values"]))
            .for_each(|(sum, more)| *sum += more);
        assert!((0.0..=1.0).contains(&number(&row["short"])), "{row}");
    }
    assert_eq!(sum, stacks.total());
    let functions = list(&sizes["functions"]);
    let of = |name: &str| {
        functions
            .iter()
            .find(|row| row["name"] == name)
            .expect("a function")
    };
    for row in list(&of("site_power")["sizes"]) {
        let bytes = (1u64 << number(&row["class"]) as u32) as f64;
        let [objects, all, live, live_bytes] = values(&row["values"]);
        assert_eq!([objects, all], [live, live_bytes], "none was freed: {row}");
        // Sums are rounded, so a mean is off by half a byte of half an object at most.
        assert!((all - objects * bytes).abs() <= bytes / 2.0 + 0.5, "{row}");
        // Certain to be sampled.
        assert!(bytes < 65_536.0 || objects == 4.0, "{row}");
    }
    let own = stacks.from_own_code().functions();
    for row in functions {
        let mut sum = [0.0; 4];
        for size in list(&row["sizes"]) {
            sum.iter_mut()
                .zip(values(&size["values"]))
                .for_each(|(sum, more)| *sum += more);
        }
        assert_eq!(sum, own[text(&row["name"])].flat, "{row}");
    }
}

/// Suspects: what each stack holds, its bar, ages and score.
fn suspects(page: &Value, stacks: &Stacks) {
    let rows = list(&page["suspects"]["rows"]);
    assert!(rows.len() >= 8, "{rows:?}");
    let mut scores = Vec::new();
    for row in rows {
        let frames: Vec<String> = list(&row["stack"])
            .iter()
            .map(|name| text(name).to_owned())
            .collect();
        let sum = stacks.sum_of(&frames);
        let (bytes, all) = (sum.values[IN_USE], sum.values[1]);
        let near = |key: &str, truth: f64| {
            let found = number(&row[key]);
            assert!(
                (found - truth).abs() <= 1.0 + truth * 1e-4,
                "{key}: {found}, {truth}: {row}"
            );
        };
        near("bytes", bytes);
        near("error", half_width(bytes, sum.variances[IN_USE]));
        near("objects", sum.values[2]);
        assert!((number(&row["kept"]) - bytes / all).abs() < 1e-3, "{row}");
        let (age, lifetime) = (sum.ages / sum.live, sum.lifetimes / sum.freed);
        near("age", age * 1e3);
        if sum.freed > 0.0 {
            near("lifetime", lifetime * 1e3);
        } else {
            assert!(row["lifetime"].is_null(), "{row}");
        }
        let older = if sum.freed > 0.0 {
            age / (age + lifetime)
        } else {
            1.0
        };
        near("score", bytes * bytes / all * older);
        assert!(row["growth"].is_null(), "of one dump: {row}");
        scores.push(number(&row["score"]));
    }
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
}

/// Checks the memory over time: it ends with the live memory, and never exceeds the true memory.
fn time(page: &Value, inventory: &Inventory, late: &Dumped, stacks: &Stacks) {
    let time = &page["time"];
    let points = list(&time["points"]);
    let [_, _, live, all] = [0, 0, IN_USE, 1].map(|at| stacks.total()[at]);
    let last = points.last().expect("points");
    let length = inventory.length(late);
    assert!(length.holds(number(&last[0])), "{last} {length:?}");
    assert_eq!([number(&last[1]), number(&last[2])], [live, all]);
    let column = |at: usize| {
        points
            .iter()
            .map(|point| number(&point[at]))
            .collect::<Vec<_>>()
    };
    // Sums of estimates are rounded.
    let grows = |a: &f64, b: &f64| *a <= b + stacks.0.len() as f64;
    assert!(
        column(0).is_sorted() && column(2).is_sorted_by(grows),
        "{points:?}"
    );
    if inventory.interval == "1" {
        let peak = column(1).into_iter().fold(0.0, f64::max);
        // Before the second half of the churn was freed.
        assert_eq!(
            peak,
            live + late.truth["site_churn"].values[IN_USE],
            "the peak"
        );
    }
    let ends = list(&time["stacks"])
        .iter()
        .map(|stack| number(&stack["end"]));
    assert_eq!(ends.sum::<f64>() + number(&time["rest"]), live);
    for table in list(&time["tables"]) {
        let Some(held) = table["held"].as_array() else {
            continue;
        };
        let sum: f64 = held.iter().map(|pair| number(&pair[1])).sum();
        let point = &points[number(&table["at"]) as usize];
        let (sum, shown) = (sum + number(&table["rest"]), number(&point[1]));
        // The program allocates while the table is read.
        assert!(
            sum <= all && (sum - shown).abs() <= all / 2.0,
            "{table} {point}"
        );
    }
}

/// Threads: what each of the crew has allocated.
fn threads(page: &Value, inventory: &Inventory, stacks: &Stacks) {
    let mut sum = [0.0; 4];
    for thread in list(&page["threads"]) {
        let values = values(&thread["values"]);
        sum.iter_mut()
            .zip(values)
            .for_each(|(sum, more)| *sum += more);
        if let Some(number) = text(&thread["name"]).strip_prefix("crew-") {
            let objects: f64 = number.parse::<f64>().expect("a number") * 1000.0;
            let truth = [objects, objects * 100.0, objects, objects * 100.0];
            assert!(inventory.interval != "1" || values == truth, "{thread}");
            assert_eq!(thread["functions"][0]["name"], "site_crew");
        }
    }
    assert_eq!(sum, stacks.total());
}

/// Checks the short-lived objects: all that are freed at once, and none of sites that keep all.
fn temporary(page: &Value, inventory: &Inventory, stacks: &Stacks) {
    let rows = list(&page["temporary"]["rows"]);
    for row in rows {
        let sum = stacks.sum(text(&row["name"]));
        let (short, bytes) = (number(&row["short"]), number(&row["bytes"]));
        assert!(short <= sum.freed + 0.5, "{row}: {sum:?}");
        assert!((bytes - sum.values[1]).abs() <= 1.0, "{row}: {sum:?}");
        assert!(
            (number(&row["share"]) - short / sum.values[0]).abs() < 2e-3,
            "{row}: {sum:?}"
        );
        let lifetime = sum.lifetimes / sum.freed * 1e3;
        assert!(
            (number(&row["lifetime"]) - lifetime).abs() <= 0.51,
            "{row}: {lifetime}"
        );
    }
    let moment = rows
        .iter()
        .find(|row| row["name"] == "site_moment")
        .expect("moments");
    // A machine that stalls the program makes an object live longer, and another one seldom.
    assert!(number(&moment["share"]) > 0.99, "{moment}");
    assert!(
        inventory.interval != "1" || number(&moment["bytes"]) == 600_000.0,
        "{moment}"
    );
}

/// Checks the allocator's tab: its figures are those of the dump and of the samples.
fn allocator(page: &Value, late: &Dumped, stacks: &Stacks) {
    let shown = &page["allocator"];
    let profile = profile::open(&late.dump).expect("a dump");
    assert_eq!(number(&shown["sampled"]), stacks.total()[IN_USE], "{shown}");
    let figures = list(&shown["figures"]);
    assert_eq!(figures.len(), profile.facts.allocator.len());
    for figure in figures {
        assert_eq!(
            number(&figure[1]),
            profile.facts.allocator[text(&figure[0])] as f64,
            "{figure}"
        );
    }
}

/// Checks a page with a base: the growth per time between the dumps, and each function's change.
fn growth(inventory: &Inventory, dumps: [&Dumped; 2], stacks: [&Stacks; 2]) {
    let [early, late] = dumps;
    let base = early.dump.to_string_lossy().into_owned();
    let page = page(inventory, late, &["--base", &base]);
    let least = (late.taken[0] - early.taken[1]).as_secs_f64();
    let most = (late.taken[1] - early.taken[0]).as_secs_f64();
    let mut grew = Vec::new();
    for row in list(&page["suspects"]["rows"]) {
        let frames: Vec<String> = list(&row["stack"])
            .iter()
            .map(|name| text(name).to_owned())
            .collect();
        let [before, after] = stacks.map(|stacks| stacks.sum_of(&frames).values[IN_USE]);
        let rate = number(&row["growth"]["rate"]);
        let span = (after - before) / rate;
        let is_near =
            (least - 0.012..=most + 0.012).contains(&span) || (after - before).abs() < 1.0;
        assert!(
            is_near && (before != after || rate == 0.0),
            "{row}: {before} {after}, {least} to {most} s"
        );
        if row["growth"]["verdict"] == "grew" {
            grew.push(frames[..2].join(" "));
        }
    }
    assert_eq!(grew, ["site_once more"], "{page}");
    for (at, column) in COLUMNS.into_iter().enumerate() {
        let totals = &page["flame"]["columns"][at]["totals"];
        let [before, after] = stacks.map(|stacks| stacks.total()[at]);
        assert_eq!(
            [number(&totals["base"]), number(&totals["now"])],
            [before, after],
            "{column}"
        );
        // Growth and shrinkage do not cancel each other. Shares are relative to the base.
        let paths: BTreeSet<&[String]> =
            stacks[1].0.iter().map(|stack| &stack.frames[..]).collect();
        let of = |path: &[String]| stacks.map(|stacks| stacks.sum_of(path).values[at]);
        let changes = paths
            .into_iter()
            .map(of)
            .map(|[before, after]| (after - before).abs());
        assert_eq!(number(&totals["change"]), changes.sum::<f64>(), "{column}");
        assert_eq!(number(&totals["larger"]), before, "{column}");
    }
}
