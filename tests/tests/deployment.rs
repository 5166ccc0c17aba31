//! Files for services, containers and images: each is checked by the program that reads it, or its
//! commands are run here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::units::{another_users, calls_of, capabilities};
use mem_tests::{Group, Package, Scratch, run, wait};

/// The package that the files are about.
const PACKAGE: &str = "mem-profiler-0.1.0-x86_64";

fn board(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/board")
        .join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(board(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Returns a package at this test's `opt/mem-profiler`.
fn install(scratch: &Scratch) -> Package {
    fs::create_dir(scratch.file("opt")).expect("a new directory");
    Package::unpack(scratch, "opt/mem-profiler")
}

/// Returns text with this test's directories in place of the system's.
fn here(scratch: &Scratch, text: &str) -> String {
    let files = scratch.files().display();
    text.replace("/opt/", &format!("{files}/opt/"))
        .replace("/var/lib/", &format!("{files}/var/lib/"))
}

/// Returns the units of one name, as systemd would read them.
fn units(scratch: &Scratch) -> [PathBuf; 2] {
    ["service", "timer"].map(|kind| {
        let unit = scratch.file(&format!("mem-profiler@sleeper.{kind}"));
        let text = read(&format!("systemd/mem-profiler@.{kind}"));
        fs::write(&unit, here(scratch, &text)).expect("a unit");
        unit
    })
}

#[test]
fn systemd_takes_the_units_and_their_sandbox() {
    let scratch = Scratch::new();
    install(&scratch);
    let units = units(&scratch);
    for unit in &units {
        let verify = run(Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(unit));
        assert_eq!(verify.code, Some(0), "{verify:?}");
        assert_eq!((verify.stdout.as_str(), verify.stderr.as_str()), ("", ""));
    }
    let server = scratch.file("mem-profiler-serve.service");
    let text = here(&scratch, &read("systemd/mem-profiler-serve.service"));
    fs::write(&server, text).expect("a unit");
    let verify = run(Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&server));
    assert_eq!((verify.code, verify.stderr.as_str()), (Some(0), ""));
    for (unit, threshold) in [(&units[0], 25), (&server, 40)] {
        let threshold = format!("--threshold={threshold}");
        let unit = unit.display().to_string();
        let security = ["security", "--offline=true", &threshold, &unit];
        tool("systemd-analyze", security);
    }

    // A drop-in is read with its unit: a misspelt one is complained about.
    let drop_in = read("systemd/mem-profiler.conf");
    assert!(drop_in.contains("\nEnvironment=LD_PRELOAD=/opt/mem-profiler/lib/libmem_agent.so\n"));
    fs::create_dir(scratch.file("app.service.d")).expect("a new directory");
    let app = scratch.file("app.service");
    fs::write(&app, "[Service]\nExecStart=/bin/true\n").expect("a unit");
    for (text, complaints) in [
        (drop_in.clone(), 0),
        (drop_in.replace("\nEnvironment", "\nEnviroment"), 1),
    ] {
        fs::write(scratch.file("app.service.d/mem-profiler.conf"), text).expect("a drop-in");
        let mut verify = Command::new("systemd-analyze");
        let verify = run(verify.args(["verify", "--man=no"]).arg(&app));
        assert_eq!(verify.code, Some(0), "{verify:?}");
        assert_eq!(verify.stderr.lines().count(), complaints, "{verify:?}");
    }
}

/// Returns what the service runs, as systemd would expand it.
fn commands(scratch: &Scratch, key: &str) -> String {
    let unit = fs::read_to_string(scratch.file("mem-profiler@sleeper.service")).expect("a unit");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .expect("a command");
    line.replace("%i", "sleeper")
        .replace("%I", "sleeper")
        .replace("%%", "%")
}

/// Returns a process of another user, with the agent.
fn sleeper(scratch: &Scratch, package: &Package) -> Group {
    let mut command = another_users(scratch, package, "/bin/sleep", "sleeper");
    let group = Group::start(command.arg("1000"));
    wait::until("the agent", || {
        let list = run(scratch.profiler().arg("list")).stdout;
        list.contains("sleeper").then_some(())
    });
    group
}

#[test]
fn the_service_works_with_the_rights_and_calls_that_it_has() {
    let scratch = Scratch::new();
    let package = install(&scratch);
    units(&scratch);
    let _sleeper = sleeper(&scratch, &package);
    let dumps = scratch.file("var/lib/mem-profiler");
    fs::create_dir_all(&dumps).expect("a new directory");
    let unit = read("systemd/mem-profiler@.service");
    let trace = scratch.file("trace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-o"])
        .arg(&trace)
        .args(["setpriv", "--no-new-privs"]);
    command.arg(capabilities(&unit));
    let line = commands(&scratch, "ExecStart=").replace("-s 60", "-s 1");
    command.args(line.split(' '));
    command
        .env("MEM_PROFILER_DIR", scratch.shared())
        .stdin(Stdio::null());
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("/sleeper_sleeper."), "{outcome:?}");

    let allowed = calls_of("@system-service");
    let trace = fs::read_to_string(trace).expect("a trace");
    // The trace after setpriv has executed the program.
    let (_, own) = trace.split_once("/bin/mem_profiler\"").expect("its start");
    let mut checked = 0;
    for line in own.lines().skip(1) {
        let call = line.split_once(' ').map_or("", |(_, rest)| rest.trim());
        let Some((name, _)) = call.split_once('(') else {
            continue;
        };
        // The rest of a call that was shown before, a signal, an exit.
        if name.is_empty() || name.contains(|c: char| c != '_' && !c.is_ascii_alphanumeric()) {
            continue;
        }
        let known = allowed.iter().any(|call| call == name);
        assert!(known, "not among systemd's @system-service: {line}");
        checked += 1;
    }
    assert!(checked > 100, "only {checked} calls were seen");
}

