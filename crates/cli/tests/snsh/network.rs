//! Examples of apps that look into packets. Those with interfaces run in a namespace of their own.

use super::*;

#[test]
fn fragments_are_cut_and_joined() {
    let run = |seconds: &str| snsh(&[&example("fragments.lua"), seconds]);
    let output = longer(0.3, run, |output| sent(&stdout(output), "join.output -> sink.input") > 0);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    // Three pieces of each datagram, and one datagram again.
    let (cut, joined) =
        (sent(&text, "cut.output -> join.input"), sent(&text, "join.output -> sink.input"));
    assert!(joined > 0 && cut >= 3 * joined, "{text}");
}

/// A capture of datagrams of 64 flows.
fn flows(folder: &Path) -> String {
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0]);
    for port in 0..64 {
        bytes.extend([[0; 4], [0; 4], [42, 0, 0, 0], [42, 0, 0, 0]].concat());
        bytes.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        bytes.extend([0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, port, 0, 53, 0, 8, 0, 0]);
    }
    let path = folder.join("flows.pcap");
    std::fs::write(&path, bytes).expect("a writable folder");
    path.to_str().expect("UTF-8").to_string()
}

#[test]
fn flows_are_spread() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = snsh(&[&example("spread.lua"), &flows(folder.path()), "0.3"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    let (a, b) = (sent(&text, "rss.a -> one.input"), sent(&text, "rss.b -> other.input"));
    assert!(a > (a + b) / 5 && b > (a + b) / 5, "{text}");
}

#[test]
fn flows_are_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let told = folder.path().join("told.pcap").to_str().expect("UTF-8").to_string();
    let flows = flows(folder.path());
    let run = |seconds: &str| snsh(&[&example("flows.lua"), &flows, &told, seconds]);
    // Templates, and records of 47 bytes, 25 in a message.
    let are_told = |output: &Output| sent(&stdout(output), "flows.export -> writer.input") >= 4;
    let output = longer(1.0, run, are_told);
    let text = stdout(&output);
    assert!(output.status.success() && are_told(&output), "{text}{}", stderr(&output));
}

#[test]
fn routers_tunnels_and_firewalls_start() {
    for name in ["router.lua", "tunnel.lua", "firewall.lua"] {
        let mut command = Command::new("unshare");
        command.args(["--net", env!("CARGO_BIN_EXE_shortwire"), "snsh", &example(name), "0.2"]);
        let output = command.stdin(Stdio::null()).output().expect("unshare runs");
        let said = stderr(&output);
        if said.contains("not permitted") || said.contains("no /dev/net/tun") {
            println!("skipped: routers_tunnels_and_firewalls_start: {said}");
            return;
        }
        assert!(output.status.success(), "{name}: {}{said}", stdout(&output));
    }
}
