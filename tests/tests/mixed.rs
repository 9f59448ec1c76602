//! Only one end under `shortwire run`: plain TCP, and not one byte more on the wire.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use system_tests::stream::{bytes, mix};
use system_tests::{
    Case, Ports, Proc, Side, bytes_received, case, compile, expect_silence, millis, need, prog,
    python, secs,
};

const ROUNDS: u64 = 1500;

fn dial(port: u16) -> TcpStream {
    let conn = TcpStream::connect(("127.0.0.1", port)).expect("connecting");
    conn.set_nodelay(true).expect("TCP_NODELAY");
    conn.set_read_timeout(Some(secs(60))).expect("a time limit");
    conn
}

/// The end that records: everything the peer sent must be exactly `wanted`, then silence.
fn exactly(conn: &mut TcpStream, total: &mut u64, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    conn.read_exact(&mut got).unwrap_or_else(|e| panic!("after {total} bytes: {e}"));
    assert!(
        got == wanted,
        "wrong bytes after {total}: {:?} ...",
        String::from_utf8_lossy(&got[..got.len().min(200)])
    );
    *total += got.len() as u64;
}

fn end(mut conn: TcpStream, total: u64) {
    expect_silence(&mut conn, total);
    conn.shutdown(std::net::Shutdown::Write).expect("shutdown");
    conn.set_read_timeout(Some(secs(60))).expect("a time limit");
    let mut rest = Vec::new();
    conn.read_to_end(&mut rest).expect("the end");
    assert!(rest.is_empty(), "with the end came {rest:?}");
}

fn both_ports(name: &str, test: impl Fn(&Case, Ports) -> system_tests::Outcome) {
    for ports in [Ports::Low, Ports::High] {
        case(&format!("{name}-{ports:?}"), |c| test(c, ports));
    }
}

#[test]
fn a_recording_client_of_an_echo_server() {
    both_ports("recording-client", |c, ports| {
        let (port, many) = (ports.free(), compile("many")?);
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &port.to_string()]));
        let watch = c.watch(&[port]);
        let (mut conn, mut total) = (dial(port), 0);
        for i in 0..ROUNDS {
            let sent = bytes(mix(i), 1 + (mix(i) % 1500) as usize);
            conn.write_all(&sent).expect("sending");
            exactly(&mut conn, &mut total, &sent);
        }
        end(conn, total);
        watch.expect_tcp();
        server.stop();
        Ok(())
    });
}

#[test]
fn a_recording_server_of_a_client() {
    both_ports("recording-server", |c, ports| {
        let (port, many) = (ports.free(), compile("many")?);
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listening");
        let mut client = c.start(
            "client",
            Side::Run.command(&many).args(["talk", &port.to_string(), &ROUNDS.to_string()]),
        );
        let (mut conn, mut total) = (listener.accept().expect("accept").0, 0);
        conn.set_nodelay(true).expect("TCP_NODELAY");
        for i in 0..ROUNDS {
            // What `many talk` sends in its round i.
            let wanted = bytes(mix(i + 1000), 1 + (mix(i) % 1500) as usize);
            exactly(&mut conn, &mut total, &wanted);
            conn.write_all(&wanted).expect("echoing");
        }
        client.wait_line("talked", secs(60));
        expect_silence(&mut conn, total);
        client.say("\n");
        let mut rest = Vec::new();
        conn.read_to_end(&mut rest).expect("the end");
        assert!(rest.is_empty(), "with the end came {rest:?}");
        drop(conn);
        client.success(secs(60));
        Ok(())
    });
}

