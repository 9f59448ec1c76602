//! What the settings of a unit mean for Shortwire, and what a drop-in has to say so that it works.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Scope, Unit, words};
use crate::finding::{Finding, Level};
use crate::run::obstacles;

/// What one setting means, and the lines of a drop-in by which it keeps nothing from working.
pub struct Meaning {
    pub finding: Finding,
    pub lines: Vec<String>,
}

impl Meaning {
    /// Whether the unit cannot share memory, whatever a drop-in says.
    pub fn forbids(&self) -> bool {
        self.finding.level == Level::Obstacle && self.lines.is_empty()
    }
}

fn good(words: impl Into<String>) -> Meaning {
    Meaning { finding: Finding::good(words), lines: Vec::new() }
}

fn note(words: impl Into<String>, advice: impl Into<String>) -> Meaning {
    Meaning { finding: Finding::note(words, advice), lines: Vec::new() }
}

fn stop(words: impl Into<String>, advice: impl Into<String>) -> Meaning {
    Meaning { finding: Finding::obstacle(words, advice), lines: Vec::new() }
}

/// In the way until a drop-in says so.
fn line(words: impl Into<String>, line: String) -> Meaning {
    let advice = format!("`shortwire enable` writes {line}");
    Meaning { finding: Finding::obstacle(words, advice), lines: vec![line] }
}

type Look = fn(&Unit, &Scope, &Path) -> Vec<Meaning>;

/// What there is to say of the unit, if it is to load this library.
pub fn meanings(unit: &Unit, scope: &Scope, library: &Path) -> Vec<Meaning> {
    let looks: [Look; 8] = [program, environment, users, families, calls, files, network, limits];
    looks.iter().flat_map(|look| look(unit, scope, library)).collect()
}

fn program(unit: &Unit, scope: &Scope, _: &Path) -> Vec<Meaning> {
    let Some(path) = unit.program() else {
        let why = "starts no program by its path (ExecStart)";
        return vec![stop(why, "Enable the unit that does.")];
    };
    if ["/bin/true", "/usr/bin/true"].iter().any(|name| path == Path::new(name)) {
        let template = unit.name.replace(".service", "@.service");
        let hint = match Unit::find(&template, scope, None) {
            Ok(Some(_)) if unit.name == "postgresql.service" => {
                format!("Enable the clusters: {}", clusters(scope).join(" "))
            }
            Ok(Some(_)) => {
                format!("Enable its instances, {}.", template.replace(".service", "INSTANCE"))
            }
            _ => "Enable the unit that does.".into(),
        };
        return vec![stop("starts nothing itself (ExecStart=/bin/true)", hint)];
    }
    if path.ends_with("pg_ctlcluster") && own_environment(unit, scope).is_none() {
        let clusters = clusters(scope).join(" ");
        return vec![stop(
            "starts clusters that get their environment from their own files",
            format!("Enable them one by one: {clusters}"),
        )];
    }
    let path = scope.path(path);
    if !path.exists() {
        return vec![note(format!("{} is not there", path.display()), "Install it.")];
    }
    obstacles(&path)
        .iter()
        .map(|obstacle| Meaning {
            finding: crate::finding::obstacle(&path, obstacle),
            lines: Vec::new(),
        })
        .collect()
}

fn environment(unit: &Unit, scope: &Scope, _: &Path) -> Vec<Meaning> {
    let mut found = Vec::new();
    let taken = unit.all_words("UnsetEnvironment");
    if taken.iter().any(|word| word == "LD_PRELOAD" || word.starts_with("LD_PRELOAD=")) {
        found.push(stop(
            "UnsetEnvironment takes LD_PRELOAD from the program",
            "Take that word out of the unit's UnsetEnvironment=.",
        ));
    }
    for file in unit.all_words("EnvironmentFile") {
        let path = scope.path(file.trim_start_matches('-'));
        let text = fs::read_to_string(&path).unwrap_or_default();
        let set = text.lines().any(|line| line.trim_start().starts_with("LD_PRELOAD="));
        if set {
            found.push(stop(
                format!("{} sets LD_PRELOAD, which goes before Environment=", path.display()),
                "Move that variable from there into an Environment= of a drop-in, and enable the unit again: it is kept then.",
            ));
        }
    }
    for (key, what) in [("AppArmorProfile", "AppArmor"), ("SELinuxContext", "SELinux")] {
        if let Some(value) = unit.last(key) {
            found.push(note(
                format!("{key}={value}: what the program may load, {what} decides"),
                "It must allow to map the library as executable, /dev/shm and abstract Unix sockets between its programs.",
            ));
        }
    }
    found
}

