//! `--push` of a session.

use std::ffi::OsString;

use clap::Args;

/// Where the dumps of a session go, besides their files.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sending the dumps")]
pub struct PushArgs {
    /// Send each dump to a receiver as well, when it is written; by mem_server
    #[arg(long, value_name = "URL", requires = "to")]
    pub push: Option<String>,

    /// The receiver's protocol
    #[arg(long, value_name = "PROTOCOL", requires = "push",
          value_parser = ["pyroscope", "parca", "otlp"])]
    pub to: Option<String>,

    /// A label of what is sent, such as service_name=checkout; may be given several times
    #[arg(long, value_name = "KEY=VALUE", requires = "push")]
    pub label: Vec<OsString>,
}
