//! SMC of the kernel as the peer: its SYN option finds no answer at a TCP socket of ours, and ours
//! has none for a listener of its. Both fall back to TCP before a byte of the handshake is in the
//! stream, and what is sent arrives. And SMC of the kernel beside us, on devices of its own.

use std::collections::BTreeMap;
use std::fmt::Write;

use system_tests::guest::{Guest, pair};
use system_tests::{Case, Skip, case, compile, need, secs, shortwire};

use crate::roce::turn;

/// No SMC option came: the kernel's reason, and ours for a peer that is not under Shortwire.
const PEER_NO_SMC: &str = "0x03010000";

const EXCHANGE: &str = include_str!("smc_exchange.sh");

/// What exchanges need.
fn equip(guest: &mut Guest, case: &Case) -> Result<(), Skip> {
    for name in ["smc_peer", "smc_admin"] {
        let program = case.dir().join(name);
        std::fs::copy(compile(name)?, &program).expect("the program under its name");
        guest.program(&program);
    }
    guest.program(&shortwire()).program(&shortwire().with_file_name("libshortwire.so"));
    let preload = std::fs::read(compile("smc_preload")?).expect("the library");
    guest.file("/tmp/libsmc-preload.so", preload);
    Ok(())
}

/// Whether both ends of each exchange have all.
fn intact(said: &str, names: &[&str]) {
    for name in names {
        let turn = turn(said, name);
        for line in ["server: 0", "client: 0", "to client: intact", "to server: intact"] {
            assert!(turn.lines().any(|said| said == line), "{name}: {line} is missing in\n{turn}");
        }
    }
}

#[test]
fn kernel_smc_and_ours_fall_back_to_tcp() {
    case("kernel-smc", |case| {
        let mut guest = Guest::new()?;
        guest.modules(&["smc", "smc_diag"]);
        equip(&mut guest, case)?;
        let script = [EXCHANGE, include_str!("kernel_smc.sh")].concat();
        let ended = guest.run(case, "", &script, secs(700));
        let said = ended.success();
        let names = [
            "kernel-client",
            "kernel-server",
            "kernel-client-under-run",
            "kernel-server-under-run",
        ];
        intact(said, &names);
        intact(said, &["kernel-both-under-run", "ours-both", "run-and-smc_run"]);
        for name in names {
            let turn = turn(said, name);
            let kernel = if name.starts_with("kernel-client") { "client" } else { "server" };
            assert!(
                turn.contains(&format!(
                    "{kernel} said: mode 1 reason {PEER_NO_SMC} peer 0x00000000"
                )),
                "{name}:\n{turn}"
            );
            let ours: Vec<&str> = turn.lines().filter(|line| line.starts_with("ss: ")).collect();
            let is = |row: &&&str| match name {
                // What the kernel has given back to TCP is TCP, and the other end is ours too.
                "kernel-server-under-run" => row.ends_with("SMCD"),
                _ => row.ends_with("TCP PEER_NO_SMC"),
            };
            let expected = if name == "kernel-server-under-run" { 2 } else { 1 };
            assert!(ours.iter().filter(is).count() >= expected, "{name}: {ours:?}");
        }
        // Both signalled, neither has a device: the kernels decline each other in the stream, below
        // our hooks.
        let both = turn(said, "kernel-both-under-run");
        assert_eq!(
            both.matches("mode 1 reason 0x03").count() + both.matches("mode 1 reason 0x05").count(),
            2,
            "{both}"
        );
        assert!(!both.contains(&format!("reason {PEER_NO_SMC}")), "{both}");
        // The kernel's list is joined to what programs hold: of sockets of its own, it says why it gave
        // them back.
        let rows = |name| turn(said, name).lines().filter(|line| line.starts_with("ss: "));
        let is_kernels = |row: &&str| row.ends_with("TCP KERNEL_SMC/PEER_NO_SMC");
        assert!(rows("kernel-client-under-run").any(|row| is_kernels(&row)), "{said}");
        // Whichever of the two was asked for first, a program that asks for TCP gets the kernel's SMC.
        let composed = turn(said, "run-and-smc_run");
        assert_eq!(composed.matches("said: domain 43").count(), 2, "{composed}");
        // Where it gave them back to TCP before the first byte, they may share memory after that.
        let is_told = |row: &&str| row.contains("TCP KERNEL_SMC") || row.ends_with("SMCD");
        assert_eq!(rows("run-and-smc_run").filter(is_told).count(), 2, "{composed}");
        // And where both ends are ours, the same programs do share memory.
        let ours = turn(said, "ours-both");
        assert_eq!(
            ours.lines().filter(|line| line.starts_with("ss: ") && line.ends_with("SMCD")).count(),
            2,
            "{ours}"
        );
        Ok(())
    });
}

