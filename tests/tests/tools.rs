//! What shows and steers link groups, in the shape that users of smc-tools know: `linkgroups`,
//! `devices`, `ueid`, `seid`, and the record of handshakes that tshark reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use system_tests::probe::need_copying;
use system_tests::{
    Case, Deadline, Ports, Proc, Skip, case, millis, need, python, secs, shortwire,
};

/// Echoes until the end.
const SERVER: &str = "
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(5)
import threading
def serve(c):
    while True:
        block = c.recv(100)
        if not block: break
        c.sendall(block)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";
/// Some echoes on each of N connections, then it waits to be looked at.
const CLIENT: &str = "
import socket, sys
all = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for i in range(int(sys.argv[2]))]
for i in range(100):
    for c in all:
        c.sendall(b'x' * 100)
        assert c.recv(100, socket.MSG_WAITALL) == b'x' * 100
print('done', flush=True)
sys.stdin.readline()
";

/// Python on a script, started by `shortwire` with these arguments and settings.
fn start(
    how: &[&str],
    settings: &[(&str, &Path)],
    script: &str,
    args: &[&str],
) -> Result<Command, Skip> {
    let mut command = Command::new(shortwire());
    command
        .args(how)
        .arg("--")
        .arg(python()?)
        .args(["-c", script])
        .args(args)
        .envs(settings.iter().copied());
    command.env_remove("LD_PRELOAD");
    Ok(command)
}

/// A server and a client, which have met or never will.
fn meet(c: &Case, port: u16, server: &mut Command, client: &mut Command) -> (Proc, Proc) {
    let server = c.serve("server", port, server);
    let mut client = c.start("client", client);
    client.wait_line("done", secs(30));
    (server, client)
}

fn json(args: &[&str]) -> Value {
    let said =
        Command::new(shortwire()).args(args).env_remove("LD_PRELOAD").output().expect("shortwire");
    assert!(said.status.success(), "{args:?}: {said:?}");
    serde_json::from_slice(&said.stdout).expect("JSON")
}

/// The link groups of these processes.
fn groups(pids: &[i32]) -> Vec<Value> {
    let all = json(&["linkgroups", "--json"]);
    let list = all["linkgroups"].as_array().expect("a list").clone();
    list.into_iter().filter(|group| pids.iter().any(|&pid| group["pid"] == pid)).collect()
}

#[test]
fn link_groups_are_shown_at_both_ends() {
    case("linkgroups", |c| {
        need_copying()?;
        let devices = json(&["devices", "--json"]);
        let hardware = devices["devices"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|device| device["type"] == "verbs" && device["state"] == "ready");
        let verbs = if hardware { "ff02" } else { "ff03" };
        for (device, chid) in [("loopback", "ffff"), ("ism", "ff00"), ("verbs", verbs)] {
            let port = Ports::Low.free();
            let number = port.to_string();
            let how = ["run", "--prefer", device, "--ueid", "SHOP.1", "--pnetid"];
            let pnets = format!("{device}=net7,lo=NET7");
            let how: Vec<&str> = how.into_iter().chain([pnets.as_str()]).collect();
            let (mut server, mut client) = meet(
                c,
                port,
                &mut start(&how, &[], SERVER, &[&number])?,
                &mut start(&how, &[], CLIENT, &[&number, "3"])?,
            );
            let found = groups(&[server.pid(), client.pid()]);
            // Who proposes follows from the addresses: some of the connections may go the other
            // way.
            let of = |pid: i32| {
                found.iter().filter(move |group| group["pid"] == pid).collect::<Vec<_>>()
            };
            let connections =
                |pid| of(pid).iter().map(|g| g["connections"].as_u64().unwrap_or(0)).sum::<u64>();
            assert_eq!(
                (connections(server.pid()), connections(client.pid())),
                (3, 3),
                "{found:#?}"
            );
            for group in &found {
                let own = group["pid"] == server.pid();
                let other = of(if own { client.pid() } else { server.pid() });
                let peer = if own { client.pid() } else { server.pid() };
                assert!(
                    other
                        .iter()
                        .any(|o| o["gid"] == group["peer_gid"] && o["role"] != group["role"]),
                    "{found:#?}"
                );
                for (field, value) in [
                    ("peer_pid", Value::from(peer)),
                    ("device", device.into()),
                    ("chid", chid.into()),
                    ("pnet_id", "NET7".into()),
                    ("eid", "SMC-SYSZ-LOSEID00000000010001000".into()),
                    ("release", 1.into()),
                    ("peer_os", "Linux".into()),
                    ("state", "READY".into()),
                ] {
                    assert_eq!(group[field], value, "{field} of {group:#}");
                }
                let (conns, dmb) = (group["connections"].as_u64(), group["dmb"].as_u64());
                assert!(
                    dmb >= conns.map(|n| n * 16_000)
                        && group["sndbuf"].as_u64() >= conns.map(|n| n * 16_000)
                );
            }
            let shown =
                Command::new(shortwire()).args(["ss", "-D", "-W"]).output().expect("shortwire");
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            for group in &found {
                let id = format!("{:08x}", group["id"].as_u64().expect("a number"));
                let (gid, peer) = (
                    group["gid"].as_str().expect("a GID"),
                    group["peer_gid"].as_str().expect("a GID"),
                );
                // Its own GID stands before the peer's.
                let row = |line: &&str| {
                    line.ends_with(&id)
                        && line.find(gid).is_some_and(|at| line[at..].contains(peer))
                };
                let count = shown.lines().filter(row).count() as u64;
                assert_eq!(Some(count), group["connections"].as_u64(), "{group:#}\n{shown}");
            }
            let rows = json(&["devices", "--json"]);
            let row =
                rows["devices"].as_array().expect("a list").iter().find(|row| row["pchid"] == chid);
            let row = row.expect("a row");
            assert!(
                row["in_use"] == true && row["link_groups"].as_u64() >= Some(found.len() as u64),
                "{row}"
            );
            client.say("\n");
            client.success(secs(60));
            server.stop();
        }
        assert!(
            Command::new(shortwire())
                .args(["linkgroups", "nonsense"])
                .output()
                .is_ok_and(|o| !o.status.success())
        );
        Ok(())
    });
}

