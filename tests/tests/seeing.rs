//! What shows connections to operators: `ss` with filters, and what machines read.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use system_tests::{
    Case, Deadline, Ports, Proc, Skip, case, millis, need, plain, python, secs, shortwire,
};

/// Echoes until the end.
const SERVER: &str = "
import socket, sys, threading
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(5)
def serve(c):
    while True:
        block = c.recv(100)
        if not block: break
        c.sendall(block)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";
/// A hundred echoes, then more for each line, until the end.
const CLIENT: &str = "
import socket, sys
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def echo(n):
    for i in range(n):
        c.sendall(b'x' * 100)
        assert c.recv(100, socket.MSG_WAITALL) == b'x' * 100
    print('done', flush=True)
echo(100)
for line in sys.stdin:
    if not line.strip(): break
    echo(int(line))
";

fn script(under: bool, text: &str, port: u16) -> Result<Command, Skip> {
    let python = python()?;
    let mut command = if under {
        let mut command = Command::new(shortwire());
        command.args(["run", "--"]).arg(python);
        command
    } else {
        Command::new(python)
    };
    command.args(["-c", text, &port.to_string()]).env_remove("LD_PRELOAD");
    Ok(command)
}

/// A server under Shortwire, and a client that is or is not; the server's port.
fn meet(c: &Case, under: bool) -> Result<(Proc, Proc, u16), Skip> {
    let port = Ports::Low.free();
    let server = c.serve("server", port, &mut script(true, SERVER, port)?);
    let mut client = c.start("client", &mut script(under, CLIENT, port)?);
    client.wait_line("done", secs(60));
    Ok((server, client, port))
}

fn end(mut server: Proc, mut client: Proc) {
    client.say("\n");
    client.success(secs(60));
    server.stop();
}

fn ask(words: &[&str]) -> Command {
    let mut command = Command::new(shortwire());
    command.args(words).env_remove("LD_PRELOAD");
    command
}

/// What a command prints; it must succeed.
fn said(words: &[&str]) -> String {
    let output = ask(words).output().expect("shortwire");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&said(words)).expect("JSON")
}

/// The rows that `ss` shows for a filter.
fn rows(filter: &str) -> Vec<Value> {
    let words: Vec<&str> = ["ss", "--json"].into_iter().chain(filter.split(' ')).collect();
    json(&words)["connections"].as_array().expect("a list").clone()
}

#[test]
fn ss_shows_what_a_filter_wants() {
    case("ss-filter", |c| {
        if plain() {
            return Ok(());
        }
        let (server, client, port) = meet(c, true)?;
        let (_, mut stranger, far) = {
            let (server, client, port) = meet(c, false)?;
            (c.dir(), (server, client), port)
        };
        let count = |filter: String| rows(&filter).len();
        assert_eq!(count(format!("sport = :{port}")), 1);
        assert_eq!(count(format!("state established ( sport = :{port} or dport = :{port} )")), 2);
        assert_eq!(count(format!("state listening src 127.0.0.1:{port}")), 1);
        assert_eq!(count(format!("state all src 127.0.0.1:{port}")), 2);
        assert_eq!(count(format!("pid {} mode smcd", client.pid())), 1);
        assert_eq!(count(format!("dport {port} program != python*")), 0);
        assert_eq!(count(format!("sport {far} mode smcd")), 0);
        // The client is not under Shortwire; who it is is told all the same.
        let [row] = &rows(&format!("sport {far} mode tcp not reason NOT_YET"))[..] else {
            panic!("{:#?}", rows(&format!("sport {far}")))
        };
        assert_eq!(
            (&row["reason_name"], &row["reason"]),
            (&"PEER_NO_SMC".into(), &0x0301_0000.into())
        );
        assert_eq!(row["peer_programs"][0]["pid"], stranger.1.pid());
        assert!(row["tcp"]["rx"].as_u64() >= Some(10_000), "{row:#}");

        let all = json(&["ss", "--json", &format!("dport = :{port}")]);
        assert_eq!((&all["version"], &all["summary"]["smcd"]), (&1.into(), &1.into()), "{all:#}");
        // Ends join by tokens, and with their link groups, also where numbers are doubles.
        let (near, other) = (&rows(&format!("sport = :{port}"))[0], &all["connections"][0]);
        assert_eq!(near["detail"]["token_hex"], other["detail"]["peer_token_hex"], "{near:#}");
        let groups = json(&["linkgroups", "--json"]);
        let groups = groups["linkgroups"].as_array().expect("a list");
        let is_its = |group: &&Value| {
            group["id"] == near["detail"]["link_group_id"]
                && group["pid"] == near["programs"][0]["pid"]
        };
        assert_eq!(groups.iter().filter(is_its).count(), 1, "{groups:#?}");
        let shown = said(&["ss", &format!("sport = :{far}")]);
        assert!(shown.contains("TCP PEER_NO_SMC") && !shown.contains("TCP 0x"), "{shown}");
        assert!(
            shown.trim_end().ends_with("1 end of connections: 0 SMCD, 1 TCP (1 PEER_NO_SMC)"),
            "{shown}"
        );
        let refused = ask(&["ss", "sprot", "=", ":80"]).output().expect("shortwire");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && why.contains("`sprot` is no field"), "{why}");
        stranger.1.say("\n");
        stranger.1.success(secs(60));
        stranger.0.stop();
        end(server, client);
        Ok(())
    });
}

