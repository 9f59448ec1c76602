//! What the figures were taken on.

use std::fs;

use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: usize,
    pub kernel: String,
    pub memory_bytes: u64,
    pub congestion_control: String,
    /// When the bench began: above about 0.5 other work disturbs the figures.
    pub load_average: f64,
    /// The cpus that server and client of a pair are pinned to.
    pub pinned: Option<(usize, usize)>,
}

impl Machine {
    pub fn describe(pinned: Option<(usize, usize)>) -> Machine {
        Machine {
            cpu: value_after("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: line("/proc/sys/kernel/osrelease"),
            memory_bytes: value_after("/proc/meminfo", "MemTotal").and_then(|value| first_number(&value)).unwrap_or(0)
                * 1024,
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
            load_average: line("/proc/loadavg").split(' ').next().and_then(|value| value.parse().ok()).unwrap_or(0.0),
            pinned,
        }
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
