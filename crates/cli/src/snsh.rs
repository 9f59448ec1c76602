//! `shortwire snsh`: scripts for the packet engine.

use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, bail};
use engine::Options;
use engine::counters::{self, RunDir};
use engine::lua::{Evaluated, ScriptError, Session, Settings};
use engine::stop::Signals;
use measure::profile;

mod interactive;
mod traces;

#[derive(clap::Args)]
#[command(about = "Run a script in Lua on the packet engine")]
#[command(
    long_about = "Runs SCRIPT on an embedded LuaJIT. The script names apps and links, and the engine runs them; apps may also be written in the \
script. Module names and functions are those of Snabb: config, engine, link, packet and timer are there from the start, apps come by \
require(\"apps.basic.basic_apps\") and so on."
)]
#[command(after_help = "Examples:
  shortwire snsh shunt.lua eth0 eth1       arguments are `...` in the script,
                                           and main.parameters
  shortwire snsh -e 'print(link.max)'
  shortwire snsh -i                        type Lua; the history is kept
  shortwire snsh --traces t.svg shunt.lua  what the compiler did with it, and
                                           what slows it
  shortwire snsh --model 0000:01:00.0=model:0,packets=64 card.lua
      without that card
  shortwire snsh --apps                    the kinds of apps that scripts can
                                           name

