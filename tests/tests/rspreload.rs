//! Programs that know only TCP sockets, under `shortwire run --rsocket`: their connections to each
//! other go over rsockets, those to and from others stay TCP.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;

use system_tests::{Case, Ports, Skip, case, millis, need, plain, prog, python, secs, shortwire};

/// Under `shortwire run --rsocket`, or as it is.
fn command(over_rsockets: bool, program: &Path) -> Command {
    let mut command = Command::new(if over_rsockets { shortwire() } else { program.into() });
    if over_rsockets {
        command.args(["run", "--rsocket", "--"]).arg(program);
    }
    command.env_remove("LD_PRELOAD");
    command
}

/// Connections of rsockets that living programs of this name have made.
fn streams(c: &Case, program: &str) -> u64 {
    let file = c.dir().join("rsockets.prom");
    let mut ask = Command::new(shortwire());
    ask.args(["metrics", "--textfile"]).arg(&file).env_remove("LD_PRELOAD");
    c.start("metrics", &mut ask).success(secs(60));
    let text = fs::read_to_string(&file).expect("metrics");
    let start = format!("shortwire_rsocket_streams_total{{program=\"{program}");
    let counts = text.lines().filter(|line| line.starts_with(&start));
    counts.filter_map(|line| line.split(' ').next_back()?.parse::<u64>().ok()).sum()
}

fn comm(program: &Path) -> String {
    let real = program.canonicalize().unwrap_or_else(|_| program.into());
    real.file_name().expect("a name").to_string_lossy().chars().take(15).collect()
}

#[test]
fn python_talks_to_python_and_to_tcp() {
    case("rspreload-python", |c| {
        if plain() {
            return Ok(());
        }
        let python = python()?;
        let start = |over: bool, role: &str, port: u16| {
            let mut command = command(over, &python);
            command.arg(prog("rsocket_talk.py")).args([role, &port.to_string()]);
            command
        };
        for (server, clients) in [(true, [true, false]), (false, [true, false])] {
            let port = Ports::Low.free();
            let mut serving = c.serve("server", port, &mut start(server, "server", port));
            for client in clients {
                let before = if server { streams(c, "python") } else { 0 };
                let said = c.start("client", &mut start(client, "client", port)).success(secs(120));
                assert!(said.contains("all came back"), "{said}");
                if server {
                    let made = streams(c, "python") - before;
                    assert_eq!(made, u64::from(client), "rsockets between {server} and {client}");
                }
            }
            serving.stop();
        }
        Ok(())
    });
}

/// It asks for TCP_INFO, the segment size and the congestion control, which librspreload refuses.
#[test]
fn iperf3_in_both_directions() {
    case("rspreload-iperf3", |c| {
        if plain() {
            return Ok(());
        }
        let iperf3 = need("iperf3")?;
        let port = Ports::Low.free();
        let number = port.to_string();
        let mut server =
            c.serve("server", port, command(true, &iperf3).args(["-s", "-p", &number]));
        for more in [&[][..], &["-R"], &["--bidir"], &["-P", "3"], &["-w", "64K"]] {
            let arguments = ["-c", "127.0.0.1", "-p", &number, "-t", "1"];
            // The server listens anew for each test, perhaps later than the next client comes.
            let said = (0..10)
                .map(|_| {
                    let mut client = command(true, &iperf3);
                    let mut client = c.start("client", client.args(arguments).args(more));
                    let status = client.wait(secs(60));
                    let said = client.stdout() + &client.stderr();
                    let comes_too_early = ["busy", "refused", "reset"];
                    let early = comes_too_early.iter().any(|what| said.contains(what));
                    assert!(status.success() || early, "{more:?}: {said}");
                    if early {
                        sleep(millis(200));
                    }
                    (status.success(), said)
                })
                .find_map(|(success, said)| success.then_some(said))
                .unwrap_or_else(|| panic!("{more:?}: no server in ten tries"));
            assert!(said.contains("receiver") && said.contains("sec"), "{more:?}: {said}");
            assert!(!said.contains("error"), "{more:?}: {said}");
        }
        // A control connection and one or more of data for each run.
        let made = streams(c, &comm(&iperf3));
        assert!(made >= 10, "{made} connections went over rsockets");
        server.stop();
        Ok(())
    });
}

#[test]
fn redis_and_memcached_by_epoll() {
    case("rspreload-redis", |c| {
        if plain() {
            return Ok(());
        }
        let (server, client) = (need("redis-server")?, need("redis-cli")?);
        let port = Ports::Low.free();
        let number = port.to_string();
        let mut redis = command(true, &server);
        redis.args(["--port", &number, "--save", "", "--dir"]).arg(c.dir());
        let mut serving = c.serve("redis", port, &mut redis);
        let value = "v".repeat(100_000);
        for (over, name) in [(true, "a"), (false, "b")] {
            let ask = |words: &[&str]| {
                let mut ask = command(over, &client);
                c.start("cli", ask.args(["-p", &number]).args(words)).success(secs(60))
            };
            assert_eq!(ask(&["set", name, &value]).trim(), "OK");
            assert_eq!(ask(&["get", name]).trim(), value);
        }
        assert_eq!(streams(c, "redis-server"), 2, "one for each call of the client over rsockets");
        serving.stop();
        let Ok(server) = need("memcached") else { return Ok(()) };
        let port = Ports::Low.free();
        let number = port.to_string();
        let mut memcached = command(true, &server);
        memcached.args(["-u", "nobody", "-U", "0", "-t", "2", "-p", &number]);
        let mut serving = c.serve("memcached", port, &mut memcached);
        let text = format!(
            "import socket\nc = socket.create_connection(('127.0.0.1', {port}))\nf = b'x' * 50000\nc.sendall(b'set k 0 0 50000\\r\\n' + f + b'\\r\\n')\nassert c.recv(100) == b'STORED\\r\\n'\nc.sendall(b'get k\\r\\n')\ng = b''\nwhile not g.endswith(b'END\\r\\n'): g += c.recv(65536)\nassert g == b'VALUE k 0 50000\\r\\n' + f + b'\\r\\nEND\\r\\n'\nprint('stored')"
        );
        let mut client = command(true, &python()?);
        let said = c.start("client", client.args(["-c", &text])).success(secs(60));
        assert!(said.contains("stored") && streams(c, "memcached") == 1, "{said}");
        serving.stop();
        Ok(())
    });
}

