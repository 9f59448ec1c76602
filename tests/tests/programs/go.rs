//! Servers written in Go, as Debian builds them: with the C library, and their own names exported.

use std::fs;

use system_tests::{Ports, Side, case, expect_same, need, prog, python, secs};

use crate::{big_file, until_seen};

#[test]
fn nats_publishes_to_subscribers() {
    case("nats", |c| {
        let (nats, python, port) = (need("nats-server")?, python()?, Ports::Low.free());
        let number = port.to_string();
        let mut server = Side::Run.command(nats);
        let mut server = c.serve("nats", port, server.args(["-a", "127.0.0.1", "-p", &number]));
        until_seen(c, &[port], 16, |times| {
            let messages = 800 * times;
            let mut client = Side::Run.command(&python);
            let client = client.arg(prog("nats_client.py")).args([&number, &messages.to_string()]);
            let said = c.start("client", client).success(secs(60));
            assert_eq!(said, format!("done {}\n", 4 * messages));
        });
        server.stop();
        Ok(())
    });
}

/// A file of its own, and one from a server behind it, up and down.
#[test]
fn caddy_serves_and_passes_on() {
    case("caddy", |c| {
        let (caddy, curl) = (need("caddy")?, need("curl")?);
        let (own, front, behind) = (Ports::Low.free(), Ports::Low.free(), Ports::High.free());
        let mut nginx = super::nginx::nginx(
            c,
            behind,
            "",
            "sendfile on; client_max_body_size 0; dav_methods PUT;",
        )?;
        let file = big_file(c.dir().join("files/big"), 200);
        let root = c.dir().join("files").display().to_string();
        let state = c.dir().join("state").display().to_string();
        let text = format!(
            "{{\n admin off\n auto_https off\n storage file_system {state}\n}}
http://127.0.0.1:{own} {{\n bind 127.0.0.1\n root * {root}\n file_server\n}}
http://127.0.0.1:{front} {{\n bind 127.0.0.1\n reverse_proxy 127.0.0.1:{behind}\n}}\n"
        );
        let configuration = c.dir().join("Caddyfile");
        fs::write(&configuration, text).expect("Caddyfile");
        let mut server = Side::Run.command(caddy);
        server.args(["run", "--adapter", "caddyfile", "--config"]).arg(&configuration);
        server.envs([("HOME", &state), ("XDG_CONFIG_HOME", &state), ("XDG_DATA_HOME", &state)]);
        let mut server = c.serve("caddy", own, &mut server);
        until_seen(c, &[own, front, behind], 4, |_| {
            for port in [own, front] {
                let url = format!("http://127.0.0.1:{port}/big");
                let mut client = Side::Run.command(&curl);
                let mut client = c.start("curl", client.args(["-sS", "--fail", &url]));
                let status = client.wait(secs(60));
                assert!(status.success(), "curl: {status}: {}", client.stderr());
                expect_same(client.stdout_path(), &file);
                fs::remove_file(client.stdout_path()).expect("a file of our own");
            }
            let target = format!("http://127.0.0.1:{front}/uploaded");
            let words = ["-sS", "--fail", "-T", &file.to_string_lossy(), &target];
            c.client("upload", Side::Run, &curl, &words);
            expect_same(&c.dir().join("files/uploaded"), &file);
        });
        server.stop();
        nginx.stop();
        Ok(())
    });
}

/// Values by its gateway, on a connection that curl keeps, and the gateway's own to itself.
#[test]
fn etcd_keeps_values() {
    case("etcd", |c| {
        let (etcd, curl, port) = (need("etcd")?, need("curl")?, Ports::Low.free());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (clients, peers) = (url(port), url(Ports::High.free()));
        let mut server = Side::Run.command(etcd);
        server.arg("--data-dir").arg(c.dir().join("data"));
        server.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        server.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        server.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        let mut server = c.serve("etcd", port, &mut server);
        // "key" and "value"; retried until it has a leader.
        let put = r#"{"key":"a2V5","value":"dmFsdWU="}"#;
        let mut first = Side::Run.command(&curl);
        let words = ["-sS", "--fail", "--retry", "20", "--retry-all-errors", "--retry-delay", "1"];
        first.args(words).args(["-d", put, &format!("{clients}/v3/kv/put")]);
        c.start("put", &mut first).success(secs(60));
        until_seen(c, &[port], 4, |times| {
            let count = 1000 * times as usize;
            let mut ask = Side::Run.command(&curl);
            ask.args(["-sS", "--fail", "-d", r#"{"key":"a2V5"}"#]);
            ask.arg(format!("{clients}/v3/kv/range?[1-{count}]"));
            let said = c.start("ask", &mut ask).success(secs(60));
            assert_eq!(said.matches(r#""value":"dmFsdWU=""#).count(), count, "{said}");
        });
        server.stop();
        Ok(())
    });
}
