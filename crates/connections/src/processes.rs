//! Which processes run under Shortwire, and which sockets they hold: read from /proc.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use smc::reason::Reason;

use crate::policy;
use crate::rsockets::Streams;

/// What the links of the descriptors read by which the library shows the files of its table.
const TABLE_LINK: &[u8] = b"/memfd:shortwire-table (deleted)";
/// The same of the rsockets library (`shm::rsockets`).
const RSOCKETS_LINK: &[u8] = b"/memfd:shortwire-rsockets (deleted)";
const LIBRARY: &str = "/libshortwire.so";
/// What stands for it in programs that load none.
const RAW: &str = "/shortwire-raw";

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Program {
    pub pid: u32,
    pub name: String,
}

impl Program {
    fn of(pid: u32) -> Program {
        Program { pid, name: name(&PathBuf::from(format!("/proc/{pid}"))) }
    }
}

/// The tables of a family, a process and what it forked: the first file is everybody's, and of the
/// others each process has those with connections that it made or inherited.
#[derive(Clone)]
pub struct FoundTable {
    pub files: Vec<FoundFile>,
    pub programs: Vec<Program>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct FoundFile {
    /// Device and inode: the same for all who share it.
    pub identity: (u64, u64),
    /// A way to open it.
    pub path: PathBuf,
}

impl FoundFile {
    /// Opens it, also for writing if it `writes`; an error if it is another file by now. The process
    /// whose descriptor leads there may put any other under that number at any time, also one that
    /// only we may open: so what has been opened is looked at, and is opened for use from there.
    pub fn open(&self, writes: bool) -> io::Result<fs::File> {
        reopened(&self.path, TABLE_LINK, Some(self.identity), writes)
    }
}

/// Opens what a descriptor of another process leads to, if it is memory of this name.
fn reopened(
    path: &Path,
    link: &[u8],
    identity: Option<(u64, u64)>,
    writes: bool,
) -> io::Result<fs::File> {
    // Opened by O_PATH a FIFO does not wait, nor does a terminal become ours.
    let place = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let ours = format!("/proc/self/fd/{}", place.as_raw_fd());
    let meta = place.metadata()?;
    let is_it = fs::read_link(&ours)?.as_os_str().as_bytes() == link
        && meta.is_file()
        && meta.nlink() == 0
        && identity.is_none_or(|identity| (meta.dev(), meta.ino()) == identity);
    if !is_it {
        return Err(io::Error::new(io::ErrorKind::NotFound, "another file is there by now"));
    }
    fs::OpenOptions::new().read(true).write(writes).open(ours)
}

#[derive(Default)]
pub struct Survey {
    pub tables: Vec<FoundTable>,
    /// One process for each network namespace, through which its sockets can be read.
    pub namespaces: BTreeMap<PathBuf, u32>,
    pub hidden: usize,
    /// Those that were told to keep every connection on TCP, and why.
    pub kept: HashMap<u32, Reason>,
    /// Those that were told to load the library, and have neither it nor what stands for it.
    pub unfollowed: HashSet<u32>,
    /// Files of the rsockets library, by device and inode.
    pub rsockets: BTreeMap<(u64, u64), Streams>,
    sockets: HashMap<u64, Vec<Program>>,
    /// Sockets of processes that are not under Shortwire, and one process that holds each.
    strangers: HashMap<u64, u32>,
}

impl Survey {
    /// The processes that hold a socket.
    pub fn holders(&self, inode: u64) -> Vec<Program> {
        self.sockets.get(&inode).cloned().unwrap_or_default()
    }

    /// The same, or one that holds it and is not under Shortwire.
    pub fn holders_or_strangers(&self, inode: u64) -> Vec<Program> {
        match self.sockets.get(&inode) {
            Some(programs) => programs.clone(),
            None => self.strangers.get(&inode).map(|&pid| Program::of(pid)).into_iter().collect(),
        }
    }

    /// The one of this number that is under Shortwire; none where numbers mean another process.
    pub fn program(&self, pid: u32) -> Vec<Program> {
        let all = self.tables.iter().flat_map(|table| &table.programs);
        all.filter(|program| program.pid == pid).take(1).cloned().collect()
    }
}

pub fn survey(wanted: impl Fn(u32) -> bool) -> Survey {
    let mut survey = Survey::default();
    let Ok(entries) = fs::read_dir("/proc") else {
        return survey;
    };
    let pids =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
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
        links.any(|link| {
            socket_inode(link.as_os_str().as_bytes()).is_some_and(|inode| inodes.contains(&inode))
        })
    };
    pids.filter(holds).map(Program::of).collect()
}

/// The number under which a process holds a socket.
pub fn descriptor_of(pid: u32, inode: u64) -> Option<i32> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    descriptors
        .filter(|entry| {
            fs::read_link(entry.path())
                .is_ok_and(|link| socket_inode(link.as_os_str().as_bytes()) == Some(inode))
        })
        .find_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(root: &Path) -> String {
    fs::read_to_string(root.join("comm"))
        .map_or_else(|_| "?".into(), |name| printable(name.trim_end()))
}

