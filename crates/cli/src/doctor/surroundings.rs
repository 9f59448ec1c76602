//! What is around a process that has the library: its machine and its sandbox.

use std::fs;
use std::path::Path;

use crate::finding::Finding;

/// What keeps its connections from memory, or makes them slow. `process`: /proc/PID.
pub fn findings(process: &Path, environment: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let elsewhere = |name: &str| {
        let of = |process: &Path| fs::read_link(process.join("ns").join(name)).ok();
        of(Path::new("/proc/self")) != of(process)
    };
    let variable = |name: &str| environment.iter().find_map(|line| line.strip_prefix(name));
    let meets = variable("SHORTWIRE_RENDEZVOUS=").filter(|dir| !dir.is_empty());
    if let Some(dir) = meets {
        findings.push(directory(process, dir));
    } else if elsewhere("net") {
        findings.push(Finding::note(
            "is in another network namespace than this shell",
            "Only peers in the same one can share memory with it, unless both ends are given a directory (`--rendezvous`, doc/containers.md).",
        ));
    }
    if elsewhere("user") {
        findings.push(Finding::note(
            "is in a user namespace of its own (PrivateUsers, a container): other users have no names there",
            "Nothing for clients that connect to it, which show their port; connections that it opens to services of other users stay TCP (NOBODY).",
        ));
    }
    findings.extend(confinement(process));
    findings.extend(machine());
    findings
}

fn directory(process: &Path, dir: &str) -> Finding {
    let seen = process.join("root").join(dir.strip_prefix('/').unwrap_or(dir));
    if seen.is_dir() {
        return Finding::good(format!("peers in other network namespaces are met in {dir}"));
    }
    Finding::note(
        format!(
            "{dir}, where peers in other network namespaces are to be met, is no directory that it sees"
        ),
        "Mount it into the container, writable (doc/containers.md); within its network namespace it shares memory all the same.",
    )
}

/// AppArmor's profile of it, or SELinux' context.
fn confinement(process: &Path) -> Option<Finding> {
    let said = fs::read_to_string(process.join("attr/current")).ok()?;
    let said = said.trim_matches(['\0', '\n']);
    let profile = said.strip_suffix(" (enforce)")?;
    Some(Finding::note(
        format!("AppArmor keeps it to the profile {profile}"),
        "It must allow to map the library, abstract Unix sockets and connections between its peers; `journalctl -k --grep apparmor` shows what it refuses.",
    ))
}

fn machine() -> Vec<Finding> {
    let mut findings = Vec::new();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let load = read("/proc/loadavg");
    let load: f64 = load.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
    if load > 2.0 * processors as f64 {
        findings.push(Finding::note(
            format!("the machine is busy: {load:.0} programs want its {processors} processors"),
            "`--spin 0` (SHORTWIRE_SPIN) keeps it from waiting busily; no comparison of speeds is worth much now.",
        ));
    }
    let control = read("/proc/sys/net/ipv4/tcp_congestion_control");
    if control.trim() == "bbr" && !has_bells_between_users() {
        findings.push(Finding::note(
            "TCP's congestion control is bbr, and this kernel is older than 6.16: between different users doorbells go over TCP, where bbr may delay them",
            "Run both ends as one user, or set net.ipv4.tcp_congestion_control to cubic.",
        ));
    }
    findings
}

/// Linux 6.16 and later.
fn has_bells_between_users() -> bool {
    let name = rustix::system::uname();
    is_new(name.release().to_str().unwrap_or_default())
}

fn is_new(release: &str) -> bool {
    let mut numbers = release.split(['.', '-', '+']).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;

    #[test]
    fn a_directory_to_meet_in_is_looked_for_where_the_process_sees_it() {
        let own = Path::new("/proc/self");
        assert_eq!(directory(own, "/tmp").level, Level::Good);
        assert_eq!(directory(own, "/no/such/folder").level, Level::Note);
        let said = findings(own, &["SHORTWIRE_RENDEZVOUS=/tmp".into()]);
        assert!(said[0].words.contains("are met in /tmp"), "{said:?}");
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert!(is_new("6.16.0-rc1") && is_new("6.18.44-x") && is_new("7.0"));
        assert!(!is_new("6.1.0-12-amd64") && !is_new("6.9") && !is_new("nonsense"));
    }
}