#[test]
fn transfers_with_one_side_under_run() {
    both_ports("one-side", |c, ports| {
        for (server_side, client_side) in [(Side::Run, Side::Plain), (Side::Plain, Side::Run)] {
            for (driver, op) in [("threads", "send"), ("edge", "vec"), ("lockstep", "write")] {
                let (port, program) = (ports.free(), compile("transfer")?);
                let args = |side: &str| {
                    [side, &port.to_string(), driver, op, "33554432", "33554432", "1", "2"]
                        .map(String::from)
                };
                let mut server =
                    c.serve("server", port, server_side.command(&program).args(args("server")));
                let watch = c.watch(&[port]);
                let mut client =
                    c.start("client", client_side.command(&program).args(args("client")));
                client.success(secs(60));
                server.success(secs(60));
                watch.expect_tcp();
            }
        }
        Ok(())
    });
}

/// Go without the C library makes its own system calls: under `shortwire run` or not, it is a
/// stranger.
#[test]
fn a_go_client() {
    both_ports("go-client", |c, ports| {
        let (port, many, go) = (ports.free(), compile("many")?, compile("talk.go")?);
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &port.to_string()]));
        let watch = c.watch(&[port]);
        for side in [Side::Plain, Side::Run] {
            let said = c.client("go", side, &go, &[&port.to_string(), &ROUNDS.to_string()]);
            assert!(said.contains(&format!("done {ROUNDS}")), "{said}");
        }
        watch.expect_tcp();
        server.stop();
        Ok(())
    });
}

fn redis(c: &Case, side: Side, port: u16) -> Result<Proc, system_tests::Skip> {
    let mut command = side.command(need("redis-server")?);
    command
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
        ])
        .arg(c.dir());
    Ok(c.serve("redis", port, &mut command))
}

#[test]
fn a_recording_client_of_redis() {
    both_ports("recording-redis", |c, ports| {
        let port = ports.free();
        let mut server = redis(c, Side::Run, port)?;
        let (mut conn, mut total) = (dial(port), 0);
        for i in 0..ROUNDS {
            let value = "v".repeat(1 + (mix(i) % 3000) as usize);
            write!(conn, "SET key{i} {value}\r\nGET key{i}\r\n").expect("sending");
            exactly(
                &mut conn,
                &mut total,
                format!("+OK\r\n${}\r\n{value}\r\n", value.len()).as_bytes(),
            );
        }
        end(conn, total);
        server.stop();
        Ok(())
    });
}

#[test]
fn redis_cli_with_a_recording_server() {
    case("recording-redis-cli", |c| {
        let cli = need("redis-cli")?;
        let port = Ports::Low.free();
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listening");
        let mut client = c.start(
            "redis-cli",
            Side::Run.command(&cli).args([
                "-p",
                &port.to_string(),
                "-r",
                &ROUNDS.to_string(),
                "PING",
            ]),
        );
        let (mut conn, mut total) = (listener.accept().expect("accept").0, 0);
        conn.set_read_timeout(Some(secs(60))).expect("a time limit");
        for _ in 0..ROUNDS {
            exactly(&mut conn, &mut total, b"*1\r\n$4\r\nPING\r\n");
            conn.write_all(b"+PONG\r\n").expect("answering");
        }
        let mut rest = Vec::new();
        conn.read_to_end(&mut rest).expect("the end");
        assert!(rest.is_empty(), "after the last request came {rest:?}");
        assert_eq!(
            client.success(secs(60)).lines().filter(|line| *line == "PONG").count() as u64,
            ROUNDS
        );
        Ok(())
    });
}

#[test]
fn redis_with_one_side_under_run() {
    case("redis-one-side", |c| {
        let benchmark = need("redis-benchmark")?;
        for (server_side, client_side) in [(Side::Run, Side::Plain), (Side::Plain, Side::Run)] {
            let port = Ports::Low.free();
            let mut server = redis(c, server_side, port)?;
            let watch = c.watch(&[port]);
            let said = c.client(
                "benchmark",
                client_side,
                &benchmark,
                &["-p", &port.to_string(), "-n", "20000", "-t", "get,set", "--csv"],
            );
            assert!(said.contains("GET"), "{said}");
            watch.expect_tcp();
            server.stop();
        }
        Ok(())
    });
}

