//! Emulated 82574 cards (`e1000e`), handed to VFIO and back.

use std::fs;
use std::path::Path;

use system_tests::guest::{Ended, Guest};
use system_tests::{Case, Skip, case, recording, secs, shortwire};

const FRAMES: usize = 1000;

/// The cards by their slots on the bus, and the cable that each is plugged into.
const CARDS: [(&str, u32); 4] = [("04", 0), ("05", 0), ("06", 1), ("08", 2)];
/// Interfaces that stay with the kernel's driver.
const KERNELS: [(&str, u32); 2] = [("07", 1), ("09", 2)];

/// `links` and the apps that they name, as the command reads them.
fn network(links: &[&str], apps: &[(&str, &str)]) -> String {
    let apps: String = apps.iter().map(|(name, app)| format!("{name} = {{ {app} }}\n")).collect();
    format!("links = {links:?}\n\n[engine]\npackets = 16384\n\n[apps]\n{apps}")
}

fn card(slot: &str) -> String {
    format!("kind = \"Intel82574\", pciaddr = \"0000:00:{slot}.0\"")
}

fn networks(guest: &mut Guest) {
    let [a, b, c, d] = CARDS.map(|(slot, _)| card(slot));
    let reader = "kind = \"PcapReader\", file = \"/net/in.pcap\"";
    let writer = |name: &str| format!("kind = \"PcapWriter\", file = \"/out/{name}.pcap\"");
    let wrong = |address: &str| {
        network(&[], &[("a", &format!("kind = \"Intel82574\", pciaddr = \"{address}\""))])
    };
    let flood = |card: &str| {
        network(
            &["s.output -> a.rx", "a.tx -> e.input"],
            &[("a", card), ("s", "kind = \"Source\", size = 200"), ("e", "kind = \"Sink\"")],
        )
    };
    let capture = |card: &str, name: &str| {
        network(&["b.tx -> out.input"], &[("b", card), ("out", &writer(name))])
    };
    let replay = network(&["in.output -> a.rx"], &[("a", &a), ("in", reader)]);
    let shunt = network(&["c.tx -> d.rx", "d.tx -> c.rx"], &[("c", &c), ("d", &d)]);
    let end = network(
        &["v.tx -> out.input"],
        &[("v", "kind = \"RawSocket\", interface = \"v1\""), ("out", &writer("shunted"))],
    );
    for (name, content) in [
        ("bound", wrong("00:04.0")),
        ("absent", wrong("0000:00:1e.0")),
        ("other", wrong("0000:00:07.0")),
        ("replay", replay),
        ("capture", capture(&b, "first")),
        ("capture-again", capture(&b, "again")),
        ("capture-kernel", capture(&a, "kernel")),
        ("flood-a", flood(&a)),
        ("flood-b", flood(&b)),
        ("shunt", shunt),
        ("end", end),
    ] {
        guest.file(&format!("/net/{name}.toml"), content);
    }
    guest.file("/net/replay.lua", include_str!("cards/replay.lua"));
}

/// A guest with the cards, the recording, and the kernel modules that `load` names; `iommu` is the
/// emulator's.
fn machine(
    case: &Case,
    frames: &[Vec<u8>],
    iommu: Option<&str>,
    load: &[&str],
) -> Result<Guest, Skip> {
    let mut guest = Guest::new()?;
    if let Some(iommu) = iommu {
        guest.qemu(&["-device", iommu]);
    }
    for (number, (slot, cable)) in CARDS.iter().chain(&KERNELS).enumerate() {
        let kind = if number < CARDS.len() { "e1000e" } else { "virtio-net-pci" };
        guest.qemu(&["-netdev", &format!("hubport,id=n{slot},hubid={cable}")]);
        guest.qemu(&[
            "-device",
            &format!("{kind},netdev=n{slot},addr={slot},mac=02:00:00:00:01:{slot}"),
        ]);
    }
    let wire = case.dir().join("wire.pcap");
    guest.qemu(&[
        "-object",
        &format!("filter-dump,id=wire,netdev=n{},file={}", CARDS[0].0, wire.display()),
    ]);
    guest
        .modules(&["e1000e", "virtio_net"])
        .modules(load)
        .spare_modules(&["vfio-pci", "vfio_iommu_type1"]);
    guest.program(&shortwire());
    networks(&mut guest);
    let recorded = case.dir().join("in.pcap");
    recording::write(&recorded, frames);
    guest.file("/net/in.pcap", fs::read(recorded).expect("the recording"));
    Ok(guest)
}