A script:
  local basic = require(\"apps.basic.basic_apps\")
  local c = config.new()
  config.app(c, \"source\", basic.Source, 60)
  config.app(c, \"sink\", basic.Sink)
  config.link(c, \"source.output -> sink.input\")
  engine.configure(c)
  engine.main({ duration = 1, report = { showlinks = true } })

Each instance of an app in Lua runs its own copy of the code, so that none slows another.

Ctrl-C ends the run of the engine, or else interrupts the script; a second one ends it at once.

Exit status: 0; 1 if the script, or an app of it, ended in an error; 130 after Ctrl-C.")]
pub struct Snsh {
    /// Run this piece of code (may be given several times, before SCRIPT)
    #[arg(short, long, value_name = "CODE")]
    pub execute: Vec<String>,
    /// Load this module first, as `require` does
    #[arg(short, long, value_name = "MODULE")]
    pub library: Vec<String>,
    /// Read Lua from the terminal, after SCRIPT if there is one
    #[arg(short, long)]
    pub interactive: bool,
    /// Let all instances of an app share its code
    #[arg(long)]
    #[arg(
        long_help = "Let all instances of an app in Lua share its code, and so the compiler's traces, instead of giving each instance its own copy. \
An app's class can say the same for itself by `shared = true`."
    )]
    pub shared: bool,
    /// Show what the compiler did with the script, and write it to OUT: .svg, .dot, .json or .txt;
    /// - for the summary only
    #[arg(long, value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    #[arg(
        long_help = "Show on the terminal what the compiler did with the script, and write it to OUT: a picture (.svg), a graph (.dot), data (.json) \
or a list (.txt); - writes nothing. Every trace with the exit that leads to it, where it starts, its share of the time, and its falls to the \
interpreter; recordings that were given up, with the reason; and findings: what slows the script, and what to do about it."
    )]
    pub traces: Option<traces::Target>,
    /// How many packets can exist at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1024..=16_777_216))]
    pub packets: Option<u32>,
    /// Most memory of the script, packets not counted, such as 256M; what is beyond is an error of it
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// Find the libraries in this folder of Snabb's sources, too: lib.protocol.ipv6, apps.ipv4.arp ...
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub snabb: Option<PathBuf>,
    #[command(flatten)]
    pub models: crate::models::Models,
    /// List the kinds of apps of the engine
    #[arg(long)]
    pub apps: bool,
    /// The script
    #[arg(value_name = "SCRIPT", value_hint = clap::ValueHint::FilePath)]
    pub script: Option<PathBuf>,
    /// Arguments of the script
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// As shells report an end by SIGINT.
const INTERRUPTED: u8 = 130;

pub fn run(args: &Snsh) -> Result<ExitCode> {
    if args.apps {
        list_apps()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.script.is_none()
        && args.execute.is_empty()
        && args.library.is_empty()
        && !args.interactive
    {
        bail!(
            "nothing to run: name a script, give code with -e, or type it with -i; `shortwire snsh --help` has examples"
        );
    }
    if let Some(packets) = args.packets {
        engine::arena::set_slots(packets as usize)?;
    }
    profile::load();
    args.models.apply();
    // Without a place for counters a script runs all the same.
    let run_dir = counters::run_root().and_then(|root| RunDir::create(&root)).ok().map(Arc::new);
    let options = Options { run_dir, ..Options::default() };
    // Without them Ctrl-C ends the script as it ends any program.
    let _ = signals();
    let settings = Settings {
        engine: options,
        shared: args.shared,
        memory: args.memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        stop: Some(stop_requested),
        program: Some(program),
    };
    let session = Session::new(settings)?;
    if let Some(folder) = &args.snabb {
        session.search_in_snabb(folder)?;
    }
    if let Some(target) = &args.traces {
        target.check()?;
        session.watch_traces()?;
    }
    let outcome = play(&session, args);
    if let Some(target) = &args.traces {
        let script = args
            .script
            .as_deref()
            .map_or("code from the command line".into(), |path| path.to_string_lossy());
        target.write(&session.traces()?, &script)?;
    }
    match outcome {
        Err(ScriptError::Interrupted) => Ok(ExitCode::from(INTERRUPTED)),
        Err(error) => Err(error.into()),
        Ok(()) => {
            flush(&session)?;
            Ok(if session.failures() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

/// What a script prints waits in a buffer of libc's, which the end of the process empties, without
/// a word where that fails. Gives the number of the error that there was.
const FLUSH: &str = r#"(function()
    local ffi = require("ffi")
    pcall(ffi.cdef, "int fflush(void *); int ferror(void *);")
    local is_open, errno = pcall(function()
        if ffi.C.fflush(io.stdout) ~= 0 then return ffi.errno() end
        return ffi.C.ferror(io.stdout) ~= 0 and 5 or 0
    end)
    return is_open and errno or 0
end)()"#;

fn flush(session: &Session) -> Result<()> {
    // A script that has taken these functions away, or closed its output, has its reasons.
    let Ok(Evaluated::Values(values)) = session.evaluate(FLUSH) else { return Ok(()) };
    match values.first().and_then(|errno| errno.parse().ok()) {
        None | Some(0) => Ok(()),
        Some(errno) => {
            bail!("cannot write to standard output: {}", std::io::Error::from_raw_os_error(errno))
        }
    }
}

fn play(session: &Session, args: &Snsh) -> Result<(), ScriptError> {
    for module in &args.library {
        session.require(module)?;
    }
    for code in &args.execute {
        session.run_code(code, &args.arguments)?;
    }
    if let Some(script) = &args.script {
        session.run_file(script, &args.arguments)?;
    }
    if args.interactive { interactive::run(session) } else { Ok(()) }
}

/// Runs this command again, with these words.
fn program(words: &[String]) -> std::io::Result<ExitStatus> {
    Command::new(std::env::current_exe()?).args(words).status()
}

/// From the first call on the first SIGINT or SIGTERM ends the engine's run, or else what the script
/// is at, and the second one the process.
fn signals() -> Option<Signals> {
    static SIGNALS: OnceLock<Option<Signals>> = OnceLock::new();
    *SIGNALS.get_or_init(|| engine::lua::catch_signals().ok())
}

fn stop_requested() -> bool {
    signals().is_some_and(|signals| signals.stop_requested())
}

/// What LuaJIT and the modules take before a script begins is some two megabytes.
fn parse_memory(text: &str) -> Result<u64, String> {
    match terminal::units::parse_size(text)? {
        size if size < 8 << 20 => Err("give at least 8M".to_string()),
        size => Ok(size),
    }
}

fn list_apps() -> Result<()> {
    for kind in engine::Registry::standard().kinds() {
        terminal::outln!("{:16} {}", kind.name, kind.about)?;
    }
    Ok(())
}
