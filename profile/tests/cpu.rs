//! CPU profiles of this project: written, and read back as they were.

use profile::cpu::{self, CpuBuilder, Frame, KERNEL, Mode, Sampling};
use profile::{
    BuildId, Facts, Format, Function, LabelValue, Line, Mapping, Profile, Thread, merge, read,
};
use proptest::prelude::*;

fn written(profile: &Profile) -> Vec<u8> {
    let mut out = Vec::new();
    cpu::write(profile, &mut out).unwrap();
    out
}

fn again(profile: &Profile) -> Profile {
    read(&written(profile), "x.cpu").unwrap()
}

fn sampling() -> Sampling {
    Sampling {
        engine: "perf_event".into(),
        mode: Mode::Cpu,
        rate: 99,
        process_ns: Some(12_040_000_000),
        lost: 3,
        kernel_hidden: None,
        fallbacks: vec!["ptrace: not\nneeded \\ here".into()],
    }
}

fn facts() -> Facts {
    let thread = |tid, name: &str| Thread {
        tid,
        name: name.into(),
    };
    Facts {
        pid: Some(4711),
        process: Some("a server".into()),
        exe: Some("/usr/bin/a server".into()),
        command_line: vec!["./a server".into(), "--line\nbreak\\x41".into(), "".into()],
        start_unix_ns: Some(1_700_000_000_000_000_000),
        end_unix_ns: Some(1_700_000_030_000_000_000),
        duration_ns: Some(30_000_000_000),
        threads: vec![thread(4711, "a server"), thread(4712, " ]\n[x;y ")],
        ended: Some("live".into()),
        ..Facts::default()
    }
}

/// Returns a profile of two threads with frames of every kind, a stack without frames and one
/// without values.
fn sample() -> Profile {
    let mut builder = CpuBuilder::new(sampling());
    builder.module(Mapping {
        start: 0x55d0_0000_0000,
        end: 0x55d0_0010_0000,
        file_offset: 0x2000,
        build_id: BuildId(vec![0xab, 0xcd]),
        path: "/usr/bin/a server".into(),
        past: false,
    });
    builder.facts(facts());
    let a = 0x55d0_0000_1000;
    let stacks: [(&[Frame], u64, u64, u32); 6] = [
        (&[Frame::Kernel("do_sys_poll"), Frame::User(a)], 3, 30, 1),
        (
            &[Frame::User(a + 8), Frame::User(a), Frame::Truncated],
            1,
            10,
            2,
        ),
        (&[Frame::NotSampled], 0, 1_000_000, 0),
        (&[Frame::TableFull], 5, 50, 0),
        (&[], 2, 20, 2),
        (&[Frame::Kernel("k] [\t\n;\\x41"), Frame::User(0)], 0, 0, 1),
    ];
    for (frames, samples, ns, thread) in stacks {
        let locations: Vec<_> = frames.iter().map(|&f| builder.location(f)).collect();
        builder.stack(&locations, samples, ns, thread);
    }
    builder.finish()
}

#[test]
fn profiles_round_trip_exactly() {
    let profile = sample();
    let back = again(&profile);
    assert_eq!(back, profile);
    assert_eq!(back.format, Format::Cpu);
    assert_eq!(back.facts.cpu, Some(sampling()));
    assert_eq!(back.period, 10_101_010);
    assert_eq!((back.total(0), back.total(1)), (11, 1_000_110));
    let names = back.labels.iter().map(|l| match &l.value {
        LabelValue::Text(name) => name.as_str(),
        LabelValue::Number(..) => "a number",
    });
    let others = "[other threads]";
    let expected = [
        "a server",
        " ]\n[x;y ",
        others,
        others,
        " ]\n[x;y ",
        "a server",
    ];
    assert_eq!(names.collect::<Vec<_>>(), expected);
}

