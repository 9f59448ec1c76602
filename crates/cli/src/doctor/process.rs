//! A running process: whether the library is in it, how its connections go, and what keeps the
//! others on TCP.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use connections::policy::keeps_on_tcp;
use connections::{Connection, LATE_HINT, Mode, Program, Table, Wakeups, other_ends, snapshot};
use rustix::process::getuid;
use smc::config::IoUring;
use smc::reason;
use smc::table::OFF;

use super::followed::explain;
use super::loaded::Loaded;
use super::{Report, program, surroundings};
use crate::finding::{Finding, in_quotes, obstacle};
use crate::run::{is_go, obstacles};

/// What stands for the library in programs that load none.
const RAW: &str = "shortwire-raw";
/// Libraries of rsockets.
const RSOCKETS: [&str; 2] = ["libshortwire_rsocket.so", "libshortwire_rspreload.so"];
/// Peers named in a finding.
const MOST_NAMES: usize = 5;

/// What /proc tells.
struct Process {
    root: PathBuf,
    environment: Vec<String>,
    files: Vec<PathBuf>,
    status: String,
}

pub fn examine(pid: u32) -> Result<Report> {
    let process = Process::read(pid)?;
    let executable = fs::read_link(process.root.join("exe")).unwrap_or_default();
    let mut findings = Vec::new();
    if let Some(loaded) = Loaded::find("libshortwire.so", &process.files) {
        findings.extend(loaded.findings(&process.root));
        findings.extend(process.of_go());
        findings.extend(process.settings());
        findings.extend(process.circumstances());
        findings.extend(surroundings::findings(&process.root, &process.environment));
        findings.extend(connections(pid));
    } else if executable.ends_with(RAW) {
        findings.push(Finding::good("shortwire-raw follows it, as it loads no library"));
        findings.extend(process.settings());
        findings.extend(process.circumstances());
        findings.extend(surroundings::findings(&process.root, &process.environment));
        findings.extend(connections(pid));
    } else if RSOCKETS.iter().any(|name| Loaded::find(name, &process.files).is_some()) {
        findings.push(Finding::good("the library for rsockets is loaded"));
        findings.extend(rsockets(pid));
    } else {
        findings.extend(process.not_loaded(&executable));
    }
    let code: Vec<PathBuf> =
        process.files.iter().filter(|path| !program::is_system(path)).cloned().collect();
    findings.extend(program::habits(&code));
    // A program may have another name than its file, which several share.
    let name = fs::read_to_string(process.root.join("comm")).unwrap_or_default();
    Ok(Report { subject: format!("{pid} {} ({})", name.trim(), executable.display()), findings })
}

/// Why a process is not followed although it was told to be, or whose program cannot be as it is; none
/// also where nothing can be said against it.
pub fn unfollowed(pid: u32) -> Option<Finding> {
    let process = Process::read(pid).ok()?;
    let executable = fs::read_link(process.root.join("exe")).ok()?;
    if Loaded::find("libshortwire.so", &process.files).is_some() {
        return process.of_go();
    }
    let is_followed = executable.ends_with(RAW)
        || Loaded::find("libshortwire_rsocket.so", &process.files).is_some();
    if is_followed {
        return None;
    }
    let told = process.settings().into_iter();
    told.chain(process.in_the_way(&executable)).next()
}

