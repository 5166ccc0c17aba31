//! Libraries that are unloaded or hidden while misread stacks lead into them.

use std::process::Command;

use mem_tests::{Scratch, Session, Target};

/// Does a step in a session that samples everything, in a program that misreads its stack.
fn survives(step: &str) {
    let scratch = Scratch::new();
    let plugin = scratch.compile_as("plugin.c", "libplugin.so", &["-fPIC", "-shared"]);
    let program = scratch.compile("unloading.c", &[]);
    let mut command: Command = scratch.preloaded(&program);
    let mut target = Target::start(command.arg(plugin));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say(step);
    target.hear_until("ok");
    let profile = session.stop().profile_of(target.pid());
    assert!(!profile.stacks.is_empty());
    target.finish_well();
}

#[test]
fn a_library_unloaded_by_another_thread_while_its_tables_are_read() {
    survives("race 2000");
}

#[test]
fn forks_while_another_thread_unloads() {
    survives("fork 40");
}

#[test]
fn a_library_whose_first_page_cannot_be_read() {
    survives("header 50");
}

#[test]
fn a_library_unloaded_in_a_signal_handler() {
    survives("handled 200");
}
