//! `VhostUser` as the device of two cards of a guest, which the guest's own kernel drives through
//! QEMU's front end.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use system_tests::guest::Guest;
use system_tests::{Case, Proc, case, recording, secs, shortwire};

const FRAMES: usize = 1000;
const CARDS: [(&str, &str); 2] = [("04", "a"), ("05", "b")];

/// Starts the engine that joins the two cards.
fn engine(case: &Case, name: &str) -> Proc {
    let path = case.dir().join("shunt.toml");
    let app = |app: &str| {
        format!(
            "{app} = {{ kind = \"VhostUser\", path = \"{}\" }}\n",
            case.dir().join(app).display()
        )
    };
    let text =
        format!("links = [\"a.tx -> b.rx\", \"b.tx -> a.rx\"]\n[apps]\n{}{}", app("a"), app("b"));
    fs::write(&path, text).expect("a configuration");
    let mut engine = case.start(
        name,
        Command::new(shortwire()).args(["engine", "--report", "links,apps"]).arg(path),
    );
    engine.wait_line("running:", secs(60));
    engine
}

#[test]
fn a_guest_sends_and_receives_through_the_engine_and_survives_its_end() {
    case("vhost", |case| {
        let frames = recording::frames(FRAMES);
        let mut guest = Guest::new()?;
        guest.qemu(&[
            "-object",
            "memory-backend-memfd,id=ram,size=1024M,share=on",
            "-machine",
            "memory-backend=ram",
        ]);
        for (slot, name) in CARDS {
            let socket = case.dir().join(name);
            guest.qemu(&[
                "-chardev",
                &format!("socket,id=c{slot},path={},reconnect=1", socket.display()),
            ]);
            guest.qemu(&["-netdev", &format!("vhost-user,id=n{slot},chardev=c{slot}")]);
            // Without MSI-X: QEMU 7.2 dies of it where a device is another process and there is no
            // KVM.
            guest.qemu(&[
                "-device",
                &format!(
                    "virtio-net-pci,netdev=n{slot},addr={slot},mac=02:00:00:00:01:{slot},vectors=0"
                ),
            ]);
        }
        guest.modules(&["virtio_net"]).program(&shortwire());
        let recorded = case.dir().join("in.pcap");
        recording::write(&recorded, &frames);
        guest.file("/net/in.pcap", fs::read(recorded).expect("the recording"));
        for (name, interface) in [("there", "v1"), ("back", "v0"), ("again", "v1")] {
            let text = format!(
                "links = [\"in.tx -> out.input\"]\n[apps]\nin = {{ kind = \"RawSocket\", interface = \"{interface}\" }}\n\
                 out = {{ kind = \"PcapWriter\", file = \"/out/{name}.pcap\" }}\n"
            );
            guest.file(&format!("/net/capture-{name}.toml"), text);
        }

        let mut first = engine(case, "first");
        let mut guest = guest.start(case, "guest", "", include_str!("vhost.sh"));
        guest.wait_line("== transferred", secs(700));
        first.signal(Signal::KILL);
        first.wait(secs(60));
        guest.wait_line("== gone", secs(300));
        let mut second = engine(case, "second");
        let ended = guest.wait(secs(700));
        ended.success();
        second.signal(Signal::INT);
        let report = second.success(secs(60));
        // Whether it has noticed the guest's end by then is left to its next tick.
        assert_eq!(
            report.matches("dropped: 0 without memory, 0 of impossible length").count(),
            2,
            "{report}"
        );
        for name in ["there", "back", "again"] {
            let found = recording::read(&ended.out.join(format!("{name}.pcap")));
            assert!(found == frames, "{name}: {} of {FRAMES} frames, or others", found.len());
        }
        assert!(!case.dir().join("a").exists(), "the socket is left");
        Ok(())
    });
}
