//! The program that a dump names is found without -p, if it is here and is the one.

use std::fs;
use std::path::Path;
use std::process::Command;

use profile::{BuildId, Facts, Mapping};

mod invoke;

use invoke::{parser, stderr, stdout};

mod keeper;

use keeper::{BASE, Built, build, mapping, text, tool, write};

/// Writes a dump of the program as if it were at `path`.
fn dump_at(directory: &Path, built: &Built, path: &str) -> String {
    let module = mapping(built, path);
    let facts = Facts {
        exe: Some(path.into()),
        exe_build_id: module.build_id.clone(),
        ..Facts::default()
    };
    let dump = write(directory, module, BASE + built.address + 5, facts);
    text(&dump).to_owned()
}

#[test]
fn the_program_that_the_dump_names_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let dump = dump_at(directory.path(), &built, text(&built.path));
    let found = parser(&[&dump]);
    assert_eq!(found.status.code(), Some(0), "{}", stderr(&found));
    assert!(stdout(&found).contains("keeps_memory"));
    assert_eq!(stderr(&found), "");
    // The output is as if the program had been named.
    for output in ["-t", "--raw", "--dot", "--folded", "-s"] {
        let named = parser(&["-p", text(&built.path), "-f", &dump, output]);
        assert_eq!(
            stdout(&parser(&[&dump, output])),
            stdout(&named),
            "{output}"
        );
    }
    // A deleted file that was replaced by the same build is the same program.
    let deleted = format!("{} (deleted)", text(&built.path));
    let found = parser(&[&dump_at(directory.path(), &built, &deleted)]);
    assert!(
        stdout(&found).contains("keeps_memory"),
        "{}",
        stderr(&found)
    );
}

/// A process that has ended leaves only the modules of its stacks, which need not lead through its
/// program.
#[test]
fn a_program_without_code_in_the_stacks_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let built = build(directory.path(), "keeper", &[]);
    let library = mapping(&built, "/usr/lib/libx.so.1");
    let facts = Facts {
        exe: Some(text(&built.path).into()),
        exe_build_id: library.build_id.clone(),
        ..Facts::default()
    };
    let dump = write(directory.path(), library, BASE + built.address + 5, facts);
    let found = parser(&[text(&dump)]);
    assert_eq!(found.status.code(), Some(0), "{}", stderr(&found));
    assert!(
        stdout(&found).contains("File: keeper"),
        "{}",
        stdout(&found)
    );
}

#[test]
fn dumps_of_several_programs_are_named_together() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let dumps = [&one, &two].map(|directory| {
        let flags = [
            "-DNAME",
            if directory.path() == one.path() {
                "-O1"
            } else {
                "-O2"
            },
        ];
        let built = build(directory.path(), "keeper", &flags);
        dump_at(directory.path(), &built, text(&built.path))
    });
    let output = parser(&[&dumps[0], &dumps[1], "-t"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("100% of 8KiB total"),
        "{}",
        stdout(&output)
    );
    assert!(stdout(&output).contains("keeps_memory"));
    // A missing program is named.
    fs::remove_file(two.path().join("keeper")).unwrap();
    let refused = parser(&[&dumps[0], &dumps[1], "-t"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(&dumps[1]), "{}", stderr(&refused));
}

#[test]
fn a_deleted_program_is_found_through_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let mut process = built.start();
    let path = format!("{} (deleted)", text(&built.path));
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let facts = Facts {
        pid: Some(process.id()),
        exe: Some(path.clone().into()),
        exe_build_id: built.build_id.clone(),
        boot_id: Some(boot_id.trim().to_owned()),
        ..Facts::default()
    };
    let module = mapping(&built, &path);
    let dump = write(directory.path(), module, BASE + built.address + 5, facts);
    fs::remove_file(&built.path).unwrap();
    let living = parser(&[text(&dump)]);
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(living.status.code(), Some(0), "{}", stderr(&living));
    assert!(
        stdout(&living).contains("keeps_memory"),
        "{}",
        stdout(&living)
    );
    let dead = parser(&[text(&dump)]);
    assert_eq!(dead.status.code(), Some(2));
    assert!(
        stderr(&dead).contains("not on this machine"),
        "{}",
        stderr(&dead)
    );
}

