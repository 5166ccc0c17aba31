//! Answers of `serve`, read by other authors' programs: pprof's readers over HTTP, Prometheus, and
//! npm packages. Every total is that of a dump.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::server::totals;
use mem_tests::session::tool;
use mem_tests::{Browser, Scratch, Server, Target, npm, run, wait};
use profile::Profile;
use serde_json::Value;

const COLUMNS: [&str; 4] = [
    "inuse_space",
    "inuse_objects",
    "alloc_space",
    "alloc_objects",
];

/// Returns the output of a reader of profiles, whose files are in the scratch directory.
fn reader(scratch: &Scratch, program: &str, arguments: &[&str]) -> String {
    let home = scratch.files();
    let output = Command::new(program)
        .args(arguments)
        .env("HOME", home)
        .env("PPROF_TMPDIR", home)
        .env("JEPROF_TMPDIR", home)
        .env("GOFLAGS", "-mod=mod")
        .current_dir(home)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_browser_without_scripts_finds_the_profiles_of_each_process() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let none = server.get("/debug/pprof/").expect(200);
    assert!(none.contains("No process carries the agent."), "{none}");
    let targets = [(); 2].map(|()| server.quiet(&scratch).0);
    let list = server.get("/debug/pprof/").expect(200);
    for target in &targets {
        let path = format!("/p/{}/debug/pprof/", target.pid());
        assert!(list.contains(&format!("href=\"{path}\"")), "{list}");
        let own = server.get(&path).expect(200);
        assert!(
            own.contains("href=\"heap\"") && !own.contains("href=\"/p/"),
            "{own}"
        );
        let profile = server.get(&format!("{path}heap")).profile();
        assert!(profile.type_index("inuse_space").is_some());
    }
}

#[test]
fn readers_over_http_find_the_totals_of_a_dump() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let (target, program) = server.quiet(&scratch);
    let base = format!("/p/{}", target.pid());
    let pid = target.pid().to_string();
    let mut dump = scratch.profiler();
    dump.args(["dump", "-p", &pid, "-o"])
        .arg(scratch.file("now_"));
    let dump = run(&mut dump);
    let ours = dump.profile();
    let expected = totals(&ours);
    let answer = server.get(&format!("{base}/debug/pprof/heap"));
    for line in [
        "content-type: application/octet-stream",
        "content-disposition: attachment; filename=\"heap\"",
        "x-content-type-options: nosniff",
    ] {
        assert!(answer.head.contains(line), "{}", answer.head);
    }
    let served = answer.profile();
    assert_eq!(totals(&served), expected);
    assert!(served.functions.iter().any(|f| f.name == "site_mixed"));
    assert_eq!(
        served.default_type,
        served.type_index("inuse_space").unwrap()
    );
    let allocs = server.get(&format!("{base}/debug/pprof/allocs")).profile();
    assert_eq!(
        allocs.default_type,
        allocs.type_index("alloc_space").unwrap()
    );
    assert_eq!(totals(&allocs), expected);
    let text = server.get(&format!("{base}/debug/pprof/heap?debug=1"));
    assert_eq!(totals(&text.profile()), expected);
    assert!(text.text().starts_with("heap profile: "));
    // There is no garbage: the numbers are those of this moment in any case.
    let collected = server.get(&format!("{base}/debug/pprof/heap?gc=1"));
    assert_eq!(totals(&collected.profile()), expected);
    for column in COLUMNS {
        let url = server.url(&format!("{base}/debug/pprof/heap?gc=1"));
        let option = format!("-sample_index={column}");
        let unit = if column.ends_with("space") {
            "-unit=B"
        } else {
            "-unit=minimum"
        };
        let table = reader(
            &scratch,
            "go",
            &[
                "tool",
                "pprof",
                "-top",
                &option,
                unit,
                "-symbolize=none",
                &url,
            ],
        );
        let theirs = go_total(&table);
        close(column, expected[column], theirs);
        for perl in ["google-pprof", "jeprof"] {
            let url = server.url(&format!("{base}/pprof/heap"));
            let option = format!("--{column}");
            let mut arguments = vec!["--text", &option, &url];
            if column.ends_with("space") {
                arguments.insert(0, "--show_bytes");
            }
            let table = reader(&scratch, perl, &arguments);
            assert!(table.contains("site_mixed"), "{perl}: {table}");
            close(column, expected[column], perl_total(&table));
        }
    }
    growths(&server, &base, expected["inuse_space"]);
    symbols(&server, &base, &ours, &program);
    server.stop();
    assert!(
        !scratch.is_sampling(target.pid()),
        "the server took its session along"
    );
    target.finish_well();
}

