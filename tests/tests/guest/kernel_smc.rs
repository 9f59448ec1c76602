//! SMC of the kernel as the peer: its SYN option finds no answer at a TCP socket of ours, and ours
//! has none for a listener of its. Both fall back to TCP before a byte of the handshake is in the
//! stream, and what is sent arrives.

use system_tests::guest::Guest;
use system_tests::{case, compile, secs, shortwire};

/// No SMC option came: the kernel's reason, and ours for a peer that is not under Shortwire.
const PEER_NO_SMC: &str = "0x03010000";

fn turn<'a>(said: &'a str, name: &str) -> &'a str {
    let (_, rest) = said
        .split_once(&format!("== {name}\n"))
        .unwrap_or_else(|| panic!("no turn {name}:\n{said}"));
    rest.split("\n== ").next().unwrap_or(rest)
}

#[test]
fn kernel_smc_and_ours_fall_back_to_tcp() {
    case("kernel-smc", |case| {
        let mut guest = Guest::new()?;
        guest.modules(&["smc", "smc_diag"]);
        let peer = compile("smc_peer")?;
        let program = case.dir().join("smc_peer");
        std::fs::copy(peer, &program).expect("the program under its name");
        guest.program(&program).program(&shortwire());
        let preload = std::fs::read(compile("smc_preload")?).expect("the library");
        guest.file("/tmp/libsmc-preload.so", preload);
        guest.program(&shortwire().with_file_name("libshortwire.so"));
        let ended = guest.run(case, "", include_str!("kernel_smc.sh"), secs(700));
        let said = ended.success();
        let names = [
            "kernel-client",
            "kernel-server",
            "kernel-client-under-run",
            "kernel-server-under-run",
        ];
        for name in names.iter().chain(&["kernel-both-under-run", "ours-both", "run-and-smc_run"]) {
            let turn = turn(said, name);
            for line in ["server: 0", "client: 0", "to client: intact", "to server: intact"] {
                assert!(
                    turn.lines().any(|said| said == line),
                    "{name}: {line} is missing in\n{turn}"
                );
            }
        }
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
