//! What is printed while it runs: whole blocks, and one line that says how far it is.
#![allow(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often the line is printed where it cannot be overwritten.
const SELDOM: Duration = Duration::from_secs(30);

pub struct Screen {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    terminal: bool,
    said: Instant,
}

impl Screen {
    pub fn new() -> Screen {
        let now = Instant::now();
        Screen {
            began: now,
            state: Mutex::new(State { terminal: std::io::stdout().is_terminal(), said: now }),
        }
    }

    /// Prints a block that nothing else comes into.
    pub fn block(&self, text: &str) {
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let clear = if state.terminal { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stdout(), "{clear}{text}");
    }

    /// How far it is. On a terminal this line stays the last.
    pub fn progress(&self, text: &str) {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let seconds = self.began.elapsed().as_secs();
        let line: String = format!("[{}:{:02}] {text}", seconds / 60, seconds % 60);
        let mut out = std::io::stdout();
        if state.terminal {
            let line: String = line.chars().take(width().saturating_sub(1)).collect();
            let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
        } else if state.said.elapsed() >= SELDOM {
            state.said = Instant::now();
            let _ = writeln!(out, "{line}");
        }
    }

    /// The line is not needed any more.
    pub fn clear(&self) {
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.terminal {
            let _ = write!(std::io::stdout(), "\r\x1b[K");
        }
    }
}

fn width() -> usize {
    // SAFETY: all zeroes is a size.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a size there.
    let known = unsafe { libc::ioctl(1, libc::TIOCGWINSZ, &mut size) } == 0;
    if known && size.ws_col > 0 { usize::from(size.ws_col) } else { 80 }
}
