//! Redis, nginx and PostgreSQL under traffic with connects, kills and forks: nothing may grow,
//! stick or go wrong.
//!
//! `make soak` runs it for half an hour, beside as many busy threads as `LOAD` says; `make check`
//! for about a minute, which shows a leak of every round only if it is large.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use system_tests::stream::{Random, bytes, mix};
use system_tests::{
    Case, Deadline, Ports, Proc, Side, Skip, case, compile, connections, expect_same, family,
    mapped_memory, millis, need, open_files, pipes, plain, resident_memory, secs, shortwire,
    unix_sockets,
};

use crate::{big_file, is_whole, nginx, postgres, redis};

/// Connections that are upgraded and then idle for the whole time.
const IDLE: usize = 50;

fn duration() -> Duration {
    secs(env::var("SHORTWIRE_SOAK").ok().and_then(|v| v.parse().ok()).unwrap_or(45))
}

/// Threads beside it that only compute.
fn load() -> Option<String> {
    env::var("SHORTWIRE_SOAK_LOAD").ok().filter(|threads| !threads.is_empty() && threads != "0")
}

struct Clients {
    storm: PathBuf,
    benchmark: PathBuf,
    cli: PathBuf,
    curl: PathBuf,
    wrk: PathBuf,
    pgbench: PathBuf,
    psql: PathBuf,
}

struct Soak<'a> {
    c: &'a Case,
    clients: Clients,
    redis: Proc,
    redis_port: String,
    nginx: Proc,
    site: String,
    database: postgres::Database,
    storm: Proc,
    storm_port: String,
    file: PathBuf,
    random: Random,
}

/// What a server and its children hold while no client but the idle ones is there.
#[derive(Clone, Copy)]
struct Held {
    /// KiB.
    resident: u64,
    /// KiB.
    mapped: u64,
    /// Without pipes and Unix sockets.
    files: usize,
    pipes: usize,
    unix: usize,
}

impl Held {
    fn of(server: &Proc) -> Held {
        let pids = family(server.pid());
        Held {
            resident: pids.iter().map(|&pid| resident_memory(pid)).sum::<u64>() >> 10,
            mapped: pids.iter().map(|&pid| mapped_memory(pid)).sum::<u64>() >> 10,
            files: pids
                .iter()
                .map(|&pid| open_files(pid).saturating_sub(pipes(pid) + unix_sockets(pid)))
                .sum(),
            pipes: pids.iter().map(|&pid| pipes(pid)).sum(),
            unix: pids.iter().map(|&pid| unix_sockets(pid)).sum(),
        }
    }
}

