//! Sources of profiles: processes, their sessions and histories, and the names of code.

use std::sync::Arc;

use mem_agents::segment::default_directory;
use profile::Profile;

use crate::agents::Agents;
use crate::naming::FunctionNames;
use crate::process_list::ProcessList;
use crate::sessions::Sessions;

/// Sources of profiles.
#[derive(Clone)]
pub struct Sources {
    /// Processes to serve.
    pub agents: Arc<Agents>,
    /// Sessions started by this server.
    pub sessions: Arc<Sessions>,
    /// State of the live page.
    pub process_list: Arc<ProcessList>,
    naming: Arc<FunctionNames>,
}

impl Sources {
    /// Creates the sources of profiles of the processes that `agents` finds.
    pub fn new(agents: Agents, sessions: Arc<Sessions>, naming: FunctionNames) -> Self {
        Self {
            agents: Arc::new(agents),
            sessions,
            process_list: Arc::new(ProcessList::new(&default_directory())),
            naming: Arc::new(naming),
        }
    }

    /// Symbolizes a profile. Prints an error if something failed.
    pub fn symbolize(&self, profile: &mut Profile) {
        if let Some(error) = self.naming.symbolize(profile) {
            crate::say(&error);
        }
    }
}
