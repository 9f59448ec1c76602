use std::fs;
use std::path::Path;

use system_tests::{Case, Ports, Proc, Side, Skip, case, expect_same, need, patience, secs};

use crate::{big_file, until_seen};

/// nginx with two workers that serve the files of the case's directory.
pub fn nginx(c: &Case, port: u16, listen: &str, http: &str) -> Result<Proc, Skip> {
    let conf = c.dir().join("nginx.conf");
    // Workers of another user would be another test.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let text = format!(
        "{user} daemon off; worker_processes 2; pid nginx.pid; error_log stderr;
         events {{ worker_connections 1024; }}
         http {{
           access_log off; client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t;
           {http}
           server {{ listen 127.0.0.1:{port} {listen}; keepalive_requests 1000000; root files; }}
         }}"
    );
    fs::create_dir_all(c.dir().join("files")).expect("a directory");
    fs::write(c.dir().join("files/small"), "x".repeat(612)).expect("a file");
    fs::write(&conf, text).expect("nginx.conf");
    let mut command = Side::Run.command(need("nginx")?);
    command.arg("-p").arg(c.dir()).arg("-c").arg(&conf);
    Ok(c.serve("nginx", port, &mut command))
}

/// By itself wrk counts an answer as an error that comes whole and right, but after two seconds: on a busy machine
/// either end may have no turn for as long.
pub const WRK_TIMEOUT: &str = "--timeout=60s";

fn requests(said: &str) -> u64 {
    let line = said
        .lines()
        .find(|line| line.contains(" requests in "))
        .unwrap_or_else(|| panic!("no total in\n{said}"));
    line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn under_wrk(name: &str, ports: Ports, listen: &str, http: &str) {
    case(name, |c| {
        let (wrk, port) = (need("wrk")?, ports.free());
        let mut server = nginx(c, port, listen, http)?;
        let url = format!("http://127.0.0.1:{port}/small");
        let longer = u64::from(patience());
        let mut answers = 0;
        until_seen(c, &[port], 100, |times| {
            let lasts = format!("-d{}s", 2 * longer * u64::from(times));
            let args = ["-t2", "-c100", lasts.as_str(), WRK_TIMEOUT, &url];
            let said = c.client("wrk", Side::Run, &wrk, &args);
            answers += requests(&said);
            assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        });
        assert!(answers > 1000 / longer, "{answers} answers");
        server.stop();
        Ok(())
    });
}

#[test]
fn nginx_prefork_and_wrk() {
    under_wrk("nginx-wrk", Ports::Low, "", "sendfile on;");
}

#[test]
fn nginx_reuseport_and_wrk() {
    under_wrk("nginx-reuseport", Ports::High, "reuseport", "sendfile on; tcp_nopush on;");
}

#[test]
fn nginx_deferred_accept_and_wrk() {
    under_wrk("nginx-deferred", Ports::Low, "deferred", "sendfile off;");
}

fn fetch(
    c: &Case,
    server: &mut Proc,
    port: u16,
    file: &Path,
    curl_args: &[&str],
) -> Result<(), Skip> {
    let curl = need("curl")?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let url = format!("http://127.0.0.1:{port}/{name}");
    until_seen(c, &[port], 2, |_| {
        // The output file of the process is what curl received.
        let mut client =
            c.start("curl", Side::Run.command(&curl).args(["-sS", "--fail", &url]).args(curl_args));
        let status = client.wait(secs(100));
        assert!(status.success(), "curl: {status}: {}", client.stderr());
        expect_same(client.stdout_path(), file);
        // Another may follow.
        fs::remove_file(client.stdout_path()).expect("a file of our own");
    });
    server.stop();
    Ok(())
}

#[test]
fn curl_fetches_a_gibibyte() {
    case("nginx-gibibyte", |c| {
        let port = Ports::Low.free();
        let mut server = nginx(c, port, "", "sendfile on;")?;
        let file = big_file(c.dir().join("files/big"), 1024);
        fetch(c, &mut server, port, &file, &[])
    });
}

#[test]
fn curl_fetches_without_sendfile() {
    case("nginx-no-sendfile", |c| {
        let port = Ports::High.free();
        let mut server = nginx(c, port, "", "sendfile off;")?;
        // Slow enough to be looked at.
        let file = big_file(c.dir().join("files/big"), 200);
        fetch(c, &mut server, port, &file, &["--limit-rate", "150M"])
    });
}

/// Many files over one connection, then a large upload.
#[test]
fn curl_keeps_its_connection() {
    case("nginx-keepalive", |c| {
        let (curl, port) = (need("curl")?, Ports::High.free());
        let mut server =
            nginx(c, port, "reuseport", "sendfile on; client_max_body_size 0; dav_methods PUT;")?;
        until_seen(c, &[port], 2, |times| {
            let count = 3000 * times as usize;
            let url = format!("http://127.0.0.1:{port}/small?[1-{count}]");
            let mut client = c.start(
                "curl",
                Side::Run.command(&curl).args(["-sS", "--fail", "--rate", "6000/s", &url]),
            );
            let status = client.wait(secs(60));
            assert!(status.success(), "curl: {status}: {}", client.stderr());
            assert!(
                client.stdout() == "x".repeat(612 * count),
                "curl received other than {count} times the file"
            );
        });
        let upload = big_file(c.dir().join("upload"), 100);
        let target = format!("http://127.0.0.1:{port}/uploaded");
        c.client(
            "upload",
            Side::Run,
            &curl,
            &["-sS", "--fail", "-T", &upload.to_string_lossy(), &target],
        );
        expect_same(&c.dir().join("files/uploaded"), &upload);
        server.stop();
        Ok(())
    });
}
