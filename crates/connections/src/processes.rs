//! Which processes run under Shortwire, and which sockets they hold: read from /proc.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What the link of the descriptor reads by which the library shows its table.
const TABLE_LINK: &[u8] = b"/memfd:shortwire-table (deleted)";
const LIBRARY: &str = "/libshortwire.so";

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Program {
    pub pid: u32,
    pub name: String,
}

/// A table, and those who share it: a process and what it forked.
pub struct FoundTable {
    /// Device and inode of the memory: the same for all who share it.
    pub identity: (u64, u64),
    /// A way to open it.
    pub path: PathBuf,
    pub programs: Vec<Program>,
}

#[derive(Default)]
pub struct Survey {
    pub tables: Vec<FoundTable>,
    /// One process for each network namespace, through which its sockets can be read.
    pub namespaces: BTreeMap<PathBuf, u32>,
    pub hidden: usize,
    /// Those that were told to change nothing.
    pub disabled: HashSet<u32>,
    sockets: HashMap<u64, Vec<Program>>,
}

impl Survey {
    /// The processes that hold a socket.
    pub fn holders(&self, inode: u64) -> Vec<Program> {
        self.sockets.get(&inode).cloned().unwrap_or_default()
    }
}

pub fn survey(wanted: impl Fn(u32) -> bool) -> Survey {
    let mut survey = Survey::default();
    let Ok(entries) = fs::read_dir("/proc") else {
        return survey;
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|&pid| wanted(pid)) {
        look(&mut survey, pid);
    }
    survey
}

/// The processes that hold any of these sockets, under Shortwire or not.
pub fn holders_of(inodes: &HashSet<u64>) -> Vec<Program> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.any(|link| socket_inode(link.as_os_str().as_bytes()).is_some_and(|inode| inodes.contains(&inode)))
    };
    pids.filter(holds).map(|pid| Program { pid, name: name(&PathBuf::from(format!("/proc/{pid}"))) }).collect()
}

/// The number under which a process holds a socket.
pub fn descriptor_of(pid: u32, inode: u64) -> Option<i32> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    descriptors
        .filter(|entry| {
            fs::read_link(entry.path()).is_ok_and(|link| socket_inode(link.as_os_str().as_bytes()) == Some(inode))
        })
        .find_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(root: &Path) -> String {
    fs::read_to_string(root.join("comm")).map_or_else(|_| "?".into(), |name| name.trim_end().to_string())
}

/// The id that a process has in its own PID namespace.
pub fn inner_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// Processes come and go while we look: whatever cannot be read any more is left out.
fn look(survey: &mut Survey, pid: u32) {
    let root = PathBuf::from(format!("/proc/{pid}"));
    let Ok(descriptors) = fs::read_dir(root.join("fd")) else {
        survey.hidden += usize::from(root.exists());
        return;
    };
    let mut table = None;
    let mut sockets = Vec::new();
    for path in descriptors.flatten().map(|entry| entry.path()) {
        let Ok(link) = fs::read_link(&path) else {
            continue;
        };
        let link = link.as_os_str().as_bytes();
        if link == TABLE_LINK {
            table = Some(path);
        } else {
            sockets.extend(socket_inode(link));
        }
    }
    if table.is_none() && (sockets.is_empty() || !has_library(&root)) {
        return;
    }
    let program = Program { pid, name: name(&root) };
    for inode in sockets {
        let holders = survey.sockets.entry(inode).or_default();
        if !holders.contains(&program) {
            holders.push(program.clone());
        }
    }
    if is_disabled(&root) {
        survey.disabled.insert(pid);
    }
    if let Ok(namespace) = fs::read_link(root.join("ns/net")) {
        survey.namespaces.entry(namespace).or_insert(pid);
    }
    if let Some((path, meta)) = table.and_then(|path| Some((path.clone(), fs::metadata(path).ok()?))) {
        let identity = (meta.dev(), meta.ino());
        match survey.tables.iter_mut().find(|known| known.identity == identity) {
            Some(known) => known.programs.push(program),
            None => survey.tables.push(FoundTable { identity, path, programs: vec![program] }),
        }
    }
}

fn socket_inode(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A process under Shortwire that has not moved a byte yet has no table, but perhaps a listener.
fn has_library(root: &Path) -> bool {
    fs::read(root.join("maps"))
        .is_ok_and(|maps| String::from_utf8_lossy(&maps).lines().any(|line| line.ends_with(LIBRARY)))
}

fn is_disabled(root: &Path) -> bool {
    let environment = fs::read(root.join("environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| {
        let Some(setting) = variable.strip_prefix(b"SHORTWIRE_") else { return false };
        let at = setting.iter().position(|&byte| byte == b'=').unwrap_or(setting.len());
        let (name, value) = (&setting[..at], setting.get(at + 1..).unwrap_or_default());
        smc::setting::is_off(name, value) || smc::setting::check(name, value).is_err()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_links() {
        assert_eq!(socket_inode(b"socket:[12345]"), Some(12_345));
        assert_eq!(socket_inode(b"pipe:[12345]"), None);
        assert_eq!(socket_inode(b"socket:[x]"), None);
    }

    #[test]
    fn without_a_namespace_of_its_own_a_process_has_one_id() {
        let own = std::process::id();
        assert_eq!(inner_pid(own), Some(own));
        assert_eq!(inner_pid(0), None);
    }

    #[test]
    fn a_process_without_the_library_is_left_out() {
        let own = std::process::id();
        let survey = survey(|pid| pid == own);
        assert!(survey.tables.is_empty() && survey.namespaces.is_empty());
    }
}
