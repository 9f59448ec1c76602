//! What is told while packets go, and at the end.

use std::io::IsTerminal;
use std::time::Instant;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use terminal::units::engineering;

use super::frames::ON_WIRE;

/// A bar where the number of packets is known, else a line.
pub struct Progress {
    bar: Option<ProgressBar>,
    began: Instant,
    /// In nanoseconds.
    next: u64,
}

/// Between two looks.
const EVERY: u64 = 250_000_000;

impl Progress {
    pub fn new(count: Option<u64>) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = if count.is_some() {
                "{bar:30} {pos}/{len} {msg}"
            } else {
                "{spinner} {elapsed} {msg}"
            };
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(count, ProgressDrawTarget::stderr_with_hz(4))
                .with_style(style)
        });
        Progress { bar, began: Instant::now(), next: 0 }
    }

    /// Now and then; `sent` is asked only then, as an app has to add its counters up for it.
    #[inline]
    pub fn show(&mut self, now: u64, sent: impl FnOnce() -> u64) {
        if now >= self.next {
            self.next = now + EVERY;
            if let Some(bar) = &self.bar {
                let sent = sent();
                let rate = sent as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
                bar.set_position(sent);
                bar.set_message(format!(
                    "{} packets, {}pps",
                    engineering(sent as f64),
                    engineering(rate)
                ));
            }
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[derive(Serialize)]
pub struct Summary {
    pub to: String,
    pub seconds: f64,
    /// Different frames that were built.
    pub frames: usize,
    pub packets: u64,
    /// Without check sequence.
    pub bytes: u64,
    pub packets_per_second: f64,
    /// With preamble, check sequence and gap, as on a wire.
    pub bits_per_second: f64,
    pub received: Option<Received>,
}

#[derive(Serialize)]
pub struct Received {
    pub at: String,
    pub packets: u64,
    pub lost: u64,
    pub loss_percent: f64,
}

impl Summary {
    /// `lengths` are those of the frames, which were sent in turn.
    pub fn new(to: String, seconds: f64, packets: u64, lengths: &[usize]) -> Summary {
        let total: usize = lengths.iter().sum();
        let rest = (packets % lengths.len() as u64) as usize;
        let bytes = packets / lengths.len() as u64 * total as u64
            + lengths[..rest].iter().sum::<usize>() as u64;
        let seconds = seconds.max(1e-9);
        Summary {
            to,
            seconds,
            frames: lengths.len(),
            packets,
            bytes,
            packets_per_second: packets as f64 / seconds,
            bits_per_second: (bytes + packets * ON_WIRE as u64) as f64 * 8.0 / seconds,
            received: None,
        }
    }

    pub fn add_received(&mut self, at: &str, packets: u64) {
        // More may arrive than was sent, where others send, too.
        let lost = self.packets.saturating_sub(packets);
        let loss_percent =
            if self.packets == 0 { 0.0 } else { lost as f64 * 100.0 / self.packets as f64 };
        self.received = Some(Received { at: at.to_string(), packets, lost, loss_percent });
    }

    pub fn print(&self, json: bool) -> Result<()> {
        if json {
            return crate::json::print(self);
        }
        let commas = ::engine::report::commas;
        terminal::outln!(
            "{} packets ({} bytes) sent to {} in {:.2} s: {}pps, {}bit/s on a wire",
            commas(self.packets),
            commas(self.bytes),
            self.to,
            self.seconds,
            engineering(self.packets_per_second),
            engineering(self.bits_per_second),
        )?;
        if let Some(Received { at, packets, lost, loss_percent }) = &self.received {
            terminal::outln!(
                "{} packets received at {at}: {} lost (loss rate: {loss_percent:.3}%)",
                commas(*packets),
                commas(*lost)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_turn_of_the_frames() {
        let mut summary = Summary::new("x".into(), 2.0, 5, &[60, 100]);
        assert_eq!((summary.bytes, summary.packets_per_second), (3 * 60 + 2 * 100, 2.5));
        assert_eq!(summary.bits_per_second, (380.0 + 5.0 * 24.0) * 4.0);
        summary.add_received("y", 4);
        assert_eq!(summary.received.as_ref().map(|r| (r.lost, r.loss_percent)), Some((1, 20.0)));
        summary.add_received("y", 7);
        assert_eq!(summary.received.map(|received| received.lost), Some(0));
    }
}