/// The format that `mem_profiler` writes.
#[test]
fn packed_profiles_round_trip_exactly() {
    let mut packed = Vec::new();
    cpu::write_packed(&sample(), &mut packed).unwrap();
    assert_eq!(packed[..2], [0x1f, 0x8b]);
    let back = read(&packed, "x.cpu").unwrap();
    assert_eq!(written(&back), written(&sample()));
    let cut = read(&packed[..packed.len() - 9], "x.cpu").unwrap_err();
    assert!(cut.to_string().contains("cut off or damaged"), "{cut}");
}

#[test]
fn kernel_frames_have_names_and_their_own_mapping() {
    let profile = again(&sample());
    let leaf = &profile.locations[profile.stacks.get(0)[0] as usize];
    assert_eq!(leaf.address, 0);
    assert_eq!(
        profile.mappings[leaf.mapping as usize].path.as_os_str(),
        KERNEL
    );
    let line = profile.lines_of(leaf)[0];
    assert_eq!(
        profile.functions[line.function as usize].name,
        "do_sys_poll"
    );
    let text = String::from_utf8(written(&profile)).unwrap();
    assert!(text.contains("\n3 30 1 k0 55d000001000\n"), "{text}");
    assert!(!text.contains(" [kernel]\n"), "{text}");
}

#[test]
fn profiles_can_contain_symbols() {
    let mut profile = sample();
    let function = profile.functions.len() as u32;
    profile.functions.push(Function {
        name: "a<b>\tc".into(),
        system_name: "_Za".into(),
        file: "/src/a.c".into(),
        start_line: 3,
    });
    let user = profile.stacks.get(0)[1] as usize;
    profile.locations[user].first_line = profile.lines.len() as u32;
    profile.locations[user].line_count = 1;
    profile.lines.push(Line {
        function,
        line: 7,
        column: 1,
    });
    let back = again(&profile);
    let line = back.lines_of(&back.locations[back.stacks.get(0)[1] as usize])[0];
    assert_eq!((line.line, line.column), (7, 1));
    assert_eq!(
        back.functions[line.function as usize],
        profile.functions[function as usize]
    );
    assert_eq!(written(&back), written(&profile));
}

#[test]
fn other_profiles_are_refused() {
    let refused = |profile: &Profile| {
        cpu::write(profile, &mut Vec::new())
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&Profile::default()).contains("not a CPU profile"));
    let now = sample();
    let before = sample();
    let mut before = before;
    before.values[1] = 31;
    let difference = merge::subtract(&[now], &[before], merge::Base::Difference).unwrap();
    assert!(refused(&difference).contains("a difference"));
    let mut two = sample();
    two.locations[1].address = two.locations[2].address;
    assert!(refused(&two).contains("two meanings"));
}

#[test]
fn damaged_profiles_are_refused_with_the_line() {
    let text = String::from_utf8(written(&sample())).unwrap();
    let refused = |text: &str| read(text.as_bytes(), "x.cpu").unwrap_err().to_string();
    for cut in (25..text.len() - 1).filter(|&at| text.is_char_boundary(at)) {
        let error = refused(&text[..cut]);
        assert!(error.contains("cut off"), "{cut}: {error}");
    }
    let newer = text.replacen("profile 1", "profile 2", 1);
    assert!(refused(&newer).contains("use a newer one"));
    assert!(refused(&text.replace("k0 ", "k9 ")).contains("is no stack"));
    assert!(refused(&text.replace("\n3 30 1 ", "\n-3 30 1 ")).contains("is no stack"));
    assert!(refused(&text.replace("\n3 30 1 ", "\n3 30 ")).contains("is no stack"));
    assert!(refused(&text.replace("# end", "# pid 7\n# end")).contains("after the stacks"));
    assert!(refused(&text.replace("_mode cpu", "_mode gpu")).contains("malformed"));
    assert!(refused(&format!("{text}more\n")).contains("follows the end"));
    let unknown = text.replace("# pid", "# cpu_colour red\n# shape round\n# pid");
    assert_eq!(read(unknown.as_bytes(), "x.cpu").unwrap(), sample());
}

