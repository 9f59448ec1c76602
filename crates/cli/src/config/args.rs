//! What `shortwire config` can be told.

use std::ffi::OsString;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(about = "Check configuration files, or show what they say of a program")]
#[command(
    long_about = "Configuration files have settings, and rules that say which programs and connections may use shared memory. They are read when \
a program starts: $SHORTWIRE_CONFIG, $XDG_CONFIG_HOME/shortwire.conf (usually ~/.config/shortwire.conf), /etc/shortwire.conf.d/*.conf, \
/etc/shortwire.conf, in this order; the first line counts that says something. Environment and command line go before all of them. \
doc/policy.md and shortwire.conf(5) have the format."
)]
#[command(after_help = "Examples:
  shortwire config check           all files that count here
  shortwire config check new.conf  one before it is put into its place
  shortwire config show            what they say
  shortwire config show redis-server --port 0
      what applies to this program, and which line says so
  shortwire config show --user www-data nginx
      ... when another user starts it")]
pub struct Config {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(clap::Subcommand)]
pub enum ConfigCommand {
    Check(Check),
    Show(Show),
}

/// Say what is wrong, with file and line; the exit status is then 1
#[derive(clap::Args)]
pub struct Check {
    /// Only this file, wherever it is
    pub file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Show what applies to a program, or all that the files say
#[derive(clap::Args)]
pub struct Show {
    /// As if this user started it: a name or a number
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments
    #[arg(value_name = "PROG", trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}