fn users(unit: &Unit, _: &Scope, _: &Path) -> Vec<Meaning> {
    let mut found = Vec::new();
    if unit.last("User") == Some("nobody") || unit.last("User") == Some("65534") {
        found.push(good("User=nobody is a user as any other, but within user namespaces"));
    }
    let private = unit.last("PrivateUsers").unwrap_or("no").to_ascii_lowercase();
    if !["no", "false", "0", "off", "n", "f", "identity", "full"].contains(&private.as_str()) {
        found.push(note(
            format!("PrivateUsers={private}: other users have no names there. Clients of other users stay TCP (NOBODY) unless they are to show their port; connections that the service opens itself to services of other users stay TCP"),
            "`enable --set PORT_PROOF=1` if its clients do not set SO_REUSEADDR on their sockets (doc/security.md), or PrivateUsers=no in a drop-in of yours.",
        ));
    }
    found
}

/// Whether the unit may make sockets of this family.
fn may_use(unit: &Unit, family: &str) -> bool {
    let mut list = BTreeSet::new();
    let mut allows = None;
    for value in unit.all("RestrictAddressFamilies") {
        let (is_not, names) = value.strip_prefix('~').map_or((false, value), |rest| (true, rest));
        // The first one says which kind of list it is.
        let kind = *allows.get_or_insert(!is_not);
        for name in words(names).into_iter().filter(|name| name != "none") {
            if kind != is_not {
                list.insert(name)
            } else {
                list.remove(&name)
            };
        }
    }
    allows.is_none_or(|allows| list.contains(family) == allows)
}

fn families(unit: &Unit, _: &Scope, _: &Path) -> Vec<Meaning> {
    if !may_use(unit, "AF_INET") && !may_use(unit, "AF_INET6") {
        return vec![stop("RestrictAddressFamilies: may not use TCP", "There is nothing to do.")];
    }
    let mut found = Vec::new();
    if !may_use(unit, "AF_UNIX") {
        found.push(line(
            "RestrictAddressFamilies without AF_UNIX: the two ends cannot meet",
            "RestrictAddressFamilies=AF_UNIX".into(),
        ));
    }
    if !may_use(unit, "AF_NETLINK") {
        found.push(good(
            "RestrictAddressFamilies without AF_NETLINK: peers of other users are known by their port, or by the list of connections in /proc",
        ));
    }
    found
}

/// System calls without which nothing is shared.
const NEEDED: [&str; 24] = [
    "accept4",
    "bind",
    "close",
    "connect",
    "fcntl",
    "fstat",
    "ftruncate",
    "futex",
    "getpeername",
    "getrandom",
    "getsockname",
    "getsockopt",
    "ioctl",
    "listen",
    "madvise",
    "memfd_create",
    "mmap",
    "munmap",
    "ppoll",
    "recvfrom",
    "recvmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
];

/// The system calls of each group, as systemd-analyze lists them; none where there is no such
/// program.
fn groups() -> Vec<(String, Vec<String>)> {
    let said = Command::new("systemd-analyze").args(["syscall-filter", "--no-pager"]).output();
    let text = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.unwrap_or_default().lines() {
        match (line.strip_prefix("    "), groups.last_mut()) {
            (Some(name), Some((_, members))) if !name.trim_start().starts_with('#') => {
                members.push(name.trim().to_string());
            }
            (None, _) if line.starts_with('@') => {
                groups.push((line.trim().to_string(), Vec::new()))
            }
            _ => {}
        }
    }
    groups
}

