//! The program `inventory.c`, which holds known numbers of objects of each kind, and the stacks of
//! its dumps, from which every other screen's figures follow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::truth::{self, Site};
use crate::{Scratch, Server, Session, Steps, run};

/// Objects and bytes allocated, objects and bytes in use: the columns of a heap profile.
pub type Values = [f64; 4];

/// Columns, as options of the parser.
pub const COLUMNS: [&str; 4] = [
    "--alloc_objects",
    "--alloc_space",
    "--inuse_objects",
    "--inuse_space",
];

/// Column of the bytes in use, which most screens show.
pub const IN_USE: usize = 3;

/// Bounds of the number of seconds between two moments.
#[derive(Clone, Copy, Debug)]
pub struct Between {
    /// Lower bound.
    pub least: f64,
    /// Upper bound.
    pub most: f64,
}

impl Between {
    /// Returns true if a number of seconds lies within the bounds, up to the resolution of the
    /// agent's clock.
    pub fn holds(&self, seconds: f64) -> bool {
        const TICKS: f64 = 0.012;
        (self.least - TICKS..=self.most + TICKS).contains(&seconds)
    }
}

/// A dump, and the truth at its moment.
pub struct Dumped {
    /// The file.
    pub dump: PathBuf,
    /// Objects and bytes of each site, as counted by the program.
    pub truth: BTreeMap<String, Site>,
    /// Times before and after the dump was taken.
    pub taken: [Instant; 2],
}

/// The program in a session, with its dumps: one after "hold", and one after "more".
pub struct Inventory {
    /// Directories of the test.
    pub scratch: Scratch,
    /// The program.
    pub steps: Steps,
    /// The session, which lasts until it is stopped.
    session: Option<Session>,
    /// Time before the session was started.
    pub begun: Instant,
    /// Times before and after the objects were allocated.
    pub held: [Instant; 2],
    /// The mean interval of samples.
    pub interval: &'static str,
}

/// Starts the inventory with the agent, and a session in it by a server. Its first objects are
/// allocated in the session.
pub fn sampled_by(server: &Server, scratch: &Scratch, interval: &str) -> Steps {
    let program = scratch.compile("inventory.c", &[]);
    let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    let pid = steps.pid();
    server
        .post(&format!("/api/start?pid={pid}&interval={interval}"))
        .expect(200);
    scratch.wait_for_sampling(pid);
    steps.step("hold");
    steps
}

impl Inventory {
    /// Starts the program and a session, and makes the program allocate.
    pub fn hold(interval: &'static str) -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("inventory.c", &[]);
        let mut steps = Steps::run(program.clone(), &mut scratch.preloaded(&program));
        let begun = Instant::now();
        let session = Session::of(&scratch, steps.pid(), interval);
        let before = Instant::now();
        steps.step("hold");
        Self {
            scratch,
            steps,
            session: Some(session),
            begun,
            held: [before, Instant::now()],
            interval,
        }
    }

    /// Sends a command to the program, and returns the lines that it printed.
    pub fn step(&mut self, line: &str) -> Vec<String> {
        self.steps.step(line)
    }

    /// Returns the objects and bytes of each site, as counted by the program.
    pub fn truth(&mut self) -> BTreeMap<String, Site> {
        truth::expected(&self.step("expected"))
    }

    /// Takes a dump.
    pub fn dump(&mut self) -> Dumped {
        let truth = self.truth();
        let pid = self.steps.pid().to_string();
        let mut command = self.scratch.profiler();
        let before = Instant::now();
        let outcome = run(command.args(["dump", "-o", "d_", "-p", &pid]));
        let taken = [before, Instant::now()];
        let dump = self.scratch.file(&outcome.dump().to_string_lossy());
        Dumped { dump, truth, taken }
    }

    /// Returns the time from the allocations to a dump.
    pub fn age(&self, dumped: &Dumped) -> Between {
        let [begun, done] = self.held;
        let [asked, given] = dumped.taken;
        Between {
            least: (asked - done).as_secs_f64(),
            most: (given - begun).as_secs_f64(),
        }
    }

    /// Returns the time from the session's start to a dump.
    pub fn length(&self, dumped: &Dumped) -> Between {
        let [asked, given] = dumped.taken;
        Between {
            least: (asked - self.held[0]).as_secs_f64(),
            most: (given - self.begun).as_secs_f64(),
        }
    }

    /// Ends the session. Returns its dump.
    pub fn stop(&mut self) -> Dumped {
        let truth = self.truth();
        let session = self.session.take().expect("a session");
        let before = Instant::now();
        let dump = session.stop().dump();
        Dumped {
            dump,
            truth,
            taken: [before, Instant::now()],
        }
    }

    /// Ends the program, and the session if there is still one.
    pub fn end(mut self) {
        if self.session.is_some() {
            self.stop();
        }
        self.steps.target.finish_well();
    }

