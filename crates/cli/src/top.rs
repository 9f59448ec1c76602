//! `shortwire top`: what packet engines do, from the counters that they publish.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use ::engine::counters::run_root;
use anyhow::{Context, Result, bail};

use crate::args::Top;
use crate::sys;

pub mod rates;
mod screen;
mod text;

use rates::Look;
use screen::Screen;

pub fn run(args: &Top) -> Result<ExitCode> {
    let root = run_root()?;
    if !args.once && !args.json {
        if !std::io::stdout().is_terminal() {
            bail!("the output is no terminal: use --once or --json");
        }
        Screen::new(args.interval, args.tree).run(&root, args.pid)?;
        return Ok(ExitCode::SUCCESS);
    }
    sys::default_sigpipe();
    let read = || Look::take(&root, args.pid).with_context(|| format!("cannot read {}", root.display()));
    let before = read()?;
    if before.is_empty() {
        match args.pid {
            Some(pid) => bail!("process {pid} runs no packet engine; `shortwire ps` lists those that do"),
            None if !args.json => bail!("no packet engine runs here (looked into {})", root.display()),
            None => {}
        }
    } else {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
    let rates = read()?.since(&before);
    let mut output = std::io::stdout().lock();
    if args.json {
        writeln!(output, "{}", serde_json::to_string_pretty(&rates)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for process in &rates.processes {
        let lines = if args.tree { text::tree(process) } else { text::table(process) };
        output.write_all(text::plain(&lines).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
