//! Destination of a session's profiles, and replies to a program that has requested its own
//! profile.

use std::io;
use std::os::fd::BorrowedFd;

use mem_agents::output::{self, Output};

use super::own_profile::{OwnProfile, Request};
use super::{Description, Run, Settings};
use crate::agent_request;
use crate::cli::CpuFormat;

/// Destination of the profiles.
pub(super) enum Sink {
    /// One file for each process.
    Files(Output),
    /// File that a program has named for its own profile.
    OwnProfile {
        profile: Box<OwnProfile>,
        /// Serial number of the program in the recording.
        serial: u64,
    },
}

impl Sink {
    /// Returns a descriptor that becomes readable when a request arrives.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Files(_) => None,
            Self::OwnProfile { profile, .. } => Some(profile.descriptor()),
        }
    }
}

/// Opens the output for one file per process. Fails if its directory cannot be written.
pub(super) fn file_sink(settings: &Settings) -> io::Result<Sink> {
    let suffix = match settings.format {
        CpuFormat::Cpu => output::CPU,
        CpuFormat::Gperftools => output::GPERFTOOLS,
    };
    Ok(Sink::Files(Output::open_for(&settings.prefix, suffix)?))
}

impl Run {
    /// Reports that sampling has started, and empties the file of a program's own profile.
    pub(super) fn announce_start(&mut self) -> io::Result<()> {
        if let Sink::OwnProfile { profile, .. } = &self.sink {
            profile.clear()?;
        }
        self.reporter.begin(self.settings.length);
        Ok(())
    }

    /// Returns true while a requested program is running.
    pub(super) fn has_running_process(&self) -> bool {
        let mut running = self.recording.running();
        match &self.sink {
            Sink::Files(_) => running.next().is_some(),
            // A program that the process executes later has not requested a profile.
            Sink::OwnProfile { serial, .. } => running.any(|process| process.serial == *serial),
        }
    }

    /// Replies to pending requests of the program that requested the profile. Returns true if one
    /// of them ends the session.
    pub(super) fn reply_to_requests(&mut self) -> bool {
        let mut ends = false;
        while let Sink::OwnProfile { profile, .. } = &self.sink
            && let Some((request, mut stream)) = profile.next_request()
        {
            let reply = match request {
                Request::Samples => self.sample_count(profile.pid()).to_string(),
                Request::Flush => {
                    if let Err(error) = self.flush() {
                        self.reporter.diagnostic(&error.to_string());
                    }
                    String::new()
                }
                Request::Stop => {
                    ends = true;
                    self.outcome.waiting.push(stream);
                    continue;
                }
            };
            // This fails only if the program no longer waits for the reply.
            let _ = agent_request::reply(&mut stream, reply.as_bytes());
        }
        ends
    }

    /// Returns the number of samples of a process so far.
    fn sample_count(&mut self, pid: i32) -> u64 {
        self.sampler.collect_live(&mut self.recording, pid);
        let process = self.recording.process(pid);
        process.map_or(0, |process| process.counts.samples)
    }

    /// Writes the profile so far into the file that the program has named.
    fn flush(&mut self) -> io::Result<()> {
        let session = self.session();
        let Sink::OwnProfile { profile, serial } = &self.sink else {
            return Ok(());
        };
        let pid = profile.pid();
        let serial = *serial;
        self.sampler.collect_live(&mut self.recording, pid);
        self.describe();
        let description = self.descriptions.get(&serial).cloned();
        let mut running = self.recording.running();
        let Some(process) = running.find(|process| process.serial == serial) else {
            return Ok(());
        };
        let description = description.unwrap_or_else(|| Description::from_mappings(process));
        let mut bytes = Vec::new();
        let symbols = self.recording.symbols();
        session.write(process, &description, symbols, 0, &mut bytes)?;
        match &mut self.sink {
            Sink::OwnProfile { profile, .. } if profile.is_rewritable() => profile.write(&bytes),
            _ => Ok(()),
        }
    }
}
