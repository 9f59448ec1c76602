//! `shortwire devices`: what connections can go through, in the columns of `smcd device`.

mod remove;

use std::borrow::Cow;
use std::env;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Result;
use connections::{Table, snapshot};
use serde::Serialize;
use smc::bar;
use smc::conn::Conn;
use smc::device::{Provider, open_verbs};
use smc::kind::{Kind, PARTITIONS, chid_of};
use smc::pnet::Pnets;
use terminal::screen;

use crate::run::find_library;
use crate::{sys, tell};

#[derive(Serialize)]
struct Device {
    fid: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    pci_id: &'static str,
    pchid: String,
    in_use: bool,
    link_groups: usize,
    connections: usize,
    pnet_id: String,
    state: Cow<'static, str>,
}

#[derive(clap::Args)]
#[command(about = "Show devices, or take one away from running programs")]
#[command(
    long_about = "Shows the devices that connections can use. With --remove one of them goes away from programs that run: its link groups end, \
connections over it are reset (ECONNRESET, at both ends), and new ones use the next device, or TCP. A program that is started later has it."
)]
#[command(after_help = "Examples:
  shortwire devices
  shortwire devices --remove ism --pid 4711  from this process and what it
                                             forked
  shortwire devices --remove ism             from all of your programs")]
pub struct Devices {
    /// Take this device away from running programs
    #[arg(long, value_name = "DEVICE", value_enum, conflicts_with = "json")]
    pub remove: Option<crate::run::Device>,
    /// ... from this process, and those that it shares its connections with by fork
    #[arg(long, requires = "remove")]
    pub pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Devices) -> Result<ExitCode> {
    if let Some(device) = args.remove {
        return remove::run(device, args.pid);
    }
    let tables = snapshot(|_| true).tables;
    let devices = Kind::ALL.map(|kind| device(kind, &tables));
    if args.json {
        crate::json::print(&serde_json::json!({ "devices": devices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::out!("{}", table(&devices, screen::width()))?;
    Ok(ExitCode::SUCCESS)
}

/// What a state says beyond its first word stands below its row where the terminal is too narrow.
fn table(devices: &[Device], width: Option<usize>) -> String {
    let mut text =
        "FID  Type         PCI-ID        PCHID  InUse  #LGs  #Conns  PNET-ID  State\n".to_string();
    for device in devices {
        let row = format!(
            "{:<4} {:<12} {:<13} {:<6} {:<6} {:<5} {:<7} {:<8} ",
            device.fid,
            device.kind,
            device.pci_id,
            device.pchid,
            if device.in_use { "Yes" } else { "No" },
            device.link_groups,
            device.connections,
            device.pnet_id,
        );
        let (row_len, whole) = (row.chars().count(), device.state.chars().count());
        if width.is_none_or(|width| row_len + whole <= width) {
            text += &format!("{row}{}\n", device.state);
        } else {
            let first = device.state.split([' ', ':', ',']).next().unwrap_or_default();
            text += &format!("{row}{first}\n{}", screen::wrapped(&device.state, width, "     "));
        }
    }
    text
}

/// None needs hardware of its own, but verbs may have some. Each process has its own, under a GID
/// of its own.
fn device(kind: Kind, tables: &[Table]) -> Device {
    let upgraded = |conn: &&Conn| conn.is_committed() && conn.kind() == kind;
    let connections = tables.iter().flat_map(Table::live).filter(upgraded).count();
    let groups =
        tables.iter().flat_map(Table::link_groups).filter(|group| group.device == kind.name());
    let state = state(kind, tables);
    Device {
        fid: match kind {
            Kind::Loopback => "0000",
            Kind::Ism => "0001",
            Kind::Ivshmem => "0002",
            Kind::Verbs => "0003",
        },
        kind: match kind {
            Kind::Loopback => "loopback-ism",
            Kind::Ism => "ism",
            Kind::Ivshmem => "ivshmem",
            Kind::Verbs => "verbs",
        },
        pci_id: "0",
        pchid: format!("{:04x}", chid(kind)),
        in_use: connections > 0,
        link_groups: groups.count(),
        connections,
        pnet_id: pnet_id(kind),
        state,
    }
}

/// As programs have it that are started from here.
fn chid(kind: Kind) -> u16 {
    if kind == Kind::Verbs {
        // Hardware and software are two fabrics.
        let _ = open_verbs(true);
    }
    let partition =
        env::var("SHORTWIRE_PARTITION").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if kind == Kind::Ism && partition < PARTITIONS { chid_of(partition) } else { kind.chid() }
}

/// As programs are told that are started from here.
fn pnet_id(kind: Kind) -> String {
    let told = env::var_os("SHORTWIRE_PNETID").unwrap_or_default();
    Pnets::parse(told.as_bytes()).of(kind).map_or_else(|| "n/a".into(), |id| id.to_string())
}

fn state(kind: Kind, tables: &[Table]) -> Cow<'static, str> {
    if find_library().is_err() {
        return "library not found: see `shortwire info`".into();
    }
    let without: Vec<String> = tables
        .iter()
        .filter(|table| table.lost(kind))
        .flat_map(|table| &table.programs)
        .map(tell::named)
        .collect();
    if !without.is_empty() {
        return format!("removed from {}", without.join(", ")).into();
    }
    match kind {
        Kind::Loopback => "ready".into(),
        Kind::Ivshmem => {
            bar::set(env::var_os("SHORTWIRE_IVSHMEM").unwrap_or_default().as_bytes());
            bar::look().map_or_else(|why| format!("unavailable: {why}").into(), |()| "ready".into())
        }
        Kind::Ism => match sys::may_write_to_others() {
            Ok(()) => "ready".into(),
            Err(error) => format!("unavailable: {}", why(&error)).into(),
        },
        Kind::Verbs => verbs(),
    }
}

/// Hardware, or else the provider in software, which is only for who asks for the device by its
/// name.
fn verbs() -> Cow<'static, str> {
    let no_hardware = match open_verbs(false) {
        Ok(_) => return "ready".into(),
        Err(why) => why,
    };
    match (open_verbs(true), sys::may_write_to_others()) {
        (Ok(Provider::Hardware), _) => "ready".into(),
        (Ok(Provider::Software), Ok(())) => format!("software, if preferred: {no_hardware}").into(),
        (Ok(Provider::Software), Err(error)) => {
            format!("unavailable: {no_hardware}, and {}", why(&error)).into()
        }
        (Err(software), _) => format!("unavailable: {no_hardware}, and {software}").into(),
    }
}

/// Why one process of a user may not write to the memory of another.
fn why(error: &std::io::Error) -> String {
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match (error.raw_os_error(), yama.trim()) {
        (Some(libc::EPERM), scope @ ("1" | "2" | "3")) => {
            format!("process_vm_writev is not permitted: kernel.yama.ptrace_scope is {scope}")
        }
        (Some(libc::EPERM), _) => {
            "process_vm_writev is not permitted here (a seccomp filter, or a security module)"
                .into()
        }
        (Some(libc::ENOSYS), _) => {
            "this kernel has no process_vm_writev, or a seccomp filter hides it".into()
        }
        _ => format!("process_vm_writev: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_machine_has_the_devices_all_the_same() {
        for (kind, pchid, name) in [
            (Kind::Loopback, "ffff", "loopback-ism"),
            (Kind::Ism, "ff00", "ism"),
            (Kind::Ivshmem, "ff01", "ivshmem"),
        ] {
            let device = device(kind, &[]);
            assert_eq!(
                (device.pchid.as_str(), device.in_use, device.link_groups),
                (pchid, false, 0)
            );
            assert_eq!(device.pchid, format!("{:04x}", kind.chid()));
            assert_eq!(serde_json::to_value(device).unwrap()["type"], name);
        }
        let verbs = device(Kind::Verbs, &[]);
        assert_eq!(
            verbs.pchid,
            if open_verbs(true) == Ok(Provider::Software) { "ff03" } else { "ff02" }
        );
    }

    #[test]
    fn a_narrow_terminal_has_long_states_below_their_rows() {
        let mut devices = [device(Kind::Ivshmem, &[])];
        devices[0].state = "unavailable: no PCI device 1af4:1110".into();
        let narrow = table(&devices, Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(
            narrow.ends_with("unavailable\n     unavailable: no PCI device 1af4:1110\n"),
            "{narrow}"
        );
        assert_eq!(table(&devices, None).lines().count(), 2);
    }

    #[test]
    fn a_refusal_is_told_in_words() {
        let text = |errno| why(&std::io::Error::from_raw_os_error(errno));
        assert!(text(libc::EPERM).contains("not permitted"));
        assert!(text(libc::ENOSYS).contains("seccomp"));
        assert!(text(libc::ESRCH).starts_with("process_vm_writev: "));
    }
}
