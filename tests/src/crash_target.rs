//! The crash target, `crash_target.c`: it allocates in several threads until it dies. Its totals
//! remain afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use profile::Profile;

use crate::scratch::Scratch;
use crate::target::Target;
use crate::{sums, wait};

/// Running crash target, and its totals.
pub struct CrashTarget {
    /// The binary.
    pub program: PathBuf,
    /// The process.
    pub target: Target,
    totals: PathBuf,
    threads: u64,
}

/// Number of completed allocations and frees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    /// Allocations.
    pub allocated: u64,
    /// Frees.
    pub freed: u64,
}

impl CrashTarget {
    /// Compiles the program, and starts it after `prepare` has changed the command.
    pub fn start(
        scratch: &Scratch,
        threads: u64,
        flags: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let program = scratch.compile("crash_target.c", &[]);
        let totals = scratch.file("totals");
        let mut command = scratch.preloaded(&program);
        command.arg(&totals).arg(threads.to_string()).args(flags);
        prepare(&mut command);
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        Self {
            program,
            target,
            totals,
            threads,
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Returns the current totals, or the last ones if the program has died.
    pub fn totals(&self) -> Totals {
        let bytes = fs::read(&self.totals).expect("the totals");
        let line = |at: usize| {
            let word = bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(word)
        };
        let lines = (0..bytes.len()).step_by(64);
        lines.fold(
            Totals {
                allocated: 0,
                freed: 0,
            },
            |sum, at| Totals {
                allocated: sum.allocated + line(at),
                freed: sum.freed + line(at + 8),
            },
        )
    }

    /// Waits until the program has allocated this many more objects.
    pub fn let_allocate(&self, objects: u64) {
        let start = self.totals().allocated;
        wait::until("allocations", || {
            (self.totals().allocated >= start + objects).then_some(())
        });
    }

    /// Checks a dump in which every allocation is sampled against the program's totals. They may
    /// differ by one call that was in progress in each thread, and a thread that died while it
    /// counted has updated some of the sums only.
    pub fn assert_complete(&self, dump: &Path) {
        let profile = profile::open(dump).expect("a whole dump");
        let found = self.sum(&profile);
        let totals = self.totals();
        let counted = (found.alloc_objects, found.freed_objects);
        let within = |counted: f64, known: u64| {
            counted >= known as f64 && counted <= (known + self.threads) as f64
        };
        assert!(
            within(counted.0, totals.allocated),
            "{counted:?} {totals:?}"
        );
        assert!(within(counted.1, totals.freed), "{counted:?} {totals:?}");
        let partly = self.threads as f64 * 1000.0;
        for (bytes, objects) in [
            (found.alloc_bytes, counted.0),
            (found.freed_bytes, counted.1),
        ] {
            let off = (bytes - objects * 1000.0).abs();
            assert!(off <= partly, "{bytes} of {objects}: {found:?}");
        }
    }

    /// Checks the estimates of a sampled dump: within seven standard errors, which is left
    /// by chance once in 1e11 runs.
    pub fn assert_estimated(&self, dump: &Path) {
        let profile = profile::open(dump).expect("a whole dump");
        let found = self.sum(&profile);
        let truth = self.totals().allocated as f64 * 1000.0;
        let allowed = 7.0 * found.alloc_variance.sqrt() + self.threads as f64 * 1000.0;
        let off = (found.alloc_bytes - truth).abs();
        assert!(found.alloc_samples > 1000, "too few to tell: {found:?}");
        assert!(
            off <= allowed,
            "{truth} in truth, {allowed} allowed: {found:?}"
        );
    }

    fn sum(&self, profile: &Profile) -> profile::Detail {
        let found = sums(profile, &[&self.program], "site_crash_target");
        found.get("site_crash_target").expect("its stacks").detail
    }
}
