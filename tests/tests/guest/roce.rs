//! Soft-RoCE: the kernel's RDMA over an ordinary interface, for what speaks to verbs.

use std::fs;
use std::path::PathBuf;

use system_tests::guest::Guest;
use system_tests::{Skip, case, compile, need, secs, shortwire, skip};

/// What makes `rxe0` on one end of a cable, with the address 10.8.0.1. Names with a path, as
/// busybox has its own `ip`.
const RXE0: &str = "
/bin/ip link set lo up
/bin/ip link add v0 type veth peer name v1
/bin/ip addr add 10.8.0.1/24 dev v0
/bin/ip link set v0 mtu 4500 up
/bin/ip link set v1 mtu 4500 up
/bin/rdma link add rxe0 type rxe netdev v0 || exit 1
";

/// libibverbs's half of the driver, which it opens by name.
fn provider() -> Result<PathBuf, Skip> {
    let folder = "/usr/lib/x86_64-linux-gnu/libibverbs";
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let found = files.filter(|path| path.to_string_lossy().contains("librxe-")).max();
    found.map_or_else(
        || skip(format!("no librxe in {folder}: ibverbs-providers is not installed")),
        Ok,
    )
}

pub fn machine() -> Result<Guest, Skip> {
    let mut guest = Guest::new()?;
    // crc32_generic before rdma_rxe, which asks for it while it loads.
    guest.modules(&["crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "veth"]);
    for program in ["ip", "rdma", "ibv_devinfo", "ibv_rc_pingpong"] {
        guest.program(&need(program)?);
    }
    guest.copy(&provider()?).file("/etc/libibverbs.d/rxe.driver", "driver rxe\n");
    Ok(guest)
}

#[test]
fn soft_roce_moves_messages() {
    case("soft-roce", |case| {
        let script = "ibv_devinfo -d rxe0
            ibv_rc_pingpong -d rxe0 -g 1 -n 200 > /dev/null & peer=$!
            for try in $(seq 60); do
                sleep 1
                ibv_rc_pingpong -d rxe0 -g 1 -n 200 10.8.0.1 && wait $peer && exit 0
            done
            dmesg | tail -20; exit 1";
        let ended = machine()?.run(case, "", &[RXE0, script].concat(), secs(700));
        let said = ended.success();
        assert!(said.contains("PORT_ACTIVE") && said.contains("200 iters in"), "{said}");
        Ok(())
    });
}

/// What follows the turn's name, up to the next.
pub fn turn<'a>(said: &'a str, name: &str) -> &'a str {
    let (_, rest) = said
        .split_once(&format!("== {name}\n"))
        .unwrap_or_else(|| panic!("no turn {name}:\n{said}"));
    rest.split("\n== ").next().unwrap_or(rest)
}

/// Debian's rstream, and our own with its direct writes, which check what they receive; and sets,
/// which must show what the kernel's show. With librdmacm at the other end: `wire.rs`.
#[test]
fn rsockets_over_verbs_move_verified_data() {
    case("rsockets-over-verbs", |case| {
        let mut guest = machine()?;
        guest.program(&shortwire()).program(&need("rstream")?).program(&compile("repoll")?);
        guest.program(&shortwire().with_file_name("libshortwire_rsocket.so"));
        let ended =
            guest.run(case, "", &[RXE0, include_str!("roce/streams.sh")].concat(), secs(700));
        let said = ended.success();
        for name in ["blocking", "nonblocking", "async"] {
            let turn = turn(said, name);
            let rows = turn.lines().filter(|line| line.starts_with("custom")).count();
            assert!(
                turn.contains("client: 0") && turn.contains("server: 0") && rows == 2,
                "{name}:\n{turn}"
            );
        }
        let own = turn(said, "own");
        assert!(own.contains("client: 0"), "{own}");
        for row in ["riowrite 64 KiB", "both ways 64 KiB", "bandwidth 64 KiB, 4 streams"] {
            assert!(own.contains(&format!("\"{row}\"")), "{row} is missing in\n{own}");
        }
        let repoll = turn(said, "repoll");
        assert!(repoll.contains(" steps, 0 wrong") && repoll.contains("ended: 0"), "{repoll}");
        // The kernel ends the connection of a process that dies; rstream then ends with -1.
        let killed = turn(said, "killed");
        assert!(
            killed.contains("client: 255") && killed.contains("Connection reset by peer"),
            "{killed}"
        );
        Ok(())
    });
}

