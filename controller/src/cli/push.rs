//! `--push` of a session.

use std::ffi::OsString;

use clap::Args;

/// Help heading of these options. Set on each option, because the heading of a group would also
/// apply to the options that follow it.
const SENDING: &str = "Sending the dumps";

/// Options for sending the dumps of a session to a receiver.
#[derive(Clone, Debug, Default, Args)]
pub struct PushArgs {
    /// Also send each dump to a receiver when it is written; by mem_server
    #[arg(help_heading = SENDING, long, value_name = "URL", requires = "to")]
    pub push: Option<String>,

    /// The receiver's protocol
    #[arg(help_heading = SENDING, long, value_name = "PROTOCOL", requires = "push",
          value_parser = ["pyroscope", "parca", "otlp"])]
    pub to: Option<String>,

    /// A label of what is sent, such as service_name=checkout; may be given several times
    #[arg(help_heading = SENDING, long, value_name = "KEY=VALUE", requires = "push")]
    pub label: Vec<OsString>,
}
