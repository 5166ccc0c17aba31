//! Writes dumps, during a session and at its end.

use std::os::unix::process::ExitStatusExt;

use mem_agents::discovery::Life;
use mem_agents::dump::{self, Written};
use mem_agents::ended::Ended;
use mem_agents::lineage::MAX_FINAL_SCANS;
use mem_agents::process;
use mem_agents::process_end::ProcessEnd;
use mem_agents::segment::Head;
use mem_agents::select;
use mem_agents::target::{Target, obstacle, uncollected};
use mem_agents::text;

use super::{Run, SETTLE_DELAY, Unverified};
use crate::allocator;
use crate::session::member::Member;
use crate::survivors::Survivor;
use shm_protocol::layout::BANK_HEADER_BYTES;

/// Returns true if a target's segment still has an unwritten profile.
fn has_unwritten_profile(target: &Target) -> bool {
    let mut head = Head::new();
    let header = target.agent.segment.full_head(&mut head);
    header.is_ok_and(|header| uncollected(&target.agent, &header).is_some())
}

/// CPU time above which a process without a single allocation is suspicious, in seconds.
const IDLE_CPU_SECONDS: f64 = 0.1;
/// Number of allocated bytes below which a stripped program is searched for another allocator.
const FEW_BYTES: f64 = (1 << 20) as f64;

impl Run {
    /// Writes a dump of a member while its session continues. If it fails, it is retried later.
    pub(super) fn dump(&mut self, index: usize, reason: &str) {
        let Member {
            target,
            watcher,
            timeline,
            ..
        } = &mut self.members[index];
        let agent = &target.agent;
        let session = &target.session;
        match dump::write(
            &self.output,
            agent,
            session,
            Some(timeline),
            reason,
            Ended::Not,
        ) {
            Ok(written) => {
                let old = watcher.record_dump(written.path.clone(), self.settings.triggers.keep);
                self.remove_old(old);
                self.report(written);
            }
            Err(error) => {
                watcher.record_failure(reason);
                let title = agent.title();
                self.reporter.warning(&format!(
                    "{title}: {error}; sampling continues, and the dump is tried again soon"
                ));
            }
        }
    }

    fn remove_old(&mut self, file: Option<std::path::PathBuf>) {
        let Some(file) = file else { return };
        match self.output.remove(&file) {
            // The summary must name only files that exist.
            Ok(()) => self.outcome.written.retain(|dump| dump.path != file),
            Err(error) => {
                let path = text::path(&file);
                self.reporter
                    .warning(&format!("{path}: cannot be removed: {error}"));
            }
        }
    }

    /// Stops all members at the same time, then writes one dump after the other.
    pub(super) fn end(&mut self) {
        self.stop();
        // A child that creates its segment at this moment is not missed: it checks the session
        // after creating the segment, and we search after the session was stopped.
        for _ in 0..MAX_FINAL_SCANS {
            if !self.join_last() {
                break;
            }
            self.stop();
        }
        std::thread::sleep(SETTLE_DELAY);
        for member in std::mem::take(&mut self.members) {
            let pid = member.target.agent.pid;
            let title = member.title();
            if member.target.is_alive() {
                self.outcome.survivors.push(Survivor {
                    pid,
                    title,
                    was_sampled: true,
                });
            }
            self.finish(member);
        }
        self.reporter.end();
    }

    /// Ends the session in all members.
    fn stop(&mut self) {
        for member in &self.members {
            if let Err(reason) = member.target.stop() {
                let warning = format!("{}: {reason}", member.title());
                self.reporter.warning(&warning);
            }
        }
    }

