//! `/metrics`: Prometheus' text format 0.0.4, or OpenMetrics 1.0 for clients that accept it.
//!
//! The number of series is bounded: each of at most [`MAX_PROCESSES`] processes has a fixed number
//! of them, and function names are not labels. A value that is currently unknown is omitted.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use mem_agents::clock::now_ns;
use mem_agents::discovery::Agent;
use mem_agents::live;
use mem_agents::segment::Head;
use mem_agents::snapshot::Snapshot;
use mem_agents::target::is_running;
use mem_agents::text;
use proc::Stat;
use profile::variance::half_width;
use shm_protocol::layout::BANK_HEADER_BYTES;

use crate::process_list::MAX_PROCESSES;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;

/// Maximum age of the allocator's own statistics, in ns. Older ones are omitted.
const STALE_NS: u64 = 5_000_000_000;
/// Maximum length of a process's name in labels, in characters.
const MAX_NAME: usize = 64;

/// Metrics of one name, which differ in their labels.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "gauge",
        help,
    }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "counter",
        help,
    }
}

const FAMILIES: &[Family] = &[
    gauge(
        "mem_profiler_session_running",
        "Whether a session samples the process.",
    ),
    gauge("mem_profiler_interval_bytes", "Mean bytes between samples."),
    gauge(
        "mem_profiler_live_bytes",
        "Bytes allocated since the session began and not freed, estimated.",
    ),
    gauge(
        "mem_profiler_live_error_bytes",
        "Half of the 95 % confidence interval of the live bytes.",
    ),
    gauge(
        "mem_profiler_live_objects",
        "Objects allocated since the session began and not freed, estimated.",
    ),
    counter(
        "mem_profiler_allocated_bytes",
        "Bytes allocated since the session began, estimated.",
    ),
    counter(
        "mem_profiler_allocated_objects",
        "Objects allocated since the session began, estimated.",
    ),
    gauge("mem_profiler_stacks", "Distinct stacks, by thread."),
    counter("mem_profiler_samples", "Samples of the session."),
    counter(
        "mem_profiler_table_full_samples",
        "Samples without room for their stack in the table.",
    ),
    counter(
        "mem_profiler_table_merged_samples",
        "Samples with room for the outer frames of their stack alone.",
    ),
    counter(
        "mem_profiler_sampling_seconds",
        "CPU time that sampling took in the process, estimated.",
    ),
    gauge(
        "mem_profiler_sampling_error_seconds",
        "Standard error of the time that sampling took.",
    ),
    gauge(
        "mem_profiler_segment_bytes",
        "Shared memory of the process's tables.",
    ),
    gauge(
        "mem_profiler_resident_memory_bytes",
        "Resident memory of the process.",
    ),
    counter("mem_profiler_cpu_seconds", "CPU time of the process."),
    gauge(
        "mem_profiler_allocator_bytes",
        "The built-in allocator's own figures, at most 5 s old.",
    ),
];

const PROCESSES: Family = gauge("mem_profiler_processes", "Processes that carry the agent.");
const REQUESTS: Family = counter(
    "mem_profiler_server_requests",
    "Requests answered, by class of status.",
);
const EVICTED: Family = counter(
    "mem_profiler_server_evicted_connections",
    "Connections closed since there were too many.",
);
const OWN_CPU: Family = counter("mem_profiler_server_cpu_seconds", "CPU time of the server.");
const OWN_MEMORY: Family = gauge(
    "mem_profiler_server_resident_memory_bytes",
    "Resident memory of the server.",
);
const UPTIME: Family = gauge(
    "mem_profiler_server_uptime_seconds",
    "Time since the server began.",
);

/// Returns the metrics in the format that the client accepts.
pub fn answer(server: &Server, request: &Request) -> Reply {
    let is_openmetrics = request.accept.contains("application/openmetrics-text");
    let mut page = MetricsText {
        is_openmetrics,
        text: String::new(),
    };
    let processes = processes(server);
    for family in FAMILIES {
        let has_family = |samples: &&Sample| samples.family == family.name;
        let mut samples = processes
            .iter()
            .flat_map(|p| {
                p.samples
                    .iter()
                    .filter(has_family)
                    .map(move |sample| (&p.labels, sample))
            })
            .peekable();
        if samples.peek().is_none() {
            continue;
        }
        page.head(family);
        for (labels, sample) in samples {
            page.sample(
                family,
                &format!("{labels}{}", sample.extra_labels),
                sample.value,
            );
        }
    }
    add_server_metrics(server, processes.len(), &mut page);
    if is_openmetrics {
        page.text.push_str("# EOF\n");
        return Reply::with_content_type(
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            page.text,
        );
    }
    Reply::with_content_type("text/plain; version=0.0.4; charset=utf-8", page.text)
}

