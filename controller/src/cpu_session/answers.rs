//! Where a session's profiles are written, and its answers to a program that has requested its own.

use std::io;
use std::os::fd::BorrowedFd;

use mem_agents::output::{self, Output};

use super::asked::{Asked, Question};
use super::{Description, Run, Settings};
use crate::cli::CpuFormat;
use crate::question;
use crate::terminal;

/// Where profiles are written.
pub(super) enum Sink {
    /// Each into a file of its own.
    Files(Output),
    /// That of one program into the file that it has named; with its serial number.
    Asked(Box<Asked>, u64),
}

impl Sink {
    /// Becomes readable when there is a question.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Files(_) => None,
            Self::Asked(asked, _) => Some(asked.descriptor()),
        }
    }
}

/// Files of their own for profiles, which can be written.
pub(super) fn files(settings: &Settings) -> io::Result<Sink> {
    let suffix = match settings.format {
        CpuFormat::Cpu => output::CPU,
        CpuFormat::Gperftools => output::GPERFTOOLS,
    };
    Ok(Sink::Files(Output::open_for(&settings.prefix, suffix)?))
}

impl Run {
    /// Tells the process that requested the session that it has begun.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        if let Sink::Asked(asked, _) = &self.sink {
            asked.clear()?;
        }
        if let Some(begun) = self.begun.take() {
            begun();
        }
        Ok(())
    }

    /// Whether anything is sampled that was requested.
    pub(super) fn is_anybody_left(&self) -> bool {
        let mut running = self.recording.running();
        match &self.sink {
            Sink::Files(_) => running.next().is_some(),
            // What the process executes later has not asked.
            Sink::Asked(_, serial) => running.any(|process| process.serial == *serial),
        }
    }

    /// Answers requests of the program that requested the profile. Whether one of them ends it.
    pub(super) fn answer(&mut self) -> bool {
        let mut ends = false;
        while let Sink::Asked(asked, _) = &self.sink
            && let Some((question, mut stream)) = asked.next()
        {
            let answer = match question {
                Question::Samples => self.samples(asked.pid()).to_string(),
                Question::Flush => {
                    if let Err(error) = self.flush() {
                        terminal::diagnostic(&error.to_string());
                    }
                    String::new()
                }
                Question::Stop => {
                    ends = true;
                    self.outcome.waiting.push(stream);
                    continue;
                }
            };
            // Who does not wait for it has ended.
            let _ = question::answer(&mut stream, answer.as_bytes());
        }
        ends
    }

    /// How many samples there are of a process so far.
    fn samples(&mut self, pid: i32) -> u64 {
        self.engine.show(&mut self.recording, pid);
        let process = self.recording.process(pid);
        process.map_or(0, |process| process.counts.samples)
    }

    /// Writes what there is so far into the file that the program has named.
    fn flush(&mut self) -> io::Result<()> {
        let session = self.session();
        let Sink::Asked(asked, serial) = &mut self.sink else {
            return Ok(());
        };
        let (pid, serial) = (asked.pid(), *serial);
        self.engine.show(&mut self.recording, pid);
        self.describe();
        let description = self.descriptions.get(&serial).cloned();
        let mut running = self.recording.running();
        let Some(process) = running.find(|process| process.serial == serial) else {
            return Ok(());
        };
        let description = description.unwrap_or_else(|| Description::by_code(process));
        let mut bytes = Vec::new();
        let of = (process, &description);
        session.write(of, self.recording.symbols(), 0, &mut bytes)?;
        match &mut self.sink {
            Sink::Asked(asked, _) if asked.is_rewritable() => asked.write(&bytes),
            _ => Ok(()),
        }
    }
}