    /// Writes the last dump of a member.
    pub(super) fn finish(&mut self, mut member: Member) {
        member.target.update_life();
        self.record_end(&mut member.target);
        self.warn_of_other_name(&member.target);
        if self.child.is_some() && member.target.agent.life == Life::Replaced {
            let pid = member.target.agent.pid;
            let title = member.title();
            self.unverified.retain(|earlier| earlier.pid != pid);
            self.unverified.push(Unverified {
                pid,
                title,
                first_seen: None,
            });
        }
        let pid = member.target.agent.pid;
        if self.child.as_ref().is_some_and(|child| child.pid() != pid) {
            self.last_programs.record(&member.target.agent);
        }
        self.count_unchecked(&member.target);
        if self.child.is_some() && self.is_empty(&member.target) {
            return self.release(&member.target);
        }
        if self.child.is_some() && !self.gets_dump(&member.target) {
            self.outcome.left_out += 1;
            return self.release(&member.target);
        }
        self.write_peak(&member);
        let Member {
            target,
            mut watcher,
            timeline,
            ..
        } = member;
        let mut head = Head::new();
        let header = target.agent.segment.head(&mut head);
        let ended = header.map_or(Ended::Gone, |header| Ended::of(&target.agent, &header));
        match dump::write(
            &self.output,
            &target.agent,
            &target.session,
            Some(&timeline),
            "end of session",
            ended,
        ) {
            Ok(mut written) => {
                written.is_last = true;
                if let Some(hint) = process::stopped_hint(target.agent.pid) {
                    let warning = format!("{}: {hint}", target.agent.title());
                    written.warnings.push(warning);
                }
                let old = watcher.record_dump(written.path.clone(), self.settings.triggers.keep);
                self.remove_old(old);
                self.warn_of_unseen_calls(&target, &written);
                self.release(&target);
                self.report(written);
            }
            Err(error) => self.fail_last(&target, &error),
        }
    }

    /// Reports that the last dump could not be written, and what happens to the profile.
    fn fail_last(&mut self, target: &Target, error: &dump::Error) {
        let title = target.agent.title();
        let command = match target.agent.life {
            Life::Running => format!("mem_profiler dump -p {} -o PREFIX", target.agent.pid),
            _ => "mem_profiler recover -o PREFIX".to_owned(),
        };
        let consequence = if has_unwritten_profile(target) {
            format!("its profile is kept: {command} writes it")
        } else {
            "its profile is lost".to_owned()
        };
        self.fail(&format!("{title}: {error}; {consequence}"));
    }

    /// Records the exit status of the program that we started. Its segment may have been found dead
    /// before the signal arrived.
    fn record_end(&mut self, target: &mut Target) {
        let pid = target.agent.pid;
        let Some(child) = self.child.as_mut().filter(|child| child.pid() == pid) else {
            return;
        };
        child.poll_exit();
        if let Some(status) = child.status {
            target.agent.end = Some(ProcessEnd::of_status(status.into_raw()));
        }
    }

    /// Warns if the program that we started may have executed another one, which ended before it was
    /// seen: it did not return from `main` or call `exit`, and had another name at the end. It may
    /// also have changed its name and called `_exit`.
    fn warn_of_other_name(&mut self, target: &Target) {
        let agent = &target.agent;
        let child = self.child.as_ref().filter(|child| child.pid() == agent.pid);
        let Some(last) = child.and_then(|child| child.last_name.as_ref()) else {
            return;
        };
        let mut head = Head::new();
        let is_other = agent
            .segment
            .head(&mut head)
            .is_ok_and(|header| !header.exited() && header.comm() != last && !last.is_empty());
        let has_exited = matches!(agent.end, Some(ProcessEnd::Exited(_)));
        let has_other_segment = {
            let mut written = self.outcome.written.iter();
            let mut members = self.members.iter();
            written.any(|dump| dump.pid == agent.pid)
                || members.any(|member| member.target.agent.pid == agent.pid)
        };
        if agent.life == Life::Dead && has_exited && is_other && !has_other_segment {
            let (title, name) = (agent.title(), text::escape(last));
            self.reporter.warning(&format!(
                "{title} was named {name} at its end: if it executed that without LD_PRELOAD (env -i, \
                 sudo and su remove it), it was not sampled"
            ));
        }
    }

    /// Returns true if a process exited before its first sample, for example a fork that called
    /// exec. Nothing is reported about it.
    pub(super) fn is_empty(&self, target: &Target) -> bool {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = target
            .agent
            .segment
            .bank(target.session.number, &mut buffer);
        target.agent.life != Life::Running && bank.is_ok_and(|bank| bank.totals().samples == 0)
    }