/// Adds the metrics of the server itself.
fn add_server_metrics(server: &Server, processes: usize, page: &mut MetricsText) {
    page.single_sample(&PROCESSES, "", processes as f64);
    page.head(&REQUESTS);
    for (class, count) in server.counts.by_status.iter().enumerate().skip(2) {
        let class = format!("code=\"{class}xx\"");
        page.sample(&REQUESTS, &class, count.load(Ordering::Relaxed) as f64);
    }
    let evicted = server.counts.evicted.load(Ordering::Relaxed);
    page.single_sample(&EVICTED, "", evicted as f64);
    if let Some(stat) = Stat::of(std::process::id() as i32) {
        page.single_sample(&OWN_CPU, "", cpu_seconds(&stat));
        if let Some(bytes) = stat.rss_bytes() {
            page.single_sample(&OWN_MEMORY, "", bytes as f64);
        }
    }
    page.single_sample(&UPTIME, "", server.counts.start.elapsed().as_secs_f64());
}

fn cpu_seconds(stat: &Stat) -> f64 {
    // SAFETY: sysconf takes an integer and returns one.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    stat.cpu_ticks as f64 / ticks.max(1) as f64
}

/// Text under construction.
struct MetricsText {
    /// True for OpenMetrics, false for the older format.
    is_openmetrics: bool,
    text: String,
}

impl MetricsText {
    fn head(&mut self, family: &Family) {
        let Family { name, kind, help } = family;
        // OpenMetrics names the family; the older format names its samples.
        let total = if !self.is_openmetrics && *kind == "counter" {
            "_total"
        } else {
            ""
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name}{total} {help}");
        let _ = writeln!(self.text, "# TYPE {name}{total} {kind}");
    }

    fn sample(&mut self, family: &Family, labels: &str, value: f64) {
        let total = if family.kind == "counter" {
            "_total"
        } else {
            ""
        };
        let name = family.name;
        let _ = match labels {
            "" => writeln!(self.text, "{name}{total} {value}"),
            labels => writeln!(self.text, "{name}{total}{{{labels}}} {value}"),
        };
    }

    fn single_sample(&mut self, family: &Family, labels: &str, value: f64) {
        self.head(family);
        self.sample(family, labels, value);
    }
}

/// Metrics of a process.
struct Process {
    labels: String,
    samples: Vec<Sample>,
}

/// A value of a process.
struct Sample {
    /// Name of the metric's family.
    family: &'static str,
    /// Additional labels; empty if there are none.
    extra_labels: &'static str,
    value: f64,
}

impl Process {
    fn add(&mut self, family: &'static str, value: f64) {
        self.samples.push(Sample {
            family,
            extra_labels: "",
            value,
        });
    }
}

/// Collects the metrics of all processes.
fn processes(server: &Server) -> Vec<Process> {
    let mut head = Head::new();
    let agents = server.sources.agents.all().take(MAX_PROCESSES);
    agents
        .filter_map(|agent| process_metrics(&agent, &mut head))
        .collect()
}

/// Formats the labels of a process.
fn labels(agent: &Agent) -> String {
    let name: String = text::escape(&agent.name).chars().take(MAX_NAME).collect();
    format!("pid=\"{}\",process=\"{}\"", agent.pid, escape_label(&name))
}

