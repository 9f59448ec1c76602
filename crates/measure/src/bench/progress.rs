//! What is going on, on stderr: a bar on a terminal, a line per run otherwise.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub fn new(runs: usize) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            // Rarely drawn: drawing takes time on the cpus under measurement.
            ProgressBar::with_draw_target(Some(runs as u64), ProgressDrawTarget::stderr_with_hz(2))
                .with_style(style)
        });
        if let Some(bar) = &bar {
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Progress { bar }
    }

    pub fn begin(&self, label: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(label.to_string());
        }
    }

    pub fn end(&self, label: &str, outcome: &str) {
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => eprintln!("{label}: {outcome}"),
        }
    }

    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
