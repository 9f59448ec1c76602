//! `shortwire devices`: what connections can go through, in the columns of `smcd device`.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use serde::Serialize;
use smc::conn::phase;

use crate::args::Devices;
use crate::connections::{Table, snapshot};
use crate::run::find_library;

#[derive(Serialize)]
struct Device {
    fid: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    pci_id: &'static str,
    pchid: &'static str,
    in_use: bool,
    link_groups: usize,
    connections: usize,
    pnet_id: &'static str,
    state: &'static str,
}

pub fn run(args: &Devices) -> Result<ExitCode> {
    let devices = [loopback(&snapshot(|_| true).tables)];
    if args.json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "devices": devices }))?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("FID  Type         PCI-ID        PCHID  InUse  #LGs  #Conns  PNET-ID  State");
    for device in &devices {
        println!(
            "{:<4} {:<12} {:<13} {:<6} {:<6} {:<5} {:<7} {:<8} {}",
            device.fid,
            device.kind,
            device.pci_id,
            device.pchid,
            if device.in_use { "Yes" } else { "No" },
            device.link_groups,
            device.connections,
            device.pnet_id,
            device.state
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Always there: it needs no hardware. Each process has its own, under a GID of its own.
fn loopback(tables: &[Table]) -> Device {
    let mut groups = HashSet::new();
    let mut connections = 0;
    for (index, table) in tables.iter().enumerate() {
        for conn in table.live().filter(|conn| conn.phase() & phase::TX_READY != 0) {
            groups.insert((index, conn.pid.load(Relaxed), conn.group.load(Relaxed)));
            connections += 1;
        }
    }
    Device {
        fid: "0000",
        kind: "loopback-ism",
        pci_id: "0",
        pchid: "ffff",
        in_use: connections > 0,
        link_groups: groups.len(),
        connections,
        pnet_id: "n/a",
        state: if find_library().is_ok() { "ready" } else { "library not found: see `shortwire info`" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_has_the_device_all_the_same() {
        let device = loopback(&[]);
        assert_eq!((device.pchid, device.in_use, device.link_groups), ("ffff", false, 0));
        let value = serde_json::to_value(device).unwrap();
        assert_eq!(value["type"], "loopback-ism");
    }
}
