//! Ends that are killed, users without rights, and the filter of a container runtime.

use std::thread::sleep;

use rustix::process::Signal;
use system_tests::stream::Random;
use system_tests::{Deadline, Proc, connections, mapped_memory, millis, open_files};

use super::*;

/// SIGKILL at random, at either end, of which one or both are followed: the other one sees what TCP would
/// show it, with right data before.
#[test]
fn killed_at_random() {
    case("raw-kills", |c| {
        const ENDLESS: &str = "400000000000";
        let (dynamic, still) = (compile("transfer")?, in_c(c, "transfer.c", "cc", &["-static"])?);
        let musl = in_c(c, "transfer.c", "musl-gcc", &[])?;
        let pairs = [(&still, &dynamic), (&dynamic, &still), (&still, &musl), (&musl, &still)];
        let ways = [("threads", "send"), ("edge", "send"), ("poll", "write"), ("epoll", "msg")];
        let mut random = Random::new(5);
        for i in 0..48usize {
            let (at_server, at_client) = pairs[i % 4];
            let (driver, op) = ways[i / 4 % 4];
            let port = if i.is_multiple_of(2) { Ports::Low } else { Ports::High }.free();
            let command = |program: &Path, side: &str| {
                let mut command = raw(program);
                command.args([side, &port.to_string(), driver, op, ENDLESS, ENDLESS]);
                command.args([&i.to_string(), "1", "survive"]);
                command
            };
            let mut server = c.serve("server", port, &mut command(at_server, "server"));
            let mut client = c.start("client", &mut command(at_client, "client"));
            client.wait_line("connected", secs(60));
            // Half of them in the first moments, with the meeting and the switch in them.
            let micros = random.below(if i % 8 < 4 { 3000 } else { 50_000 });
            sleep(std::time::Duration::from_micros(micros));
            let (victim, survivor) = match random.below(2) {
                0 => (&mut client, &mut server),
                _ => (&mut server, &mut client),
            };
            victim.signal(Signal::KILL);
            victim.wait(secs(60));
            let said = survivor.success(secs(60));
            let how = said.lines().find_map(|line| line.strip_prefix("peer gone: "));
            let as_with_tcp = ["end of stream", "Connection reset by peer", "Broken pipe"];
            assert!(
                how.is_some_and(|how| as_with_tcp.contains(&how)),
                "kill {i} ({driver} {op}) after {micros} us: the survivor said {said}"
            );
        }
        Ok(())
    });
}

/// A followed server that outlives many killed clients keeps nothing of them.
#[test]
fn nothing_is_kept_of_killed_clients() {
    case("raw-keeps-nothing", |c| {
        let (port, many) = (Ports::Low.free(), in_c(c, "many.c", "cc", &["-static"])?);
        let number = port.to_string();
        let server = c.serve("server", port, raw(&many).args(["server", &number]));
        let held = || (mapped_memory(server.pid()), open_files(server.pid()));
        let batch = || {
            let start = |_| c.start("client", raw(&many).args(["idle", &number, "5", "20"]));
            let mut clients: Vec<Proc> = (0..5).map(start).collect();
            for client in &mut clients {
                client.wait_line("ready", secs(60));
            }
            assert!(mapped_memory(server.pid()) > 0, "the server maps nothing of its clients");
            for client in &mut clients {
                client.signal(Signal::KILL);
                client.wait(secs(60));
            }
            // The server has to see their ends first.
            let end = Deadline::within(secs(60));
            while !connections(&[port]).is_empty() {
                assert!(!end.is_over(), "connections of killed clients stay");
                sleep(millis(20));
            }
            sleep(millis(300));
            held()
        };
        // The table of connections and the tools of the first upgrade stay.
        let (memory, files) = batch();
        for _ in 0..5 {
            batch();
        }
        let (mut memory_after, mut files_after) = batch();
        // What it gives back behind the end of a connection it may do a little later.
        let end = Deadline::within(secs(60));
        while (memory_after > memory + (1 << 20) || files_after > files + 2) && !end.is_over() {
            sleep(millis(100));
            (memory_after, files_after) = held();
        }
        assert!(memory_after <= memory + (1 << 20), "{memory} to {memory_after} bytes");
        assert!(files_after <= files + 2, "{files} to {files_after} open files");
        Ok(())
    });
}

/// The command with what belongs to it, where every user can read it, and what confines programs.
fn for_all(c: &Case) -> Result<(PathBuf, PathBuf), Skip> {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let folder = c.dir().join("all");
    fs::create_dir(&folder).expect("a folder");
    let copy = |from: &Path, name: &str| {
        let to = folder.join(name);
        fs::copy(from, &to).expect("a copy");
        fs::set_permissions(&to, Permissions::from_mode(0o755)).expect("a mode");
        to
    };
    for name in ["libshortwire.so", "shortwire-raw"] {
        copy(&shortwire().with_file_name(name), name);
    }
    Ok((copy(&shortwire(), "shortwire"), copy(&compile("confine")?, "confine")))
}

/// A program under restrictions, started by the command.
fn confined((command, by): &(PathBuf, PathBuf), how: &[&str], program: &Path) -> Command {
    let mut confined = Command::new(by);
    confined.args(how).arg("--").arg(command).args(["run", "--raw", "auto", "--"]).arg(program);
    confined.env_remove("LD_PRELOAD").env("SHORTWIRE_PORT_PROOF", "1");
    confined
}

/// What an earlier run would have left there counts as left behind by its name.
fn tidy((command, _): &(PathBuf, PathBuf)) {
    fs::remove_dir_all(command.parent().expect("a folder")).expect("a folder of our own");
}

/// Programs of nobody's, and under what the published profile of a container runtime refuses.
#[test]
fn nobody_and_containers() {
    case("raw-confined", |c| {
        let tools = for_all(c)?;
        let mut kinds = vec![];
        for (compiler, how) in KINDS {
            kinds.push(in_c(c, "many.c", compiler, how)?);
        }
        // Where everybody may go.
        let own = c.dir().join("herd");
        fs::copy(herd()?, &own).expect("a copy");
        let herd = own;
        for how in [&["user=65534"][..], &["container"], &["user=65534", "container"]] {
            for kind in &kinds {
                let mut server = confined(&tools, how, kind);
                let mut client = confined(&tools, how, &herd);
                pair(c, server.arg("server"), client.arg("client"), &["20", "300"], 10)?;
            }
            let (compiler, kind) = KINDS[0];
            let life = in_c(c, "raw_life.c", compiler, kind)?;
            let said = c.start("life", &mut confined(&tools, how, &life)).success(secs(60));
            assert_eq!(said, "done\n", "{how:?}");
            let untold = in_c(c, "untold.c", compiler, kind)?;
            let mut untold = c.start("untold", confined(&tools, how, &untold).arg("life"));
            assert!(untold.success(secs(60)).ends_with("done\n"), "{how:?}");
        }
        tidy(&tools);
        Ok(())
    });
}