#[test]
fn rows_fit_a_terminal_of_80_columns() {
    case("ss-80", |c| {
        if plain() {
            return Ok(());
        }
        let (server, client, _) = meet(c, true)?;
        let mut wide = Command::new(need("script")?);
        let line = format!("stty cols 80 rows 24; {} ss -e; {0} ss", shortwire().display());
        let output = wide.args(["-qec", &line, "/dev/null"]).output().expect("script");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let plain = text.lines().skip_while(|line| !line.contains("ends of connections")).skip(1);
        let longest = plain.clone().max_by_key(|line| line.trim_end().chars().count());
        assert!(text.matches("SMCD").count() > 2, "{text}");
        assert!(longest.is_some_and(|line| line.trim_end().chars().count() <= 80), "{text}");
        end(server, client);
        Ok(())
    });
}

#[test]
fn rsockets_are_listed() {
    case("ss-rsocket", |c| {
        if plain() {
            return Ok(());
        }
        need("rstream")?;
        let port = Ports::Low.free();
        let number = port.to_string();
        let start = |name: &str, more: &[&str]| {
            let mut command = ask(&["run", "--rsocket", "--", "rstream", "-p", &number]);
            c.start(name, command.args(["-S", "64", "-C", "200000000", "-T", "b"]).args(more))
        };
        let mut server = start("server", &[]);
        let listens = || rows(&format!("state listening src *:{port}")).len() == 1;
        let ended = Deadline::within(secs(30));
        while !listens() {
            assert!(!ended.is_over() && server.running(), "it does not listen");
        }
        let mut client = start("client", &["-s", "127.0.0.1"]);
        let found = || rows(&format!("( sport {port} or dport {port} ) mode rsocket"));
        while found().len() < 2 {
            assert!(!ended.is_over() && client.running(), "{:#?}", found());
        }
        // What carries it, who is at the other end, and how much.
        let seen = found();
        for end in &seen {
            assert_eq!(end["stream"]["device"], "loopback", "{end:#}");
            assert_eq!(end["peer_programs"][0]["name"], "rstream", "{end:#}");
        }
        let count = |end: &Value, name: &str| end["stream"][name].as_u64().unwrap_or(0);
        let moved = |end: &Value| count(end, "rx_bytes") + count(end, "tx_bytes") > 64;
        while !found().iter().all(moved) {
            assert!(!ended.is_over() && client.running(), "{:#?}", found());
        }
        let says = |name: &str, words: &[&str], wanted: &str| {
            let said = c.start(name, &mut ask(words)).success(secs(60));
            assert!(said.contains(wanted), "{words:?}: {wanted} is missing in\n{said}");
        };
        says("stats", &["stats"], "Rsockets");
        says("stats-json", &["stats", "--json"], "\"RSOCKET\"");
        says("top", &["top", "--once", "mode", "rsocket"], "RSOCKET");
        says(
            "doctor",
            &["doctor", &server.pid().to_string()],
            "rsockets that go through shared memory: 1",
        );
        let file = c.dir().join("rsockets.prom");
        let name = file.to_str().expect("a name");
        c.start("metrics", &mut ask(&["metrics", "--textfile", name])).success(secs(60));
        let written = std::fs::read_to_string(&file).expect("metrics");
        let line = "shortwire_rsocket_streams_total{program=\"rstream\"";
        assert!(written.contains(line), "{written}");
        for mut process in [client, server] {
            process.signal(rustix::process::Signal::KILL);
            process.wait(secs(60));
        }
        Ok(())
    });
}