fn add_calls(name: &str, groups: &[(String, Vec<String>)], to: &mut BTreeSet<String>) {
    // With the error that is given behind a colon.
    let name = name.split(':').next().unwrap_or(name);
    match groups.iter().find(|(group, _)| group == name) {
        Some((_, members)) => members.iter().for_each(|member| add_calls(member, groups, to)),
        None => _ = to.insert(name.to_string()),
    }
}

/// Needed calls that the filter refuses.
fn refused(unit: &Unit, groups: &[(String, Vec<String>)]) -> Vec<&'static str> {
    let mut list = BTreeSet::new();
    let mut allows = None;
    for value in unit.all("SystemCallFilter") {
        let (is_not, names) = value.strip_prefix('~').map_or((false, value), |rest| (true, rest));
        let kind = *allows.get_or_insert(!is_not);
        let mut these = BTreeSet::new();
        words(names).iter().for_each(|name| add_calls(name, groups, &mut these));
        if kind != is_not {
            list.append(&mut these);
        } else {
            list.retain(|name| !these.contains(name));
        }
    }
    let mut always = BTreeSet::new();
    add_calls("@default", groups, &mut always);
    let is_refused = |name: &str| match allows {
        Some(true) => !list.contains(name) && !always.contains(name),
        Some(false) => list.contains(name),
        None => false,
    };
    NEEDED.into_iter().filter(|name| is_refused(name)).collect()
}

fn calls(unit: &Unit, _: &Scope, _: &Path) -> Vec<Meaning> {
    let mut found = Vec::new();
    if unit.is_on("MemoryDenyWriteExecute") {
        found.push(good(
            "MemoryDenyWriteExecute: the library makes no memory executable, but for Go's own system calls, which stay TCP so",
        ));
    }
    if unit.all("SystemCallFilter").is_empty() {
        return found;
    }
    let groups = groups();
    if groups.is_empty() {
        found.push(note(
            "SystemCallFilter: what it allows cannot be told without systemd-analyze",
            format!("It must allow {}.", NEEDED.join(", ")),
        ));
        return found;
    }
    match refused(unit, &groups)[..] {
        [] => found.push(good("SystemCallFilter allows what is needed")),
        ref calls => found.push(line(
            format!("SystemCallFilter refuses {}", calls.join(", ")),
            format!("SystemCallFilter={}", calls.join(" ")),
        )),
    }
    found
}

/// How long the prefix of a path is that one of these words names.
fn depth(words: &[String], path: &Path) -> Option<usize> {
    let matching = words.iter().map(|word| Path::new(word.trim_start_matches(['-', '+'])));
    matching
        .filter(|prefix| path.starts_with(prefix))
        .map(|prefix| prefix.components().count())
        .max()
}

fn files(unit: &Unit, scope: &Scope, library: &Path) -> Vec<Meaning> {
    let mut found = Vec::new();
    let folder = library.parent().unwrap_or(Path::new("/"));
    if let Some(root) = unit.last("RootDirectory") {
        let inside = scope.path(root).join(library.strip_prefix("/").unwrap_or(library));
        let bound = unit
            .all_words("BindReadOnlyPaths")
            .iter()
            .chain(&unit.all_words("BindPaths"))
            .any(|word| folder.starts_with(word.split(':').next().unwrap_or(word)));
        if !inside.exists() && !bound {
            found.push(line(
                format!("RootDirectory={root}: the library is not in there"),
                format!("BindReadOnlyPaths={}", folder.display()),
            ));
        }
    }
    if let Some(image) = unit.last("RootImage") {
        found.push(line(
            format!("RootImage={image}: the library may not be in there"),
            format!("BindReadOnlyPaths={}", folder.display()),
        ));
    }
    let hidden = |switch: &str, places: &[&str]| {
        let is_on = unit.last(switch).is_some_and(|value| {
            !["no", "false", "0", "off", "read-only"].contains(&value.to_ascii_lowercase().as_str())
        });
        is_on && places.iter().any(|place| library.starts_with(place))
    };
    for (switch, places) in [
        ("ProtectHome", &["/home", "/root", "/run/user"][..]),
        ("PrivateTmp", &["/tmp", "/var/tmp"]),
        ("PrivateDevices", &["/dev"]),
    ] {
        if hidden(switch, places) {
            found.push(stop(
                format!("{switch} hides the library, {}", library.display()),
                "Install it below /usr/lib (make install PREFIX=/usr, or a package).",
            ));
        }
    }
    let inaccessible = depth(&unit.all_words("InaccessiblePaths"), library);
    if inaccessible.is_some() {
        found.push(stop(
            format!("InaccessiblePaths hides the library, {}", library.display()),
            "Install it in another place.",
        ));
    }
    let (no, yes) = (
        depth(&unit.all_words("NoExecPaths"), library),
        depth(&unit.all_words("ExecPaths"), library),
    );
    if no > yes {
        found.push(line(
            "NoExecPaths keeps the library from being loaded",
            format!("ExecPaths={}", folder.display()),
        ));
    }
    found
}