/// `make check-smc`: the kernel's SMC over its own loopback device. Its sockets carry what is sent, are left alone by
/// us and listed, and fall back beside ours; then a table of both and TCP, by sockperf.
#[test]
#[ignore = "needs a kernel that takes minutes to make: make check-smc"]
fn kernel_smc_in_memory() {
    case("kernel-smc-memory", |case| {
        let mut guest = Guest::with_kernels_smc()?;
        equip(&mut guest, case)?;
        guest.program(&need("sockperf")?);
        let script = [EXCHANGE, include_str!("kernel_smc_memory.sh")].concat();
        let ended = guest.run(case, "", &script, secs(1500));
        let said = ended.success();
        let mixed = ["kernel-client", "kernel-server"];
        intact(said, &mixed);
        intact(said, &["kernel-both", "kernel-both-under-run", "ours-both"]);
        let rows = |name| turn(said, name).lines().filter(|line| line.starts_with("ss: ")).count();
        for name in ["kernel-both", "kernel-both-under-run"] {
            assert_eq!(turn(said, name).matches("mode 2 reason 0x00000000").count(), 2, "{said}");
        }
        let listed = turn(said, "kernel-both-under-run");
        assert_eq!(listed.matches("KERNEL_SMC SMCD").count(), 2, "{listed}");
        assert_eq!((rows("kernel-both"), rows("ours-both")), (0, 2), "{said}");
        assert_eq!(turn(said, "ours-both").matches(" SMCD").count(), 2, "{said}");
        for name in mixed {
            assert!(turn(said, name).contains(&format!("mode 1 reason {PEER_NO_SMC}")), "{said}");
        }
        let figures = turn(said, "figures");
        beside_tcp(figures);
        println!("\n{}", table(figures));
        Ok(())
    });
}

/// Lines "packets NAME-SIZE WHAT NUMBER", TCP's before the others of a turn: what is carried beside TCP passes
/// the loopback interface in a tenth of its packets at most. A fallback to TCP would pass for a figure otherwise.
fn beside_tcp(said: &str) {
    let mut of_tcp = 0;
    let lines = said.lines().filter_map(|line| line.strip_prefix("packets "));
    let mut seen = 0;
    for line in lines {
        let packets: u64 = line.rsplit(' ').next().expect("a word").parse().expect("a number");
        if line.starts_with("tcp-") {
            of_tcp = packets;
        } else {
            assert!(packets * 10 < of_tcp, "by TCP: {line}\n{said}");
            seen += 1;
        }
    }
    assert!(seen >= 6, "{said}");
}

/// Lines "figure NAME-SIZE WHAT VALUE" as rows of medians.
fn table(said: &str) -> String {
    let mut values: BTreeMap<(&str, &str), [Vec<f64>; 3]> = BTreeMap::new();
    for line in said.lines().filter_map(|line| line.strip_prefix("figure ")) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [end, what, value] = fields[..] else { panic!("no figure: {line}") };
        let (by, size) = end.rsplit_once('-').expect("a size");
        let column = ["tcp", "kernel", "shortwire"].iter().position(|name| *name == by);
        let row = values.entry((what, size)).or_default();
        row[column.expect("a name")].push(value.parse().expect("a number"));
    }
    assert_eq!(values.len(), 3, "{said}");
    let mut table = String::from("sockperf                      TCP  kernel's SMC-D   Shortwire\n");
    for ((what, size), columns) in values {
        let unit = if what == "ping-pong" { "us" } else { "1/s" };
        let [tcp, kernel, ours] = columns.map(|mut values| {
            assert_eq!(values.len(), 3, "{said}");
            values.sort_by(f64::total_cmp);
            values[1]
        });
        let name = format!("{what} {size} B, {unit}");
        writeln!(table, "{name:22} {tcp:>10} {kernel:>15} {ours:>11}").expect("writing to memory");
    }
    table
}

/// `make check-smc`: two guests with soft-RoCE, every end under Shortwire. What is the kernel's SMC-R is left alone and
/// listed, and TCP to the other guest stays TCP.
#[test]
#[ignore = "needs a kernel that takes minutes to make: make check-smc"]
fn kernel_smc_between_guests() {
    case("kernel-smc-between", |case| {
        let machine = || {
            let mut guest = Guest::with_kernels_smc()?;
            equip(&mut guest, case)?;
            guest.program(&need("ip")?).program(&need("rdma")?);
            guest.file("/functions", include_str!("smc_functions.sh"));
            Ok::<_, Skip>(guest)
        };
        let setup = "/bin/rdma link add rxe0 type rxe netdev $card || exit 1
            export SHORTWIRE_AFTER=4
            smc_admin ueid SHORTWIRE && smc_admin pnet CABLE card $card && smc_admin pnet CABLE rdma rxe0 || exit 1
            ";
        let script = include_str!("kernel_smc_between.sh");
        let ended = pair::run(case, [machine()?, machine()?], setup, script, secs(1500));
        let said = ended.success();
        intact(said, &["kernel-smc", "tcp"]);
        let smc = turn(said, "kernel-smc");
        assert_eq!(smc.matches("mode 0 reason 0x00000000").count(), 2, "{smc}");
        for row in ["near ss: ", "far ss: "] {
            let rows = |name| turn(said, name).lines().filter(|line| line.starts_with(row));
            assert!(rows("kernel-smc").any(|row| row.contains("KERNEL_SMC SMCR")), "{said}");
            assert!(rows("tcp").any(|row| row.contains(" TCP ")), "{said}");
            assert!(!rows("tcp").any(|row| row.contains("SMCD")), "{said}");
        }
        Ok(())
    });
}
