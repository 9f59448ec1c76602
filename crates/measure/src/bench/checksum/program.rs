//! shortwire-checksum-bench: started, listened to, and ended whatever happens.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use terminal::signals;

use super::event::Event;
use crate::bench::helper;
use crate::sys;

const NAME: &str = "shortwire-checksum-bench";
/// Between two looks at whether Ctrl-C was pressed. Rare, because looking takes time on the
/// processors under measurement.
const STEP: Duration = Duration::from_millis(200);

pub struct Program {
    child: Child,
    lines: Receiver<std::io::Result<String>>,
}

impl Program {
    pub fn start(arguments: &[OsString]) -> Result<Program> {
        let mut command = Command::new(helper::locate(NAME)?);
        // A group of its own: Ctrl-C reaches us alone, and we end it.
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        sys::at_start(&mut command, None);
        let mut child = command.spawn().with_context(|| format!("cannot start {NAME}"))?;
        let output = child.stdout.take().context("its output was to be a pipe")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            // Ends with the program's output, or when nobody listens any more.
            let _ = BufReader::new(output).lines().try_for_each(|line| sender.send(line));
        });
        Ok(Program { child, lines })
    }

    /// The next event; an error if the program failed or ended early, or on Ctrl-C.
    pub fn next(&mut self) -> Result<Event> {
        let line = loop {
            signals::go_on_unless_interrupted("; the measuring program has been ended")?;
            match self.lines.recv_timeout(STEP) {
                Ok(line) => break line.with_context(|| format!("cannot read from {NAME}"))?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("{NAME} ended too early, with {status}");
                }
            }
        };
        let event = serde_json::from_str(&line).with_context(|| {
            format!("{NAME} is of another version than this command; it printed: {line}")
        })?;
        match event {
            Event::Error { message } => bail!(message),
            event => Ok(event),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has nothing to clean up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