impl Process {
    fn read(pid: u32) -> Result<Process> {
        let root = PathBuf::from(format!("/proc/{pid}"));
        let Ok(meta) = fs::metadata(&root) else { bail!("there is no process {pid}") };
        let maps = match fs::read_to_string(root.join("maps")) {
            Ok(maps) => maps,
            Err(error) if error.kind() == ErrorKind::PermissionDenied && getuid().is_root() => {
                bail!(
                    "the kernel lets nobody look into process {pid}: it is protected, or of another namespace"
                )
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                bail!(
                    "cannot look into process {pid}, which is user {}'s: run this as that user or as root",
                    meta.uid()
                )
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot look into process {pid}"));
            }
        };
        let files: BTreeSet<PathBuf> =
            maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].into())).collect();
        let environment = fs::read(root.join("environ")).unwrap_or_default();
        let environment = environment
            .split(|&byte| byte == 0)
            .map(|text| String::from_utf8_lossy(text).into_owned());
        let status = fs::read_to_string(root.join("status")).unwrap_or_default();
        Ok(Process {
            environment: environment.collect(),
            files: files.into_iter().collect(),
            status,
            root,
        })
    }

    /// Of a Go program that has the library: why its own calls are not followed.
    fn of_go(&self) -> Option<Finding> {
        let executable = self.root.join("exe");
        if !is_go(&executable) {
            return None;
        }
        let mode = self.environment.iter().find_map(|v| v.strip_prefix("SHORTWIRE_GO="));
        if mode == Some("off") {
            return Some(Finding::obstacle(
                "is a Go program, and was told not to be followed; its own connections stay plain TCP",
                "Start it without --go off and SHORTWIRE_GO.",
            ));
        }
        obstacles(&executable).first().map(|found| obstacle(&executable, found))
    }

    /// What keeps the library out of the process.
    fn in_the_way(&self, executable: &Path) -> Vec<Finding> {
        let found: Vec<Finding> =
            obstacles(executable).iter().map(|found| obstacle(executable, found)).collect();
        if !found.is_empty() {
            return found;
        }
        let preloads =
            self.environment.iter().find_map(|variable| variable.strip_prefix("LD_PRELOAD="));
        if preloads.is_some_and(|value| value.contains("libshortwire.so")) {
            return vec![Finding::obstacle(
                "LD_PRELOAD names the library, but the loader did not take it",
                "The program gained rights when it started, sees another root directory, where the library must be too, or AppArmor or NoExecPaths keeps it from mapping the library: below /usr/lib most profiles allow it.",
            )];
        }
        Vec::new()
    }

    fn not_loaded(&self, executable: &Path) -> Vec<Finding> {
        let found = self.in_the_way(executable);
        if !found.is_empty() {
            return found;
        }
        if let Some(unit) = self.unit() {
            return vec![Finding::obstacle(
                format!("does not load the library; {unit} has started it"),
                format!("`shortwire enable {unit}`, and restart it."),
            )];
        }
        let command = fs::read(self.root.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        let words: Vec<String> = command.trim_end_matches('\0').split('\0').map(word).collect();
        let command = words.join(" ");
        vec![Finding::obstacle(
            "was not started under `shortwire run`",
            format!("Start it again: shortwire run -- {command}"),
        )]
    }

    /// The service whose control group it is in.
    fn unit(&self) -> Option<String> {
        let groups = fs::read_to_string(self.root.join("cgroup")).ok()?;
        unit_of(&groups).map(String::from)
    }

    fn settings(&self) -> Vec<Finding> {
        let variables = self
            .environment
            .iter()
            .filter_map(|variable| variable.strip_prefix("SHORTWIRE_")?.split_once('='));
        let mut findings = Vec::new();
        for (name, value) in variables {
            if let Err(expected) = smc::setting::check(name.as_bytes(), value.as_bytes()) {
                findings.push(Finding::obstacle(
                    format!("SHORTWIRE_{name}={value} is not understood, so it shares memory with nobody"),
                    format!("Start it again with SHORTWIRE_{name} as {expected}."),
                ));
            }
        }
        match keeps_on_tcp(&self.root).filter(|_| findings.is_empty()) {
            Some(reason::OFF) => findings.push(Finding::obstacle(
                "was told to change nothing",
                "Start it again without --disable, SHORTWIRE_DISABLE and --peer-policy off, and look at `shortwire config show`.",
            )),
            // A file may have been changed since the program read it.
            Some(why) => findings.push(Finding::obstacle(format!("if it were started now: {}", why.words()), why.hint())),
            None => {}
        }
        findings
    }

    fn circumstances(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let field = |name: &str| {
            self.status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
        };
        if field("Seccomp:") == Some("2") {
            findings.push(Finding::note(
                "a seccomp filter is in force",
                "It must allow memfd_create, mmap, fcntl and Unix sockets; connections that lack them say so below.",
            ));
        }
        if self.descriptors().any(|link| link == Path::new("anon_inode:[io_uring]")) {
            let mode = self.environment.iter().find_map(|v| v.strip_prefix("SHORTWIRE_IO_URING="));
            findings.push(match mode.and_then(|mode| smc::setting::io_uring(mode.as_bytes())) {
                Some(IoUring::Stay) => Finding::obstacle(
                    "has an io_uring open: all its connections stay TCP",
                    "Tell the program to use epoll, or run it with `shortwire run --io-uring look`.",
                ),
                _ => Finding::note(
                    "has an io_uring open: connections that it uses by it stay TCP (IO_URING)",
                    "Nothing, unless those are to be fast: then tell the program to use epoll, or run it with `shortwire run --io-uring deny`.",
                ),
            });
        }
        let limits = fs::read_to_string(self.root.join("limits")).unwrap_or_default();
        let limit = limits.lines().find(|line| line.starts_with("Max open files"));
        let limit = limit
            .and_then(|line| line.split_whitespace().nth(3)?.parse::<usize>().ok())
            .unwrap_or(usize::MAX);
        let open = self.descriptors().count();
        if open >= limit - limit / 8 {
            findings.push(Finding::note(
                format!("{open} of at most {limit} files are open"),
                "Raise the limit (ulimit -n, LimitNOFILE): an upgrade needs a descriptor for a moment.",
            ));
        }
        findings
    }

    fn descriptors(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(self.root.join("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok())
    }
}

/// For the shell: in quotes if it is more than a plain word.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_string(),
        false => in_quotes(text),
    }
}