/// Workers accept on a listener that their parent made; files go by sendfile; a proxy in between.
#[test]
fn nginx_serves_and_proxies() {
    case("rspreload-nginx", |c| {
        if plain() {
            return Ok(());
        }
        let (nginx, curl) = (need("nginx")?, need("curl")?);
        let (front, back) = (Ports::Low.free(), Ports::Low.free());
        let dir = c.dir().to_str().expect("a name");
        let data = system_tests::stream::bytes(7, 2_000_000);
        fs::write(c.dir().join("file"), &data).expect("a file");
        let conf = c.dir().join("nginx.conf");
        let text = format!(
            "user root; daemon off; worker_processes 2; pid {dir}/pid; error_log stderr; events {{ worker_connections 64; }}
            http {{ access_log off; sendfile on; client_body_temp_path {dir}; proxy_temp_path {dir}; fastcgi_temp_path {dir}; uwsgi_temp_path {dir}; scgi_temp_path {dir};
            server {{ listen 127.0.0.1:{back}; root {dir}; }}
            server {{ listen 127.0.0.1:{front}; location / {{ proxy_pass http://127.0.0.1:{back}; }} }} }}"
        );
        let text = if rustix::process::geteuid().is_root() {
            text
        } else {
            text.replace("user root;", "")
        };
        fs::write(&conf, text).expect("nginx.conf");
        let mut start = command(true, &nginx);
        let mut serving = c.serve("nginx", front, start.args(["-c"]).arg(&conf).args(["-p", dir]));
        for (over, port) in [(true, front), (true, back), (false, front), (false, back)] {
            let got = c.dir().join("got");
            let mut fetch = command(over, &curl);
            fetch.args(["-sf", "-o"]).arg(&got).arg(format!("http://127.0.0.1:{port}/file"));
            c.start("curl", &mut fetch).success(secs(60));
            assert!(fs::read(&got).expect("what came") == data, "{over} {port}: other bytes came");
        }
        // Two fetches of curl's, and at two of four the proxy's connections, each with two ends.
        assert!(streams(c, "nginx") >= 6, "{}", streams(c, "nginx"));
        serving.stop();
        Ok(())
    });
}

/// Those that `_FORTIFY_SOURCE` makes of a call, libc's own, formatted output, and waits under a mask.
#[test]
fn calls_by_every_name() {
    case("rspreload-calls", |c| {
        if plain() {
            return Ok(());
        }
        let python = python()?;
        let mut run = command(true, &python);
        let said = c.start("calls", run.arg(prog("rsocket_calls.py"))).success(secs(120));
        assert!(said.contains("by every name"), "{said}");
        Ok(())
    });
}

/// What cannot be done fails where it is asked for, and a program that is linked to librdmacm gets
/// the functions of rsockets.
#[test]
fn what_cannot_be_done_is_said() {
    case("rspreload-limits", |c| {
        if plain() {
            return Ok(());
        }
        let python = python()?;
        let text = "
import errno, os, socket, subprocess, threading
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
got = []
t = threading.Thread(target=lambda: got.append(socket.create_connection(s.getsockname())))
t.start()
a = s.accept()[0]
t.join()
c = got[0]
a.sendall(b'met'); assert c.recv(3) == b'met'
for what in (lambda: os.dup(a.fileno()), lambda: os.dup2(a.fileno(), 77)):
    try: what()
    except OSError as e: assert e.errno == errno.EOPNOTSUPP, e
    else: raise SystemExit('a second number')
# A child that is made by vfork closes its own descriptors, not its parent's connection.
for _ in range(3): assert subprocess.run(['true'], close_fds=True).returncode == 0
if os.fork() == 0:
    a.sendall(b'from the child'); os._exit(0)
os.wait()
assert c.recv(100) == b'from the child'
c.sendall(b'x'); assert a.recv(1) == b'x'
print('as told')
";
        let mut run = command(true, &python);
        let said = c.start("limits", run.args(["-c", text])).success(secs(60));
        assert!(said.contains("as told"), "{said}");
        let sh = need("sh")?;
        let loaded = |mode: &str| {
            let mut run = Command::new(shortwire());
            run.args(["run", mode, "--"]).arg(&sh).env_remove("LD_PRELOAD");
            let mut process = c.start("loaded", run.args(["-c", "echo ready; read line"]));
            // Behind that the loader has nothing to do any more.
            process.wait_line("ready", secs(60));
            let all = fs::read_to_string(format!("/proc/{}/maps", process.pid())).expect("maps");
            process.say("\n");
            process.wait(secs(10));
            all.contains("libshortwire_rspreload.so")
        };
        assert!(loaded("--rsocket") && loaded("--rsocket=sockets"));
        assert!(!loaded("--rsocket=api"));
        Ok::<(), Skip>(())
    });
}