/// If the clock is set back between two sessions, the older dump has the later time.
#[test]
fn the_service_keeps_the_newest_dumps_of_a_name_whatever_the_clock_says() {
    let scratch = Scratch::new();
    install(&scratch);
    units(&scratch);
    let dumps = scratch.file("var/lib/mem-profiler");
    fs::create_dir_all(&dumps).expect("a new directory");
    let now = std::time::SystemTime::now();
    let line = commands(&scratch, "ExecStartPost=");
    let mut words = line.split(' ');
    let script = words.next().expect("a script").to_owned();
    let words: Vec<_> = words.collect();
    // Pids come in any order, too.
    let name = |session: u64| format!("sleeper_sleep.{}.0001.heap", 900 - session);
    for session in 0..30 {
        for file in [name(session), format!("other_{session}.heap")] {
            let file = fs::File::create(dumps.join(file)).expect("a file");
            file.set_modified(now - std::time::Duration::from_secs(3600 * session))
                .expect("a time");
        }
        tool(&script, words.iter());
    }
    let count = |start: &str| {
        let files = fs::read_dir(&dumps).expect("ours").flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        names.filter(|file| file.starts_with(start)).count()
    };
    assert_eq!(count("sleeper_sleep."), 24);
    for session in 6..30 {
        assert!(dumps.join(name(session)).exists(), "session {session}");
    }
    assert_eq!(count("other_"), 30);
}

#[test]
fn the_dockerfiles_steps_work() {
    let scratch = Scratch::new();
    Package::unpack(&scratch, &format!("opt/{PACKAGE}"));
    let mut arguments = Vec::new();
    for line in read("container/Dockerfile")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let expand = |text: &str| {
            arguments
                .iter()
                .fold(text.to_owned(), |text, (name, value): &(String, String)| {
                    text.replace(&format!("${{{name}}}"), value)
                })
        };
        match line.split_once(' ').expect("an instruction") {
            ("FROM", image) => assert_eq!(image, "debian:12-slim", "glibc"),
            ("ARG", argument) => {
                let (name, value) = argument.split_once('=').expect("a default");
                arguments.push((name.to_owned(), value.to_owned()));
            }
            ("ADD", rest) => assert_eq!(expand(rest), format!("{PACKAGE}.tar.xz /opt/")),
            ("RUN", command) => {
                let output = tool("sh", ["-c", &here(&scratch, &expand(command))]);
                assert!(output.starts_with("mem_profiler "), "{output}");
            }
            ("ENV", rest) => assert_eq!(rest, "PATH=/opt/mem-profiler/bin:$PATH"),
            ("ENTRYPOINT", rest) => assert_eq!(rest, "[\"mem_profiler\"]"),
            other => panic!("what does {other:?} do?"),
        }
    }
    assert!(
        scratch
            .file("opt/mem-profiler/lib/libmem_agent.so")
            .exists()
    );
}