/// A service of the system, as a line of /proc/PID/cgroup names it.
fn unit_of(groups: &str) -> Option<&str> {
    let mut paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| {
        let path = path.strip_prefix("/system.slice/")?;
        path.split('/').find(|part| part.ends_with(".service"))
    })
}

/// A process and all that descend from it, as servers have their connections in workers.
fn family(pid: u32) -> BTreeSet<u32> {
    let mut family = BTreeSet::new();
    let mut left = vec![pid];
    while let Some(pid) = left.pop() {
        if !family.insert(pid) {
            continue;
        }
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            left.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    family
}

fn connections(pid: u32) -> Vec<Finding> {
    let snapshot = snapshot(|_| true);
    let mut all = snapshot.connections;
    explain(&mut all);
    let family = family(pid);
    let whose = match family.len() {
        1 => String::new(),
        n => format!(" of it and the {} processes that it started", n - 1),
    };
    let own = |connection: &&Connection| {
        connection.programs.iter().any(|program| family.contains(&program.pid))
    };
    let own: Vec<&Connection> = all
        .iter()
        .filter(own)
        .filter(|connection| !matches!(connection.mode, Mode::Listener))
        .collect();
    if own.is_empty() {
        let none = match family.len() {
            1 => "has no TCP connections at present".to_string(),
            n => format!(
                "neither it nor the {} processes that it started have TCP connections at present",
                n - 1
            ),
        };
        return vec![Finding::good(none)];
    }
    let shared = own.iter().filter(|connection| matches!(connection.mode, Mode::Smcd)).count();
    let mut findings = Vec::new();
    let is_its = |table: &&Table| table.programs.iter().any(|program| program.pid == pid);
    if snapshot.tables.iter().find(is_its).is_some_and(|table| table.removed & OFF != 0) {
        findings.push(Finding::obstacle(
            "is switched off: no connection of it leaves TCP any more",
            "`shortwire on` switches it on again, for new connections.",
        ));
    }
    if shared > 0 {
        findings.push(Finding::good(format!(
            "{shared} of {} connections{whose} go through shared memory",
            own.len()
        )));
    }
    let mut wakeups = Wakeups::default();
    for detail in own.iter().filter_map(|connection| connection.detail.as_ref()) {
        wakeups.add(detail.wakeups);
    }
    findings.extend(wakeups.complaint().map(|complaint| Finding::note(complaint, LATE_HINT)));
    let mut by_reason: BTreeMap<(&str, &str), Vec<(SocketAddr, SocketAddr)>> = BTreeMap::new();
    for connection in own {
        let (Mode::Tcp { words, hint, .. }, Some(local), Some(peer)) =
            (&connection.mode, connection.local, connection.peer)
        else {
            continue;
        };
        by_reason.entry((words, hint)).or_default().push((local, peer));
    }
    findings.extend(by_reason.into_iter().map(|((words, hint), ends)| {
        let count = match ends.len() {
            1 => "1 connection stays".to_string(),
            many => format!("{many} connections stay"),
        };
        Finding::note(format!("{count} TCP: {words}{}", others(pid, &ends)), hint)
    }));
    findings
}

/// How its rsockets go, and those of what it started.
fn rsockets(pid: u32) -> Vec<Finding> {
    let all = snapshot(|_| true);
    let family = family(pid);
    let is_its = |programs: &[Program]| programs.iter().any(|one| family.contains(&one.pid));
    let own: Vec<&Connection> = all
        .connections
        .iter()
        .filter(|one| is_its(&one.programs) && matches!(one.mode, Mode::Rsocket))
        .collect();
    let mut findings = Vec::new();
    let (mut devices, mut opening) = (BTreeMap::<&str, usize>::new(), 0);
    for stream in own.iter().filter_map(|one| one.stream.as_ref()) {
        match stream.device {
            "" => opening += 1,
            device => *devices.entry(device).or_default() += 1,
        }
    }
    for (device, count) in devices {
        findings.push(Finding::good(match device {
            "verbs" => format!("rsockets that go over RDMA: {count}"),
            _ => format!("rsockets that go through shared memory: {count}"),
        }));
    }
    if opening > 0 {
        findings.push(Finding::note(
            format!("rsockets that are not connected: {opening}"),
            "The other end must use rsockets, too, and accept the connection.",
        ));
    }
    let failed: u64 = all
        .streams
        .iter()
        .filter(|family| is_its(&family.programs))
        .map(|family| family.totals.failed)
        .sum();
    if failed > 0 {
        findings.push(Finding::note(
            format!("connections of rsockets that could not be made: {failed}"),
            "Was the other end started under `shortwire run --rsocket`, on this machine and in this network namespace?",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::good("has no connected rsockets at present"));
    }
    findings
}

/// Who is at the other ends, in words.
fn others(pid: u32, ends: &[(SocketAddr, SocketAddr)]) -> String {
    let names: BTreeSet<String> = other_ends(pid, ends)
        .into_iter()
        .map(|program| format!("{} ({})", program.name, program.pid))
        .collect();
    let more = names.len().saturating_sub(MOST_NAMES);
    let mut text = names.into_iter().take(MOST_NAMES).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    if text.is_empty() { text } else { format!("; at the other end: {text}") }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::finding::Level;

    #[test]
    fn a_process_without_the_library_is_told_to_start_again() {
        let report = examine(std::process::id()).unwrap();
        let finding = &report.findings[0];
        assert_eq!(finding.level, Level::Obstacle);
        assert!(
            finding.advice.as_ref().unwrap().starts_with("Start it again: shortwire run -- /"),
            "{finding:?}"
        );
    }

    #[test]
    fn a_service_is_known_by_its_control_group() {
        let of = |groups| unit_of(groups);
        assert_eq!(of("0::/system.slice/redis-server.service\n"), Some("redis-server.service"));
        assert_eq!(
            of("1:name=systemd:/system.slice/system-postgresql.slice/postgresql@15-main.service/x"),
            Some("postgresql@15-main.service")
        );
        assert_eq!(of("0::/user.slice/user-0.slice/session-1.scope\n"), None);
    }

    #[test]
    fn a_family_has_its_children() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let found = family(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()) && found.contains(&std::process::id()), "{found:?}");
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert_eq!(
            examine(u32::MAX).err().unwrap().to_string(),
            format!("there is no process {}", u32::MAX)
        );
    }

    #[test]
    fn the_other_end_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _accepted = listener.accept().unwrap();
        let pid = std::process::id();
        let ends = [(client.local_addr().unwrap(), client.peer_addr().unwrap())];
        let said = others(pid, &ends);
        assert!(said.contains(&format!("({pid})")), "{said}");
        assert_eq!(others(pid, &[(ends[0].0, ends[0].0)]), "");
    }
}