/// `shortwire` with a configuration of its own; its output, or why it failed.
fn configured(folder: &Path, args: &[&str]) -> Result<String, String> {
    let said = Command::new(shortwire())
        .args(args)
        .env("XDG_CONFIG_HOME", folder)
        .output()
        .expect("shortwire");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr)) }
}

#[test]
fn eids_are_kept_and_keep_programs_apart() {
    case("eids", |c| {
        let folder = |name: &str| c.dir().join(name);
        let (shop, bank) = (folder("shop"), folder("bank"));
        let seid = "SMC-SYSZ-LOSEID00000000010001000";
        assert_eq!(configured(&shop, &["seid", "show"]), Ok(format!("{seid} [enabled]")));
        assert!(configured(&shop, &["seid", "disable"]).is_err_and(|why| why.contains("ueid add")));
        assert!(configured(&shop, &["ueid", "add", "shop"]).is_err_and(|why| why.contains("A-Z")));
        for (folder, ueid) in [(&shop, "SHOP.1"), (&bank, "BANK-2")] {
            assert_eq!(configured(folder, &["ueid", "add", ueid]), Ok(String::new()));
            assert_eq!(configured(folder, &["seid", "disable"]), Ok(String::new()));
            assert_eq!(configured(folder, &["ueid", "show"]), Ok(ueid.into()));
            assert_eq!(configured(folder, &["seid"]), Ok(format!("{seid} [disabled]")));
        }
        for (server, client, eid) in
            [(&shop, &shop, Some("SHOP.1")), (&shop, &bank, None), (&bank, &bank, Some("BANK-2"))]
        {
            let port = Ports::Low.free();
            let number = port.to_string();
            let (mut server, mut client) = meet(
                c,
                port,
                &mut start(&["run"], &[("XDG_CONFIG_HOME", server)], SERVER, &[&number])?,
                &mut start(&["run"], &[("XDG_CONFIG_HOME", client)], CLIENT, &[&number, "1"])?,
            );
            let found = groups(&[server.pid(), client.pid()]);
            assert_eq!(found.len(), if eid.is_some() { 2 } else { 0 }, "{found:#?}");
            assert!(found.iter().all(|group| group["eid"].as_str() == eid), "{found:#?}");
            if eid.is_none() {
                let all = json(&["ss", "--json"]);
                let rows = all["connections"].as_array().expect("a list");
                let local = format!("127.0.0.1:{number}");
                let ours: Vec<&Value> =
                    rows.iter().filter(|r| r["local"] == local || r["peer"] == local).collect();
                // The server declines with NOSMCDDEV, as the kernel does where EIDs differ.
                let codes: Vec<_> = ours
                    .iter()
                    .map(|r| (r["reason"].as_u64(), r["peer_reason"].as_u64()))
                    .collect();
                assert!(codes.contains(&(Some(0x0303_0001), Some(0))), "{codes:x?}");
                assert!(codes.contains(&(Some(0x0500_0000), Some(0x0303_0001))), "{codes:x?}");
            }
            client.say("\n");
            client.success(secs(60));
            server.stop();
        }
        assert_eq!(
            configured(&bank, &["ueid", "flush"]),
            Ok("The system's own EID is enabled again.".into())
        );
        fs::write(shop.join("shortwire/eids.toml"), "ueids = [\"lower\"]")
            .expect("a damaged table");
        let refused = configured(&shop, &["run", "--", "true"]);
        assert!(
            refused.as_ref().is_err_and(|why| why.contains("eids.toml cannot be used")),
            "{refused:?}"
        );
        Ok(())
    });
}

