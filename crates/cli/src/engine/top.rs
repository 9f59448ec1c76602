//! `shortwire engine top`: what packet engines do, from the counters that they publish.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use ::engine::counters::run_root;
use anyhow::{Context, Result, bail};
use terminal::signals;
use terminal::units::parse_seconds;

pub mod rates;
mod screen;
mod text;

use rates::Look;
use screen::Screen;

#[derive(clap::Args)]
#[command(about = "Watch engines: rates of links and apps, cycles, drops, latency")]
#[command(
    after_help = "Keys: q quit, space pause, t table or tree, +/- interval, arrows scroll, n next engine.

Reads the counters that engines publish in shared memory; it costs them nothing.

Examples:
  shortwire engine top                 all engines of this machine
  shortwire engine top 1234            one process
  shortwire engine top --once          one interval, as text
  shortwire engine top --json | jq '.processes[].links'

Exit status: 0, also where no engine runs; 1 if PID runs none, or if its counters cannot be read; 2 for a wrong command line."
)]
pub struct Top {
    /// Only this process
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
    /// Time between two looks
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = parse_seconds)]
    pub interval: f64,
    /// Print one interval as text and end
    #[arg(long)]
    pub once: bool,
    /// Start with the tree of apps and links
    #[arg(long)]
    pub tree: bool,
    /// Print one interval as one JSON object and end
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Top) -> Result<ExitCode> {
    let root = run_root()?;
    if !args.once && !args.json {
        if !std::io::stdout().is_terminal() {
            bail!("the output is no terminal: use --once or --json");
        }
        Screen::new(args.interval, args.tree).run(&root, args.pid)?;
        return Ok(ExitCode::SUCCESS);
    }
    signals::default_sigpipe();
    let read =
        || Look::take(&root, args.pid).with_context(|| format!("cannot read {}", root.display()));
    let before = read()?;
    if before.is_empty() {
        match args.pid {
            Some(pid) => {
                bail!("process {pid} runs no packet engine; `shortwire ps` lists those that do")
            }
            // As for `ps`: none is no error.
            None if !args.json => {
                eprintln!("no packet engine runs here (looked into {})", root.display());
            }
            None => {}
        }
    } else {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
    let rates = read()?.since(&before);
    if args.json {
        crate::json::print(&rates)?;
        return Ok(ExitCode::SUCCESS);
    }
    for process in &rates.processes {
        let lines = if args.tree { text::tree(process) } else { text::table(process) };
        terminal::out!("{}", text::plain(&lines))?;
    }
    Ok(ExitCode::SUCCESS)
}
