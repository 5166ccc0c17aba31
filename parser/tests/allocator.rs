//! The page's tab of the allocator: figures of one moment only, whose sums add up.

mod invoke;

use std::fs::{self, File};

use helpers::browser;
use invoke::{parser, stderr, stdout};
use profile::{Detail, Facts, ProfileBuilder, dump};

const KIB: u64 = 1024;
const SECOND: u64 = 1_000_000_000;
const END: u64 = 1_795_235_047 * SECOND;

/// Returns the facts of a dump, whose process's allocator had 8 MiB in objects `ago` ns before.
fn facts(ago: u64) -> Facts {
    let map = |pairs: &[(&str, u64)]| {
        let pair = |&(name, kib): &(&str, u64)| (name.to_owned(), kib * KIB);
        pairs.iter().map(pair).collect()
    };
    Facts {
        start_unix_ns: Some(END - 60 * SECOND),
        end_unix_ns: Some(END),
        duration_ns: Some(60 * SECOND),
        allocator_unix_ns: Some(END - ago),
        allocator: map(&[
            ("allocated", 8192),
            ("active", 9000),
            ("metadata", 2000),
            ("resident", 12_000),
            ("retained", 5000),
        ]),
        memory: map(&[
            ("heap_in_use", 7000),
            ("heap_unused", 900),
            ("heap_metadata", 100),
            ("agent", 50),
            ("own_mappings", 70),
        ]),
        ..Facts::default()
    }
}

/// Returns as JSON the text of the tab, and the bytes of each row by its label.
fn tab(facts: Facts) -> String {
    const PROBE: &str = r##"
document.querySelector("#to-allocator").click();
const state = { says: [...document.querySelectorAll("#allocator p")].map((p) => p.textContent).join(" ") };
for (const row of document.querySelector("#allocator table").rows) {
  state[row.querySelector("b").textContent] = row.cells[0].textContent;
}
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;
    let directory = tempfile::tempdir().expect("a directory");
    let mut builder = ProfileBuilder::new(1024);
    builder.facts(facts);
    let bytes = 1000.0 * 4097.0;
    let detail = Detail {
        alloc_samples: 980,
        alloc_objects: 1000.0,
        alloc_bytes: bytes,
        alloc_variance: 4097.0 * 4097.0 * 19.0,
        live_variance: 4097.0 * 4097.0 * 19.0,
        ..Detail::default()
    };
    builder.stack([0x1001, 0x2001], &detail);
    let path = directory.path().join("x.heap");
    let mut file = File::create(&path).expect("a file");
    dump::write(&builder.finish(), &mut file).expect("a dump");
    let output = parser(&["-f", path.to_str().expect("a path"), "--html", "--force"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = stdout(&output).replace("Content-Security-Policy", "X-None");
    let path = directory.path().join("probe.html");
    fs::write(&path, browser::with_probe(&page, PROBE, "</body>")).expect("a page");
    browser::state(&path, "")
}

#[test]
fn figures_of_the_same_moment_add_up() {
    let state = tab(facts(0));
    for row in [
        r#""Live, seen in this session":"3.91 MiB""#,
        r#""Live, rounding up":"999.02 KiB""#,
        r#""Live, other":"3.12 MiB""#,
        r#""Fragmentation":"808 KiB""#,
        r#""Metadata":"1.95 MiB""#,
        r#""Dirty pages":"1000 KiB""#,
        r#""Retained":"4.88 MiB""#,
    ] {
        assert!(state.contains(row), "{row}: {state}");
    }
    assert!(
        state.contains("By the kernel, 7.81 MiB of the heap were resident"),
        "{state}"
    );
    assert!(!state.contains("All but the retained"), "{state}");
}

#[test]
fn figures_of_another_moment_are_dated_and_not_compared_with_the_samples() {
    let state = tab(facts(12 * SECOND));
    assert!(
        state.contains("which are of 12 s before the samples'"),
        "{state}"
    );
    assert!(state.contains(r#""Live objects":"8 MiB""#), "{state}");
    assert!(!state.contains("seen in this session\""), "{state}");
    assert!(state.contains("By the samples, 3.91 MiB"), "{state}");
}

/// An estimate is not cut to what the allocator counts.
#[test]
fn samples_exceeding_the_allocators_count_are_shown_unchanged() {
    let mut little = facts(0);
    little.allocator.insert("allocated".to_owned(), 3 << 20);
    little.memory.clear();
    let state = tab(little);
    assert!(state.contains(r#""Live objects":"3 MiB""#), "{state}");
    assert!(
        state.contains("all of the live objects were allocated in the session: 3.91 MiB"),
        "{state}"
    );
    assert!(
        state.contains("How much of this was resident is not in the dump"),
        "{state}"
    );
}
