use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use system_tests::{
    Case, Deadline, Ports, Proc, Side, Skip, case, expect_same, millis, need, secs, skip,
};

use crate::{big_file, nginx::WRK_TIMEOUT, until_seen};

/// Where Debian has the modules that are compiled apart, which all others than the core are.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Apache with one of its ways to share work, which serves the files of the case's directory. `more` lets fifty
/// connections have their turn from the start, with the event MPM also if all of them are one process's: a
/// connection that nobody serves yet cannot be upgraded, and a process whose threads are all busy closes those that wait
/// for a next request.
fn apache(c: &Case, port: u16, mpm: &str, more: &str) -> Result<Proc, Skip> {
    let program = need("apache2")?;
    if !Path::new(MODULES).join(format!("mod_mpm_{mpm}.so")).exists() {
        return skip(format!("apache2 has no module mpm_{mpm}"));
    }
    // As root Apache serves as another user only, so that each connection is one between two users.
    let user =
        if rustix::process::geteuid().is_root() { "User www-data\nGroup www-data" } else { "" };
    let dir = c.dir().display();
    let files = c.dir().join("files");
    let text = format!(
        "ServerRoot {dir}\nServerName localhost\nListen 127.0.0.1:{port}\n\
         PidFile {dir}/pid\nErrorLog {dir}/error.log\nDefaultRuntimeDir {dir}\n\
         LoadModule mpm_{mpm}_module {MODULES}/mod_mpm_{mpm}.so\n\
         LoadModule authz_core_module {MODULES}/mod_authz_core.so\n\
         {user}\nDocumentRoot {files}\nKeepAlive On\nMaxKeepAliveRequests 0\n{more}\n",
        files = files.display()
    );
    fs::create_dir_all(&files).expect("a directory");
    fs::set_permissions(&files, fs::Permissions::from_mode(0o755)).expect("a directory for all");
    fs::write(files.join("small"), "x".repeat(612)).expect("a file");
    let conf = c.dir().join("apache.conf");
    fs::write(&conf, text).expect("apache.conf");
    let mut command = Side::Run.command(program);
    Ok(c.serve("apache2", port, command.arg("-DFOREGROUND").arg("-f").arg(&conf)))
}

/// Clients that fetch one file again and again over one connection each, and a download that takes its time.
/// A client whose connection has ended between two answers asks again over another: Apache closes
/// connections like that whenever it restarts.
fn clients(c: &Case, curl: &Path, port: u16, count: usize) -> (Vec<Proc>, Proc) {
    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    let fetch = |name: &str, args: &[&str]| {
        c.start(name, Side::Run.command(curl).args(["-sS", "--fail"]).args(args))
    };
    let many = url(&format!("small?[1-{count}]"));
    let small =
        (1..=4).map(|n| fetch(&format!("curl-{n}"), &["--rate", "1000/s", &many])).collect();
    (small, fetch("curl-big", &["--limit-rate", "40M", &url("big")]))
}

fn serves(name: &str, ports: Ports, mpm: &str, more: &str) {
    case(name, |c| {
        let (curl, wrk, port) = (need("curl")?, need("wrk")?, ports.free());
        let mut server = apache(c, port, mpm, more)?;
        let url = format!("http://127.0.0.1:{port}/small");
        until_seen(c, &[port], 100, |times| {
            let lasts = format!("-d{}s", 2 * times);
            let args = ["-t2", "-c50", lasts.as_str(), WRK_TIMEOUT, &url];
            let said = c.client("wrk", Side::Run, &wrk, &args);
            assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        });
        let (file, count) = (big_file(c.dir().join("files/big"), 128), 3000);
        let (small, mut large) = clients(c, &curl, port, count);
        let log = || fs::read_to_string(c.dir().join("error.log")).expect("error.log");
        let generations = || log().matches("resuming normal operations").count();
        for earlier in 1..=3 {
            std::thread::sleep(millis(700));
            server.signal(Signal::USR1);
            let deadline = Deadline::within(secs(20));
            while generations() <= earlier {
                assert!(!deadline.is_over(), "no restart in\n{}", log());
                std::thread::sleep(millis(20));
            }
        }
        for mut client in small {
            let status = client.wait(secs(60));
            assert!(status.success(), "curl: {status}: {}", client.stderr());
            assert!(
                client.stdout() == "x".repeat(612 * count),
                "curl received other than {count} times the file"
            );
        }
        let status = large.wait(secs(60));
        assert!(status.success(), "curl: {status}: {}", large.stderr());
        expect_same(large.stdout_path(), &file);
        let said = log();
        assert!(!said.contains("exit signal"), "a process of Apache ended by a signal:\n{said}");
        server.stop();
        Ok(())
    });
}

#[test]
fn apache_event() {
    serves(
        "apache-event",
        Ports::Low,
        "event",
        "StartServers 3\nThreadsPerChild 64\nMinSpareThreads 64\nMaxSpareThreads 256\nMaxRequestWorkers 256\nEnableSendfile On",
    );
}

#[test]
fn apache_prefork() {
    serves(
        "apache-prefork",
        Ports::High,
        "prefork",
        "StartServers 60\nMinSpareServers 5\nMaxSpareServers 120\nMaxRequestWorkers 150\nEnableMMAP On",
    );
}
