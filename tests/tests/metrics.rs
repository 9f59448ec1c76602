//! `shortwire metrics`: what it serves, to Prometheus itself and to a browser, and the file for
//! node_exporter.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;
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
open('/proc/self/comm', 'w').write(sys.argv[2])
def serve(c):
    while True:
        block = c.recv(100)
        if not block: break
        c.sendall(block)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";
/// A thousand echoes, then more for each line, until the end.
const CLIENT: &str = "
import socket, sys
open('/proc/self/comm', 'w').write(sys.argv[2])
c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def echo(n):
    for i in range(n):
        c.sendall(b'x' * 100)
        assert c.recv(100, socket.MSG_WAITALL) == b'x' * 100
    print('done', flush=True)
echo(1000)
for line in sys.stdin:
    if not line.strip(): break
    echo(int(line))
";

fn script(under: bool, text: &str, port: u16, name: &str) -> Result<Command, Skip> {
    let python = python()?;
    let mut command = if under {
        let mut command = Command::new(shortwire());
        command.args(["run", "--"]).arg(python);
        command
    } else {
        Command::new(python)
    };
    command.args(["-c", text, &port.to_string(), name]).env_remove("LD_PRELOAD");
    Ok(command)
}

/// A server, a client that shares memory with it, and one that is not under Shortwire.
fn programs(c: &Case) -> Result<[Proc; 3], Skip> {
    let port = Ports::Low.free();
    let server = c.serve("server", port, &mut script(true, SERVER, port, "the-server")?);
    let start = |under, name: &str| -> Result<Proc, Skip> {
        let mut client = c.start(name, &mut script(under, CLIENT, port, name)?);
        client.wait_line("done", secs(60));
        Ok(client)
    };
    Ok([server, start(true, "the-client")?, start(false, "the-stranger")?])
}

/// Starts to serve; where, as HOST:PORT.
fn metrics(c: &Case, more: &[&str]) -> (Proc, String) {
    let mut command = Command::new(shortwire());
    command.arg("metrics").args(["--listen", "127.0.0.1:0"]).args(more);
    let mut server = c.start("metrics", command.env_remove("LD_PRELOAD"));
    let line = server.wait_line("serving http://", secs(60));
    let place = line.trim_start_matches("serving http://").trim_end_matches('/').to_string();
    (server, place)
}

fn ask(place: &str, path: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(place).expect("a server");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {place}\r\n{header}\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn body(text: &str) -> &str {
    text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// The sum of what a metric has where all these labels are.
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let of = |line: &&str| {
        line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label))
    };
    text.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Deadline::within(secs(60));
    while !condition() {
        assert!(!end.is_over(), "{what} does not come about");
        std::thread::sleep(millis(100));
    }
}

fn end(mut all: [Proc; 3]) {
    for client in &mut all[1..] {
        client.say("\n");
        client.success(secs(60));
    }
    all[0].stop();
}

