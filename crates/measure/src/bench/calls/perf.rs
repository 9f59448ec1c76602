//! Counting by the kernel's own counters of trace points: the server does not notice.

use std::ffi::OsString;
use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::Calls;
use crate::bench::process::Process;
use crate::bench::tools;

/// What sockets, files and waiting need, by the names of trace points; all else is counted
/// together.
const NAMES: [&str; 27] = [
    "read",
    "write",
    "readv",
    "writev",
    "recvfrom",
    "sendto",
    "recvmsg",
    "sendmsg",
    "epoll_wait",
    "epoll_pwait",
    "epoll_ctl",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "futex",
    "accept4",
    "close",
    "openat",
    "newfstat",
    "newfstatat",
    "pread64",
    "sendfile64",
    "ioctl",
    "sched_yield",
    "getsockopt",
    "setsockopt",
];
const ALL: &str = "raw_syscalls:sys_enter";
const NAMED: &str = "syscalls:sys_enter_";

/// Whether it is installed and we are allowed to.
pub fn works() -> bool {
    let Some(perf) = tools::locate("perf") else { return false };
    let mut command = Command::new(perf);
    command.args(["stat", "-x,", "-e", &events(), "--", "true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Begins to count the calls of these processes and of what they start.
pub fn attach(counts: &FilePath, pids: &[u32]) -> Result<Process> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let perf: PathBuf = tools::located("perf")?;
    let mut command: Vec<OsString> = vec![perf.into()];
    command
        .extend(["stat", "-x,", "-e", &events(), "-p", &pids.join(","), "-o"].map(OsString::from));
    command.push(counts.into());
    Process::start("perf".into(), &command, None, None, &counts.with_extension("perf"))
}

fn events() -> String {
    [ALL.to_string()]
        .into_iter()
        .chain(NAMES.map(|name| format!("{NAMED}{name}")))
        .collect::<Vec<_>>()
        .join(",")
}

pub fn read(counts: &FilePath) -> Result<Calls> {
    let text = fs::read_to_string(counts).context("perf wrote no counts")?;
    table(&text).context("perf wrote no sum of the calls")
}

/// Lines `COUNT,,EVENT,...`; what did not run is `<not counted>`.
fn table(text: &str) -> Option<Calls> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let count = fields.next()?.parse::<f64>().unwrap_or(0.0);
        Some((fields.nth(1)?, count))
    });
    let mut calls: Calls =
        lines.map(|(event, count)| (event.trim_start_matches(NAMED).to_string(), count)).collect();
    let all = calls.remove(ALL)?;
    let named: f64 = calls.values().sum();
    calls.insert("others".into(), (all - named).max(0.0));
    Some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_perf() {
        let text = "# started on Sun Nov 22 18:34:19 2026\n\n145,,raw_syscalls:sys_enter,1622299,100.00,,\n\
                    7,,syscalls:sys_enter_read,1622299,100.00,,\n<not counted>,,syscalls:sys_enter_write,0,100.00,,\n";
        let calls = table(text).unwrap();
        let expected = [("others", 138.0), ("read", 7.0), ("write", 0.0)];
        assert_eq!(calls, expected.map(|(name, count)| (name.to_string(), count)).into());
        assert_eq!(table("# started on\n\n"), None);
    }
}