#[test]
fn top_shows_rates_by_connection_program_and_pair() {
    case("top-connections", |c| {
        if plain() {
            return Ok(());
        }
        let (server, mut client, port) = meet(c, true)?;
        let (other, mut stranger, far) = meet(c, false)?;
        let both = format!("sport {port} or dport {port} or sport {far}");
        let mut command = ask(&["top", "--json", "--interval", "2"]);
        let mut top = c.start("top", command.args(both.split(' ')));
        std::thread::sleep(secs(1));
        client.say("5000\n");
        client.wait_lines("done", 2, secs(60));
        stranger.say("1000\n");
        stranger.wait_lines("done", 2, secs(60));
        let all: Value = serde_json::from_str(&top.success(secs(60))).expect("JSON");
        assert_eq!(all["version"], 1);
        let row = |what: &str, wanted: &dyn Fn(&Value) -> bool| {
            let list = all[what].as_array().expect("a list");
            list.iter().find(|row| wanted(row)).unwrap_or_else(|| panic!("{what}: {all:#}")).clone()
        };
        let is_at = |end: &'static str, port: u16| {
            move |row: &Value| row[end].as_str().is_some_and(|a| a.ends_with(&format!(":{port}")))
        };
        let mine = row("connections", &is_at("remote", port));
        // What was echoed between the two looks, whenever these were.
        assert_eq!(mine["mode"], "SMCD");
        let figure = |row: &Value, name: &str| row[name].as_f64().expect("a figure");
        // Of very few messages only one direction may have been counted.
        if figure(&mine, "messages") > 100.0 {
            assert!(figure(&mine, "memory_tx") > 0.0, "{mine:#}");
            assert!(figure(&mine, "doorbells_per_message") <= 1.5, "{mine:#}");
            assert_ne!(mine["waits"], "idle");
        }
        let theirs = row("connections", &is_at("local", far));
        assert_eq!(
            (&theirs["mode"], &theirs["memory_rx"]),
            (&"TCP PEER_NO_SMC".into(), &0.0.into())
        );
        assert_eq!(theirs["waits"], "-");
        let [program] = &all["programs"].as_array().expect("a list")[..] else { panic!("{all:#}") };
        assert_eq!((&program["connections"], &program["smcd"]), (&3.into(), &2.into()), "{all:#}");
        // Both are Python: one pair, in which each connection counts once.
        let [pair] = &all["pairs"].as_array().expect("a list")[..] else { panic!("{all:#}") };
        assert_eq!((&pair["connections"], &pair["smcd"]), (&2.into(), &1.into()), "{all:#}");

        let text =
            said(&["top", "--interval", "0.2", "--by", "program", "sport", &far.to_string()]);
        assert!(text.contains("bell/msg") && text.contains("PEER_NO_SMC"), "{text}");
        for (words, says) in [
            (&["top", "1234"][..], "`shortwire engine top 1234`"),
            (&["top", "--tree"], "`shortwire engine top --tree"),
            (&["top", "nonsense"], "`nonsense` is no field"),
        ] {
            let refused = ask(words).output().expect("shortwire");
            let why = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && why.contains(says), "{why}");
        }
        end(other, stranger);
        end(server, client);
        Ok(())
    });
}