/// What tshark makes of each packet: addresses, and the fields of the message.
fn dissected(tshark: &Path, file: &Path) -> String {
    let said = Command::new(tshark).arg("-n").arg("-r").arg(file).output().expect("tshark");
    assert!(said.status.success(), "tshark: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Waits until the file is no longer written to.
fn settled(file: &Path, least: usize) {
    let end = Deadline::within(secs(60));
    while fs::metadata(file).map_or(0, |meta| meta.len()) < least as u64 {
        assert!(!end.is_over(), "{} stays short", file.display());
        std::thread::sleep(millis(10));
    }
}

#[test]
fn tshark_reads_the_handshake() {
    case("trace-clc", |c| {
        let tshark = need("tshark")?;
        let file = |name: &str| c.dir().join(name);
        // Each end into a file of its own, both into one, and a client whose device the server has
        // not.
        let runs: [(&str, &str, &str, &[&str]); 3] = [
            ("server.pcap", "client.pcap", "loopback", &["Proposal", "Accept", "Confirm"]),
            ("both.pcap", "both.pcap", "loopback", &["Proposal", "Accept", "Confirm"]),
            ("no-server.pcap", "no-client.pcap", "ism", &["Proposal", "Decline"]),
        ];
        for (at_server, at_client, prefer, expected) in runs {
            let port = Ports::Low.free();
            let number = port.to_string();
            let (server_file, client_file) = (file(at_server), file(at_client));
            let traced = |path: &PathBuf, script, args: &[&str]| {
                let path = path.to_str().expect("a name in ASCII").to_string();
                start(
                    &["trace-clc", "-o", &path],
                    &[("SHORTWIRE_AFTER", Path::new("4"))],
                    script,
                    args,
                )
            };
            let mut server = traced(&server_file, SERVER, &[&number])?;
            server.env("SHORTWIRE_PREFER", prefer);
            let mut client = if at_server == at_client {
                // The file of the server's, which goes on.
                let mut client = start(
                    &["run"],
                    &[("SHORTWIRE_TRACE_CLC", &client_file)],
                    CLIENT,
                    &[&number, "1"],
                )?;
                client.env("SHORTWIRE_PREFER", "loopback");
                client
            } else {
                let mut client = traced(&client_file, CLIENT, &[&number, "1"])?;
                client.env("SHORTWIRE_PREFER", "loopback");
                client
            };
            let (mut server, mut client) = meet(c, port, &mut server, &mut client);
            for path in [&server_file, &client_file] {
                settled(path, 300);
                let said = dissected(&tshark, path);
                assert_eq!(said.lines().count(), expected.len(), "{}:\n{said}", path.display());
                for (line, kind) in said.lines().zip(expected) {
                    // A Decline names no technology: to the dissector it is SMC of version 2.
                    assert!(
                        line.contains("127.0.0.1") && line.contains(&format!("-{kind}]")),
                        "{kind}: {line}"
                    );
                    assert!(line.contains(&number) && !line.contains("Retransmission"), "{line}");
                }
            }
            let whole = Command::new(&tshark)
                .args(["-n", "-V", "-o", "tcp.check_checksum:TRUE", "-o"])
                .args(["ip.check_checksum:TRUE", "-r"])
                .arg(&client_file)
                .output();
            let whole = String::from_utf8_lossy(&whole.expect("tshark").stdout).into_owned();
            assert_eq!(whole.matches("Checksum Status: Good").count(), expected.len(), "{whole}");
            assert_eq!(
                whole.matches("Header checksum status: Good").count(),
                expected.len(),
                "{whole}"
            );
            assert!(
                !whole.contains("Malformed") && whole.contains("CLC Message: Proposal (1)"),
                "{whole}"
            );
            if prefer == "ism" {
                assert!(whole.contains("0x03030007"), "the diagnosis NOSMCD2DEV:\n{whole}");
            } else {
                let [shown] = &groups(&[client.pid()])[..] else { panic!("one link group") };
                let upper = shown["gid"]
                    .as_str()
                    .expect("a GID")
                    .split('_')
                    .next()
                    .expect("its upper half");
                assert!(
                    whole.contains(&format!("0x{upper}")),
                    "the GID {upper} of the client:\n{whole}"
                );
            }
            client.say("\n");
            client.success(secs(60));
            server.stop();
        }
        let refused = Command::new(shortwire())
            .args(["trace-clc", "-o", "/no/such/folder/x", "--", "true"])
            .output();
        assert_eq!(refused.expect("shortwire").status.code(), Some(125));
        Ok(())
    });
}

/// Those in Rust are built with the tests of their crates; those in C are run by tests of the
/// libraries that they use.
#[test]
fn examples_say_what_they_should() {
    case("examples", |_| {
        let own = std::env::current_exe().expect("the path of this program");
        let built = own.ancestors().nth(2).expect("target/PROFILE/deps/PROGRAM").join("examples");
        for (name, says) in [
            ("ring", "more bytes than the ring has room for"),
            ("buffer", "written by the sender"),
            ("stream", "there and back"),
            ("sum", "[8e, a8]"),
        ] {
            let program = built.join(name);
            if !program.exists() {
                return system_tests::skip(format!(
                    "{name} is not built: cargo build --workspace --examples"
                ));
            }
            let output = Command::new(&program).output().expect("an example");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.trim_end() == says,
                "{name}: {} {said:?}",
                output.status
            );
        }
        Ok(())
    });
}
