//! Moments of a session: written, read back, refused, merged and joined.

use profile::merge::{self, Base};
use profile::{Detail, Moment, Profile, ProfileBuilder, StackBytes, dump, history, moment, read};
use proptest::prelude::*;

fn detail(live: u64, freed: u64) -> Detail {
    Detail {
        alloc_samples: 2,
        free_samples: u64::from(live == 0) + 1,
        alloc_objects: 2.0,
        alloc_bytes: (live + freed) as f64,
        freed_objects: 1.0,
        freed_bytes: freed as f64,
        ..Detail::default()
    }
}

/// Returns a dump with one stack for each address in `live`, with that many live bytes.
fn profile(live: &[(u64, u64)], moments: Vec<Moment>) -> Profile {
    let mut builder = ProfileBuilder::new(1);
    for &(address, bytes) in live {
        builder.stack([address, 0x9000], &detail(bytes, 5));
    }
    let mut profile = builder.finish();
    profile.moments = moments;
    profile
}

fn at(ns: u64, live: u64, stacks: Option<&[(u32, u64)]>) -> Moment {
    let held = |&(stack, bytes): &(u32, u64)| StackBytes { stack, bytes };
    Moment {
        at_ns: ns,
        live,
        allocated: live * 2,
        resident: (!ns.is_multiple_of(3)).then_some(live + 7),
        stacks: stacks.map(|all| all.iter().map(held).collect()),
    }
}

fn written(profile: &Profile) -> String {
    let mut out = Vec::new();
    dump::write(profile, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn shop() -> Profile {
    let moments = vec![
        at(0, 0, None),
        at(5, 100, Some(&[(0, 60), (2, 40)])),
        at(6, 100, Some(&[])),
        at(9, 600, None),
    ];
    profile(&[(0x10, 100), (0x20, 200), (0x30, 300)], moments)
}

#[test]
fn moments_round_trip() {
    let text = written(&shop());
    assert!(
        text.contains("\n# moment 0 0 0 -\n# moment 5 100 200 107\n# moment_stacks 0:60 2:40\n")
    );
    let back = read(text.as_bytes(), "x.heap").unwrap();
    assert_eq!(back.moments, shop().moments);
    assert_eq!(written(&back), text);
}

#[test]
fn inconsistent_moments_are_refused_with_their_line() {
    let lies = [
        ("moment", "1 2 3"),
        ("moment", "1 2 3 4 5"),
        ("moment", "1 2 3 x"),
        ("moment", "-1 2 3 4"),
        ("moment", "1 99999999999999999999 3 4"),
        // Moments that are not in order of time.
        ("moment", "9 1 1 1"),
        ("moment", "8 1 1 1"),
        ("moment_stacks", "3:1"),
        ("moment_stacks", "0:1 0:1"),
        ("moment_stacks", "1:1 0:1"),
        ("moment_stacks", "0"),
        ("moment_stacks", "0:x"),
        ("moment_stacks", "4294967296:1"),
        // More than the moment's live bytes, and more than a number holds.
        ("moment_stacks", "0:300 1:301"),
        ("moment_stacks", "0:1 1:18446744073709551615"),
    ];
    let text = written(&shop());
    for (name, value) in lies {
        let lie = format!("# {name} {value}\n# end\n");
        let error = read(text.replace("# end\n", &lie).as_bytes(), "x.heap").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("malformed") && error.contains(name),
            "{error}"
        );
    }
    // Stacks without a moment, and a second list for one moment.
    for again in [
        "# moment_stacks 0:1\n# moment 0 0",
        "# moment 5 100 200 107\n# moment_stacks \n",
    ] {
        let text = match again.contains("107") {
            true => text.replace("# moment 5 100 200 107\n", again),
            false => text.replace("# moment 0 0", again),
        };
        assert!(read(text.as_bytes(), "x.heap").is_err(), "{again}");
    }
    let many: String = (10..10 + moment::MAX_MOMENTS)
        .map(|ns| format!("# moment {ns} 1 1 -\n"))
        .collect();
    let error = read(
        text.replace("# end\n", &(many + "# end\n")).as_bytes(),
        "x.heap",
    );
    assert!(error.is_err());
}

#[test]
fn moments_are_kept_in_one_profile_but_not_in_sums() {
    let mut one = shop();
    // A stack without values is dropped from a sum, and the second stack becomes the first.
    one.values[..4].fill(0);
    let base = profile(&[(0x20, 50)], Vec::new());
    for merged in [
        merge::merge(std::slice::from_ref(&one)).unwrap(),
        merge::subtract(
            std::slice::from_ref(&one),
            std::slice::from_ref(&base),
            Base::Comparison,
        )
        .unwrap(),
    ] {
        assert_eq!(merged.moments[1], at(5, 100, Some(&[(1, 40)])));
        assert_eq!(merged.moments[1].unlisted_bytes(), 60);
    }
    let several = merge::merge(&[one.clone(), base.clone()]).unwrap();
    assert!(several.moments.is_empty());
    let change = merge::subtract(&[one], &[base], Base::Difference).unwrap();
    assert!(change.moments.is_empty());
}

#[test]
fn the_moments_of_a_series_are_joined() {
    // The earlier dump has its stacks in another order, and more moments.
    let early = profile(
        &[(0x30, 40), (0x10, 60), (0x77, 9)],
        vec![
            at(0, 0, None),
            at(2, 50, Some(&[(0, 20), (1, 30)])),
            at(5, 100, None),
            at(6, 109, None),
        ],
    );
    let mut last = shop();
    history::join(&mut last, std::iter::once(&early));
    let expected = [
        at(0, 0, None),
        at(2, 50, Some(&[(0, 30), (2, 20)])),
        at(5, 100, Some(&[(0, 60), (2, 40)])),
        // The earlier dump itself; one of its stacks is not in the last dump.
        at(6, 109, Some(&[(0, 60), (2, 40)])),
        at(9, 600, None),
    ];
    assert_eq!(last.moments, expected);
    assert_eq!(last.moments[3].unlisted_bytes(), 9);
    assert!(read(written(&last).as_bytes(), "x.heap").is_ok());
}

proptest! {
    #[test]
    fn any_moments_come_back(
        steps in prop::collection::vec(
            (
                1u64..1 << 40,
                any::<u32>(),
                any::<u64>(),
                any::<Option<u64>>(),
                prop::option::of(prop::collection::btree_map(0u32..20, any::<u32>(), 0..20)),
            ),
            0..40,
        ),
    ) {
        let mut at_ns = 0;
        let moments = steps.into_iter().map(|(step, rest, allocated, resident, stacks)| {
            at_ns += step;
            let held: Option<Vec<StackBytes>> = stacks.map(|all| {
                let held = |(stack, bytes)| StackBytes { stack, bytes: u64::from(bytes) };
                all.into_iter().map(held).collect()
            });
            let listed: u64 = held.iter().flatten().map(|h| h.bytes).sum();
            Moment { at_ns, live: listed + u64::from(rest), allocated, resident, stacks: held }
        });
        let stacks: Vec<(u64, u64)> = (0..20).map(|i| (0x100 + i, i)).collect();
        let whole = profile(&stacks, moments.collect());
        let back = read(written(&whole).as_bytes(), "x.heap").unwrap();
        prop_assert_eq!(&back.moments, &whole.moments);
    }

    #[test]
    fn mangled_moments_never_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let mut text = written(&shop()).into_bytes();
        let from = text.windows(9).position(|w| w == b"# moment ").unwrap();
        let at = from + at.index(text.len() - from);
        text[at] = byte;
        let _ = read(&text, "x.heap");
    }
}