/// Checks the growth of the heap, in both formats, since the session began and in a quiet second.
fn growths(server: &Server, base: &str, expected: i64) {
    for (path, column) in [
        ("pprof/growth", "space"),
        ("debug/pprof/growth?debug=1", "space"),
        ("debug/pprof/growth", "inuse_space"),
    ] {
        let growth = server.get(&format!("{base}/{path}")).profile();
        close(path, expected, totals(&growth)[column] as f64);
        let mark = if path.contains('?') { '&' } else { '?' };
        let quiet = server.get(&format!("{base}/{path}{mark}seconds=1"));
        quiet.expect(200);
        // A text of nothing is no profile of anything.
        if column == "inuse_space" {
            assert_eq!(totals(&quiet.profile())[column], 0, "{path}");
        }
    }
}

fn close(column: &str, ours: i64, theirs: f64) {
    let off = (ours as f64 - theirs).abs();
    assert!(
        ours > 0 && off <= ours as f64 * 1e-3 + 1.0,
        "{column}: ours {ours}, theirs {theirs}"
    );
}

/// Returns the total of `Showing nodes accounting for 123B, 45% of 678B total`.
fn go_total(table: &str) -> f64 {
    let rest = table.split(" of ").find(|part| part.contains(" total"));
    let digits: String = rest
        .unwrap_or_default()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    digits.parse().unwrap_or_else(|_| panic!("{table}"))
}

fn perl_total(table: &str) -> f64 {
    let total = table.lines().find_map(|line| line.strip_prefix("Total: "));
    let number = total.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{table}"))
}

/// Names of addresses, as both kinds of clients ask for them.
fn symbols(server: &Server, base: &str, ours: &Profile, program: &std::path::Path) {
    let is_of_program = |l: &&profile::Location| {
        let mapping = ours.mappings.get(l.mapping as usize);
        mapping.is_some_and(|mapping| mapping.path == program)
    };
    let addresses = ours.locations.iter().filter(is_of_program);
    let addresses: Vec<String> = addresses.map(|l| format!("{:#x}", l.address)).collect();
    let body = addresses.join("+");
    let number = server.get(&format!("{base}/pprof/symbol")).expect(200);
    assert_eq!(number, "num_symbols: 1\n");
    for (path, gap) in [("/debug/pprof/symbol", ' '), ("/pprof/symbol", '\t')] {
        let named = server.ask("POST", &format!("{base}{path}"), "", body.as_bytes());
        let named = named.expect(200);
        let names: Vec<&str> = named
            .lines()
            .filter_map(|l| l.split_once(gap))
            .map(|p| p.1)
            .collect();
        assert!(names.contains(&"site_mixed"), "{named}");
        assert!(names.len() >= addresses.len(), "{named}");
    }
    let cmdline = server
        .get(&format!("{base}/debug/pprof/cmdline"))
        .expect(200);
    assert_eq!(cmdline, program.to_str().unwrap());
}