#[test]
fn a_heap_dump_is_never_read_as_a_cpu_profile() {
    let text = b"heap profile: 0: 0 [0: 0] @ heap_v2/1024\n# mem-profiler dump 3\n\n\
        MAPPED_LIBRARIES:\n\n# mem-profiler facts 3\n# cpu_rate 99\n# end\n";
    let profile = read(text, "x.heap").unwrap();
    assert_eq!((profile.format, profile.facts.cpu), (Format::Dump, None));
}

/// A frame with owned names.
#[derive(Clone, Debug)]
enum Any {
    User(u64),
    Kernel(String),
    Python(Function, u32),
    Mark(usize),
}

impl Any {
    fn frame(&self) -> Frame<'_> {
        match self {
            Any::User(address) => Frame::User(*address),
            Any::Kernel(name) => Frame::Kernel(name),
            Any::Python(function, line) => Frame::Python(function, *line),
            Any::Mark(n) => [Frame::Truncated, Frame::TableFull, Frame::NotSampled][n % 3],
        }
    }
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![".*", "[ -~]{0,12}", "[\\[\\]; \\\\\n\r\tkx0-9#]{0,8}"]
}

fn any_frame() -> impl Strategy<Value = Any> {
    prop_oneof![
        any::<u64>().prop_map(Any::User),
        any_name().prop_map(Any::Kernel),
        (any_name(), any_name(), any::<(u32, u32)>()).prop_map(|(name, file, (first, line))| {
            let function = Function {
                name,
                system_name: String::new(),
                file,
                start_line: first,
            };
            Any::Python(function, line)
        }),
        any::<usize>().prop_map(Any::Mark),
    ]
}

proptest! {
    /// A profile that is written and read is the same, with any names, empty stacks, zeros and any
    /// numbers.
    #[test]
    fn written_profiles_are_read_unchanged(
        names in prop::collection::vec(any_name(), 6),
        threads in prop::collection::vec((any::<u32>(), any_name()), 0..4),
        numbers in any::<(u32, Option<u64>, u64)>(),
        mode in 0..3usize,
        stacks in prop::collection::vec(
            (prop::collection::vec(any_frame(), 0..6), 0..i64::MAX as u64, 0..i64::MAX as u64, 0..5u32),
            0..8,
        ),
    ) {
        let mut builder = CpuBuilder::new(Sampling {
            engine: names[0].clone(),
            mode: [Mode::Cpu, Mode::Wall, Mode::OffCpu][mode],
            rate: numbers.0,
            process_ns: numbers.1,
            lost: numbers.2,
            kernel_hidden: Some(names[1].clone()),
            fallbacks: vec![names[2].clone(), String::new()],
        });
        builder.module(Mapping { start: 0x1000, end: 0x2000, path: names[3].clone().into(), ..Mapping::default() });
        builder.facts(Facts {
            process: Some(names[4].clone()),
            command_line: vec![names[5].clone(), String::new()],
            threads: threads.into_iter().map(|(tid, name)| Thread { tid, name }).collect(),
            ..Facts::default()
        });
        for (frames, samples, ns, thread) in &stacks {
            let locations: Vec<_> = frames.iter().map(|f| builder.location(f.frame())).collect();
            builder.stack(&locations, *samples, *ns, *thread);
        }
        let profile = builder.finish();
        prop_assert_eq!(again(&profile), profile);
    }

    /// Damage is refused or read, and never more than that.
    #[test]
    fn any_damage_is_survived(at in 0..2000usize, byte: u8) {
        let mut bytes = written(&sample());
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(profile) = read(&bytes, "x.cpu") && profile.format == Format::Cpu {
            prop_assert_eq!(again(&profile), again(&again(&profile)));
        }
    }
}
