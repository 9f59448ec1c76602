use std::fs;
use std::path::Path;

use system_tests::{Case, Ports, Proc, Side, Skip, case, expect_same, need, secs};

use crate::{big_file, nginx::nginx, until_seen};

fn haproxy(c: &Case, port: u16, backend: u16, mode: &str) -> Result<Proc, Skip> {
    let conf = c.dir().join("haproxy.cfg");
    let text = format!(
        "global\n  maxconn 1000\n\
         defaults\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  {mode}\n\
         frontend in\n  bind 127.0.0.1:{port}\n  default_backend out\n\
         backend out\n  server nginx 127.0.0.1:{backend}\n"
    );
    fs::write(&conf, text).expect("haproxy.cfg");
    let mut command = Side::Run.command(need("haproxy")?);
    Ok(c.serve("haproxy", port, command.arg("-f").arg(&conf)))
}

/// curl, haproxy, nginx: two connections in a row, each through shared memory.
fn chain(name: &str, ports: Ports, mode: &str) {
    case(name, |c| {
        let (curl, backend, front) = (need("curl")?, ports.free(), ports.free());
        let mut server = nginx(c, backend, "", "sendfile on;")?;
        let mut proxy = haproxy(c, front, backend, mode)?;
        let file = big_file(c.dir().join("files/big"), 256);
        let mut large = c.start(
            "curl",
            Side::Run.command(&curl).args([
                "-sS",
                "--fail",
                &format!("http://127.0.0.1:{front}/big"),
            ]),
        );
        let status = large.wait(secs(60));
        assert!(status.success(), "curl: {status}: {}", large.stderr());
        expect_same(large.stdout_path(), &file);
        // Before the proxy, and behind it.
        for port in [front, backend] {
            until_seen(c, &[port], 2, |times| {
                let count = 2000 * times as usize;
                let mut small = c.start(
                    "curl",
                    Side::Run.command(&curl).args([
                        "-sS",
                        "--fail",
                        "--rate",
                        "6000/s",
                        &format!("http://127.0.0.1:{front}/small?[1-{count}]"),
                    ]),
                );
                let status = small.wait(secs(60));
                assert!(status.success(), "curl: {status}: {}", small.stderr());
                assert!(
                    small.stdout() == "x".repeat(612 * count),
                    "curl received other than {count} times the file"
                );
            });
        }
        proxy.stop();
        server.stop();
        Ok(())
    });
}

#[test]
fn haproxy_http() {
    chain("haproxy-http", Ports::Low, "mode http");
}

#[test]
fn haproxy_tcp_with_splice() {
    chain(
        "haproxy-splice",
        Ports::High,
        "mode tcp\n  option splice-auto\n  option splice-request\n  option splice-response",
    );
}

/// A reload passes the listeners to a new process over a Unix socket while a transfer goes on in
/// the old one.
#[test]
fn haproxy_reload() {
    case("haproxy-reload", |c| {
        let (curl, haproxy, backend, front) =
            (need("curl")?, need("haproxy")?, Ports::Low.free(), Ports::Low.free());
        let mut server = nginx(c, backend, "", "sendfile on;")?;
        let admin = c.dir().join("admin.sock");
        let conf = c.dir().join("haproxy.cfg");
        let text = format!(
            "global\n  stats socket {admin} expose-fd listeners level admin\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
             frontend in\n  bind 127.0.0.1:{front}\n  default_backend out\n\
             backend out\n  server nginx 127.0.0.1:{backend}\n",
            admin = admin.display()
        );
        fs::write(&conf, text).expect("haproxy.cfg");
        let start = |name: &str, more: &[&str]| {
            c.start(name, Side::Run.command(&haproxy).arg("-f").arg(&conf).args(more))
        };
        let mut old = c.serve("haproxy", front, Side::Run.command(&haproxy).arg("-f").arg(&conf));
        let file = big_file(c.dir().join("files/big"), 128);
        let url = |name: &str| format!("http://127.0.0.1:{front}/{name}");
        let mut slow = c.start(
            "curl",
            Side::Run.command(&curl).args(["-sS", "--fail", "--limit-rate", "60M", &url("big")]),
        );
        std::thread::sleep(system_tests::millis(500));
        let pid = old.pid().to_string();
        let mut new = start("haproxy-new", &["-x", &admin.to_string_lossy(), "-sf", &pid]);
        std::thread::sleep(system_tests::millis(700));
        assert_eq!(
            c.client("curl", Side::Run, Path::new(&curl), &["-sS", "--fail", &url("small")]),
            "x".repeat(612)
        );
        let status = slow.wait(secs(60));
        assert!(status.success(), "curl: {status}: {}", slow.stderr());
        expect_same(slow.stdout_path(), &file);
        old.wait(secs(60));
        assert!(new.running(), "the new haproxy ended: {}", new.stderr());
        new.stop();
        server.stop();
        Ok(())
    });
}
