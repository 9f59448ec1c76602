//! The rows: which programs, which paths, which figures, which bars.

use anyhow::Result;

use super::session::Session;
use super::{peers, tools};

/// What the bytes go over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Path {
    Tcp,
    Shortwire,
    Unix,
    BareRing,
}

impl Path {
    /// As in the field `against` of the JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Path::Tcp => "tcp",
            Path::Shortwire => "shortwire",
            Path::Unix => "unix",
            Path::BareRing => "bare-ring",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

#[derive(Clone, Copy)]
pub struct Measure {
    pub name: &'static str,
    pub unit: &'static str,
    pub better: Better,
    /// The ratio to TCP that the project promises.
    pub bar: Option<f64>,
}

/// One pair of programs. A run over one path gives one value for each of `measures`.
pub struct Case {
    pub name: &'static str,
    pub group: &'static str,
    pub what: &'static str,
    pub paths: &'static [Path],
    pub measures: &'static [Measure],
    pub needs: &'static [&'static str],
    /// Left out of `--quick`.
    pub long_only: bool,
    pub run: fn(&Session, Path) -> Result<Vec<f64>>,
}

impl Case {
    pub fn is_called(&self, name: &str) -> bool {
        name == self.name || name == self.group
    }

    pub fn missing(&self) -> Option<String> {
        let missing: Vec<&str> =
            self.needs.iter().copied().filter(|program| tools::locate(program).is_none()).collect();
        (!missing.is_empty()).then(|| format!("{} not installed", missing.join(" and ")))
    }
}

const fn measure(name: &'static str, unit: &'static str, better: Better, bar: Option<f64>) -> Measure {
    Measure { name, unit, better, bar }
}

use Better::{Higher, Lower};

const WITH_LIMIT: &[Path] = &[Path::Tcp, Path::Shortwire, Path::Unix, Path::BareRing];
const WITH_UNIX: &[Path] = &[Path::Tcp, Path::Shortwire, Path::Unix];
const TCP_ONLY: &[Path] = &[Path::Tcp, Path::Shortwire];

pub fn all() -> Vec<Case> {
    let peers = |name, what, paths, measures, run| Case {
        name,
        group: "peers",
        what,
        paths,
        measures,
        needs: &[],
        long_only: false,
        run,
    };
    vec![
        peers(
            "pingpong",
            "14 bytes back and forth, one connection",
            WITH_LIMIT,
            const {
                &[
                    measure("pingpong 14 B, round trip", "us", Lower, None),
                    measure("pingpong 14 B, p99", "us", Lower, None),
                ]
            },
            peers::pingpong,
        ),
        peers(
            "stream",
            "64000-byte writes in one direction, one connection",
            WITH_LIMIT,
            const { &[measure("stream 64000 B", "B/s", Higher, None)] },
            peers::stream,
        ),
        peers(
            "rr",
            "requests of 128 bytes on 64 connections, one thread and one epoll set at each end",
            WITH_UNIX,
            const {
                &[
                    measure("requests, 64 connections", "1/s", Higher, None),
                    measure("requests, 64 connections, p99", "us", Lower, None),
                ]
            },
            peers::rr,
        ),
        peers(
            "short",
            "connect, one request, close: too short to be upgraded",
            WITH_UNIX,
            const { &[measure("short connections", "1/s", Higher, Some(0.98))] },
            peers::short,
        ),
        peers(
            "never",
            "pingpong and requests under run --after 4294967295: what it costs when nothing is upgraded",
            TCP_ONLY,
            const {
                &[
                    measure("never upgraded: pingpong", "us", Lower, Some(0.98)),
                    measure("never upgraded: requests", "1/s", Higher, Some(0.98)),
                ]
            },
            peers::never,
        ),
        Case {
            name: "iperf3-1",
            group: "iperf3",
            what: "iperf3 -l 64K, one stream",
            paths: TCP_ONLY,
            measures: const { &[measure("iperf3 -l 64K", "bit/s", Higher, Some(1.7))] },
            needs: &["iperf3"],
            long_only: false,
            run: |session, path| tools::iperf3::run(session, path, 1),
        },
        Case {
            name: "iperf3-4",
            group: "iperf3",
            what: "iperf3 -l 64K -P 4, four streams",
            paths: TCP_ONLY,
            measures: const { &[measure("iperf3 -l 64K -P 4", "bit/s", Higher, None)] },
            needs: &["iperf3"],
            long_only: true,
            run: |session, path| tools::iperf3::run(session, path, 4),
        },
        Case {
            name: "sockperf-pp",
            group: "sockperf",
            what: "sockperf pp --tcp, 14 bytes (latency is half a round trip)",
            paths: TCP_ONLY,
            measures: const {
                &[
                    measure("sockperf pp 14 B, avg", "us", Lower, Some(2.0)),
                    measure("sockperf pp 14 B, p99", "us", Lower, None),
                ]
            },
            needs: &["sockperf"],
            long_only: false,
            run: tools::sockperf::ping_pong,
        },
        Case {
            name: "sockperf-tp",
            group: "sockperf",
            what: "sockperf tp --tcp, messages of 64000 bytes",
            paths: TCP_ONLY,
            measures: const { &[measure("sockperf tp 64000 B", "msg/s", Higher, Some(1.7))] },
            needs: &["sockperf"],
            long_only: false,
            run: tools::sockperf::throughput,
        },
        Case {
            name: "redis-get",
            group: "redis",
            what: "redis-benchmark -t get, 50 connections, no pipeline",
            paths: WITH_UNIX,
            measures: const { &[measure("redis GET, 50 connections", "1/s", Higher, Some(1.3))] },
            needs: &["redis-server", "redis-benchmark"],
            long_only: false,
            run: |session, path| tools::redis::run(session, path, 1),
        },
        Case {
            name: "redis-get-p16",
            group: "redis",
            what: "redis-benchmark -t get -P 16, 50 connections",
            paths: WITH_UNIX,
            measures: const { &[measure("redis GET -P 16", "1/s", Higher, None)] },
            needs: &["redis-server", "redis-benchmark"],
            long_only: true,
            run: |session, path| tools::redis::run(session, path, 16),
        },
        Case {
            name: "nginx-wrk",
            group: "nginx",
            what: "nginx with 2 workers, wrk -t 2 -c 100, a page of 612 bytes",
            paths: TCP_ONLY,
            measures: const {
                &[
                    measure("nginx + wrk, 100 connections", "1/s", Higher, Some(1.3)),
                    measure("nginx + wrk, p99", "us", Lower, None),
                ]
            },
            needs: &["nginx", "wrk"],
            long_only: false,
            run: tools::nginx::run,
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_tcp_comes_first() {
        let mut names = HashSet::new();
        let mut measures = HashSet::new();
        for case in all() {
            assert!(names.insert(case.name), "{}", case.name);
            assert_eq!(case.paths[..2], [Path::Tcp, Path::Shortwire], "{}: pairs are neighbours", case.name);
            for measure in case.measures {
                assert!(measures.insert(measure.name), "{}", measure.name);
            }
        }
    }
}