#[test]
fn the_manifests_are_yaml_that_hangs_together() {
    let script = r#"
import json, sys, yaml
pod, debug = (yaml.safe_load(open(file)) for file in sys.argv[1:])
assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod") and pod["metadata"]["name"]
spec = pod["spec"]
assert spec["shareProcessNamespace"] is True
containers = {c["name"]: c for c in spec["initContainers"] + spec["containers"]}
volumes = {v["name"] for v in spec["volumes"]}
used = {m["name"] for c in containers.values() for m in c["volumeMounts"]}
assert used == volumes, (used, volumes)
def mounts(name):
    return {m["name"]: m["mountPath"] for m in containers[name]["volumeMounts"]}
app, sidecar = mounts("app"), mounts("mem-profiler")
assert app["tables"] == sidecar["tables"] == "/dev/shm"
preload = {e["name"]: e["value"] for e in containers["app"]["env"]}["LD_PRELOAD"]
assert preload == app["agent"] + "/libmem_agent.so"
assert containers["agent"]["command"][2] == mounts("agent")["agent"] + "/"
assert debug["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
print(json.dumps(containers["mem-profiler"]["args"]))
"#;
    let files = ["sidecar.yaml", "debug.yaml"].map(|file| board(&format!("container/{file}")));
    // The system's python3, which has Debian's module.
    let printed = tool(
        "/usr/bin/python3",
        ["-c", script].map(PathBuf::from).iter().chain(&files),
    );
    let arguments: Vec<String> = serde_json::from_str(&printed).expect("a list");

    // The sidecar's command, until it is told to end.
    let scratch = Scratch::new();
    let package = install(&scratch);
    let _sleeper = sleeper(&scratch, &package);
    fs::create_dir(scratch.file("dumps")).expect("a new directory");
    let dumps = scratch.file("dumps/").display().to_string();
    let arguments = arguments.iter().map(|argument| match argument.as_str() {
        "/dumps/" => dumps.as_str(),
        "sleep" => "sleeper",
        other => other,
    });
    let session = mem_tests::Session::start(scratch.profiler().args(arguments));
    wait::until("the session", || {
        run(scratch.profiler().arg("list"))
            .stdout
            .contains("sampling")
            .then_some(())
    });
    session.signal(libc::SIGTERM);
    let outcome = session.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.dump().starts_with(dumps), "{outcome:?}");
}

#[test]
fn the_daemonset_serves_with_the_token_that_it_mounts() {
    let script = r#"
import json, sys, yaml
spec = yaml.safe_load(open(sys.argv[1]))
assert (spec["apiVersion"], spec["kind"]) == ("apps/v1", "DaemonSet")
template = spec["spec"]["template"]
labels, chosen = template["metadata"]["labels"], spec["spec"]["selector"]["matchLabels"]
assert chosen.items() <= labels.items(), (chosen, labels)
pod = template["spec"]
assert pod["hostPID"] is True
container, = pod["containers"]
mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
assert set(mounts) == {v["name"] for v in pod["volumes"]}
args, port = container["args"], container["ports"][0]
assert args[args.index("--token-file") + 1] == mounts["token"] + "/token"
assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
assert args[args.index("--listen") + 1].endswith(":%d" % port["containerPort"])
assert container["livenessProbe"]["tcpSocket"]["port"] == port["name"]
assert container["securityContext"]["capabilities"]["add"] == ["DAC_OVERRIDE", "SYS_PTRACE"]
print(json.dumps(args))
"#;
    let file = board("container/daemonset.yaml");
    let printed = tool(
        "/usr/bin/python3",
        ["-c", script].map(PathBuf::from).iter().chain([&file]),
    );
    let arguments: Vec<String> = serde_json::from_str(&printed).expect("a list");

    // Its command, on a port that is free.
    let scratch = Scratch::new();
    let token = scratch.file("token");
    fs::write(&token, "0123456789abcdef").expect("a file");
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o400)).expect("ours");
    let arguments = arguments.iter().map(|argument| match argument.as_str() {
        "/etc/mem-profiler/token" => token.to_str().expect("ours"),
        "0.0.0.0:4040" => "0.0.0.0:0",
        other => other,
    });
    let mut command = scratch.profiler();
    command.args(arguments).stdout(Stdio::piped());
    let mut server = mem_tests::Target::start(&mut command);
    assert!(server.hear().starts_with("serving at http://0.0.0.0:"));
    server.signal(libc::SIGTERM);
    assert!(server.ended().success());
}