/// A process names itself: nothing in that may steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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
    let mut table = Vec::new();
    let mut sockets = Vec::new();
    let mut rsockets = Vec::new();
    for path in descriptors.flatten().map(|entry| entry.path()) {
        let Ok(link) = fs::read_link(&path) else {
            continue;
        };
        let link = link.as_os_str().as_bytes();
        if link == TABLE_LINK {
            // Who only reads it looks on, as `shortwire metrics` does.
            if !is_writable(&path) {
                continue;
            }
            table.extend(
                fs::metadata(&path)
                    .map(|meta| FoundFile { identity: (meta.dev(), meta.ino()), path }),
            );
        } else if link == RSOCKETS_LINK {
            rsockets.extend(fs::metadata(&path).map(|meta| ((meta.dev(), meta.ino()), path)));
        } else {
            sockets.extend(socket_inode(link));
        }
    }
    let has_something = !table.is_empty() || !rsockets.is_empty();
    if !has_something && (sockets.is_empty() || !has_library(&root)) {
        if sockets.is_empty() || !was_told(&root) {
            survey.strangers.extend(sockets.into_iter().map(|inode| (inode, pid)));
            return;
        }
        survey.unfollowed.insert(pid);
    }
    let program = Program { pid, name: name(&root) };
    for inode in sockets {
        let holders = survey.sockets.entry(inode).or_default();
        if !holders.contains(&program) {
            holders.push(program.clone());
        }
    }
    if let Some(why) = policy::keeps_on_tcp(&root) {
        survey.kept.insert(pid, why);
    }
    if let Ok(namespace) = fs::read_link(root.join("ns/net")) {
        survey.namespaces.entry(namespace).or_insert(pid);
    }
    for (identity, path) in rsockets {
        add_rsockets(&mut survey.rsockets, identity, &path, &program);
    }
    if !table.is_empty() {
        add_table(&mut survey.tables, table, program);
    }
}

/// A process and what it forked have one file.
fn add_rsockets(
    known: &mut BTreeMap<(u64, u64), Streams>,
    identity: (u64, u64),
    path: &Path,
    program: &Program,
) {
    if let Some(streams) = known.get_mut(&identity) {
        if !streams.programs.contains(program) {
            streams.programs.push(program.clone());
        }
        return;
    }
    let opened = reopened(path, RSOCKETS_LINK, Some(identity), false);
    if let Ok(streams) = opened.and_then(|file| Streams::read(file, vec![program.clone()])) {
        known.insert(identity, streams);
    }
}

/// The link of a descriptor has the rights of its file.
fn is_writable(descriptor: &Path) -> bool {
    fs::symlink_metadata(descriptor).is_ok_and(|meta| meta.mode() & 0o200 != 0)
}

/// A process joins the family that has one of its files.
fn add_table(tables: &mut Vec<FoundTable>, files: Vec<FoundFile>, program: Program) {
    let has = |known: &FoundTable, file: &FoundFile| {
        known.files.iter().any(|other| other.identity == file.identity)
    };
    let Some(known) = tables.iter_mut().find(|known| files.iter().any(|file| has(known, file)))
    else {
        tables.push(FoundTable { files, programs: vec![program] });
        return;
    };
    for file in files {
        if !has(known, &file) {
            known.files.push(file);
        }
    }
    known.programs.push(program);
}

fn socket_inode(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A process under Shortwire that has not moved a byte yet has no table, but perhaps a listener.
fn has_library(root: &Path) -> bool {
    fs::read(root.join("maps")).is_ok_and(|maps| {
        String::from_utf8_lossy(&maps)
            .lines()
            .any(|line| line.ends_with(LIBRARY) || line.ends_with(RAW))
    })
}

/// Whether its environment, as it was at its start, names the library to the loader.
fn was_told(root: &Path) -> bool {
    let environment = fs::read(root.join("environ")).unwrap_or_default();
    let names = |value: &[u8]| value.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes());
    let mut variables = environment.split(|&byte| byte == 0);
    variables.any(|variable| variable.strip_prefix(b"LD_PRELOAD=").is_some_and(names))
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
    fn who_has_a_file_of_a_family_belongs_to_it() {
        let file =
            |number| FoundFile { identity: (1, number), path: format!("/proc/{number}").into() };
        let program = |pid| Program { pid, name: String::new() };
        let mut tables = Vec::new();
        add_table(&mut tables, vec![file(10), file(11)], program(1));
        add_table(&mut tables, vec![file(20)], program(2));
        add_table(&mut tables, vec![file(12), file(10)], program(3));
        let found = tables.iter().map(|table| {
            let files = table.files.iter().map(|file| file.identity.1).collect::<Vec<_>>();
            (files, table.programs.iter().map(|program| program.pid).collect::<Vec<_>>())
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [(vec![10, 11, 12], vec![1, 3]), (vec![20], vec![2])]
        );
    }

    #[test]
    fn without_a_namespace_of_its_own_a_process_has_one_id() {
        let own = std::process::id();
        assert_eq!(inner_pid(own), Some(own));
        assert_eq!(inner_pid(0), None);
    }

    #[test]
    fn descriptors_for_reading_are_told_apart() {
        use std::os::fd::AsRawFd;
        let path = std::env::temp_dir().join(format!("shortwire-rights-{}", std::process::id()));
        let writes = fs::File::create(&path).unwrap();
        let reads = fs::File::open(&path).unwrap();
        fs::remove_file(path).unwrap();
        let link = |file: &fs::File| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        assert!(is_writable(&link(&writes)) && !is_writable(&link(&reads)));
    }

    #[test]
    fn a_process_without_the_library_is_left_out() {
        let own = std::process::id();
        let survey = survey(|pid| pid == own);
        assert!(survey.tables.is_empty() && survey.namespaces.is_empty());
    }
}
