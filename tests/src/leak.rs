//! Nothing may be left behind: no process, no shared memory, no rendezvous name, no file.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

/// What Shortwire's things are called, wherever they have names.
const NAME: &str = "shortwire";

/// A process that lives: its parent and its process group.
struct Alive {
    pid: i32,
    parent: i32,
    group: i32,
}

fn alive() -> impl Iterator<Item = Alive> {
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain anything.
        let rest = stat.rsplit_once(')')?.1;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        let [parent, group] = [fields.next()?, fields.next()?].map(|n| n.parse().ok());
        (state != "Z").then_some(Alive { pid, parent: parent?, group: group? })
    })
}

/// Whether a process of the group has files open. One that has been killed closes them first, but
/// the first process of a container lives until all the others of it have been waited for.
pub fn group_holds_files(group: i32) -> bool {
    alive().any(|process| process.group == group && open_files(process.pid) > 0)
}

/// All live processes that this test started, however far removed: orphans come back to us, who are
/// their subreaper.
pub fn descendants() -> Vec<i32> {
    below(std::process::id() as i32)
}

/// A process and all that it started.
pub fn family(pid: i32) -> Vec<i32> {
    [pid].into_iter().chain(below(pid)).collect()
}

fn below(ancestor: i32) -> Vec<i32> {
    let parents: HashMap<i32, i32> = alive().map(|one| (one.pid, one.parent)).collect();
    let is_below = |&pid: &i32| {
        let mut at = pid;
        for _ in 0..64 {
            match parents.get(&at) {
                Some(&parent) if parent == ancestor => return true,
                Some(&parent) if parent > 1 => at = parent,
                _ => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(is_below).collect()
}

pub(crate) fn describe(pids: &[i32]) -> String {
    let name = |pid: &i32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .replace('\0', " ");
        format!("{pid} ({})", command.trim())
    };
    pids.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Bytes of Shortwire's shared memory that a process has mapped.
pub fn mapped_memory(pid: i32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ours = maps.lines().filter(|line| line.contains("/memfd:") && line.contains(NAME));
    let size = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
    };
    ours.filter_map(size).sum()
}

/// Bytes of memory that a process holds, what it shares with others counted whole.
pub fn resident_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

pub fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().count()
}

/// Those of them that are ends of pipes: bells, of a server without pipes of its own.
pub fn pipes(pid: i32) -> usize {
    links(pid).filter(|link| link.starts_with("pipe:")).count()
}

/// Those of them that are connected Unix sockets without a name of their own: bells between users,
/// and what link groups keep of first contact, of a server without such sockets of its own.
pub fn unix_sockets(pid: i32) -> usize {
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    let connected = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, _, _, kind, state, inode] = &fields[..] else { return None };
        (kind == "0001" && state == "03").then(|| format!("socket:[{inode}]"))
    };
    let connected: BTreeSet<String> = table.lines().filter_map(connected).collect();
    links(pid).filter(|link| connected.contains(link)).count()
}

fn links(pid: i32) -> impl Iterator<Item = String> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()))
}

/// Files of Shortwire's name, there before or after a test.
pub(crate) fn files(private: &Path) -> BTreeSet<String> {
    // Not /tmp by its name: where the tests have been given another place, that one is other
    // people's.
    let temporary = std::env::temp_dir();
    let places = [Path::new("/dev/shm"), &temporary, Path::new("/run"), private];
    let all = places.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    // `shortwire bench` has directories of its own; nothing here runs it, but somebody else may.
    let ours = |name: &str| name.contains(NAME) && !name.starts_with("shortwire-bench-");
    all.filter(|e| ours(&e.file_name().to_string_lossy()))
        .map(|e| e.path().to_string_lossy().into_owned())
        .collect()
}

/// Rendezvous names that are bound, except by processes that have nothing to do with this test.
fn names() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let bound = table.lines().filter(|line| line.contains('@') && line.contains(NAME));
    let bound: Vec<(String, String)> = bound
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(6);
            Some((format!("socket:[{}]", fields.next()?), fields.next()?.to_string()))
        })
        .collect();
    if bound.is_empty() {
        return Vec::new();
    }
    let own: BTreeSet<i32> = descendants().into_iter().chain([std::process::id() as i32]).collect();
    let strangers: BTreeSet<String> =
        alive().map(|one| one.pid).filter(|pid| !own.contains(pid)).flat_map(links).collect();
    bound
        .into_iter()
        .filter(|(inode, _)| !strangers.contains(inode))
        .map(|(_, name)| name)
        .collect()
}

/// What is still there, in words; empty when all is well.
pub(crate) fn left_behind(before: &BTreeSet<String>, private: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let alive = descendants();
    if !alive.is_empty() {
        found.push(format!("processes: {}", describe(&alive)));
    }
    let memory: Vec<String> = alive
        .iter()
        .chain([&(std::process::id() as i32)])
        .flat_map(|&pid| links(pid))
        .filter(|l| l.contains("/memfd:") && l.contains(NAME))
        .collect();
    if !memory.is_empty() {
        found.push(format!("shared memory: {}", memory.join(", ")));
    }
    let names = names();
    if !names.is_empty() {
        found.push(format!("rendezvous names: {}", names.join(", ")));
    }
    let files: Vec<String> = files(private).difference(before).cloned().collect();
    if !files.is_empty() {
        found.push(format!("files: {}", files.join(", ")));
    }
    found
}
