//! What the figures were taken on.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: usize,
    pub kernel: String,
    pub memory_bytes: u64,
    pub congestion_control: String,
    /// When the bench began, of the minute before.
    pub load_average: f64,
    /// Processors that other programs kept busy in the half second before it began. None in records
    /// of before this was looked at.
    #[serde(default)]
    pub busy: Option<f64>,
    /// The cpus that server and client of a pair are pinned to.
    pub pinned: Option<(usize, usize)>,
}

/// So many busy processors, or such a load where only that is known, disturb what is measured.
const BUSY: f64 = 0.25;
const LOAD: f64 = 1.0;

impl Machine {
    pub fn describe(pinned: Option<(usize, usize)>) -> Machine {
        let began = Times::now();
        sleep(Duration::from_millis(500));
        let busy = began.zip(Times::now()).map(|(before, now)| now.busy_since(before));
        Machine {
            cpu: value_after("/proc/cpuinfo", "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: line("/proc/sys/kernel/osrelease"),
            memory_bytes: value_after("/proc/meminfo", "MemTotal")
                .and_then(|value| first_number(&value))
                .unwrap_or(0)
                * 1024,
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
            load_average: line("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|value| value.parse().ok())
                .unwrap_or(0.0),
            busy,
            pinned,
        }
    }

    /// Why figures of this machine are not to be trusted.
    pub fn doubt(&self) -> Option<String> {
        let cause = match self.busy {
            Some(busy) if busy > BUSY => {
                format!("Other programs kept {busy:.1} of {} processors busy", self.cpus)
            }
            None if self.load_average > LOAD => {
                format!("The load was {:.2} on {} processors", self.load_average, self.cpus)
            }
            _ => return None,
        };
        Some(format!("{cause} when this began: do not trust these figures."))
    }

    /// Says so at once, before minutes of measuring.
    pub fn warned(self) -> Machine {
        if let Some(doubt) = self.doubt() {
            terminal::screen::warn(&doubt);
        }
        self
    }

    pub fn sentence(&self) -> String {
        let gib = self.memory_bytes as f64 / (1u64 << 30) as f64;
        let pinned = self.pinned.map_or_else(
            || "nothing pinned".to_string(),
            |(server, client)| format!("servers on cpu {server}, clients on cpu {client}"),
        );
        format!(
            "{} cpus {}, {gib:.0} GiB, Linux {}, TCP {}; {pinned}; load before {:.2}",
            self.cpus, self.cpu, self.kernel, self.congestion_control, self.load_average
        )
    }
}

/// Of all processors since the machine started, in ticks.
#[derive(Clone, Copy)]
struct Times {
    busy: u64,
    all: u64,
    cpus: usize,
}

impl Times {
    fn now() -> Option<Times> {
        Times::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// `cpu  user nice system idle iowait irq softirq steal ...`: time that the hypervisor took is
    /// not there for us, either. What guests had is in the first two.
    fn parse(text: &str) -> Option<Times> {
        let ticks = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let ticks: Vec<u64> = ticks.map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        let is_cpu = |line: &&str| line.strip_prefix("cpu").is_some_and(|n| !n.starts_with(' '));
        let all: u64 = ticks.iter().sum();
        Some(Times { busy: all - idle, all, cpus: text.lines().filter(is_cpu).count() })
    }

    /// Processors that were busy on average since then.
    fn busy_since(self, before: Times) -> f64 {
        let (busy, all) =
            (self.busy.saturating_sub(before.busy), self.all.saturating_sub(before.all));
        busy as f64 / all.max(1) as f64 * self.cpus as f64
    }
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_string())
}

fn value_after(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processors_are_counted() {
        let stat = |busy: u64, idle: u64| {
            let text =
                format!("cpu  {busy} 0 100 {idle} 50 0 0 10 0 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n");
            Times::parse(&text).unwrap()
        };
        let before = stat(1000, 5000);
        assert_eq!(stat(1075, 5025).busy_since(before), 1.5, "of two");
        assert_eq!(stat(1000, 5100).busy_since(before), 0.0);
        assert_eq!(before.busy_since(before), 0.0);
        assert!(Times::now().is_some_and(|now| now.cpus > 0 && now.all > now.busy));
    }

    #[test]
    fn a_loaded_machine_is_told() {
        let mut machine = Machine { cpus: 2, ..Machine::describe(None) };
        (machine.busy, machine.load_average) = (Some(0.1), 5.66);
        assert_eq!(machine.doubt(), None, "a build that is over is no trouble");
        machine.busy = Some(1.9);
        assert!(machine.doubt().unwrap().contains("1.9 of 2 processors"));
        machine.busy = None;
        assert!(machine.doubt().unwrap().contains("load was 5.66"));
        machine.load_average = 0.4;
        assert_eq!(machine.doubt(), None);
    }
}
