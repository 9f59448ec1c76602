//! Doorbells never pile up on the TCP connection: unread they are acknowledged late, fill the
//! sender's congestion window, and the next one, for which somebody sleeps, stays behind.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use system_tests::{
    Deadline, Outcome, Ports, Proc, Side, case, compile, millis, plain, secs, skip,
};

/// Doorbells that may lie unread, or unacknowledged, on a connection.
const MOST: u64 = 8;
const LOOK_FOR: Duration = secs(2);

/// Bytes unacknowledged and unread, of each established connection on `port`.
fn queues(port: u16) -> Vec<(u64, u64)> {
    let table = fs::read_to_string("/proc/net/tcp").expect("the kernel's table of connections");
    let port = format!(":{port:04X}");
    let queues = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, queues, ..] = fields[..] else { return None };
        let (sent, unread) = queues.split_once(':')?;
        let hex = |number| u64::from_str_radix(number, 16).ok();
        let ours = state == "01" && (local.ends_with(&port) || remote.ends_with(&port));
        ours.then_some((hex(sent)?, hex(unread)?))
    };
    table.lines().filter_map(queues).collect()
}

/// Runs both programs on one processor. Beside doorbells so many bytes of `payload` may lie unread.
fn look(name: &str, server: &[&str], client: &[&str], connections: usize, payload: u64) {
    case(name, |c| {
        if plain() {
            return skip("without shortwire there are no doorbells");
        }
        let (port, bells) = (Ports::Low.free(), compile("bells")?);
        let number = port.to_string();
        let start = |arguments: &[&str]| {
            let mut command = Side::Run.command(&bells);
            command.arg(arguments[0]).arg(&number).args(&arguments[1..]);
            command
        };
        let mut server = c.serve("server", port, &mut start(server));
        let mut client = c.start("client", &mut start(client));
        let watch = c.watch(&[port]);
        watch.wait_smcd(2 * connections, secs(100));
        drop(watch);
        // What came before the switch has yet to be read, by whoever reads, and acknowledged.
        let settled =
            || queues(port).iter().all(|(sent, unread)| *sent <= MOST && *unread <= payload + MOST);
        let end = Deadline::within(secs(60));
        while !settled() && !end.is_over() {
            sleep(millis(20));
        }
        let (end, mut seen, mut worst) = (Instant::now() + LOOK_FOR, 0, (0, 0));
        // Once at least, however long this process had no processor.
        loop {
            for (sent, unread) in queues(port) {
                seen += 1;
                worst = (worst.0.max(sent), worst.1.max(unread));
            }
            if Instant::now() >= end {
                break;
            }
            sleep(millis(5));
        }
        assert!(seen > 0, "no connection on port {port}");
        assert!(client.running() && server.running());
        assert!(worst.0 <= MOST, "{} doorbells unacknowledged", worst.0);
        assert!(worst.1 <= payload + MOST, "{} bytes unread, {payload} of them payload", worst.1);
        client.signal(Signal::KILL);
        client.wait(secs(60));
        server.signal(Signal::KILL);
        server.wait(secs(60));
        Ok(()) as Outcome
    });
}

fn both_ways(how: &str, connections: usize) {
    let count = connections.to_string();
    look(&format!("bells-{how}-{count}"), &["serve", how], &["ask", how, &count], connections, 0);
}

#[test]
fn both_ways_by_epoll() {
    for connections in [1, 3, 50, 500] {
        both_ways("epoll", connections);
    }
}

#[test]
fn both_ways_by_edges() {
    for connections in [1, 8] {
        both_ways("edge", connections);
    }
}

#[test]
fn both_ways_by_poll() {
    both_ways("poll", 3);
}

#[test]
fn both_ways_by_select() {
    both_ways("select", 3);
}

#[test]
fn both_ways_by_threads() {
    both_ways("block", 3);
}