#[test]
fn another_build_in_its_place_is_refused_with_both_build_ids() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let dump = dump_at(directory.path(), &built, text(&built.path));
    let other = build(directory.path(), "keeper", &["-DOTHER", "-O2"]);
    let refused = parser(&[&dump]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    let recorded = built.build_id.to_string();
    let found = other.build_id.to_string();
    let options = ["-p BINARY", "--symbol-path"];
    let parts = [&dump[..], text(&built.path), &recorded, &found];
    for part in parts.iter().chain(&options) {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(message.lines().count(), 2, "{message}");
    let advice = "--force uses the file that is there now, whose names may be wrong.";
    assert!(message.contains(advice), "{message}");
    assert!(refused.stdout.is_empty());
    assert_eq!(parser(&[&dump, "--force"]).status.code(), Some(0));
    // The names may be elsewhere.
    let own = directory.path().join("elsewhere");
    fs::create_dir(&own).unwrap();
    let elsewhere = build(&own, "keeper", &[]);
    let found = parser(&[&dump, "--symbol-path", text(&own)]);
    let same = elsewhere.build_id == built.build_id;
    assert_eq!(stdout(&found).contains("keeps_memory"), same);
}

#[test]
fn a_missing_program_is_named_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let dump = dump_at(directory.path(), &built, "/opt/nowhere/keeper");
    let refused = parser(&[&dump, "-t"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    for part in ["/opt/nowhere/keeper", "not on this machine", "-p BINARY"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(message.contains(&built.build_id.to_string()), "{message}");
}

#[test]
fn a_profile_of_a_missing_program_is_shown_without_names() {
    let one = tempfile::tempdir().unwrap();
    let two = tempfile::tempdir().unwrap();
    let built = build(one.path(), "keeper", &[]);
    let gone = dump_at(one.path(), &built, "/opt/nowhere/keeper");
    let advice = "--force shows the profile without the names of the program's functions.";
    let refused = stderr(&parser(&[&gone]));
    assert!(refused.contains(advice), "{refused}");
    let forced = parser(&[&gone, "--force"]);
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
    assert!(
        stdout(&forced).contains("[keeper]\n"),
        "{}",
        stdout(&forced)
    );
    let message = stderr(&forced);
    assert!(message.contains("/opt/nowhere/keeper"), "{message}");
    // Another dump's program is not used for it.
    let other = build(two.path(), "other", &["-DNAME", "-O2"]);
    let here = dump_at(two.path(), &other, text(&other.path));
    let both = parser(&[&gone, &here, "--force"]);
    assert_eq!(both.status.code(), Some(0), "{}", stderr(&both));
    let shown = stdout(&both);
    assert!(
        shown.contains("[keeper]") && shown.contains("keeps_memory"),
        "{shown}"
    );
}

#[test]
fn programs_are_accepted_only_by_build_id() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let unproven = Mapping {
        build_id: BuildId::default(),
        ..mapping(&built, text(&built.path))
    };
    let address = BASE + built.address + 5;
    let dump = write(directory.path(), unproven, address, Facts::default());
    let refused = parser(&["-f", text(&dump), "-t"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("no build id"),
        "{}",
        stderr(&refused)
    );
    let message = stderr(&refused);
    assert!(
        message.contains("--force uses the file of that name"),
        "{message}"
    );
    let forced = parser(&["-f", text(&dump), "-t", "--force"]);
    assert!(
        stdout(&forced).contains("keeps_memory"),
        "{}",
        stderr(&forced)
    );
    let nameless = Mapping {
        path: Default::default(),
        ..mapping(&built, "")
    };
    let dump = write(directory.path(), nameless, address, Facts::default());
    let refused = parser(&["-f", text(&dump), "-t"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("does not say"),
        "{}",
        stderr(&refused)
    );
}

/// Only the mapping has no build id, so its file must not be used by name.
#[test]
fn a_programs_build_id_is_used_for_its_code() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let module = Mapping {
        build_id: BuildId::default(),
        ..mapping(&built, text(&built.path))
    };
    let facts = Facts {
        exe: Some(module.path.clone()),
        exe_build_id: BuildId(vec![0xab; 20]),
        ..Facts::default()
    };
    let dump = write(directory.path(), module, BASE + built.address + 5, facts);
    let refused = parser(&[text(&dump)]);
    assert_eq!(refused.status.code(), Some(2), "{}", stdout(&refused));
    assert!(
        stderr(&refused).contains("abababab"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_misspelt_program_gets_a_suggestion() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let dump = dump_at(directory.path(), &built, text(&built.path));
    let misspelt = directory.path().join("kepeer");
    let refused = parser(&["-p", text(&misspelt), "-f", &dump, "-t"]);
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    let meant = format!("did you mean {}?", text(&built.path));
    assert!(
        message.contains(text(&misspelt)) && message.contains(&meant),
        "{message}"
    );
}

/// A file that a dump names is opened only if it is a regular file on a disk.
#[test]
fn dumps_cannot_open_devices_pipes_or_relative_paths() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let fifo = directory.path().join("fifo");
    tool("mkfifo", &[text(&fifo)]);
    for (path, why) in [
        (text(&fifo), "is a pipe"),
        ("/dev/zero", "is a device"),
        ("/proc/self/environ", "generated by the kernel"),
        ("keeper", "no build id that would prove"),
    ] {
        let dump = dump_at(directory.path(), &built, path);
        let output = Command::new("timeout")
            .args(["60", env!("CARGO_BIN_EXE_mem_parser"), &dump])
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{path}: {}", stderr(&output));
    }
}

#[test]
fn a_program_without_symbols_gets_a_hint_once() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let dump = dump_at(directory.path(), &built, text(&built.path));
    tool("strip", &[text(&built.path)]);
    let hinted = parser(&[&dump]);
    assert_eq!(hinted.status.code(), Some(0), "{}", stderr(&hinted));
    let message = stderr(&hinted);
    let share = format!(
        "100% of the bytes were allocated by code without names ({} 100%)",
        text(&built.path)
    );
    for part in [share.as_str(), "-p"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(message.lines().count(), 1, "{message}");
    // Symbol servers are suggested, and another build, only if there is a client and a server is
    // named.
    fs::write(directory.path().join("debuginfod-find"), "").unwrap();
    let path = format!(
        "{}:{}",
        text(directory.path()),
        std::env::var("PATH").unwrap()
    );
    for (urls, is_advised) in [("", false), ("http://127.0.0.1:1/", true)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
        let command = command
            .arg(&dump)
            .env("PATH", &path)
            .env("DEBUGINFOD_URLS", urls);
        let message = stderr(&command.output().unwrap());
        for advice in ["--debuginfod", "keep symbols when you build it"] {
            assert_eq!(message.contains(advice), is_advised, "{urls}: {message}");
        }
    }
    // Increases and decreases are shares of the total change.
    let apart = tempfile::tempdir().unwrap();
    let module = mapping(&built, text(&built.path));
    let address = BASE + built.address + 6;
    let later = write(apart.path(), module, address, Facts::default());
    let compared = stderr(&parser(&[text(&later), "--diff_base", &dump]));
    assert!(compared.contains(&share), "{compared}");
    // Its function is nevertheless distinguished from others, unless entries are files.
    let start = format!("keeper+{:#x}", built.address);
    assert!(stdout(&hinted).contains(&start), "{}", stdout(&hinted));
    // The program has the name that the user gave.
    let copy = directory.path().join("copy");
    fs::copy(&built.path, &copy).unwrap();
    let copied = stdout(&parser(&[&dump, "-p", text(&copy)]));
    let copied_start = format!("copy+{:#x}", built.address);
    assert!(copied.contains(&copied_start), "{copied}");
    let plain = stdout(&parser(&[&dump, "--module-names"]));
    assert!(
        plain.contains("[keeper]") && !plain.contains("keeper+"),
        "{plain}"
    );
    let conversion = parser(&[&dump, "--symbolize"]);
    assert_eq!(stderr(&conversion), "");
}
