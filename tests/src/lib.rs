//! Shared code for the end-to-end tests: the release build, programs compiled on the spot,
//! targets under the agent, sessions, and the values of a function in a dump.
//!
//! # Promises
//! - Nothing here waits without a deadline, and nothing sleeps in the hope that something
//!   has happened: [`wait::until`] polls.
//! - Tests do not see each other: every [`Scratch`] has its own shared directory.
//! - Processes started here are killed when the value that represents them is dropped.
//!
//! # Caller's duties
//! Build the release binaries first (`cargo build --release --workspace`), into the target
//! directory that the tests themselves are built into, as `tests/run` does.

pub mod artifacts;
pub mod browser;
pub mod cgroup;
pub mod code;
pub mod container;
pub mod cpu;
pub mod crash_target;
pub mod figures;
pub mod frail;
pub mod group;
pub mod harm;
pub mod leaks;
pub mod limits;
pub mod load;
pub mod npm;
pub mod older_kernels;
pub mod package;
pub mod pages;
pub mod peers;
pub mod planted;
pub mod pythons;
pub mod receiver;
pub mod rss;
pub mod scratch;
pub mod server;
pub mod session;
pub mod stage;
pub mod steps;
pub mod table;
pub mod target;
pub mod timers;
pub mod tiny_filesystem;
pub mod tracing;
pub mod truth;
pub mod units;
pub mod venv;
pub mod wait;

pub use browser::Browser;
pub use code::{Sum, sums};
pub use crash_target::CrashTarget;
pub use group::Group;
pub use load::Load;
pub use package::{Package, SHELLS};
pub use scratch::Scratch;
pub use server::Server;
pub use session::{Outcome, Session, run};
pub use steps::Steps;
pub use target::Target;