fn network(unit: &Unit, _: &Scope, _: &Path) -> Vec<Meaning> {
    let mut found = Vec::new();
    if unit.is_on("PrivateNetwork") {
        found.push(stop(
            "PrivateNetwork: no program outside of the service reaches it by TCP",
            "There is nothing to do.",
        ));
    }
    if let Some(path) = unit.last("NetworkNamespacePath") {
        found.push(note(
            format!("NetworkNamespacePath={path}: programs in other network namespaces are met in a directory only"),
            "Name one that both see: --set RENDEZVOUS=DIR at both ends (doc/containers.md).",
        ));
    }
    if !unit.all("SocketBindDeny").is_empty() {
        found.push(note(
            "SocketBindDeny: the service cannot show its port to services in user namespaces or without netlink",
            "Nothing, unless it opens connections to such.",
        ));
    }
    found
}

/// A size as units write it; None for no limit.
fn limit(value: &str) -> Option<u64> {
    let soft = value.split(':').next().unwrap_or(value);
    smc::setting::size(soft.as_bytes())
}

fn limits(unit: &Unit, _: &Scope, _: &Path) -> Vec<Meaning> {
    let mut found = Vec::new();
    if let Some(bytes) = unit.last("LimitFSIZE").and_then(limit) {
        found.push(note(
            format!("LimitFSIZE={bytes}: buffers are files of memory, which count; connections whose buffers have no room stay TCP (MEMORY)"),
            "LimitFSIZE=infinity in a drop-in of yours, or nothing if it is some GiB.",
        ));
    }
    if let Some(files) = unit.last("LimitNOFILE").and_then(limit).filter(|files| *files < 256) {
        found.push(note(
            format!("LimitNOFILE={files}: an upgrade needs a descriptor for a moment"),
            "Raise it to 1024 or more.",
        ));
    }
    if let Some(most) = unit.last("MemoryMax").filter(|most| *most != "infinity") {
        found.push(good(format!("MemoryMax={most}: buffers take a quarter of it at most")));
    }
    found
}

/// PostgreSQL of Debian gets no environment but that of this file.
pub fn own_environment(unit: &Unit, scope: &Scope) -> Option<PathBuf> {
    let starts = unit.program()?.file_name()? == "pg_ctlcluster";
    let instance = super::instance(&unit.name).filter(|_| starts)?;
    let (version, cluster) = instance.split_once('-')?;
    Some(scope.path(format!("/etc/postgresql/{version}/{cluster}/environment")))
}

/// Units of the clusters that there are.
fn clusters(scope: &Scope) -> Vec<String> {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let versions = entries(&scope.path("/etc/postgresql"));
    let units = versions.iter().flat_map(|version| {
        let of = name(version);
        entries(version)
            .into_iter()
            .map(move |cluster| format!("postgresql@{of}-{}", name(&cluster)))
    });
    units.collect()
}
