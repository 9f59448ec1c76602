//! A network namespace that a thread has for itself: it is gone with the thread, however that ends.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::sys;

/// Runs `work` on a thread in a namespace with two cables, a0 - a1 and b0 - b1.
pub fn with_cables<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let body = || {
        sys::new_network_namespace().context("cannot make a network namespace: run as root")?;
        // Nothing but our packets on the cables. Absent where the kernel has no IPv6, which is as
        // good.
        let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        for (one, other) in [("a0", "a1"), ("b0", "b1")] {
            ip(&format!("link add {one} type veth peer name {other}"))?;
            ip(&format!("link set {one} up"))?;
            ip(&format!("link set {other} up"))?;
        }
        work()
    };
    std::thread::scope(|scope| {
        scope.spawn(body).join().unwrap_or_else(|_| bail!("the measurement crashed"))
    })
}

fn ip(arguments: &str) -> Result<()> {
    let said = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("cannot run ip (package iproute2)")?;
    ensure!(
        said.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&said.stderr).trim()
    );
    Ok(())
}

/// Packets that an interface has received, by its own count.
pub fn received(interface: &str) -> Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev")
        .context("cannot read /proc/thread-self/net/dev")?;
    let line =
        table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.with_context(|| format!("interface {interface} is not listed"))
}
