//! Leak check at the exit of a program that we started.

use std::time::Instant;

use mem_agents::segment::{Head, io_error};
use mem_agents::target::Target;
use mem_leaks::{LsanOptions, Method, Options, Plan, Report, Scope, Suppressions, Variables};
use shm_protocol::snapshot::Header;

use super::{Member, Run};

/// Settings of the leak check at exit.
#[derive(Clone, Debug)]
pub struct ExitCheck {
    /// Criterion by which objects count as lost.
    pub scope: Scope,
    /// Options of the search.
    pub options: Options,
    /// Known leaks, which are not reported.
    pub suppressions: Suppressions,
    /// Settings from gperftools' variables.
    pub variables: Variables,
    /// Value of `LSAN_OPTIONS`.
    pub lsan: String,
}

impl Run {
    /// Counts a member that exited without waiting for a check.
    pub(super) fn count_unchecked(&mut self, target: &Target) {
        let view = target.agent.segment.view();
        let unchecked = self.settings.leak_check.is_some() && view.exits_unchecked() == Ok(true);
        self.outcome.unchecked += usize::from(unchecked);
    }

    /// Checks a member that waits at its exit, and lets it exit.
    pub(super) fn check_at_exit(&mut self, index: usize) {
        let read_wait_flag = |member: &Member| {
            let view = member.target.agent.segment.view();
            view.waits_at_exit().unwrap_or(false)
        };
        if self.settings.leak_check.is_none() || !read_wait_flag(&self.members[index]) {
            return;
        }
        // Reads the flag of every member, including new ones, before the check: the read tells
        // waiting processes that a controller exists. Without it, they would not wait for the end of
        // a long check of another process.
        let pid = self.members[index].target.agent.pid;
        self.search(Instant::now());
        // The search may have removed members.
        let is_same = |member: &Member| member.target.agent.pid == pid;
        let Some(index) = self.members.iter().position(is_same) else {
            return;
        };
        for member in &self.members {
            read_wait_flag(member);
        }
        let Some(settings) = &self.settings.leak_check else {
            return;
        };
        let target = &self.members[index].target;
        let title = target.agent.title();
        if let Some(option) = disabling_option(target, settings) {
            self.outcome.disabled_by_options += 1;
            self.reporter.warning(&format!(
                "{title}: no leak check at exit: LeakSanitizer's option {option}=0 says so"
            ));
            return self.let_exit(index);
        }
        match check(target, settings) {
            Ok((report, _)) if report.lost_samples == 0 && !self.gets_dump(target) => {
                self.outcome.checked += 1;
                self.outcome.clean_left_out += 1;
            }
            Ok((report, alignment)) => {
                self.outcome.leaks += usize::from(report.lost_samples > 0);
                self.outcome.checked += 1;
                self.reporter.report(&report.lines());
                self.reporter.report(alignment.as_slice());
                let warnings = report.warnings();
                warnings.for_each(|line| self.reporter.warning(&line));
            }
            Err(error) => self.fail(&format!("{title}: no leak check: {error:#}")),
        }
        self.let_exit(index);
    }

    /// Lets a waiting member exit.
    fn let_exit(&mut self, index: usize) {
        let target = &self.members[index].target;
        let title = target.agent.title();
        let view = target.agent.segment.view();
        if let Err(error) = view.let_exit() {
            self.fail(&format!("{title}: {}", io_error(error)));
        }
    }
}

/// Returns the LeakSanitizer option, from the environment or the program itself, that disables the
/// check.
fn disabling_option(target: &Target, settings: &ExitCheck) -> Option<&'static str> {
    let mut head = Head::new();
    let header = target.agent.segment.full_head(&mut head).ok()?;
    let program_options = mem_leaks::declared_options(target.agent.pid, &header);
    LsanOptions::read([&*program_options, &*settings.lsan]).disabling_option()
}

/// Checks the process without a copy, since it is waiting to exit anyway. Also returns the result
/// of the alignment test.
fn check(target: &Target, settings: &ExitCheck) -> anyhow::Result<(Report, Option<String>)> {
    let mut head = Head::new();
    let agent = &target.agent;
    let session = &target.session;
    let header: Header<'_> = agent.segment.full_head(&mut head)?;
    let plan = Plan {
        method: settings.variables.method(agent.pid, Method::Stopped),
        scope: settings.scope,
        options: &settings.options,
        suppressions: &settings.suppressions,
        identify: settings.variables.identify,
        base: None,
    };
    let check = mem_leaks::check(agent, &header, session, &plan)?;
    let variables = &settings.variables;
    let report = mem_leaks::report(agent, &header, session, &check, variables.max_stacks, None);
    let tests_alignment = variables.test_alignment && report.lost_samples > 0;
    let alignment =
        tests_alignment.then(|| mem_leaks::test_alignment(agent, &header, session, &plan));
    Ok((report, alignment.transpose()?))
}