impl Soak<'_> {
    fn run(&self, program: &Path, args: &[&str]) -> String {
        self.c.client(&name(program), Side::Run, program, args)
    }

    fn redis(&mut self, round: u64) {
        let (size, depth) =
            ((1 + self.random.below(4000)).to_string(), (1 + self.random.below(32)).to_string());
        let load = [
            "-p",
            &self.redis_port,
            "-n",
            "10000",
            "-c",
            "20",
            "-r",
            "500",
            "-t",
            "get,set,incr",
            "--csv",
        ];
        let said =
            self.run(&self.clients.benchmark, &[&load[..], &["-d", &size, "-P", &depth]].concat());
        assert!(said.contains("\"INCR\""), "{said}");
        let value: String =
            bytes(mix(round), 200_000).iter().map(|b| char::from(b'a' + b % 26)).collect();
        let mut command = Side::Run.command(&self.clients.cli);
        let mut cli = self.c.start("redis-cli", command.args(["-p", &self.redis_port, "--raw"]));
        let (mut script, mut wanted) = (String::new(), String::new());
        for i in 0..10 {
            let _ = write!(script, "SET soak{i} {i}{value}\nGET soak{i}\n");
            let _ = write!(wanted, "OK\n{i}{value}\n");
        }
        cli.say(&script);
        let said = cli.success(secs(60));
        assert!(
            said == wanted,
            "redis-cli printed {} bytes, not the {} expected",
            said.len(),
            wanted.len()
        );
        if round.is_multiple_of(3) {
            self.run(&self.clients.cli, &["-p", &self.redis_port, "bgsave"]);
        }
    }

    fn nginx(&mut self, round: u64) {
        let mut command = Side::Run.command(&self.clients.curl);
        let mut curl = self.c.start("curl", command.args(["-sS", "--fail", &self.site]));
        curl.success(secs(60));
        expect_same(curl.stdout_path(), &self.file);
        let small = self.site.replace("/big", "/small");
        for more in [&["-c20"][..], &["-c8", "-H", "Connection: close"]] {
            let usual = ["-t2", "-d1s", nginx::WRK_TIMEOUT];
            let said = self.run(&self.clients.wrk, &[&usual[..], more, &[&small]].concat());
            assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        }
        if round.is_multiple_of(4) {
            self.nginx.signal(Signal::HUP);
        }
    }

    fn postgres(&mut self) {
        let said =
            self.database.client(self.c, &self.clients.pgbench, &["-n", "-c", "4", "-t", "100"]);
        assert!(is_whole(&said), "{said}");
        let check = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)";
        assert_eq!(self.database.client(self.c, &self.clients.psql, &["-Atc", check]).trim(), "t");
        let series = "select md5(string_agg(i::text, ',')) from generate_series(1, 20000) i";
        let rows = "select i from generate_series(1, 20000) i";
        let sums = [series, rows]
            .map(|query| self.database.client(self.c, &self.clients.psql, &["-Atc", query]));
        assert_eq!(sums[1].lines().count(), 20000, "rows of {}", sums[0]);
        assert!(
            sums[1].lines().enumerate().all(|(i, row)| row.parse() == Ok(i + 1)),
            "psql printed other rows"
        );
    }

    /// Threads and forks that connect over and over, set options and go back to TCP; one of two
    /// programs at its limit of open files. Each knows every byte, and complains if it sleeps for
    /// long.
    fn storm(&mut self) {
        let call = |files: &str| {
            let mut command = Side::Run.command(&self.clients.storm);
            command.args(["client", &self.storm_port, "6", "2"]).env("STORM_FILES", files);
            self.c.start("storm", &mut command)
        };
        for mut client in ["1024", "40"].map(call) {
            client.success(secs(120));
        }
        assert!(self.storm.running(), "{}", self.storm.stderr());
    }

    /// A server drops what it shared with processes that have ended when the next new peer comes; which
    /// may have been any number, as all of them come and go at once.
    fn visit(&self) {
        let args = ["client", &self.storm_port, "1", "1"];
        self.c.start("visit", Side::Run.command(&self.clients.storm).args(args)).success(secs(60));
    }

    /// Clients killed at a random moment of their work.
    fn kill(&mut self) {
        let small = self.site.replace("/big", "/small");
        let (redis, wrk) = (&self.clients.benchmark, &self.clients.wrk);
        let endless =
            ["-p", &self.redis_port, "-c", "20", "-l", "-q", "-t", "set,get", "-d", "2000"];
        let mut victims = vec![
            self.c.start("victim", Side::Run.command(redis).args(endless)),
            self.c.start("victim", Side::Run.command(wrk).args(["-t2", "-c20", "-d60s", &small])),
            self.c.start(
                "victim",
                Side::Run.command(&self.clients.curl).args(["-sS", "-o", "/dev/null", &self.site]),
            ),
            self.database.start(self.c, &self.clients.pgbench, &["-n", "-c", "4", "-T", "60"]),
            self.c.start(
                "victim",
                Side::Run.command(&self.clients.storm).args([
                    "client",
                    &self.storm_port,
                    "6",
                    "60",
                ]),
            ),
        ];
        sleep(millis(20 + self.random.below(400)));
        for victim in &mut victims {
            victim.signal(Signal::KILL);
            victim.wait(secs(60));
        }
    }

    /// Waits until only the idle connections are left, and of the servers' children those that stay: no snapshot is
    /// being written any more, and workers from before a reload have ended.
    fn settle(&self, ports: &[u16], round: u64) {
        let end = Deadline::within(secs(60));
        loop {
            let seen = [&self.redis, &self.nginx].map(|server| family(server.pid()));
            // Each itself, and nginx's two workers.
            if seen[0].len() == 1 && seen[1].len() == 3 {
                break;
            }
            assert!(!end.is_over(), "round {round}: processes of redis and nginx: {seen:?}");
            sleep(millis(100));
        }
        loop {
            let left = connections(ports);
            if plain() || left.len() == 2 * IDLE {
                return;
            }
            let line = |c: &system_tests::Connection| {
                format!("{} {} -> {} {}", c.pid, c.local, c.peer, c.state)
            };
            assert!(
                !end.is_over(),
                "round {round}: {} ends of connections instead of {}:\n{}",
                left.len(),
                2 * IDLE,
                left.iter().map(line).take(200).collect::<Vec<_>>().join("\n")
            );
            sleep(millis(100));
        }
    }
}