#[test]
fn counters_outlive_programs_where_that_is_wanted() {
    case("stats-keep", |c| {
        if plain() {
            return Ok(());
        }
        let run = c.dir().join("run");
        std::fs::create_dir(&run).expect("a directory");
        let stats = |options: &[&str]| {
            let mut command = ask(&["stats"]);
            command.args(options).env("SHORTWIRE_RUN_DIR", &run);
            let output = command.output().expect("shortwire");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        let bytes = || {
            let all: Value = serde_json::from_str(&stats(&["--json", "-a"])).expect("JSON");
            assert_eq!(all["version"], 1);
            let rows = all["SMCD"]["by_program"].as_array().expect("a list").clone();
            let of = |row: &Value| row["program"].as_str().is_some_and(|p| p.starts_with("kept"));
            let sum = |field: &str| {
                let own = rows.iter().filter(|row| of(row));
                own.filter_map(|row| row.pointer(field)?.as_u64()).sum::<u64>()
            };
            (sum("/tx/bytes"), sum("/client") + sum("/server"))
        };
        let named = |text: &str| format!("open('/proc/self/comm','w').write('kept-one')\n{text}");
        let round = || -> Result<(), Skip> {
            let port = Ports::Low.free();
            let server = c.serve("server", port, &mut script(true, SERVER, port)?);
            let mut client = c.start("client", &mut script(true, &named(CLIENT), port)?);
            client.wait_line("done", secs(60));
            end(server, client);
            Ok(())
        };
        let files = || std::fs::read_dir(&run).expect("a directory").count();
        round()?;
        assert_eq!((files(), bytes().0), (0, 0), "nothing is left that nobody asked for");
        stats(&["--keep"]);
        round()?;
        let (first, upgraded) = bytes();
        assert!(first > 5_000 && upgraded == 1, "{first} bytes, {upgraded} upgraded");
        stats(&["--keep"]);
        round()?;
        let (second, upgraded) = bytes();
        assert!(second > first + 5_000 && upgraded == 2, "{second} bytes, {upgraded} upgraded");
        // A name that leads elsewhere is left alone.
        stats(&["--forget"]);
        assert_eq!((files(), bytes().0), (0, 0));
        let victim = run.join("victim");
        let length = 1 << 20;
        std::fs::write(&victim, vec![7; length]).expect("a file");
        let uid = rustix::process::geteuid().as_raw();
        let trap = run.join(format!("shortwire-counters-{uid}"));
        std::os::unix::fs::symlink(&victim, &trap).expect("a link");
        round()?;
        assert_eq!((std::fs::read(&victim).expect("a file"), bytes().0), (vec![7; length], 0));
        Ok(())
    });
}

/// Whether this process has a table of connections open.
fn holds_a_table(pid: i32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| link.to_string_lossy().contains("memfd:shortwire-table"))
}

#[test]
fn gain_says_what_did_not_pass_the_kernel() {
    case("gain", |c| {
        if plain() {
            return Ok(());
        }
        let port = Ports::Low.free();
        let server = c.serve("server", port, &mut script(true, SERVER, port)?);
        let gain = |name: &str, how: &[&str], text: &str| -> Result<Proc, Skip> {
            let mut command = ask(&["gain"]);
            command.args(how).arg("--").arg(python()?).args(["-c", text, &port.to_string()]);
            Ok(c.start(name, &mut command))
        };
        let said = |mut process: Proc, code: i32| -> Value {
            process.say("\n");
            assert_eq!(process.wait(secs(60)).code(), Some(code), "{}", process.stderr());
            let text = process.stderr();
            let (before, json) = text.split_at(text.find('{').expect("JSON"));
            assert_eq!(before, "", "it could not measure");
            serde_json::from_str(json).expect("JSON")
        };
        let all = said(gain("ends", &["--json"], CLIENT)?, 0);
        assert_eq!(
            (&all["version"], &all["upgraded"], &all["stayed_tcp"]),
            (&1.into(), &1.into(), &0.into())
        );
        assert!(all["memory_bytes"].as_u64() > Some(15_000), "{all:#}");
        assert!(all["memory_calls"].as_u64() > Some(150), "{all:#}");
        assert!(
            all["cost"]["tcp"]["message_ns"].as_f64()
                > all["cost"]["memory"]["message_ns"].as_f64(),
            "{all:#}"
        );
        assert!(all["saved_seconds"].is_f64());
        // A program that is killed has counted, too, and its status is told: when it has been seen.
        let killed = format!("{CLIENT}\nimport os\nos.kill(os.getpid(), 9)");
        let mut killed = gain("killed", &["--json"], &killed)?;
        killed.wait_line("done", secs(60));
        let end = Deadline::within(secs(60));
        while !holds_a_table(killed.pid()) {
            assert!(!end.is_over(), "it does not hold the program's counters");
            std::thread::sleep(millis(10));
        }
        let all = said(killed, 137);
        assert!(all["memory_bytes"].as_u64() > Some(15_000), "{all:#}");
        // What ends gain ends the program, in the program's own way.
        let asked = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('ready', flush=True)\ntime.sleep(300)";
        let mut asked = gain("asked", &[], asked)?;
        asked.wait_line("ready", secs(60));
        asked.signal(rustix::process::Signal::TERM);
        assert_eq!(asked.wait(secs(60)).code(), Some(7), "{}", asked.stderr());
        let short = "import socket, sys\nsocket.create_connection(('127.0.0.1', int(sys.argv[1]))).sendall(b'x')\nsys.exit(3)";
        let mut short = gain("short", &[], short)?;
        assert_eq!(short.wait(secs(60)).code(), Some(3));
        assert!(short.stderr().contains("0 left TCP, 1 did not"), "{}", short.stderr());
        let mut server = server;
        server.stop();
        Ok(())
    });
}

