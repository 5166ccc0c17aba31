//! Tracepoints of the agent, as found and counted by programs that know nothing about it: `readelf`
//! and bpftrace. The latter needs root.

use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Scratch, Session, Target, artifacts};
use profile::Profile;

/// What a tracer counted: allocations, their bytes, the bytes that they stand for, frees.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    allocations: i64,
    bytes: i64,
    weighted: i64,
    frees: i64,
}

/// A traced program in a session.
struct Traced {
    _scratch: Scratch,
    target: Target,
    session: Session,
}

impl Traced {
    fn start(interval: &str) -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("traced.c", &[]);
        let mut target = Target::start(&mut scratch.preloaded(program));
        assert_eq!(target.hear(), "ready");
        let session = Session::of(&scratch, target.pid(), interval);
        Self {
            _scratch: scratch,
            target,
            session,
        }
    }

    /// Makes the program allocate `objects` objects.
    fn go(&mut self, objects: u32) {
        self.target.say(&objects.to_string());
        self.target.hear_until("ok");
    }

    fn end(self) -> Profile {
        let profile = self.session.stop().profile();
        self.target.finish_well();
        profile
    }
}

/// Returns the total of a column.
fn total(profile: &Profile, kind: &str) -> i64 {
    let column = profile.type_index(kind).expect("a heap profile");
    let rows = profile.values.chunks(profile.sample_types.len());
    rows.map(|row| row[column]).sum()
}

fn agent() -> String {
    artifacts::agent().display().to_string()
}

#[test]
fn readelf_finds_both_with_their_arguments() {
    let notes = tool("readelf", ["-n", &agent()]);
    let (three, one) = if cfg!(target_arch = "x86_64") {
        ("8@%rdi 8@%rsi 8@%rdx", "8@%rdi")
    } else {
        ("8@x0 8@x1 8@x2", "8@x0")
    };
    for (name, arguments) in [("alloc", three), ("free", one)] {
        let entry = format!("Provider: otel_memory\n    Name: {name}\n");
        let places: Vec<&str> = notes.split(&entry).skip(1).collect();
        // Objects that come or go, those that are resized in place, and those whose headers the
        // program has overwritten.
        assert!((2..=6).contains(&places.len()), "{notes}");
        for place in places {
            let said = place.lines().take(2).collect::<String>();
            assert!(said.ends_with(&format!("Arguments: {arguments}")), "{said}");
            assert!(said.contains("Semaphore: 0x0000000000000000"), "{said}");
        }
    }
}

/// Lets bpftrace count while the program allocates; the tracing filesystem is mounted where
/// only it sees that. It ends by itself with the program's last event: a signal that comes while it
/// does not wait for events is lost to it.
fn by_bpftrace(traced: &mut Traced, objects: u32) -> Counted {
    let agent = agent();
    let script = format!(
        "BEGIN {{ printf(\"tracing\\n\"); }}
         usdt:{agent}:otel_memory:alloc {{ @n = count(); @b = sum(arg1); @w = sum(arg2); }}
         usdt:{agent}:otel_memory:alloc /arg1 == 900000/ {{ @last = arg0; }}
         usdt:{agent}:otel_memory:free {{ @f = count(); }}
         usdt:{agent}:otel_memory:free /arg0 == @last/ {{ exit(); }}"
    );
    let mount = "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
                 exec bpftrace -B line -p \"$1\" -e \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", mount, "sh"]);
    command.arg(traced.target.pid().to_string()).arg(script);
    let mut tracer = Target::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    tracer.hear_until("tracing");
    traced.go(objects);
    let said = tracer.finish_output();
    let number = |key: &str| {
        let line = said.lines().find_map(|l| l.strip_prefix(key));
        let number = line.and_then(|l| l.trim_start_matches(':').trim().parse().ok());
        number.unwrap_or_else(|| panic!("no {key} in {said:?}"))
    };
    Counted {
        allocations: number("@n"),
        bytes: number("@b"),
        weighted: number("@w"),
        frees: number("@f"),
    }
}

#[test]
fn bpftrace_counts_what_the_session_counts() {
    let mut traced = Traced::start("1");
    let counted = by_bpftrace(&mut traced, 1000);
    let profile = traced.end();
    let column = |kind| total(&profile, kind);
    let ours = Counted {
        allocations: column("alloc_objects"),
        bytes: column("alloc_space"),
        weighted: column("alloc_space"),
        frees: column("alloc_objects") - column("inuse_objects"),
    };
    assert_eq!(counted, ours);
    // The program's own numbers agree: two resizes count as allocations, too.
    assert_eq!((ours.allocations, ours.frees), (1003, 503));
    let small = (1000..2000).sum::<i64>();
    assert_eq!(ours.bytes, small + 100_000 + 100_001 + 900_000);
}

#[test]
fn weighted_bytes_add_up_to_the_estimate_of_the_session() {
    let mut traced = Traced::start("8192");
    let counted = by_bpftrace(&mut traced, 20_000);
    let profile = traced.end();
    let estimate = total(&profile, "alloc_space");
    assert!(counted.bytes < counted.weighted && counted.allocations < 20_000);
    // Each sample's bytes are rounded down, and the table keeps weights of four digits.
    let difference = (counted.weighted - estimate).abs() as f64;
    assert!(
        difference < 1e-3 * estimate as f64,
        "{counted:?}, {estimate} in the dump"
    );
}