#[test]
fn counters_are_served_and_outlive_their_programs() {
    case("metrics", |c| {
        if plain() {
            return Ok(());
        }
        let [mut server, mut client, mut stranger] = programs(c)?;
        let (mut serving, place) = metrics(c, &[]);
        let read = || body(&ask(&place, "/metrics", "")).to_string();
        let sent = ["program=\"the-client\"", "direction=\"tx\""];
        let first = read();
        let bytes = value(&first, "shortwire_memory_bytes_total", &sent);
        assert!(bytes > 90_000.0, "{first}");
        for (name, labels, least) in [
            ("shortwire_connections", &["the-server", "mode=\"SMCD\""][..], 1.0),
            ("shortwire_connections", &["the-server", "reason=\"PEER_NO_SMC\""], 1.0),
            ("shortwire_listeners", &["the-server"], 1.0),
            ("shortwire_upgrades_total", &["the-server"], 1.0),
            (
                "shortwire_pair_bytes_total",
                &["from=\"the-client\"", "to=\"the-server\"", "memory"],
                9e4,
            ),
            (
                "shortwire_pair_bytes_total",
                &["from=\"the-stranger\"", "to=\"the-server\"", "tcp"],
                9e4,
            ),
            ("shortwire_build_info", &["version=\"0."], 1.0),
        ] {
            assert!(value(&first, name, labels) >= least, "{name} {labels:?}\n{first}");
        }
        let open =
            ask(&place, "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
        assert!(
            open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"),
            "{open}"
        );
        assert!(ask(&place, "/other", "").starts_with("HTTP/1.1 404"));
        // Who holds the programs' tables open to read them is none of them.
        let own = Command::new(shortwire())
            .args(["ss", "-a", "pid", &serving.pid().to_string()])
            .output();
        let own = String::from_utf8_lossy(&own.expect("shortwire").stdout).into_owned();
        assert!(own.starts_with("0 ends of connections"), "{own}");
        // Killed between two looks, with what it has done since the last.
        client.say("2000\n");
        client.wait_lines("done", 2, secs(60));
        client.signal(Signal::KILL);
        client.wait(secs(60));
        until("the end of a killed program", || {
            value(&read(), "shortwire_memory_bytes_total", &sent) >= bytes + 200_000.0
        });
        let pair = ["from=\"the-client\"", "memory"];
        let pairs = value(&read(), "shortwire_pair_bytes_total", &pair);
        // A connection that stayed TCP is counted at its end.
        stranger.say("\n");
        stranger.success(secs(60));
        until("a fallback", || {
            value(&read(), "shortwire_fallbacks_total", &["the-server", "PEER_NO_SMC"]) >= 1.0
        });
        server.stop();
        std::thread::sleep(secs(3));
        let last = read();
        assert!(value(&last, "shortwire_memory_bytes_total", &sent) >= bytes + 200_000.0, "{last}");
        assert!(value(&last, "shortwire_pair_bytes_total", &pair) >= pairs, "{last}");
        assert_eq!(value(&last, "shortwire_connections", &["the-server"]), 0.0, "{last}");
        serving.signal(Signal::TERM);
        serving.success(secs(60));
        Ok(())
    });
}

#[test]
fn a_file_and_a_socket_file() {
    case("metrics-file", |c| {
        if plain() {
            return Ok(());
        }
        let all = programs(c)?;
        let [file, socket] = ["shortwire.prom", "metrics.sock"].map(|name| c.dir().join(name));
        let mut once = Command::new(shortwire());
        once.args(["metrics", "--textfile"]).arg(&file);
        c.start("once", &mut once).success(secs(60));
        let text = fs::read_to_string(&file).expect("the file");
        assert!(value(&text, "shortwire_connections", &["the-server"]) >= 2.0, "{text}");
        assert!(!text.contains("# EOF"), "node_exporter reads the older format:\n{text}");
        if let Ok(promtool) = need("promtool") {
            let mut check = Command::new(promtool);
            let input = fs::File::open(&file).expect("the file");
            let said = check.args(["check", "metrics"]).stdin(Stdio::from(input)).output();
            let said = said.expect("promtool");
            assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
        } else {
            system_tests::count_skip("promtool", &need("promtool").expect_err("not there"));
        }
        let mut both = Command::new(shortwire());
        both.args(["metrics", "--every", "200ms", "--textfile"]).arg(&file);
        both.arg("--listen").arg(format!("unix:{}", socket.display()));
        let mut serving = c.start("both", &mut both);
        serving.wait_line("serving", secs(60));
        let mut stream = UnixStream::connect(&socket).expect("the socket");
        write!(stream, "GET /data.json HTTP/1.0\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let data: Value = serde_json::from_str(body(&answer)).expect("JSON");
        assert_eq!(data["version"], 1);
        fs::remove_file(&file).expect("the file");
        until("another file", || file.exists());
        serving.signal(Signal::INT);
        serving.success(secs(60));
        assert!(!socket.exists(), "the socket is left");
        fs::remove_file(&file).expect("the file");
        let mut nowhere = Command::new(shortwire());
        nowhere.args(["metrics", "--textfile", "/no/such/folder/x.prom"]);
        let mut nowhere = c.start("nowhere", &mut nowhere);
        assert!(!nowhere.wait(secs(60)).success());
        assert!(nowhere.stderr().contains("/no/such/folder"), "{}", nowhere.stderr());
        end(all);
        Ok(())
    });
}

#[test]
fn prometheus_scrapes_them() {
    case("metrics-prometheus", |c| {
        if plain() {
            return Ok(());
        }
        let prometheus = need("prometheus")?;
        let all = programs(c)?;
        let (mut serving, place) = metrics(c, &[]);
        let port = Ports::Low.free();
        let config = c.dir().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: shortwire\n    static_configs: [{{targets: ['{place}']}}]\n"
        );
        fs::write(&config, text).expect("a configuration");
        let mut command = Command::new(prometheus);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", c.dir().join("tsdb").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let mut prometheus = c.serve("prometheus", port, &mut command);
        let query = |what: &str| {
            let encoded: String = what.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let answer = ask(
                &format!("127.0.0.1:{port}"),
                &format!("/api/v1/query?query={encoded}"),
                "Connection: close\r\n",
            );
            let json = body(&answer).to_string();
            // A body in pieces has their lengths before and behind.
            let json = json.get(json.find('{')?..=json.rfind('}')?)?.to_string();
            let parsed: Value = serde_json::from_str(&json).ok()?;
            parsed.pointer("/data/result/0/value/1")?.as_str()?.parse::<f64>().ok()
        };
        until("a scrape", || query("up{job=\"shortwire\"}") == Some(1.0));
        until("counters", || {
            query("sum(shortwire_memory_bytes_total{program=\"the-client\",direction=\"tx\"})")
                .is_some_and(|bytes| bytes > 90_000.0)
        });
        // Where a scrape has taken longer than its second there are no figures until the next one.
        until("the stranger's connection", || {
            query("sum(shortwire_connections{program=\"the-server\",reason=\"PEER_NO_SMC\"})")
                == Some(1.0)
        });
        prometheus.stop();
        serving.signal(Signal::TERM);
        serving.success(secs(60));
        end(all);
        Ok(())
    });
}

/// What a browser makes of the page: its script runs, programs and ways are drawn, nothing is
/// fetched from elsewhere.
#[test]
fn a_browser_draws_the_page() {
    case("metrics-page", |c| {
        if plain() {
            return Ok(());
        }
        let chromium = need("chromium")?;
        let mut all = programs(c)?;
        // Busy while they are looked at, also on a fast machine.
        all[1..].iter_mut().for_each(|client| client.say("100000000\n"));
        let (mut serving, place) = metrics(c, &[]);
        let picture = c.dir().join("page.png");
        let run = |name: &str, more: &[String]| {
            let mut command = Command::new(&chromium);
            command.args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ]);
            command.args([
                "--window-size=1200,1000",
                "--hide-scrollbars",
                "--virtual-time-budget=3000",
            ]);
            command.arg(format!("--user-data-dir={}", c.dir().join("browser").display()));
            command.env("HOME", c.dir()).args(more).arg(format!("http://{place}/"));
            c.start(name, &mut command).success(secs(120))
        };
        let page = run("dom", &["--dump-dom".into()]);
        for part in [
            "the-server",
            "the-client",
            "the-stranger",
            "PEER_NO_SMC",
            "class=\"memory\"",
            "class=\"tcp\"",
        ] {
            let drawn = page.split("<svg").nth(1).and_then(|rest| rest.split("</svg>").next());
            assert!(drawn.is_some_and(|svg| svg.contains(part)), "{part} is not drawn in\n{page}");
        }
        run("picture", &[format!("--screenshot={}", picture.display())]);
        let png = fs::read(&picture).expect("a picture");
        assert!(png.starts_with(b"\x89PNG") && png.len() > 20_000, "{} bytes", png.len());
        if let Some(kept) = std::env::var_os("SHORTWIRE_TEST_PICTURES") {
            fs::copy(&picture, std::path::Path::new(&kept).join("metrics.png")).expect("a copy");
        }
        serving.signal(Signal::TERM);
        serving.success(secs(60));
        for client in &mut all[1..] {
            client.signal(Signal::KILL);
            client.wait(secs(60));
        }
        all[0].stop();
        Ok(())
    });
}
