//! Two guests on one cable, which nothing else is on. The test's script runs in the near one;
//! `far COMMAND` there runs a command in the far one, prints what that printed, and waits for it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Ended, Guest};
use crate::deadline::Deadline;
use crate::{Case, millis, secs};

/// First in both: `$card` is up, `$own` and `$peer` are the addresses. An MTU that gives RDMA one
/// of 4096.
const CABLE: &str = r#"
ip link set lo up
card=$(ls /sys/class/net | grep -v lo | head -n 1)
/bin/ip addr add $own/24 dev $card
/bin/ip link set $card mtu 4500 up
"#;

/// A shell for each connection. It ends with the near guest's last word, and the emulator with it.
const FAR: &str = r#"
busybox nc -ll -p 9000 -e /far-shell & shells=$!
until [ -e /tmp/over ]; do sleep 0.3; done
sleep 0.5
kill $shells
"#;

/// A file of the test may have functions for what it runs there.
const FAR_SHELL: &str = r#"#!/busybox sh
cd /tmp
exec 2>&1
[ ! -e /functions ] || . /functions
read -r command
eval "$command"
"#;

/// Guests boot at their own pace.
const NEAR: &str = r#"
far() { printf '%s\n' "$*" | nc $peer 9000; }
tries=0
until [ "$(far echo here 2> /dev/null)" = here ]; do
    tries=$((tries + 1)); [ $tries -lt 1000 ] || { echo "the other guest does not come"; exit 1; }
    sleep 0.3
done
"#;

/// Runs `script` in the first guest to its end, then ends the other. `setup` runs in both before.
pub fn run(
    case: &Case,
    [mut near, mut far]: [Guest; 2],
    setup: &str,
    script: &str,
    limit: Duration,
) -> Ended {
    let path = case.dir().join("cable");
    for (guest, server, number) in [(&mut far, "on", 2), (&mut near, "off", 1)] {
        let path = path.display();
        let end = format!("stream,id=cable,server={server},addr.type=unix,addr.path={path}");
        let card = format!("virtio-net-pci,netdev=cable,mac=02:00:00:00:09:0{number}");
        guest.modules(&["virtio_net"]).qemu(&["-netdev", &end, "-device", &card]);
    }
    far.image.file("/far-shell", 0o755, FAR_SHELL.into());
    let begin = |own, peer| format!("own=10.9.0.{own} peer=10.9.0.{peer}\n{CABLE}{setup}");
    let far = far.start(case, "far", "", &format!("{}{FAR}", begin(2, 1)));
    wait_listening(&path);
    let whole = format!(
        "{}{NEAR}(\n{script}\n)\nstatus=$?\nfar touch /tmp/over\nexit $status\n",
        begin(1, 2)
    );
    let near = near.start(case, "near", "", &whole).wait(limit);
    if near.status != Some(0) {
        // It may not have told the other one to end, which ends with its `Proc`.
        return near;
    }
    let other = far.wait(secs(300));
    let said = format!("{}\n-- console\n{}", other.output, other.console);
    assert!(other.status == Some(0) && !said.contains("cannot load "), "the far guest:\n{said}");
    near
}

/// Waits until the emulator listens at its end of a cable, soon after its start. While the socket is only bound it
/// refuses who calls, and the other emulator calls once.
pub fn wait_listening(path: &Path) {
    let end = Deadline::within(secs(60));
    let name = path.to_string_lossy();
    let listens = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The flag is that of a socket that listens.
        matches!(fields[..], [_, _, _, "00010000", .., at] if at == name)
    };
    while !fs::read_to_string("/proc/net/unix").unwrap_or_default().lines().any(&listens) {
        assert!(!end.is_over(), "nobody listens at {}", path.display());
        std::thread::sleep(millis(20));
    }
}
