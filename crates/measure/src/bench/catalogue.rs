//! The rows. Bars are those of the issue `Sockets at the speed of memory`.

use super::case::{Bar, Better, Case, Measure, Path};
use super::outcome::Outcome;
use super::session::Session;
use super::{peers, tools};
use Bar::{Copy, Ratio, Value, Worst};
use Better::{Higher, Lower};

type Run = fn(&Session, Path) -> anyhow::Result<Outcome>;
type Measures = &'static [(&'static str, &'static str, Better, Option<Bar>)];

const WITH_LIMIT: &[Path] = &[Path::Tcp, Path::Shortwire, Path::Copy, Path::Unix, Path::BareRing];
const ALL_SOCKETS: &[Path] = &[Path::Tcp, Path::Shortwire, Path::Copy, Path::Unix];
const WITH_UNIX: &[Path] = &[Path::Tcp, Path::Shortwire, Path::Unix];
const WITH_COPY: &[Path] = &[Path::Tcp, Path::Shortwire, Path::Copy];
const PAIR: &[Path] = &[Path::Tcp, Path::Shortwire];

fn row(
    name: &'static str,
    what: &'static str,
    paths: &'static [Path],
    measures: Measures,
    run: Run,
) -> Case {
    let group = name.split_once('-').map_or(name, |(group, _)| group);
    let measures = measures.iter().map(|&(name, unit, better, bar)| Measure {
        name: name.into(),
        unit: unit.into(),
        better,
        bar,
    });
    let measures = measures.collect();
    Case {
        name,
        group,
        what,
        paths,
        measures,
        needs: &[],
        long_only: false,
        free: false,
        counts_calls: false,
        run,
    }
}

pub fn all() -> Vec<Case> {
    [own(), sockperf_and_iperf3(), redis(), web(), others(), few(), go()].concat()
}