#[test]
fn prometheus_and_victoria_metrics_take_what_they_scrape() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let (target, _) = server.quiet(&scratch);
    let answer = server.get("/metrics");
    assert!(
        answer.head.contains("text/plain; version=0.0.4"),
        "{}",
        answer.head
    );
    let text = answer.expect(200);
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (prometheus) must be installed");
    check
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let checked = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(
        checked.status.success() && said.is_empty(),
        "{said}\n{text}"
    );
    let open = server.ask(
        "GET",
        "/metrics",
        "Accept: application/openmetrics-text;version=1.0.0\r\n",
        b"",
    );
    assert!(
        open.head.contains("application/openmetrics-text"),
        "{}",
        open.head
    );
    let open = open.expect(200);
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE mem_profiler_samples counter\n"));

    let pid = target.pid();
    let name = format!("mem_profiler_live_bytes{{pid=\"{pid}\"");
    let line = text
        .lines()
        .find(|line| line.starts_with(&name))
        .expect(&text);
    let ours: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let profile = server
        .get(&format!("/debug/pprof/heap?pid={pid}"))
        .profile();
    close(
        "metrics",
        profile.total(profile.type_index("inuse_space").unwrap()),
        ours,
    );

    let config = scratch.file("prometheus.yml");
    fs::write(&config, format!("global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: mem\n  static_configs:\n  - targets: ['{}']\n", server.address)).unwrap();
    for (program, arguments) in [
        (
            "prometheus",
            vec![
                "--config.file=CONFIG",
                "--storage.tsdb.path=DATA",
                "--web.listen-address=ADDRESS",
            ],
        ),
        (
            "victoria-metrics",
            vec![
                "-promscrape.config=CONFIG",
                "-storageDataPath=DATA",
                "-httpListenAddr=ADDRESS",
                "-search.latencyOffset=1s",
            ],
        ),
    ] {
        let address = free_address();
        let data = scratch.file(program);
        let fill = |argument: &&str| {
            argument
                .replace("CONFIG", config.to_str().unwrap())
                .replace("DATA", data.to_str().unwrap())
                .replace("ADDRESS", &address)
        };
        let mut command = Command::new(program);
        command
            .args(arguments.iter().map(fill))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let _store = Target::start(&mut command);
        let stored = wait::until(program, || {
            let query = format!("http://{address}/api/v1/query?query=mem_profiler_live_bytes");
            let output = Command::new("curl").args(["-s", &query]).output().ok()?;
            let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
            let value = &answer["data"]["result"][0]["value"][1];
            value.as_str().map(|value| value.parse::<f64>().unwrap())
        });
        assert_eq!(stored, ours, "{program}");
    }
    target.finish_well();
}

/// Returns an address that was free a moment ago.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn packages_of_npm_open_what_is_served() {
    let scratch = Scratch::new();
    let server = Server::start(&scratch, &[]);
    let (target, program) = server.quiet(&scratch);
    let answer = server.get(&format!("/debug/pprof/heap?pid={}", target.pid()));
    let file = scratch.file("heap.pb.gz");
    fs::write(&file, &answer.body).expect("a file of ours");
    let profile = answer.profile();
    let packages = ["pprof-format@2.3.2", "speedscope@1.25.0"];
    let packages = npm::packages("npm-viewers-1", &packages);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("npm/totals.js");
    let mut node = Command::new("node");
    node.arg(script).arg(&file).env("NODE_PATH", &packages);
    let outcome = run(&mut node);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let theirs: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    for (kind, total) in totals(&profile) {
        assert_eq!(theirs["totals"][&kind].as_i64(), Some(total), "{kind}");
    }
    let path = program.to_str().expect("a path of ours");
    assert!(theirs["files"].to_string().contains(path), "{theirs}");
    assert!(
        theirs["functions"].to_string().contains("site_mixed"),
        "{theirs}"
    );

    // speedscope's own program opens a browser in the same way.
    let page = packages.join("speedscope/dist/release/index.html");
    let load = scratch.file("load.js");
    let packed = tool("base64", ["-w0".as_ref(), file.as_os_str()]);
    let call = format!("speedscope.loadFileFromBase64('heap.pb.gz', '{packed}')");
    fs::write(&load, call).expect("a file of ours");
    let url = format!(
        "file://{}#localProfilePath={}",
        page.display(),
        load.display()
    );
    let mut browser = Browser::open(&url);
    browser.until("document.title.startsWith('heap')");
    let sandwich = "[...document.querySelectorAll('div')].filter((d) => d.textContent.endsWith('Sandwich')).pop()";
    browser.until(&format!("{sandwich} !== undefined"));
    browser.value(&format!("{sandwich}.click()"));
    browser.until("document.body.innerText.includes('site_mixed')");
    target.finish_well();
}
