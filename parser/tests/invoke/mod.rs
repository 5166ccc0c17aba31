//! The program under test, run to its end.

#![allow(dead_code)] // Each test uses a part.

use std::process::{Command, Output};

pub fn parser(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .args(arguments)
        .output()
        .unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