    /// Returns true if a process of the started program gets a dump.
    pub(super) fn gets_dump(&self, target: &Target) -> bool {
        let dump_condition = &self.settings.dump_condition;
        let agent = &target.agent;
        if !dump_condition.only.is_empty() {
            return dump_condition
                .only
                .iter()
                .any(|name| select::matches(name, agent));
        }
        let is_program = self
            .child
            .as_ref()
            .is_some_and(|child| child.pid() == agent.pid);
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = agent.segment.bank(target.session.number, &mut buffer);
        let is_enough = |bytes: f64| bytes >= dump_condition.min as f64;
        // If the bank cannot be read, writing the dump reports the reason.
        is_program && agent.life != Life::Replaced
            || bank.map_or(true, |bank| is_enough(bank.totals().alloc_bytes))
    }

    /// Writes the profile of the high-water mark, if requested.
    fn write_peak(&mut self, member: &Member) {
        if !self.settings.triggers.peak {
            return;
        }
        let target = &member.target;
        let mut head = Head::new();
        let header = target.agent.segment.head(&mut head);
        let ended = match (target.agent.life, header) {
            (Life::Running, _) => Ended::Not,
            (_, Ok(header)) => Ended::of(&target.agent, &header),
            (_, Err(_)) => Ended::Gone,
        };
        let timeline = Some(&member.timeline);
        match dump::write_peak(
            &self.output,
            &target.agent,
            &target.session,
            timeline,
            ended,
        ) {
            Ok(written) => self.report(written),
            Err(error) => {
                let title = target.agent.title();
                self.fail(&format!("{title}: high-water mark: {error}"));
            }
        }
    }

    /// Releases the session after its dump was written, and removes the segment if it is not in
    /// use. The segment of the process's next program may have the same name and inode.
    pub(super) fn release(&mut self, target: &Target) {
        match target.release() {
            Err(error) => {
                let path = text::path(target.agent.segment.path());
                self.reporter.warning(&format!("{path}: {error}"));
            }
            Ok(is_removed) if target.agent.life != Life::Running && self.child.is_some() => {
                let agent = &target.agent;
                self.examined.remove(&agent.entry);
                if !is_removed {
                    self.replaced.insert((agent.entry, agent.created_ns));
                }
            }
            Ok(_) => {}
        }
    }

    /// Warns if no calls of the allocator were seen, or only part of them, with the reason.
    fn warn_of_unseen_calls(&mut self, target: &Target, written: &Written) {
        let pid = target.agent.pid;
        let cpu = target.cpu_seconds();
        if target.agent.life != Life::Running {
            return;
        }
        let saw_no_calls = written.threads == 0;
        let saw_few_bytes = written.alloc_bytes < FEW_BYTES;
        let mut head = Head::new();
        let header = target.agent.segment.head(&mut head).ok();
        let obstacle = header.and_then(|header| obstacle(&target.agent, &header));
        if saw_no_calls && let Some(why) = obstacle {
            self.reporter
                .warning(&format!("{}: 0 calls seen: {why}", written.title));
            return;
        }
        if saw_no_calls && let Some(why) = process::mapping_shortage(pid) {
            self.reporter
                .warning(&format!("{}: 0 calls seen: {why}", written.title));
            return;
        }
        let other = allocator::of_process(pid, saw_few_bytes)
            .filter(|other| saw_no_calls || !other.takes_all());
        let why = match other {
            Some(other) if saw_no_calls => format!("0 calls seen: {other}"),
            Some(other) => other.to_string(),
            None if saw_no_calls && cpu > IDLE_CPU_SECONDS => format!(
                "0 calls seen in {cpu:.1} s of CPU time: the program allocates nothing, or by an \
                 allocator of its own or linked into it"
            ),
            None => return,
        };
        self.reporter.warning(&format!("{}: {why}", written.title));
    }

    pub(super) fn report(&mut self, written: Written) {
        for warning in &written.warnings {
            self.reporter.warning(warning);
        }
        self.reporter.written(&written);
        self.outcome.remember(written);
    }
}
