//! What `shortwire ueid` and `seid` can be told.

use clap::Subcommand;

#[derive(clap::Args)]
#[command(about = "Show or change the user-defined enterprise IDs (EIDs)")]
#[command(
    long_about = "Two programs can share memory only if they have an enterprise ID in common: the system's own, or a user-defined one. \
User-defined ones are kept in $XDG_CONFIG_HOME/shortwire/eids.toml (usually below ~/.config), with --system in \
/etc/shortwire/eids.toml, which counts for users that have no file of their own. `shortwire run` gives them to the programs it starts, unless \
it is told others by --ueid; programs that run already keep theirs."
)]
#[command(after_help = "Examples:
  shortwire ueid add SHOP.1 && shortwire seid disable
      programs share memory with programs of SHOP.1 only
  shortwire ueid del SHOP.1  ... and with the last one gone, with all again")]
pub struct Ueid {
    #[command(subcommand)]
    pub command: Option<UeidCommand>,
    /// The table of the machine, not of this user
    #[arg(long, global = true)]
    pub system: bool,
}

#[derive(Subcommand)]
pub enum UeidCommand {
    /// Print them, one in a line (default)
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Add one, of four at most
    Add {
        /// 1 to 32 of A-Z 0-9 . -
        ueid: String,
    },
    /// Delete one; with the last one gone, the system's own EID is enabled again
    Del {
        /// One that is there
        ueid: String,
    },
    /// Delete all
    Flush,
}

#[derive(clap::Args)]
#[command(about = "Show or switch the system's own enterprise ID")]
#[command(
    long_about = "The system's own enterprise ID is what programs have in common that were given none. It can be disabled as long as there is a \
user-defined one (see `shortwire help ueid`, also for where this is kept)."
)]
pub struct Seid {
    #[command(subcommand)]
    pub command: Option<SeidCommand>,
    /// The table of the machine, not of this user
    #[arg(long, global = true)]
    pub system: bool,
}

#[derive(Subcommand)]
pub enum SeidCommand {
    /// Print it, and whether it is enabled (default)
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Programs have it
    Enable,
    /// Programs have only user-defined ones
    Disable,
}