#[test]
fn a_recording_client_of_http_server() {
    case("recording-http", |c| {
        let (python, port) = (python()?, Ports::Low.free());
        let body = bytes(5, 300_000);
        std::fs::write(c.dir().join("file"), &body).expect("a file");
        let mut server = c.serve(
            "http.server",
            port,
            Side::Run
                .command(python)
                .arg(prog("http_server.py"))
                .arg(port.to_string())
                .arg(c.dir()),
        );
        for _ in 0..20 {
            let mut conn = dial(port);
            conn.write_all(b"GET /file HTTP/1.0\r\n\r\n").expect("sending");
            let mut all = Vec::new();
            conn.read_to_end(&mut all).expect("an answer");
            let at = all.windows(4).position(|w| w == b"\r\n\r\n").expect("a header");
            assert!(all[at + 4..] == body, "the body differs");
        }
        server.stop();
        Ok(())
    });
}

/// curl under `run` on one connection: every request byte is known.
#[test]
fn curl_with_a_recording_server() {
    case("recording-curl", |c| {
        let (curl, port) = (need("curl")?, Ports::High.free());
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listening");
        let url = format!("http://127.0.0.1:{port}/[1-{ROUNDS}]");
        let args = ["-sS", "-o", "/dev/null", "-H", "User-Agent:", "-H", "Accept:", &url];
        let mut client = c.start("curl", Side::Run.command(&curl).args(args));
        let (mut conn, mut total) = (listener.accept().expect("accept").0, 0);
        conn.set_nodelay(true).expect("TCP_NODELAY");
        conn.set_read_timeout(Some(secs(60))).expect("a time limit");
        for i in 1..=ROUNDS {
            exactly(
                &mut conn,
                &mut total,
                format!("GET /{i} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes(),
            );
            conn.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc").expect("answering");
        }
        let mut rest = Vec::new();
        conn.read_to_end(&mut rest).expect("the end");
        assert!(rest.is_empty(), "after the last request came {rest:?}");
        assert!(bytes_received(&conn) <= total + 1, "more arrived than was read");
        client.success(secs(60));
        Ok(())
    });
}

/// nginx under `run`, 1,500 requests on one connection.
#[test]
fn a_recording_client_of_nginx() {
    both_ports("recording-nginx", |c, ports| {
        let (nginx, port) = (need("nginx")?, ports.free());
        let conf = c.dir().join("nginx.conf");
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let text = format!(
            "{user} daemon off; pid nginx.pid; error_log stderr; events {{}}
             http {{ access_log off; client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t;
               server {{ listen 127.0.0.1:{port}; keepalive_requests 100000; location / {{ return 200 \"answer $request_uri\\n\"; }} }} }}"
        );
        std::fs::write(&conf, text).expect("nginx.conf");
        let mut server = c.serve(
            "nginx",
            port,
            Side::Run.command(nginx).args([Path::new("-p"), c.dir(), Path::new("-c"), &conf]),
        );
        let (mut conn, mut total) = (dial(port), 0);
        for i in 0..ROUNDS {
            write!(conn, "GET /{i} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sending");
            let mut answer = Vec::new();
            while !answer.ends_with(format!("\r\n\r\nanswer /{i}\n").as_bytes()) {
                let mut byte = [0; 4096];
                let n = conn.read(&mut byte).expect("an answer");
                assert!(n > 0, "nginx ended the connection in round {i}");
                answer.extend_from_slice(&byte[..n]);
                assert!(
                    answer.len() < 400,
                    "more than an answer: {}",
                    String::from_utf8_lossy(&answer)
                );
            }
            assert!(
                answer.starts_with(b"HTTP/1.1 200 OK\r\nServer: nginx"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
            total += answer.len() as u64;
        }
        end(conn, total);
        std::thread::sleep(millis(10));
        server.stop();
        Ok(())
    });
}