#[test]
fn one_way() {
    for how in ["epoll", "edge", "poll", "select", "block"] {
        for count in ["1", "8"] {
            let connections = count.parse().unwrap_or(1);
            look(
                &format!("bells-one-way-{how}-{count}"),
                &["sip", how],
                &["drip", count],
                connections,
                0,
            );
        }
    }
}

/// The two meet although one made tens of thousands of operations before the other ran, and makes
/// few since.
#[test]
fn a_writer_that_has_become_slow() {
    for how in ["epoll", "block"] {
        look(&format!("bells-slow-{how}"), &["late", how], &["slow"], 1, 0);
    }
}

/// A writer that asks again and again, and never sleeps, takes the doorbells off that its refused
/// sends have asked for.
#[test]
fn a_writer_that_never_sleeps() {
    look("bells-pour", &["sip", "block"], &["pour"], 1, 0);
}

/// Its peer's first bytes lie in front of all doorbells for good.
#[test]
fn a_writer_that_never_reads() {
    look("bells-deaf", &["deaf"], &["gulp"], 1, 100);
}

fn shown(args: &[&str]) -> serde_json::Value {
    let said = Command::new(system_tests::shortwire()).args(args).output().expect("shortwire");
    serde_json::from_slice(&said.stdout).expect("JSON")
}

/// What its own connections count of a process, by `ss`: wake-ups that were late, and all.
fn wakeups(of: &Proc) -> (u64, u64) {
    let all = shown(&["ss", "--json"]);
    let rows = all["connections"].as_array().expect("a list").iter();
    let own = rows.filter(|row| {
        row["programs"].as_array().is_some_and(|all| all.iter().any(|p| p["pid"] == of.pid()))
    });
    own.map(|row| &row["detail"]["wakeups"]).fold((0, 0), |(late, all), counted| {
        (late + counted["late"].as_u64().unwrap_or(0), all + counted["all"].as_u64().unwrap_or(0))
    })
}

/// A process that is stopped again and again wakes late.
fn late_wakeups(how: &str) {
    case(&format!("bells-late-{how}"), |c| {
        if plain() {
            return skip("without shortwire there are no doorbells");
        }
        let (port, bells) = (Ports::Low.free(), compile("bells")?);
        let number = port.to_string();
        let command = |arguments: &[&str]| {
            let mut command = Side::Run.command(&bells);
            command.arg(arguments[0]).arg(&number).args(&arguments[1..]);
            command
        };
        let server = c.serve("server", port, &mut command(&["serve", how]));
        let client = c.start("client", &mut command(&["ask", how, "3"]));
        c.watch(&[port]).wait_smcd(6, secs(100));
        let end = Deadline::within(secs(60));
        while wakeups(&server).0 == 0 {
            assert!(!end.is_over(), "no late wake-up in {:?}", wakeups(&server));
            server.signal(Signal::STOP);
            sleep(millis(20));
            server.signal(Signal::CONT);
            sleep(millis(5));
        }
        // Each of them beside thousands that were not late: `doctor` complains from one in a
        // thousand on. What it saw lies between what is counted before and after, on a busy machine
        // perhaps on the other side of that.
        let end = Deadline::within(secs(60));
        let complaint = || shown(&["doctor", "--json", &server.pid().to_string()]).to_string();
        let is_rare = |(late, all): (u64, u64)| {
            assert!(late <= all, "{late} of {all}");
            late * 1000 < all
        };
        loop {
            let (before, said, after) =
                (is_rare(wakeups(&server)), complaint(), is_rare(wakeups(&server)));
            if said.contains("wake-ups took longer than 5 ms") || before || after {
                break;
            }
            assert!(!end.is_over(), "{said}");
        }
        for mut side in [client, server] {
            side.signal(Signal::KILL);
            side.wait(secs(60));
        }
        Ok(())
    });
}

#[test]
fn late_wakeups_are_told() {
    for how in ["epoll", "poll", "block"] {
        late_wakeups(how);
    }
}
