//! Debian's own rsockets programs, linked to librdmacm, under `shortwire run --rsocket`.
#![allow(unsafe_code)]

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use system_tests::{compile, count_skip, need, shortwire};

/// Long enough for any machine; what is not done by then hangs.
const PATIENCE: &str = "300";
/// Rows of a whole run of rstream or riostream: four sizes, latency and bandwidth.
const ROWS: usize = 8;

fn is_installed(program: &str) -> bool {
    let found = need(program);
    if let Err(why) = &found {
        count_skip(program, why);
    }
    found.is_ok()
}

fn start(program: &str, port: u16, arguments: &[&str]) -> Child {
    let mut command = Command::new("timeout");
    command
        .arg(PATIENCE)
        .arg(shortwire())
        .args(["run", "--rsocket", "--", program, "-p", &port.to_string()])
        .args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until something listens there, without connecting to it.
fn await_listener(server: &mut Child, port: u16, table: &str) {
    let wanted = format!(":{port:04X} ");
    while !std::fs::read_to_string(table).unwrap().lines().any(|line| line.contains(&wanted)) {
        assert!(server.try_wait().unwrap().is_none(), "the server has ended before it listened");
        sleep(Duration::from_millis(10));
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Server and client with the same options; gives what the client printed.
fn both(program: &str, options: &[&str]) -> String {
    let port = free_port();
    let mut server = start(program, port, options);
    await_listener(&mut server, port, "/proc/net/tcp");
    let client = start(program, port, &[&["-s", "127.0.0.1"], options].concat());
    let (client, server) = (client.wait_with_output().unwrap(), server.wait_with_output().unwrap());
    for output in [&client, &server] {
        assert!(output.status.success(), "{program} {options:?}: {}", text(output));
        assert!(
            !text(output).contains("verification failed"),
            "{program} {options:?}: {}",
            text(output)
        );
    }
    text(&client)
}

fn modes(program: &str, modes: &[&[&str]]) {
    if !is_installed(program) {
        return;
    }
    for options in modes {
        let printed = both(program, options);
        let wanted = if options.contains(&"-S") { 1 } else { ROWS };
        let row = |line: &&str| ["_lat", "_bw", "custom"].iter().any(|name| line.contains(name));
        assert_eq!(
            printed.lines().filter(row).count(),
            wanted,
            "{program} {options:?}:\n{printed}"
        );
    }
}

#[test]
fn rstream() {
    modes(
        "rstream",
        &[
            &[],
            &["-T", "v"],
            &["-T", "b", "-T", "v"],
            &["-T", "n", "-T", "v"],
            &["-T", "a", "-T", "v"],
            &["-T", "a", "-T", "b", "-T", "v"],
            &["-T", "f", "-T", "b"],
            &["-B", "32768", "-T", "v"],
            &["-k", "5"],
            // Addresses by rdma_getaddrinfo.
            &["-T", "r", "-T", "v"],
            &["-T", "r", "-f", "ip", "-S", "64"],
        ],
    );
}

/// A program that manages devices and queue pairs itself gets no rsockets: it fails as it does
/// without Shortwire, which says why in front of it. One for rsockets is not warned of.
#[test]
fn programs_for_devices_are_told_why_they_cannot() {
    if !is_installed("rping") || !is_installed("rstream") {
        return;
    }
    let words = "it manages RDMA devices itself";
    let run = |program: &str, options: &[&str]| {
        let mut command = Command::new(shortwire());
        let output = command.args(options).arg(program).args(["-h"]).output().unwrap();
        text(&output)
    };
    let rping = run("rping", &["run", "--rsocket", "--"]);
    assert!(rping.contains(words) && rping.contains("rping -s [-vVd]"), "{rping}");
    assert!(!run("rping", &["run", "--rsocket", "--quiet", "--"]).contains(words));
    assert!(!run("rstream", &["run", "--rsocket", "--"]).contains(words));
    let doctor = |program| {
        let output = Command::new(shortwire()).args(["doctor", program]).output().unwrap();
        text(&output)
    };
    assert!(doctor("rping").contains(words));
    assert!(doctor("rstream").contains("shortwire run --rsocket -- rstream"));
}

/// Both ends look at their memory without a pause, and on a busy machine each look lasts as long as
/// the kernel lets it: in all modes few messages, of a size that goes in one write and of one that
/// takes many.
#[test]
fn riostream() {
    for size in [&["-S", "64", "-I", "50", "-C", "4"], &["-S", "1000000", "-I", "5", "-C", "4"]] {
        for mode in [&[][..], &["-T", "b"], &["-T", "a"], &["-T", "a", "-T", "b"]] {
            modes("riostream", &[&[&size[..], mode, &["-T", "v"]].concat()]);
        }
    }
}

/// Sets of rsockets show what the kernel's sets of TCP sockets show.
#[test]
fn repoll() {
    let program = match compile("repoll") {
        Ok(program) => program,
        Err(why) => return count_skip("repoll", &why),
    };
    let mut command = Command::new("timeout");
    command.arg(PATIENCE).arg(shortwire()).args(["run", "--rsocket", "--"]).arg(program);
    let output = command.args(["127.0.0.1", &free_port().to_string()]).output().unwrap();
    let printed = text(&output);
    assert!(output.status.success() && printed.contains(" steps, 0 wrong"), "{printed}");
}

/// Ours measures itself, with every byte checked, in each way to wait, and prints what scripts can
/// read.
#[test]
fn our_own_rstream() {
    for options in
        [&["--mode", "polling"][..], &["--mode", "block"], &["--mode", "async", "--fork"]]
    {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE).arg(shortwire()).args([
            "rstream",
            "--verify",
            "--json",
            "--repeat",
            "1",
            "--seconds",
            "0.05",
        ]);
        command.args(["--size", "64,64K", "--streams", "3"]).args(options);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{options:?}: {}", text(&output));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let direct =
            ["riowrite 64 KiB", "memcpy"].into_iter().filter(|_| !options.contains(&"--fork"));
        let rows = [
            "latency 64 B",
            "bandwidth 64 KiB",
            "bandwidth 64 KiB, 3 streams",
            "both ways 64 KiB",
            "both ways 64 KiB, 3 streams",
            "messages, one way 8 B",
            "bare-ring",
            "tcp",
        ];
        for row in rows.into_iter().chain(direct) {
            let row = format!("\"{row}\"");
            let row = row.as_str();
            assert!(printed.contains(row), "{options:?}: {row} is missing in\n{printed}");
        }
    }
}

/// How often udpong is started anew whose datagrams the kernel had no room for.
const TRIES: usize = 5;

/// Whether the kernel had no room for a datagram to this port, or to who is connected to it.
fn is_one_lost(port: u16) -> bool {
    let (wanted, table) = (format!(":{port:04X} "), std::fs::read_to_string("/proc/net/udp"));
    let table = table.unwrap();
    let mut drops = table
        .lines()
        .filter(|line| line.contains(&wanted))
        .filter_map(|line| line.split_whitespace().next_back());
    drops.any(|drops| drops != "0")
}

/// Told by `timeout`, which passes the signal on.
fn end(child: &Child) {
    // SAFETY: our own child.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
}

/// False where it goes on for ever because one was lost.
fn pongs(mode: &str) -> bool {
    let port = free_port();
    let mut server = start("udpong", port, &["-b", "127.0.0.1", "-T", mode]);
    await_listener(&mut server, port, "/proc/net/udp");
    let arguments = ["-s", "127.0.0.1", "-T", mode, "-S", "64", "-C", "100"];
    let mut client = start("udpong", port, &arguments);
    // Looks behind a loss, two seconds of which are enough for a client that survives it.
    let mut looks = 0;
    while client.try_wait().unwrap().is_none() && looks < 40 {
        looks += u32::from(is_one_lost(port));
        sleep(Duration::from_millis(50));
    }
    let goes_on = client.try_wait().unwrap().is_none();
    if goes_on {
        end(&client);
    }
    let client = client.wait_with_output().unwrap();
    // It serves for ever.
    end(&server);
    server.wait().unwrap();
    assert!(
        goes_on || client.status.success() && text(&client).contains("custom"),
        "-T {mode}: {}",
        text(&client)
    );
    !goes_on
}

/// Datagrams may be lost, and udpong survives that only if none comes twice: what it receives
/// overwrites what it would send again, also on plain UDP. So fewer than a socket has room for
/// (some 550) are under way while the server does not run, if that is for less than half a second:
/// one for each that the client sends, and one for each millisecond that it waits.
#[test]
fn udpong() {
    if !is_installed("udpong") {
        return;
    }
    for mode in ["n", "b", "a", "e"] {
        assert!((0..TRIES).any(|_| pongs(mode)), "-T {mode}: datagrams are lost each time");
    }
}