/// TCP programs over the verbs device, and what must not cost them their connections: forks, an end
/// that is killed, a user who may lock little memory, a port that is down.
#[test]
fn tcp_programs_over_verbs() {
    case("tcp-over-verbs", |case| {
        let mut guest = machine()?;
        for program in ["nc.openbsd", "iperf3", "redis-server", "redis-benchmark", "setpriv"] {
            guest.program(&need(program)?);
        }
        for name in ["transfer", "proc_fork", "proc_exec", "proc_fd"] {
            guest.program(&compile(name)?);
        }
        guest.program(&shortwire()).program(&shortwire().with_file_name("libshortwire.so"));
        let ended =
            guest.run(case, "", &[RXE0, include_str!("roce/sockets.sh")].concat(), secs(700));
        let said = ended.success();
        let both = "client: 0\nserver: 0\n";
        // Rows of ends of which at least one direction has left TCP.
        let rows = ["upgraded: verbs both", "upgraded: verbs tx", "upgraded: verbs rx"];
        let upgraded = |turn: &str| turn.lines().filter(|line| rows.contains(line)).count();
        let devices = turn(said, "devices");
        assert!(devices.contains("ff02") && devices.contains("ready"), "{devices}");
        let transfer = turn(said, "transfer");
        let whole = transfer.lines().filter(|line| line.ends_with(" ok")).count();
        assert!(transfer.contains(both) && whole == 2 && upgraded(transfer) >= 1, "{transfer}");
        let sum = turn(said, "sum");
        let sums: Vec<&str> = sum.lines().filter(|line| line.ends_with("  -")).collect();
        assert!(sum.contains(both) && sums.len() == 2 && sums[0] == sums[1], "{sum}");
        let iperf3 = turn(said, "iperf3");
        assert!(iperf3.contains(both) && iperf3.contains("upgraded: verbs"), "{iperf3}");
        let redis = turn(said, "redis");
        assert!(redis.contains("client: 0") && redis.contains("after a fork: 0"), "{redis}");
        assert!(redis.contains("+Background saving started") && upgraded(redis) >= 1, "{redis}");
        let scenes = turn(said, "scenes");
        assert!(
            scenes.lines().count() == 6 && scenes.lines().all(|line| line.ends_with(": 0")),
            "{scenes}"
        );
        let killed = turn(said, "killed");
        // The numbers below are the application's: the library's descriptors of both ends are out
        // of its way. These ends last until they are killed.
        let numbers = |which: &str| killed.lines().filter(|line| line.starts_with(which)).count();
        assert_eq!((numbers("low:"), numbers("high:")), (0, 4), "{killed}");
        // Whichever of its two threads calls first has the reset, and the other finds what a reset
        // leaves.
        let as_with_tcp = ["end of stream", "Connection reset by peer", "Broken pipe"];
        let told = as_with_tcp.iter().any(|what| killed.contains(what));
        assert!(
            killed.contains("upgraded: verbs") && killed.contains("client: 2") && told,
            "{killed}"
        );
        let poor = turn(said, "poor");
        assert!(poor.matches(both).count() == 2 && poor.matches(" ok").count() == 2, "{poor}");
        let down = turn(said, "down");
        assert!(
            down.contains("no RDMA device with an active port") && down.contains(both),
            "{down}"
        );
        Ok(())
    });
}
