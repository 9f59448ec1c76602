//! `shortwire off` and `on`: whether connections may leave TCP, for a user or, as root, for all.
//!
//! Programs that run are told in the headers of their tables, which they look at before an upgrade
//! begins; who starts later, or has no table yet, finds a file (`smc::off`).

mod drain;

use std::env;
use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use connections::{Table, snapshot};
use rustix::process::geteuid;
use smc::table::{DRAIN, OFF};
use smc::{off as files, run_dir};

use crate::tell::{names, tell};

#[derive(clap::Args)]
#[command(about = "Switch off: no connection leaves TCP any more")]
#[command(
    long_about = "From now on no connection begins to move to shared memory: of your programs or, as root, of everybody's, whether they run \
already or are started later, until `shortwire on` or the next boot. Connections through shared memory go on, unless --drain takes them back \
to TCP: no byte is lost and none is reset. A connection where both ends sleep goes back when it is used next, if its program cannot be woken."
)]
#[command(after_help = "Examples:
  shortwire off                     new connections stay TCP
  shortwire off --drain --wait 60   ... and those there are go back, within a
                                    minute
  shortwire off --drain --pid 4711  of this process, and those that share its
                                    connections by fork
  shortwire on

Exit status: 0; 1 if a program could not be told or, with --drain, if a connection is left in shared memory.")]
pub struct Off {
    /// Take connections back to TCP, too
    #[arg(long)]
    pub drain: bool,
    /// Seconds that --drain waits for connections; what is left then goes back when it is used next
    #[arg(long, value_name = "SECONDS", requires = "drain", default_value_t = 10)]
    pub wait: u32,
    /// Only of this process, and those that it shares its connections with by fork
    #[arg(long)]
    pub pid: Option<u32>,
}

#[derive(clap::Args)]
#[command(about = "Switch on again what `shortwire off` has switched off")]
#[command(
    long_about = "Connections that are made from now on may move to shared memory again. Those that stayed TCP, or were taken back to it, stay there."
)]
pub struct On {
    /// Only for this process, and those that it shares its connections with by fork
    #[arg(long)]
    pub pid: Option<u32>,
}

/// Who has switched it off for a user, in words.
pub fn state_for(uid: u32) -> Option<String> {
    look_where_told();
    match () {
        () if files::is_for_all() => Some("switched off for all users".into()),
        () if files::is_for(uid) => Some("switched off for this user".into()),
        () => None,
    }
}

/// Programs are told by the same variable where the user's files are.
fn look_where_told() {
    run_dir::set(env::var_os("SHORTWIRE_RUN_DIR").unwrap_or_default().as_bytes());
}

pub fn off(args: &Off) -> Result<ExitCode> {
    look_where_told();
    if args.pid.is_none() {
        let path = file();
        make(&path)?;
        terminal::outln!("Shortwire is off for {} ({}).", whom(), path.display())?;
    }
    let wanted = |table: &Table| is_wanted(args.pid, table);
    let before = if args.drain { drain::count(wanted) } else { 0 };
    let word = if args.drain { OFF | DRAIN } else { OFF };
    let untold = tell_all(args.pid, |table| Some(table.removed | word))?;
    if !args.drain {
        return Ok(outcome(untold == 0));
    }
    let left = drain::run(Duration::from_secs(args.wait.into()), before, wanted)?;
    Ok(outcome(untold == 0 && left == 0))
}

pub fn on(args: &On) -> Result<ExitCode> {
    look_where_told();
    let uid = geteuid().as_raw();
    if args.pid.is_none() {
        let path = file();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    if let Some(state) = state_for(uid) {
        bail!(
            "it is {state}: {} on",
            if files::is_for_all() {
                "root can switch it on again, by shortwire"
            } else {
                "shortwire"
            }
        );
    }
    let untold = tell_all(args.pid, |table| {
        // Another user's own switch stays as it is.
        (!files::is_for(table.uid)).then_some(table.removed & !(OFF | DRAIN))
    })?;
    if args.pid.is_none() {
        terminal::outln!("Shortwire is on for {}.", whom())?;
    }
    Ok(outcome(untold == 0))
}

fn outcome(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn whom() -> &'static str {
    if geteuid().is_root() { "all users" } else { "your programs" }
}

fn file() -> PathBuf {
    let own = files::of_user(geteuid().as_raw());
    let own = CStr::from_bytes_until_nul(&own).unwrap_or_default();
    let path = if geteuid().is_root() { files::OF_ALL } else { own };
    Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).to_path_buf()
}

fn make(path: &Path) -> Result<()> {
    // Nobody is led elsewhere by a link: the folder may be everybody's.
    match OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let uid = geteuid();
            let there =
                if uid.is_root() { files::is_for_all() } else { files::is_for(uid.as_raw()) };
            ensure!(there, "{} is another user's: let its owner or root remove it", path.display());
            Ok(())
        }
        made => made.map(drop).with_context(|| format!("cannot make {}", path.display())),
    }
}

fn is_wanted(pid: Option<u32>, table: &Table) -> bool {
    pid.is_none_or(|pid| table.programs.iter().any(|program| program.pid == pid))
}

/// Tells the programs that run, those whose `word` there is; how many tables could not be told.
fn tell_all(pid: Option<u32>, word: impl Fn(&Table) -> Option<u32>) -> Result<usize> {
    let tables = snapshot(|_| true).tables;
    let wanted: Vec<&Table> = tables.iter().filter(|table| is_wanted(pid, table)).collect();
    if let Some(pid) = pid {
        ensure!(!wanted.is_empty(), "process {pid} has no connections under `shortwire run`");
    }
    let mut untold = 0;
    for table in wanted {
        let Some(word) = word(table).filter(|word| *word != table.removed) else { continue };
        if let Err(error) = tell(table, word) {
            untold += 1;
            eprintln!("{} cannot be told: {error:#}", names(table));
        }
    }
    Ok(untold)
}
