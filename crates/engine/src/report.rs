//! Reports in words, in the form that the engine's users know.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::app::App;
use crate::engine::Engine;
use crate::link::LinkStats;
use crate::pool::PoolStats;

/// `37870464` as `37,870,464`.
pub fn commas(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Share of packets that found the link full, in whole percent.
pub fn loss_rate(stats: &LinkStats) -> u64 {
    let offered = u128::from(stats.txpackets) + u128::from(stats.txdrop);
    (u128::from(stats.txdrop) * 100).checked_div(offered).unwrap_or(0) as u64
}

/// The report of links: one line each, by name.
pub fn links<'a, L: fmt::Display + 'a>(links: impl Iterator<Item = (L, LinkStats)>) -> String {
    let mut out = String::from("link report:\n");
    for (name, stats) in links {
        let (sent, loss) = (commas(stats.txpackets), loss_rate(&stats));
        let _ = writeln!(out, "{sent:>20} sent on {name} (loss rate: {loss}%)");
    }
    out
}

/// What an app of a kind with these counters lost on its way out of the engine, behind its links.
pub fn lost(counters: &[&str], app: &(impl App + ?Sized)) -> u64 {
    let mut values = vec![0; counters.len()];
    app.counters(&mut values);
    let lost =
        counters.iter().zip(values).filter(|(name, _)| matches!(**name, "tx_dropped" | "lost"));
    lost.map(|(_, value)| value).sum()
}

/// Further lines of the report of links, for what no link knows of.
pub fn losses(lost: impl Iterator<Item = (String, u64)>) -> String {
    let mut out = String::new();
    for (app, lost) in lost {
        let _ = writeln!(out, "{:>20} lost by {app}, behind its links", commas(lost));
    }
    out
}

/// The report of load between two moments.
pub fn load(
    passed: Duration,
    breaths: u64,
    before: PoolStats,
    after: PoolStats,
    rest: Duration,
) -> String {
    let seconds = passed.as_secs_f64().max(1e-9);
    let packets = after.frees.wrapping_sub(before.frees);
    let bytes = after.freebytes.wrapping_sub(before.freebytes);
    // Preamble, check sequence and gap come on top of each packet on the wire.
    let gigabits = (bytes + 24 * packets) as f64 * 8.0 / seconds / 1e9;
    format!(
        "load: time: {seconds:.2}s fps: {} fpGbps: {gigabits:.3} fpb: {} bpp: {} sleep: {}us",
        commas((packets as f64 / seconds) as u64),
        packets.checked_div(breaths).unwrap_or(0),
        bytes.checked_div(packets).unwrap_or(0),
        rest.as_micros(),
    )
}

impl Engine {
    /// The report of this engine's links.
    pub fn report_links(&self) -> String {
        let lost = self.lost().map(|(name, lost)| (name.to_string(), lost));
        links(self.links()) + &losses(lost)
    }

    /// What the apps have to say.
    pub fn report_apps(&self) -> String {
        let mut out = String::from("apps report:\n");
        for (name, app) in self.apps() {
            let mut text = String::new();
            if app.report(&mut text).is_ok() && !text.is_empty() {
                let _ = writeln!(out, "{name}");
                for line in text.lines() {
                    let _ = writeln!(out, "  {line}");
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_link_report() {
        let lossless = LinkStats { txpackets: 37_870_464, ..LinkStats::default() };
        let lossy = LinkStats { txpackets: 3, txdrop: 1, ..LinkStats::default() };
        let text = links([("if1.tx -> if2.rx", lossless), ("if2.tx -> if1.rx", lossy)].into_iter());
        assert_eq!(
            text,
            "link report:\n          37,870,464 sent on if1.tx -> if2.rx (loss rate: 0%)\n\
             \x20                  3 sent on if2.tx -> if1.rx (loss rate: 25%)\n"
        );
    }

    #[test]
    fn what_is_lost_behind_the_links_has_lines_of_its_own() {
        let text = losses([(String::from("out"), 1000)].into_iter());
        assert_eq!(text, "               1,000 lost by out, behind its links\n");
    }

    #[test]
    fn commas_stand_every_three_digits() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (u64::MAX, "18,446,744,073,709,551,615")]
        {
            assert_eq!(commas(number), text);
        }
    }

    #[test]
    fn the_form_of_the_load_report() {
        let after = PoolStats { frees: 1234, freebytes: 1234 * 60, live: 0 };
        let text = load(
            Duration::from_secs(1),
            12,
            PoolStats::default(),
            after,
            Duration::from_micros(100),
        );
        assert_eq!(
            text,
            "load: time: 1.00s fps: 1,234 fpGbps: 0.001 fpb: 102 bpp: 60 sleep: 100us"
        );
    }
}