    /// Returns the output of the parser for these dumps.
    #[track_caller]
    pub fn parse(&self, args: &[&str], dumps: &[&Path]) -> String {
        let mut command = self.scratch.parser();
        let outcome = run(command.args(args).args(dumps));
        assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
        outcome.stdout
    }

    /// Returns the stacks of a dump, which are checked against the truth.
    pub fn stacks(&self, dumped: &Dumped) -> Stacks {
        let stacks = Stacks::read(&self.parse(&["--json"], &[&dumped.dump]));
        stacks.assert_true(&dumped.truth, self.interval);
        stacks
    }
}

/// Stack of objects of one size class and one thread.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    /// Functions, innermost first.
    pub frames: Vec<String>,
    /// The four values.
    pub values: Values,
    /// Sampling variances of the values.
    pub variances: Values,
    /// Number of samples of allocated objects.
    pub samples: f64,
    /// Objects in use, not rounded.
    pub live: f64,
    /// Objects freed, not rounded.
    pub freed: f64,
    /// Sum of the ages of live objects, in object-seconds.
    pub ages: f64,
    /// Error bar of the mean age of live objects, in seconds, as in the dump. `None` in sums.
    pub age_bar: Option<f64>,
    /// Sum of the lifetimes of freed objects, in object-seconds.
    pub lifetimes: f64,
}

impl Stack {
    /// Sums stacks of several sizes and threads.
    fn sum<'a>(stacks: impl Iterator<Item = &'a Stack>) -> Self {
        stacks.fold(Self::default(), |mut sum, stack| {
            add(&mut sum.values, &stack.values);
            add(&mut sum.variances, &stack.variances);
            sum.samples += stack.samples;
            sum.live += stack.live;
            sum.freed += stack.freed;
            sum.ages += stack.ages;
            sum.lifetimes += stack.lifetimes;
            sum
        })
    }
}

/// Flat and cumulative values of a function, with their variances.
#[derive(Clone, Copy, Debug, Default)]
pub struct Function {
    /// Values of stacks that end in the function.
    pub flat: Values,
    /// Values of stacks that contain the function.
    pub cum: Values,
    /// Variances of `flat`.
    pub flat_variances: Values,
    /// Variances of `cum`.
    pub cum_variances: Values,
}

/// Functions of the program besides its sites.
const OTHER_FUNCTIONS: [&str; 5] = ["hold", "more", "lose", "live_on", "main"];

/// Stacks of a dump.
pub struct Stacks(pub Vec<Stack>);

fn add(sum: &mut Values, more: &Values) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// Maximum error of an estimate from 300 samples or more, as a multiple of its 95 % bar. A Poisson
/// number with mean 300 is off by more once in 1e12 draws, and larger numbers less often.
pub const BARS: f64 = 4.5;
/// Minimum number of samples of an estimate that is compared with the truth.
const MIN_SAMPLES: f64 = 300.0;

impl Stacks {
    /// Reads the output of `--json`.
    pub fn read(json: &str) -> Self {
        let json: Value = serde_json::from_str(json).expect("JSON");
        let stack = |stack: &Value| {
            let name = |frame: &Value| {
                let at = frame.as_u64().expect("a frame") as usize;
                json["frames"][at]["name"]
                    .as_str()
                    .expect("a name")
                    .to_owned()
            };
            let number = |key: &str| stack["detail"][key].as_f64().expect("a number");
            let value = |at: usize| stack["values"][at].as_f64().expect("a value");
            Stack {
                frames: stack["frames"]
                    .as_array()
                    .expect("frames")
                    .iter()
                    .map(name)
                    .collect(),
                values: std::array::from_fn(value),
                variances: [
                    number("alloc_object_variance"),
                    number("alloc_variance"),
                    number("live_object_variance"),
                    number("live_variance"),
                ],
                samples: number("alloc_samples"),
                live: number("alloc_objects") - number("freed_objects"),
                freed: number("freed_objects"),
                ages: number("live_age_ms_sum") / 1e3,
                age_bar: stack["detail"]["live_age_error_ms"]
                    .as_f64()
                    .map(|ms| ms / 1e3),
                lifetimes: number("freed_lifetime_ms_sum") / 1e3,
            }
        };
        Self(
            json["stacks"]
                .as_array()
                .expect("stacks")
                .iter()
                .map(stack)
                .collect(),
        )
    }

    /// Returns the stacks that end in a function.
    pub fn of<'a>(&'a self, site: &'a str) -> impl Iterator<Item = &'a Stack> {
        self.0.iter().filter(move |stack| stack.frames[0] == site)
    }