/// What `--only` takes: groups and rows, each once.
pub fn names() -> Vec<&'static str> {
    let cases = all();
    let mut names: Vec<&str> = cases.iter().flat_map(|case| [case.group, case.name]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn own() -> Vec<Case> {
    let peers = |case: Case| Case { group: "peers", ..case };
    let rows = vec![
        row(
            "pingpong",
            "14 bytes back and forth, one connection",
            WITH_LIMIT,
            &[
                ("pingpong 14 B, round trip", "us", Lower, None),
                ("pingpong 14 B, p99", "us", Lower, None),
            ],
            peers::pingpong,
        ),
        row(
            "roundtrip",
            "100 bytes back and forth, one connection",
            WITH_LIMIT,
            &[("round trips of 100 B", "1/s", Higher, Some(Ratio(12.0)))],
            peers::roundtrip,
        ),
        row(
            "stream",
            "64000-byte writes in one direction, one connection",
            WITH_LIMIT,
            &[("stream 64000 B", "B/s", Higher, Some(Copy(1.3)))],
            peers::stream,
        ),
        row(
            "rr",
            "requests of 128 bytes on 64 connections, one thread and one epoll set at each end",
            ALL_SOCKETS,
            &[
                ("requests, 64 connections", "1/s", Higher, None),
                ("requests, 64 connections, p99", "us", Lower, None),
            ],
            peers::rr,
        ),
        row(
            "short",
            "connect, one request, close: too short to be upgraded",
            WITH_UNIX,
            &[("short connections", "1/s", Higher, Some(Ratio(0.98)))],
            peers::short,
        ),
        row(
            "pool",
            "connect, 8 requests one behind the other, close",
            WITH_UNIX,
            &[("connections with 8 requests", "1/s", Higher, None)],
            peers::pool,
        ),
        row(
            "never",
            "pingpong and requests under run --after 4294967295: what it costs when nothing is upgraded",
            PAIR,
            &[
                ("never upgraded: pingpong", "us", Lower, Some(Ratio(0.98))),
                ("never upgraded: requests", "1/s", Higher, Some(Ratio(0.98))),
            ],
            peers::never,
        ),
        row(
            "one-cpu",
            "pingpong with client and server on one cpu",
            WITH_UNIX,
            &[("pingpong 14 B on one cpu", "us", Lower, Some(Ratio(1.0)))],
            peers::one_cpu,
        )
        .long_only(),
    ];
    let busy = [
        row("busy-1", "rr, nothing pinned, beside 1 busy thread", PAIR, BUSY_1, |s, path| {
            peers::busy(s, path, 1)
        }),
        row("busy-2", "rr, nothing pinned, beside 2 busy threads", PAIR, BUSY_2, |s, path| {
            peers::busy(s, path, 2)
        }),
        row("busy-4", "rr, nothing pinned, beside 4 busy threads", PAIR, BUSY_4, |s, path| {
            peers::busy(s, path, 4)
        }),
        row("busy-8", "rr, nothing pinned, beside 8 busy threads", PAIR, BUSY_8, |s, path| {
            peers::busy(s, path, 8)
        }),
    ];
    let active = [
        row("active-1", ACTIVE, PAIR, ACTIVE_1, |s, path| {
            peers::active(s, path, &["--active", "1"])
        }),
        row("active-8", ACTIVE, PAIR, ACTIVE_8, |s, path| {
            peers::active(s, path, &["--active", "8"])
        }),
        row("active-64", ACTIVE, PAIR, ACTIVE_64, |s, path| {
            peers::active(s, path, &["--active", "64"])
        }),
    ];
    let long = busy.into_iter().chain(active).map(Case::long_only);
    rows.into_iter().map(peers).chain(long).collect()
}

const ACTIVE: &str =
    "requests of 128 bytes on 500 connections in turn, so many under way at a time";
const ACTIVE_1: Measures = &[
    ("requests, 1 of 500 connections", "1/s", Higher, Some(Ratio(1.0))),
    ("requests, 1 of 500 connections, p99", "us", Lower, None),
];
const ACTIVE_8: Measures = &[
    ("requests, 8 of 500 connections", "1/s", Higher, Some(Ratio(1.0))),
    ("requests, 8 of 500 connections, p99", "us", Lower, None),
];
const ACTIVE_64: Measures = &[
    ("requests, 64 of 500 connections", "1/s", Higher, Some(Ratio(1.0))),
    ("requests, 64 of 500 connections, p99", "us", Lower, None),
];

const BUSY_1: Measures = &[("requests beside 1 busy thread", "1/s", Higher, Some(Ratio(1.0)))];
const BUSY_2: Measures = &[("requests beside 2 busy threads", "1/s", Higher, Some(Ratio(1.0)))];
const BUSY_4: Measures = &[("requests beside 4 busy threads", "1/s", Higher, Some(Ratio(1.0)))];
const BUSY_8: Measures = &[("requests beside 8 busy threads", "1/s", Higher, Some(Ratio(1.0)))];

fn sockperf_and_iperf3() -> Vec<Case> {
    let iperf3 = |case: Case| case.needing(&["iperf3"]);
    let sockperf = |case: Case| case.needing(&["sockperf"]);
    vec![
        iperf3(row(
            "iperf3-1",
            "iperf3 -l 64K, one stream",
            WITH_COPY,
            &[("iperf3 -l 64K", "bit/s", Higher, Some(Ratio(2.5)))],
            |session, path| tools::iperf3::run(session, path, 1, Some("64K")),
        )),
        iperf3(row(
            "iperf3-4",
            "iperf3 -l 64K -P 4, four streams",
            PAIR,
            &[("iperf3 -l 64K -P 4", "bit/s", Higher, Some(Ratio(2.0)))],
            |session, path| tools::iperf3::run(session, path, 4, Some("64K")),
        ))
        .long_only(),
        iperf3(row(
            "iperf3-plain",
            "iperf3, one stream, its own block length (128 KiB)",
            WITH_COPY,
            &[("iperf3", "bit/s", Higher, Some(Ratio(2.5)))],
            |session, path| tools::iperf3::run(session, path, 1, None),
        ))
        .long_only(),
        sockperf(row(
            "sockperf-pp",
            "sockperf pp --tcp, 14 bytes (latency is half a round trip)",
            WITH_COPY,
            &[
                ("sockperf pp 14 B, avg", "us", Lower, Some(Ratio(15.0))),
                ("sockperf pp 14 B, p99", "us", Lower, None),
            ],
            tools::sockperf::ping_pong,
        )),
        sockperf(row(
            "sockperf-one-cpu",
            "sockperf pp --tcp, 14 bytes, client and server on one cpu",
            PAIR,
            &[("sockperf pp 14 B on one cpu, avg", "us", Lower, Some(Ratio(1.0)))],
            tools::sockperf::one_cpu,
        ))
        .long_only(),
        sockperf(row(
            "sockperf-tp",
            "sockperf tp --tcp, messages of 64000 bytes",
            WITH_COPY,
            &[("sockperf tp 64000 B", "msg/s", Higher, Some(Ratio(2.2)))],
            |session, path| tools::sockperf::throughput(session, path, 64_000),
        )),
        sockperf(row(
            "sockperf-tp-64",
            "sockperf tp --tcp, messages of 64 bytes",
            PAIR,
            &[("sockperf tp 64 B", "msg/s", Higher, Some(Ratio(8.0)))],
            |session, path| tools::sockperf::throughput(session, path, 64),
        ))
        .long_only(),
    ]
}

fn redis() -> Vec<Case> {
    let redis = |case: Case| case.needing(&["redis-server", "redis-benchmark"]);
    vec![
        redis(row(
            "redis-get",
            "redis-benchmark -t get, 50 connections, no pipeline",
            ALL_SOCKETS,
            &[("redis GET, 50 connections", "1/s", Higher, Some(Ratio(2.2)))],
            |session, path| tools::redis::run(session, path, 1),
        ))
        .counting_calls(),
        redis(row(
            "redis-get-p16",
            "redis-benchmark -t get -P 16, 50 connections",
            WITH_UNIX,
            &[("redis GET -P 16", "1/s", Higher, Some(Ratio(1.5)))],
            |session, path| tools::redis::run(session, path, 16),
        ))
        .long_only(),
        redis(row(
            "redis-idle",
            "redis-benchmark -t get without and then beside 10,000 idle connections",
            PAIR,
            &[
                ("redis GET beside idle connections", "1/s", Higher, None),
                ("redis GET beside idle connections, to without", "x", Higher, Some(Value(0.97))),
            ],
            tools::redis::beside_idle,
        ))
        .long_only(),
    ]
}

fn web() -> Vec<Case> {
    use tools::nginx::{Load, run};
    let nginx = |case: Case| case.needing(&["nginx", "wrk"]);
    vec![
        nginx(row(
            "nginx-wrk",
            "nginx with 2 workers, wrk -t 2 -c 100, a page of 612 bytes",
            WITH_COPY,
            &[
                ("nginx + wrk, 100 connections", "1/s", Higher, Some(Ratio(1.7))),
                ("nginx + wrk, p99", "us", Lower, Some(Ratio(1.0))),
            ],
            |session, path| run(session, path, Load { threads: 2, connections: 100, close: false }),
        ))
        .counting_calls(),
        nginx(row(
            "nginx-wrk-500",
            "nginx with 2 workers, wrk -t 8 -c 500, a page of 612 bytes",
            WITH_COPY,
            &[
                ("nginx + wrk, 500 connections", "1/s", Higher, Some(Ratio(1.6))),
                ("nginx + wrk, 500 connections, p99", "us", Lower, Some(Ratio(1.0))),
            ],
            |session, path| run(session, path, Load { threads: 8, connections: 500, close: false }),
        ))
        .long_only(),
        nginx(row(
            "nginx-close",
            "nginx with 2 workers, wrk -t 2 -c 100 with Connection: close",
            PAIR,
            &[("nginx + wrk, Connection: close", "1/s", Higher, Some(Ratio(1.0)))],
            |session, path| {
                let outcome =
                    run(session, path, Load { threads: 2, connections: 100, close: true })?;
                Ok(Outcome { values: vec![outcome.values[0]], ..outcome })
            },
        ))
        .long_only(),
        row(
            "haproxy",
            "haproxy with 1 thread in front of nginx with 2 workers, wrk -t 2 -c 100",
            PAIR,
            &[("haproxy + nginx + wrk", "1/s", Higher, Some(Ratio(1.5)))],
            tools::proxy::haproxy,
        )
        .needing(&["haproxy", "nginx", "wrk"])
        .long_only(),
    ]
}

fn others() -> Vec<Case> {
    use tools::echo;
    vec![
        row(
            "memcached",
            "memcached with 1 thread, GET of 100 bytes on 50 connections by shortwire-peers",
            WITH_UNIX,
            &[("memcached GET, 50 connections", "1/s", Higher, Some(Ratio(1.5)))],
            tools::memcached::run,
        )
        .needing(&["memcached"])
        .long_only(),
        row(
            "node-echo",
            "an echo server in Node.js, 128 bytes on 50 connections by shortwire-peers",
            PAIR,
            &[("Node echo, 50 connections", "1/s", Higher, Some(Ratio(1.5)))],
            |session, path| echo::run(session, path, echo::NODE),
        )
        .needing(&["node"])
        .long_only(),
        row(
            "java-echo",
            "an echo server with a selector in Java, 128 bytes on 50 connections by shortwire-peers",
            PAIR,
            &[("Java echo, 50 connections", "1/s", Higher, Some(Ratio(1.5)))],
            |session, path| echo::run(session, path, echo::JAVA),
        )
        .needing(&["java", "javac"])
        .long_only(),
        row(
            "pgbench",
            "pgbench -S -c 10 -j 2, scale 10: bound by the database itself",
            WITH_UNIX,
            &[("pgbench -S -c 10", "1/s", Higher, Some(Ratio(1.05)))],
            tools::postgres::run,
        )
        .needing(&["postgres", "initdb", "pgbench"])
        .long_only(),
    ]
}

macro_rules! few {
    ($($name:literal $module:ident::$run:ident, $needs:expr, $what:literal: $($count:literal)*;)*) => {
        vec![$($(few_row(
            concat!("few-", $name, "-", $count),
            concat!($what, ", long-lived connections: ", $count),
            [concat!($name, ", ", $count, " connections"), concat!($name, ", ", $count, " connections, p99")],
            $module::$run::<$count>,
        ).needing($needs)),*),*]
    };
}

/// A few connections that live as long as the run: somebody sleeps for most messages. See `--pin`,
/// `--busy`, `--congestion`.
fn few() -> Vec<Case> {
    use tools::{echo, nginx, postgres, proxy, redis};
    few! {
        "rr" peers::few, &[], "requests of 128 bytes, one thread and one epoll set at each end": 1 3 4 8 16;
        "redis" redis::few, &["redis-server", "redis-benchmark"], "redis-benchmark -t get": 1 3 4 8 16;
        "nginx" nginx::few, &["nginx", "wrk"], "nginx with 2 workers, wrk -t 1": 1 3 4 8 16;
        "haproxy" proxy::few_haproxy, &["haproxy", "nginx", "wrk"], "haproxy in front of nginx, wrk -t 1": 1 3 4 8 16;
        "envoy" proxy::few_envoy, &["envoy", "nginx", "wrk"], "Envoy with 1 thread in front of nginx, wrk -t 1": 1 3 4 8 16;
        "pgbouncer" postgres::few_pooled, &["pgbouncer", "postgres", "initdb", "pgbench"], "PgBouncer in front of PostgreSQL, pgbench -S": 8;
        "node" echo::few_node, &["node"], "an echo server in Node.js": 8;
        "java" echo::few_java, &["java", "javac"], "an echo server with a selector in Java": 8;
    }
}

/// Programs in Go, by the numbers of connections at which its waits differ.
fn go() -> Vec<Case> {
    use tools::go::{caddy, echo, echo_cgo, etcd, pages};
    let of = |name, what, run: Run, [rate, p99]: [&'static str; 2], bar, needs| {
        let measure = |name: &'static str, unit: &'static str, better, bar| Measure {
            name: name.into(),
            unit: unit.into(),
            better,
            bar,
        };
        let measures =
            vec![measure(rate, "1/s", Higher, Some(Ratio(bar))), measure(p99, "us", Lower, None)];
        let case = Case { measures, free: true, ..row(name, what, PAIR, &[], run) };
        case.needing(needs).long_only()
    };
    macro_rules! rows {
        ($($name:literal $run:ident, $needs:expr, $what:literal: $($count:literal $bar:literal)*;)*) => {
            vec![$($(of(
                concat!("go-", $name, "-", $count),
                concat!($what, ", connections: ", $count),
                $run::<$count>,
                [concat!("Go ", $name, ", ", $count, " connections"), concat!("Go ", $name, ", ", $count, " connections, p99")],
                $bar,
                $needs,
            )),*),*]
        };
    }
    rows! {
        "echo" echo, &["go"], "64 bytes back and forth between two Go programs without cgo": 1 1.0 4 1.0 10 2.0 100 3.0;
        "cgo" echo_cgo, &["go", "cc"], "64 bytes back and forth between two Go programs with cgo": 1 1.0 4 1.0 10 2.0 100 3.0;
        "http" pages, &["go", "wrk"], "Go's net/http without cgo, wrk, a page of 612 bytes": 10 1.3 100 1.3;
        "caddy" caddy, &["caddy", "wrk"], "Caddy, wrk, a file of 612 bytes": 20 1.0;
        "etcd" etcd, &["etcd", "wrk"], "etcd, wrk, a value asked for in JSON": 16 1.0;
    }
}

fn few_row(name: &'static str, what: &'static str, measures: [&'static str; 2], run: Run) -> Case {
    let [rate, p99] = measures;
    let measure = |name: &'static str, unit: &'static str, better, bar| Measure {
        name: name.into(),
        unit: unit.into(),
        better,
        bar: Some(bar),
    };
    let measures =
        vec![measure(rate, "1/s", Higher, Worst(1.0)), measure(p99, "us", Lower, Ratio(1.0))];
    Case { measures, free: true, ..row(name, what, PAIR, &[], run) }.long_only()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_pairs_are_neighbours() {
        let (mut names, mut measures) = (HashSet::new(), HashSet::new());
        for case in all() {
            assert!(names.insert(case.name), "{}", case.name);
            assert_eq!(case.paths[..2], [Path::Tcp, Path::Shortwire], "{}", case.name);
            for measure in case.measures {
                assert!(measures.insert(measure.name.clone()), "{}", measure.name);
                let copies = matches!(measure.bar, Some(Copy(_)));
                assert!(
                    !copies || case.paths.contains(&Path::Copy),
                    "{}: a bar for a path it has not",
                    case.name
                );
            }
        }
    }
}