fn name(program: &Path) -> String {
    program.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The most in the first third of the rounds and in the last.
fn ends(rounds: &[Held], of: impl Fn(&Held) -> u64) -> (u64, u64) {
    let third = rounds.len().div_ceil(3);
    let most = |part: &[Held]| part.iter().map(&of).max().unwrap_or(0);
    (most(&rounds[..third]), most(&rounds[rounds.len() - third..]))
}

/// Rounds before which the memory of the storm's server says nothing: some of its peers are killed
/// in each round, and what they shared lies there until the next ones come.
const OF_PEERS: usize = 30;

/// Files of link groups that are kept without connections: a few rounds end with any number of them.
const OF_GROUPS: u64 = 8;

/// Ends of bells that come and go with peers, and channels: three for each of the eight link groups
/// that are kept without connections, and as many for a client's threads.
const OF_BELLS: u64 = 48;

/// KiB: what two killed clients shared, half a gibibyte of addresses each. Each of nginx's two workers
/// keeps that of one until it accepts a new peer, which in a round is the work of either. A leak of one
/// client in each round would be twice as much after six rounds.
const OF_KILLED: u64 = 2 * (513 << 10);

fn expect_no_growth(server: &str, rounds: &[Held]) {
    let (resident, mapped, files) = (
        ends(rounds, |h| h.resident),
        ends(rounds, |h| h.mapped),
        ends(rounds, |h| h.files as u64),
    );
    eprintln!(
        "{server}: resident {} -> {} KiB, mapped segments {} -> {} KiB, open files {} -> {}",
        resident.0, resident.1, mapped.0, mapped.1, files.0, files.1
    );
    assert!(files.1 <= files.0 + OF_GROUPS, "{server}: open files grow");
    let pipes = ends(rounds, |h| h.pipes as u64);
    assert!(pipes.1 <= pipes.0 + OF_BELLS, "{server}: pipes grow from {} to {}", pipes.0, pipes.1);
    let unix = ends(rounds, |h| h.unix as u64);
    assert!(
        unix.1 <= unix.0 + OF_BELLS,
        "{server}: Unix sockets grow from {} to {}",
        unix.0,
        unix.1
    );
    if server == "storm" && rounds.len() < OF_PEERS {
        return;
    }
    assert!(
        resident.1 <= resident.0 + resident.0 / 4 + (8 << 10),
        "{server}: resident memory grows"
    );
    let kept = if server == "nginx" { OF_KILLED } else { 0 };
    assert!(mapped.1 <= mapped.0 + mapped.0 / 4 + kept, "{server}: mapped segments grow");
}

#[test]
fn soak() {
    case("soak", |c| {
        let clients = Clients {
            storm: compile("storm")?,
            benchmark: need("redis-benchmark")?,
            cli: need("redis-cli")?,
            curl: need("curl")?,
            wrk: need("wrk")?,
            pgbench: need("pgbench")?,
            psql: need("psql")?,
        };
        let (redis_port, nginx_port, storm_port) =
            (Ports::Low.free(), Ports::High.free(), Ports::Low.free());
        let storm_number = storm_port.to_string();
        let _busy = match load() {
            Some(threads) => {
                let peers = shortwire().with_file_name("shortwire-peers");
                Some(c.start(
                    "busy",
                    Side::Plain.command(&peers).args(["busy", "--threads", &threads]),
                ))
            }
            None => None,
        };
        let mut soak = Soak {
            redis: redis::server(c, redis_port, &[])?,
            redis_port: redis_port.to_string(),
            nginx: nginx::nginx(c, nginx_port, "", "sendfile on;")?,
            storm: c.serve(
                "storm",
                storm_port,
                Side::Run
                    .command(&clients.storm)
                    .args(["server", &storm_number])
                    .env("SHORTWIRE_TEST_LIFE", life()),
            ),
            storm_port: storm_number,
            site: format!("http://127.0.0.1:{nginx_port}/big"),
            database: postgres::start(c, Ports::Low)?,
            file: {
                big_file(c.dir().join("files/big"), 32);
                // Not nginx's own, which would be damaged with what it sends.
                big_file(c.dir().join("wanted"), 32)
            },
            random: Random::new(42),
            clients,
            c,
        };
        soak.database.client(c, &soak.clients.pgbench, &["-i", "-q", "-s", "1"]);
        idle_beside(c, |idle_port| {
            let ports = [redis_port, nginx_port, soak.database.port, storm_port, idle_port];
            let (start, mut held) = (Instant::now(), Vec::new());
            while start.elapsed() < duration() || held.len() < 6 {
                let round = held.len() as u64;
                soak.redis(round);
                soak.nginx(round);
                soak.postgres();
                soak.storm();
                soak.kill();
                soak.settle(&ports, round);
                soak.visit();
                soak.settle(&ports, round);
                held.push(
                    [&soak.redis, &soak.nginx, &soak.database.server, &soak.storm].map(Held::of),
                );
            }
            eprintln!("{} rounds in {} s", held.len(), start.elapsed().as_secs());
            for (at, server) in ["redis", "nginx", "postgres", "storm"].into_iter().enumerate() {
                expect_no_growth(server, &held.iter().map(|round| round[at]).collect::<Vec<_>>());
            }
        })?;
        soak.redis.stop();
        soak.nginx.stop();
        soak.database.end();
        soak.storm.stop();
        Ok(())
    });
}

/// Seconds that programs beside the rounds may live.
fn life() -> String {
    (duration() + secs(600)).as_secs().to_string()
}

/// Connections that must still work when everything is over.
fn idle_beside(c: &Case, work: impl FnOnce(u16)) -> Result<(), Skip> {
    let (port, many) = (Ports::High.free(), compile("many")?);
    let life = life();
    let command = |args: &[&str]| {
        let mut command = Side::Run.command(&many);
        command.args(args).env("SHORTWIRE_TEST_LIFE", &life);
        command
    };
    let mut server = c.serve("many", port, &mut command(&["server", &port.to_string()]));
    let mut client =
        c.start("idle", &mut command(&["idle", &port.to_string(), &IDLE.to_string(), "200"]));
    client.wait_line("ready", secs(60));
    work(port);
    client.say("\n");
    client.wait_line("again", secs(60));
    client.success(secs(60));
    server.stop();
    Ok(())
}