    /// Returns the stacks without what the program's own innermost function calls.
    pub fn from_own_code(&self) -> Self {
        let is_own =
            |name: &String| name.starts_with("site_") || OTHER_FUNCTIONS.contains(&&**name);
        let cut = |stack: &Stack| {
            let first = stack.frames.iter().position(is_own).unwrap_or(0);
            Stack {
                frames: stack.frames[first..].to_vec(),
                ..stack.clone()
            }
        };
        Self(self.0.iter().map(cut).collect())
    }

    /// Returns the sum of the stacks that end in a function.
    pub fn sum(&self, site: &str) -> Stack {
        Stack::sum(self.of(site))
    }

    /// Returns the sum of the stacks with these functions.
    pub fn sum_of(&self, frames: &[String]) -> Stack {
        Stack::sum(self.0.iter().filter(|stack| stack.frames == frames))
    }

    /// Returns the sum of all stacks.
    pub fn total(&self) -> Values {
        let mut sum = Values::default();
        self.0.iter().for_each(|stack| add(&mut sum, &stack.values));
        sum
    }

    /// Returns the variances of the sum of all stacks.
    pub fn total_variances(&self) -> Values {
        let mut sum = Values::default();
        self.0
            .iter()
            .for_each(|stack| add(&mut sum, &stack.variances));
        sum
    }

    /// Returns the values of each function.
    pub fn functions(&self) -> BTreeMap<String, Function> {
        let mut functions: BTreeMap<String, Function> = BTreeMap::new();
        for stack in &self.0 {
            let leaf = functions.entry(stack.frames[0].clone()).or_default();
            add(&mut leaf.flat, &stack.values);
            add(&mut leaf.flat_variances, &stack.variances);
            for (at, name) in stack.frames.iter().enumerate() {
                if !stack.frames[..at].contains(name) {
                    let function = functions.entry(name.clone()).or_default();
                    add(&mut function.cum, &stack.values);
                    add(&mut function.cum_variances, &stack.variances);
                }
            }
        }
        functions
    }

    /// Checks each site against the truth: exactly if every object is sampled, otherwise within
    /// [`BARS`] bars if the site has enough samples. The rest of the sum is the C library's, and
    /// small.
    #[track_caller]
    pub fn assert_true(&self, truth: &BTreeMap<String, Site>, interval: &str) {
        for (name, site) in truth {
            let sum = self.sum(name);
            let is_all = interval == "1";
            let live = sum.samples * sum.values[2] / sum.values[0].max(1.0);
            for (at, column) in COLUMNS.iter().enumerate() {
                let samples = if at < 2 { sum.samples } else { live };
                if !is_all && samples < MIN_SAMPLES && sum.variances[at] > 0.0 {
                    continue;
                }
                // Rows are rounded to integers.
                let allowed =
                    BARS * 1.96 * sum.variances[at].sqrt() + if is_all { 0.0 } else { 2.0 };
                let off = (sum.values[at] - site.values[at]).abs();
                assert!(
                    off <= allowed,
                    "{name}, {}: {} where {} is true, ± {allowed}",
                    column,
                    sum.values[at],
                    site.values[at]
                );
            }
        }
        let others = self
            .0
            .iter()
            .filter(|stack| !stack.frames[0].starts_with("site_"));
        let others: f64 = others.map(|stack| stack.values[1]).sum();
        assert!(others <= 8192.0, "{others} bytes by others than its sites");
    }
}

/// A row of `--leaks`.
pub struct Suspect {
    /// Score, live bytes and their bar, objects, share that is kept, age and its bar, lifetime of
    /// freed objects.
    pub numbers: Vec<String>,
    /// Growth and its error bar, in the unit of the column.
    pub growth: Vec<String>,
    /// Verdict on the growth.
    pub verdict: String,
    /// Functions, innermost first.
    pub frames: Vec<String>,
}

/// Reads the rows of `--leaks`, whose columns have fixed widths.
pub fn suspects_of(text: &str) -> Vec<Suspect> {
    const WIDTHS: [usize; 8] = [11, 12, 12, 11, 7, 10, 10, 12];
    let blocks = text.split("-----------+---").skip(1);
    let row = |block: &str| {
        let mut lines = block.lines().skip(1);
        let line: Vec<char> = lines.next()?.chars().collect();
        let mut at = 0;
        let mut cell = |width: usize| {
            let end = (at + width).min(line.len());
            let cell: String = line[at..end].iter().collect();
            at = end;
            cell.trim().to_owned()
        };
        let numbers = WIDTHS.map(&mut cell).to_vec();
        let growth = [13, 12].map(&mut cell).to_vec();
        let verdict = cell(20);
        let frames = lines
            .map(|line| line.trim().to_owned())
            .filter(|line| !line.starts_with("at "));
        let frames = frames.map(|name| name.trim_end_matches(" (inline)").to_owned());
        Some(Suspect {
            numbers,
            growth,
            verdict,
            frames: frames.collect(),
        })
    };
    blocks
        .filter_map(row)
        .filter(|row| !row.frames.is_empty())
        .collect()
}
