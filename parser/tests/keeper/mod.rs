//! A small program with a function of known name, and dumps of it. Needs gcc and binutils.

#![allow(dead_code)] // Each test uses a part.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use profile::{BuildId, Detail, Facts, Mapping, ProfileBuilder, dump};

/// Address at which the program is mapped in the dumps.
pub const BASE: u64 = 0x5555_0000_0000;

pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {message}"
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A program with a function of known name, line and place.
pub struct Built {
    pub path: PathBuf,
    pub build_id: BuildId,
    /// Address of the function in the file.
    pub address: u64,
}

pub const SOURCE: &str = "#include <stdio.h>\n\
    __attribute__((noinline)) int keeps_memory(int n) {\n\
    volatile int sum = 0;\n\
    for (int i = 0; i < n; i++) sum += i;\n\
    return sum;\n}\n\
    int main(void) { puts(\"ready\"); fflush(stdout); return keeps_memory(getchar()); }\n\
    #ifdef MUCH\n\
    __attribute__((used)) const char much[20000] = {1};\n\
    #endif\n";

impl Built {
    /// Starts it; it waits for input.
    pub fn start(&self) -> Child {
        let mut process = Command::new(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut text_shown = BufReader::new(process.stdout.take().unwrap());
        text_shown.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        process
    }
}

pub fn build(directory: &Path, name: &str, flags: &[&str]) -> Built {
    let source = directory.join("keeper.c");
    fs::write(&source, SOURCE).unwrap();
    let path = directory.join(name);
    let common = [
        "-g",
        "-O1",
        "-Wl,--build-id=sha1",
        "-o",
        text(&path),
        text(&source),
    ];
    tool("gcc", &[&common[..], flags].concat());
    let notes = tool("readelf", &["-n", text(&path)]);
    let id = notes.split("Build ID: ").nth(1).unwrap();
    let id = BuildId::from_hex(id.split_whitespace().next().unwrap()).unwrap();
    let symbols = tool("nm", &[text(&path)]);
    let line = symbols
        .lines()
        .find(|l| l.ends_with(" keeps_memory"))
        .unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    Built {
        path,
        build_id: id,
        address,
    }
}

/// Returns the mapping of its code, under another path.
pub fn mapping(built: &Built, path: &str) -> Mapping {
    let headers = tool("readelf", &["-lW", text(&built.path)]);
    let code = headers
        .lines()
        .find(|l| l.contains("LOAD") && l.contains("R E"))
        .unwrap();
    let hex = |n: usize| {
        let field = code.split_whitespace().nth(n).unwrap();
        u64::from_str_radix(field.trim_start_matches("0x"), 16).unwrap()
    };
    let offset = hex(1);
    let address = hex(2);
    Mapping {
        start: BASE + address,
        end: BASE + address + 0x1000,
        file_offset: offset,
        build_id: built.build_id.clone(),
        path: path.into(),
        past: false,
    }
}

/// Writes a dump with one stack, of this return address in this mapping.
pub fn write(directory: &Path, mapping: Mapping, address: u64, facts: Facts) -> PathBuf {
    let mut builder = ProfileBuilder::new(1);
    builder.facts(facts);
    builder.module(mapping);
    let detail = Detail {
        alloc_samples: 1,
        alloc_objects: 1.0,
        alloc_bytes: 4096.0,
        ..Detail::default()
    };
    builder.stack([address], &detail);
    let path = directory.join("x.heap");
    dump::write(&builder.finish(), &mut File::create(&path).unwrap()).unwrap();
    path
}

pub const PATH: &str = "/opt/board/bin/keeper";