/// Returns a package with its manual, as the recipes take it.
fn package_with_manual(scratch: &Scratch) -> Package {
    let package = Package::unpack(scratch, PACKAGE);
    let manual = package.home().join("share/man/man1");
    fs::create_dir_all(&manual).expect("a new directory");
    fs::write(manual.join("mem_profiler.1"), ".TH").expect("a page");
    package
}

/// Checks that the files that a recipe installed below `root` work from there.
fn check_image(scratch: &Scratch, root: &Path) {
    let setup = root.join("usr/share/mem-profiler/setup.bash");
    let script = ". \"$0\" && use_mem_agent && env | grep LD_PRELOAD";
    let outcome = run(mem_tests::package::shell_command(scratch, &["bash"])
        .args(["-c", script])
        .arg(setup));
    let agent = root.join("usr/lib/mem-profiler/libmem_agent.so");
    let expected = format!("LD_PRELOAD={}\n", agent.display());
    assert_eq!(outcome.stdout, expected, "{outcome:?}");
}

#[test]
fn the_yocto_recipe_installs_a_package_of_this_version() {
    let scratch = Scratch::new();
    let package = package_with_manual(&scratch);
    let name = format!("yocto/mem-profiler-bin_{}.bb", env!("CARGO_PKG_VERSION"));
    let recipe = read(&name);
    for licence in ["MIT", "APACHE"] {
        let file = board("../..").join(format!("LICENSE-{licence}"));
        let sum = tool("md5sum", [file]);
        let sum = sum.split(' ').next().expect("a sum");
        assert!(
            recipe.contains(&format!("LICENSE-{licence};md5={sum}")),
            "{licence}: {sum}"
        );
    }
    let (_, install) = recipe.split_once("do_install() {\n").expect("a task");
    let (install, _) = install.split_once("\n}\n").expect("its end");
    let image = scratch.file("image");
    let script = format!("set -eu\n{install}");
    tool(
        "env",
        [
            format!("D={}", image.display()),
            format!("S={}", package.home().display()),
            "bindir=/usr/bin".to_owned(),
            "libdir=/usr/lib".to_owned(),
            "datadir=/usr/share".to_owned(),
            "mandir=/usr/share/man".to_owned(),
            "sh".to_owned(),
            "-c".to_owned(),
            script,
        ],
    );
    assert!(image.join("usr/bin/mem_parser").exists());
    check_image(&scratch, &image);
}

#[test]
fn the_buildroot_package_installs_a_package_of_this_version() {
    let scratch = Scratch::new();
    let package = package_with_manual(&scratch);
    // Runs the commands as Buildroot's macro does: the target is in the build directory.
    let make = format!(
        "define generic-package\n$$(if $$(MEM_PROFILER_BIN_SOURCE),,$$(error no source))\nendef\n\
         include {}\n\
         {}/.stamp:\n\t@echo $(MEM_PROFILER_BIN_SOURCE)\n\t$(MEM_PROFILER_BIN_INSTALL_TARGET_CMDS)\n",
        board("buildroot/mem-profiler-bin/mem-profiler-bin.mk").display(),
        package.home().display()
    );
    let makefile = scratch.file("Makefile");
    fs::write(&makefile, make).expect("a makefile");
    for (parser, installed) in [("y", true), ("", false)] {
        let image = scratch.file(&format!("image{parser}"));
        let printed = tool(
            "make",
            [
                "-s".to_owned(),
                "-f".to_owned(),
                makefile.display().to_string(),
                "ARCH=x86_64".to_owned(),
                "INSTALL=install".to_owned(),
                format!("BR2_PACKAGE_MEM_PROFILER_BIN_PARSER={parser}"),
                format!("TARGET_DIR={}", image.display()),
            ],
        );
        assert_eq!(
            printed.lines().next(),
            Some(format!("{PACKAGE}.tar.xz").as_str())
        );
        assert_eq!(image.join("usr/bin/mem_parser").exists(), installed);
        check_image(&scratch, &image);
    }
    let config = read("buildroot/mem-profiler-bin/Config.in");
    assert_eq!(
        config.matches("\nif ").count(),
        config.matches("\nendif").count()
    );
    for option in [
        "BR2_PACKAGE_MEM_PROFILER_BIN\n",
        "BR2_PACKAGE_MEM_PROFILER_BIN_PARSER\n",
    ] {
        assert!(config.contains(&format!("config {option}")), "{option}");
    }
}
