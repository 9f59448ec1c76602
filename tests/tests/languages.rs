//! The run-times people write servers in: Python, Node, Java, Erlang.

use std::path::Path;
use std::process::Command;

use system_tests::stream::bytes;
use system_tests::{Case, Ports, Proc, Side, case, need, prog, python, secs};

/// A program of `progs` under its interpreter, under `shortwire run`.
fn under(interpreter: &Path, source: &str, args: &[&str]) -> Command {
    let mut command = Side::Run.command(interpreter);
    // Two processors are shared by both ends and the harness: the JVM needs no more than its small
    // configuration.
    if source.ends_with(".java") {
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
    }
    command.arg(prog(source)).args(args);
    command
}

/// Server and client of one source, which must be connected through shared memory for at least
/// `ends` ends.
fn pair(c: &Case, interpreter: &Path, source: &str, client_args: &[&str], ends: usize) {
    for ports in [Ports::Low, Ports::High] {
        let port = ports.free().to_string();
        let number = port.parse().unwrap_or(0);
        let mut server =
            c.serve("server", number, &mut under(interpreter, source, &["server", &port]));
        let watch = c.watch(&[number]);
        let args = [&["client", &port][..], client_args].concat();
        let mut client: Proc = c.start("client", &mut under(interpreter, source, &args));
        client.wait_line("done", secs(100));
        watch.wait_smcd(ends, secs(60));
        client.success(secs(60));
        server.stop();
    }
}

#[test]
fn python_http_server_and_urllib() {
    case("python-http", |c| {
        let (python, port) = (python()?, Ports::Low.free());
        std::fs::write(c.dir().join("file"), bytes(1, 48 << 20)).expect("a file");
        let sum =
            Command::new(need("sha256sum")?).arg(c.dir().join("file")).output().expect("sha256sum");
        let sum = String::from_utf8_lossy(&sum.stdout)
            .split_whitespace()
            .next()
            .unwrap_or_default()
            .to_string();
        let dir = c.dir().to_string_lossy().into_owned();
        let mut server = c.serve(
            "server",
            port,
            &mut under(&python, "http_server.py", &[&port.to_string(), &dir]),
        );
        let watch = c.watch(&[port]);
        let url = format!("http://127.0.0.1:{port}/file");
        let mut client =
            c.start("client", &mut under(&python, "http_client.py", &[&url, &sum, "3"]));
        client.wait_line("half", secs(60));
        watch.wait_smcd(2, secs(60));
        client.say("\n");
        let said = client.success(secs(60));
        assert!(said.contains("done 3"), "{said}");
        server.stop();
        Ok(())
    });
}

/// Before the upgrade, after it, and between one connection's and another's.
#[test]
fn requests_on_two_connections_keep_their_order() {
    case("epoll-order", |c| {
        pair(c, &python()?, "epoll_order.py", &[], 8);
        Ok(())
    });
}

#[test]
fn python_asyncio_echo() {
    case("python-asyncio", |c| {
        pair(c, &python()?, "asyncio_echo.py", &["8", "150"], 2);
        Ok(())
    });
}

#[test]
fn node_http_and_fetch() {
    case("node-http", |c| {
        pair(c, &need("node")?, "http.js", &["500"], 2);
        Ok(())
    });
}

#[test]
fn node_net_echo() {
    case("node-echo", |c| {
        pair(c, &need("node")?, "echo.js", &["2500"], 2);
        Ok(())
    });
}

#[test]
fn java_blocking_sockets() {
    case("java-echo", |c| {
        pair(c, &need("java")?, "Echo.java", &["8000"], 2);
        Ok(())
    });
}

#[test]
fn java_nio_selector() {
    case("java-nio", |c| {
        pair(c, &need("java")?, "NioEcho.java", &["8", "500"], 2);
        Ok(())
    });
}

/// The inet driver, whose scheduler threads poll a set of one-shot registrations, and sockets without it: each as server
/// and as client. What a client has sent last is answered after its end.
#[test]
fn erlang_gen_tcp_in_all_its_modes() {
    case("erlang-tcp", |c| {
        let escript = need("escript")?;
        for (there, here) in [("inet", "socket"), ("socket", "inet"), ("inet", "inet")] {
            let number = Ports::Low.free();
            let port = number.to_string();
            let mut command = under(&escript, "gen_tcp.erl", &["server", &port, there]);
            let mut server = c.serve("server", number, &mut command);
            let watch = c.watch(&[number]);
            let args = ["client", &port, here, "100"];
            let mut client = c.start("client", &mut under(&escript, "gen_tcp.erl", &args));
            client.wait_line("done 12", secs(100));
            watch.wait_smcd(24, secs(60));
            client.success(secs(60));
            server.stop();
        }
        Ok(())
    });
}

/// Two nodes without a port mapper, which would outlive them; the second listens nowhere. They part at last and meet anew.
#[test]
fn erlang_nodes() {
    case("erlang-nodes", |c| {
        let (escript, number) = (need("escript")?, Ports::Low.free());
        let node = |args: &[&str], flags: &str| {
            let mut command = under(&escript, "gen_tcp.erl", args);
            command.env(
                "ERL_FLAGS",
                format!("-start_epmd false -erl_epmd_port {number} -setcookie test {flags}"),
            );
            command
        };
        let listens = "-name there@127.0.0.1 -kernel inet_dist_use_interface {127,0,0,1}";
        let mut server = c.serve("there", number, &mut node(&["node"], listens));
        // It listens before its program runs, and a message to a name that nobody has yet is lost.
        server.wait_line("up", secs(60));
        let watch = c.watch(&[number]);
        let args = ["talk", "there@127.0.0.1", "1000"];
        let mut client =
            c.start("here", &mut node(&args, "-name here@127.0.0.1 -dist_listen false"));
        client.wait_line("done 20", secs(100));
        watch.wait_smcd(2, secs(60));
        client.success(secs(60));
        server.stop();
        Ok(())
    });
}