/// Escapes the value of a label, in the same way for both formats.
fn escape_label(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Collects the metrics of a process.
fn process_metrics(agent: &Agent, head: &mut Head) -> Option<Process> {
    let mut process = Process {
        labels: labels(agent),
        samples: Vec::new(),
    };
    let header = agent.segment.head(head).ok()?;
    let is_sampled = is_running(&header);
    process.add(
        "mem_profiler_session_running",
        f64::from(u8::from(is_sampled)),
    );
    if is_sampled && let Some(session) = live::session_of(agent, &header) {
        // Fails if another session has started or the process has ended. Then the metrics of this
        // session are omitted.
        let _ = add_session(agent, &session, &mut process);
    }
    if let Ok(bytes) = agent.segment.memory_bytes() {
        process.add("mem_profiler_segment_bytes", bytes as f64);
    }
    let stat = Stat::of(agent.pid)
        .filter(|stat| stat.start_time == agent.entry.name.start_time || !stat.is_dead());
    if let Some(stat) = stat {
        if let Some(bytes) = stat.rss_bytes() {
            process.add("mem_profiler_resident_memory_bytes", bytes as f64);
        }
        process.add("mem_profiler_cpu_seconds", cpu_seconds(&stat));
    }
    let figures = header.allocator_stats();
    let fresh = figures.filter(|(taken, _)| now_ns().saturating_sub(*taken) < STALE_NS);
    for (name, bytes) in fresh.into_iter().flat_map(|(_, figures)| figures) {
        process.samples.push(Sample {
            family: "mem_profiler_allocator_bytes",
            extra_labels: figure_label(name),
            value: bytes as f64,
        });
    }
    Some(process)
}

/// Returns the label for one of the allocator's statistics.
fn figure_label(name: &str) -> &'static str {
    match name {
        "allocated" => ",figure=\"allocated\"",
        "active" => ",figure=\"active\"",
        "metadata" => ",figure=\"metadata\"",
        "resident" => ",figure=\"resident\"",
        "mapped" => ",figure=\"mapped\"",
        _ => ",figure=\"retained\"",
    }
}

/// Adds the metrics of a session. Returns `None` if it is over.
fn add_session(
    agent: &Agent,
    session: &shm_protocol::segment::Session,
    process: &mut Process,
) -> Option<()> {
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    let last = bank.intervals().last();
    let interval = last.map_or(session.interval, |period| period.interval);
    process.add("mem_profiler_interval_bytes", interval as f64);
    let totals = bank.totals();
    let sums = Snapshot::read_sums(&agent.segment, session).ok()?;
    let now = shm_protocol::clock::tick_of(now_ns())
        .wrapping_sub(shm_protocol::clock::tick_of(session.start_ns));
    let mut allocated = Amount::default();
    let mut freed = Amount::default();
    let mut variance = 0.0;
    for record in &sums {
        let sums = record.sums(now);
        allocated.add(sums.alloc_objects, sums.alloc_bytes);
        freed.add(sums.free_objects, sums.free_bytes);
        variance += sums.live_variance;
    }
    process.add(
        "mem_profiler_live_bytes",
        (allocated.bytes - freed.bytes).max(0.0).round(),
    );
    process.add(
        "mem_profiler_live_error_bytes",
        half_width(allocated.bytes - freed.bytes, variance).round(),
    );
    process.add(
        "mem_profiler_live_objects",
        (allocated.objects - freed.objects).max(0.0).round(),
    );
    process.add("mem_profiler_allocated_bytes", allocated.bytes.round());
    process.add("mem_profiler_allocated_objects", allocated.objects.round());
    // The first record sums the samples that did not fit into the table.
    let stacks = sums
        .iter()
        .skip(1)
        .filter(|record| !record.is_empty())
        .count();
    process.add("mem_profiler_stacks", stacks as f64);
    process.add("mem_profiler_samples", totals.samples as f64);
    for (name, metric) in [
        ("table_full", "mem_profiler_table_full_samples"),
        ("table_merged", "mem_profiler_table_merged_samples"),
    ] {
        let counted = bank.counters().find(|(counter, _)| counter.name == name);
        process.add(metric, counted.map_or(0, |(_, count)| count) as f64);
    }
    if let Some(cost) = bank.cost() {
        process.add("mem_profiler_sampling_seconds", cost.spent_ns as f64 / 1e9);
        process.add(
            "mem_profiler_sampling_error_seconds",
            cost.spent_ns as f64 * cost.variance.sqrt() / 1e9,
        );
    }
    Some(())
}

/// Objects and their bytes.
#[derive(Clone, Copy, Default)]
struct Amount {
    objects: f64,
    bytes: f64,
}

impl Amount {
    fn add(&mut self, objects: f64, bytes: f64) {
        self.objects += objects;
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape_label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn counters_are_named_by_the_rules_of_each_format() {
        for (is_openmetrics, kind) in [
            (false, "# TYPE a_total counter\n"),
            (true, "# TYPE a counter\n"),
        ] {
            let mut page = MetricsText {
                is_openmetrics,
                text: String::new(),
            };
            page.single_sample(&counter("a", "Help."), "x=\"1\"", 3.0);
            assert!(page.text.contains(kind), "{}", page.text);
            assert!(page.text.ends_with("a_total{x=\"1\"} 3\n"), "{}", page.text);
        }
    }
}