fn equal(file: &Path, frames: &[Vec<u8>]) {
    let found = recording::read(file);
    assert_eq!(found.len(), frames.len(), "frames in {}", file.display());
    for (number, (found, sent)) in found.iter().zip(frames).enumerate() {
        assert_eq!(found, sent, "frame {number} of {}", file.display());
    }
}

/// What the script printed between `== NAME` and the next such line says all of this.
fn says(ended: &Ended, name: &str, what: &[&str]) {
    let rest = ended.output.split(&format!("== {name}\n")).nth(1).unwrap_or_default();
    let part = rest.split("\n== ").next().unwrap_or_default();
    for what in what {
        assert!(
            part.contains(what),
            "\"{what}\" is not in the part {name}:\n{part}\n\nall:\n{}",
            ended.output
        );
    }
}

fn run(case: &Case, guest: Guest, append: &str, script: &str) -> Ended {
    let ended =
        guest.run(case, append, &[include_str!("cards/functions.sh"), script].concat(), secs(700));
    ended.success();
    ended
}

#[test]
fn cards_move_packets_and_are_given_back() {
    case("cards", |case| {
        let frames = recording::frames(FRAMES);
        let guest = machine(
            case,
            &frames,
            Some("intel-iommu,intremap=on"),
            &["vfio-pci", "vfio_iommu_type1"],
        )?;
        let ended = run(case, guest, "intel_iommu=on", include_str!("cards/vfio.sh"));

        says(
            &ended,
            "absent",
            &[
                "there is no PCI device at 0000:00:1e.0; an Intel 82574 is at 0000:00:04.0",
                "status 1",
            ],
        );
        says(&ended, "other", &["0000:00:07.0 (1af4:1000) is not an Intel 82574", "status 1"]);
        says(
            &ended,
            "bound",
            &["0000:00:04.0 is in use by the kernel's driver e1000e (interface eth", "status 1"],
        );
        says(&ended, "as told", &["vfio-pci"]);
        says(
            &ended,
            "killed",
            &["busy: bus master 1", "another process uses 0000:00:04.0", "killed: bus master 0"],
        );
        says(&ended, "end", &["04: bus master 0", "06: bus master 0", "08: bus master 0"]);
        for capture in ["first", "again", "shunted", "kernel"] {
            equal(&ended.out.join(format!("{capture}.pcap")), &frames);
        }
        // The emulator's own capture, where the cable is plugged in. After the first transfer it
        // has more.
        let wire = recording::read(&case.dir().join("wire.pcap"));
        assert!(wire.starts_with(&frames), "the first frames on the wire");

        // Only the access that was meant to stray did.
        says(&ended, "control", &["faults: 1"]);
        says(&ended, "end", &["faults: 1"]);
        let refused: Vec<&str> =
            ended.emulator.lines().filter(|line| line.contains("translation failure")).collect();
        assert!(
            refused.len() == 1 && refused[0].contains("dev=00:06:00"),
            "refused accesses: {refused:?}"
        );
        Ok(())
    });
}

#[test]
fn what_vfio_refuses_is_told_with_what_helps() {
    case("refused-cards", |case| {
        let frames = recording::frames(FRAMES);
        let guest = machine(case, &frames, Some("intel-iommu,intremap=off"), &["vfio-pci"])?;
        let ended = run(case, guest, "intel_iommu=on", include_str!("cards/refused.sh"));
        says(
            &ended,
            "half",
            &["status 1", "no driver for the IOMMU; type `modprobe vfio_iommu_type1`"],
        );
        says(
            &ended,
            "refused",
            &["status 1", "does not keep 0000:00:04.0 from sending interrupts"],
        );
        equal(&ended.out.join("first.pcap"), &frames);
        Ok(())
    });
}

#[test]
fn cards_move_packets_without_an_iommu() {
    case("plain-cards", |case| {
        let frames = recording::frames(FRAMES);
        let guest = machine(case, &frames, None, &[])?;
        let ended = run(case, guest, "", include_str!("cards/resource.sh"));
        says(
            &ended,
            "bound",
            &["0000:00:04.0 is in use by the kernel's driver e1000e", "status 1"],
        );
        says(&ended, "no huge pages", &["huge pages", "status 1"]);
        says(
            &ended,
            "killed",
            &["busy: bus master 1", "another process uses 0000:00:04.0", "killed: bus master 0"],
        );
        says(&ended, "end", &["04: bus master 0", "free huge pages: 34"]);
        for capture in ["first", "again", "kernel"] {
            equal(&ended.out.join(format!("{capture}.pcap")), &frames);
        }
        Ok(())
    });
}