/// A client that is not under Shortwire, and its end.
fn stranger(c: &Case, port: u16) -> Result<(), Skip> {
    let mut client = c.start("stranger", &mut script(false, CLIENT, port)?);
    client.wait_line("done", secs(60));
    client.say("\n");
    client.success(secs(60));
    Ok(())
}

/// A log that nobody has written to yet: whether all that must not be told again came within a minute
/// of what is told.
fn log_of_one_minute(c: &Case, log: &Path) -> Result<bool, Skip> {
    let port = Ports::Low.free();
    let mut command = ask(&["run", "--log", &log.display().to_string(), "--"]);
    command.arg(python()?).args(["-c", SERVER, &port.to_string()]);
    let mut server = c.serve("server", port, &mut command);
    let text = || std::fs::read_to_string(log).unwrap_or_default();
    let begun = Instant::now();
    stranger(c, port)?;
    let end = Deadline::within(secs(60));
    while text().is_empty() {
        assert!(!end.is_over(), "no line is written");
    }
    let said = text();
    let from = format!("127.0.0.1:{port} to 127.0.0.1:");
    for part in [
        &format!("Z shortwire[{}] python", server.pid()),
        &from,
        " is TCP: PEER_NO_SMC, peer did not",
    ] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    // Again and again within a minute, also in a program that shares memory: no more lines.
    stranger(c, port)?;
    let mut client = c.start("client", &mut script(true, CLIENT, port)?);
    client.wait_line("done", secs(60));
    client.say("\n");
    client.success(secs(60));
    stranger(c, port)?;
    let lines = text().lines().count();
    let in_time = begun.elapsed() < secs(60);
    assert!(lines == 1 || !in_time, "{}", text());
    server.stop();
    Ok(in_time)
}

#[test]
fn a_log_says_why_connections_stay_tcp() {
    case("log", |c| {
        if plain() {
            return Ok(());
        }
        // Five programs may take a busy machine more than a minute.
        let mut tries = 0;
        while !log_of_one_minute(c, &c.dir().join(format!("fallbacks-{tries}")))? {
            tries += 1;
            assert!(tries < 5, "a minute is too short each time");
        }
        // Where no line can be written the program runs on.
        let port = Ports::Low.free();
        let mut command = ask(&["run", "--log", "/no/such/folder/log", "--"]);
        command.arg(python()?).args(["-c", SERVER, &port.to_string()]);
        let mut server = c.serve("server", port, &mut command);
        stranger(c, port)?;
        assert!(server.running());
        server.stop();
        Ok(())
    });
}

/// Takes the place of the journal, and starts a server that is to write to it.
const JOURNAL: &str = "
import os, socket, subprocess, sys
os.makedirs('/run/systemd/journal')
j = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
j.bind('/run/systemd/journal/socket')
server = subprocess.Popen(sys.argv[1:])
print(repr(j.recv(4096)), flush=True)
server.terminate()
server.wait()
";

#[test]
fn the_journal_gets_it_in_fields() {
    case("log-journal", |c| {
        if plain() {
            return Ok(());
        }
        if !rustix::process::geteuid().is_root() {
            return system_tests::skip("needs root, for another /run");
        }
        let port = Ports::Low.free();
        let mut command = Command::new(need("unshare")?);
        let shell = "mount -t tmpfs none /run && exec \"$@\"";
        command.args(["--mount", "sh", "-c", shell, "sh"]).arg(python()?).args(["-c", JOURNAL]);
        command.arg(shortwire()).args(["run", "--log", "journald", "--"]).arg(python()?);
        command.args(["-c", SERVER, &port.to_string()]).env_remove("LD_PRELOAD");
        let mut journal = c.serve("journal", port, &mut command);
        stranger(c, port)?;
        let said = journal.success(secs(30));
        for part in [
            "PRIORITY=6\\nSYSLOG_IDENTIFIER=shortwire\\nSHORTWIRE_REASON=PEER_NO_SMC\\nMESSAGE=python",
            "is TCP: PEER_NO_SMC, peer did not signal SMC\\n",
        ] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
        Ok(())
    });
}
