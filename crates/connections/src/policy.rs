//! What configuration files say of a process that runs, by what /proc tells of it: the files as
//! they are now, which may have changed since it read them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use smc::policy::{Action, Found, Places, Program, asks_for_names, judge, passwd};
use smc::reason::{self, Reason};
use smc::setting;

/// Why every connection of a process stays TCP, if what it was told says so.
pub fn keeps_on_tcp(root: &Path) -> Option<Reason> {
    let environment = fs::read(root.join("environ")).unwrap_or_default();
    let variables = || {
        environment.split(|&byte| byte == 0).filter_map(|variable| {
            let at = variable.iter().position(|&byte| byte == b'=')?;
            Some((&variable[..at], &variable[at + 1..]))
        })
    };
    let mut is_told = false;
    for (name, value) in variables().filter(|(_, value)| !value.is_empty()) {
        let Some(name) = name.strip_prefix(b"SHORTWIRE_") else { continue };
        if setting::is_off(name, value) || setting::check(name, value).is_err() {
            return Some(reason::OFF);
        }
        is_told |= name == b"PEER_POLICY";
    }
    let namespace = |of: &Path| fs::read_link(of.join("ns/user")).ok();
    if namespace(root) != namespace(Path::new("/proc/self")) {
        // Whose its files are looks otherwise from here.
        return None;
    }
    let variable = |wanted: &str| {
        variables().find_map(|(name, value)| (name == wanted.as_bytes()).then_some(value))
    };
    let mut places = Places::of(variable);
    for path in [&mut places.named, &mut places.own, &mut places.system] {
        if !path.is_empty() {
            path.splice(..0, root.join("root").as_os_str().as_bytes().iter().copied());
        }
    }
    let user = effective_user(root)?;
    let found = Found::read(&places, user);
    if found.is_broken() {
        return Some(reason::BAD_CONFIG);
    }
    if found.files.is_empty() {
        return None;
    }
    let passwd = if asks_for_names(&found.files) { passwd() } else { Vec::new() };
    let mut file = fs::read_link(root.join("exe")).unwrap_or_default();
    if file.ends_with("shortwire-raw") {
        // It stands for the program that it was given.
        let path = started(root).unwrap_or_default();
        file = fs::canonicalize(&path).unwrap_or(path);
    }
    let command = fs::read(root.join("cmdline")).unwrap_or_default();
    let mut words = command.strip_suffix(b"\0").unwrap_or(&command).split(|&byte| byte == 0);
    let first = words.next().unwrap_or_default();
    let started = started(root).unwrap_or_else(|| PathBuf::from(OsStr::from_bytes(first)));
    let args = words.collect::<Vec<_>>().join(&b' ');
    let program = Program {
        file: file.as_os_str().as_bytes(),
        started: started.as_os_str().as_bytes(),
        args: &args,
        user,
        passwd: &passwd,
    };
    let verdict = judge(&found.files, &program);
    if !verdict.problems.is_empty() {
        return Some(reason::BAD_CONFIG);
    }
    let off = |said: &smc::policy::Said<'_>| {
        setting::is_off(said.setting.variable.as_bytes(), said.value)
    };
    if !is_told && verdict.settings.iter().any(off) {
        return Some(reason::OFF);
    }
    let is_tcp = verdict.otherwise.is_some_and(|(action, _)| action == Action::Tcp);
    (!is_told && is_tcp && verdict.rules.is_empty()).then_some(reason::RULE)
}

fn effective_user(root: &Path) -> Option<u32> {
    let status = fs::read_to_string(root.join("status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// How a process was started, as the kernel has told it.
fn started(root: &Path) -> Option<PathBuf> {
    const LONGEST: usize = 4096;
    let auxiliary = fs::read(root.join("auxv")).ok()?;
    let word = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    let address = auxiliary.chunks_exact(16).find_map(|pair| {
        (word(&pair[..8])? == libc::AT_EXECFN).then(|| word(&pair[8..])).flatten()
    })?;
    let mut text = vec![0; LONGEST];
    let n = File::open(root.join("mem")).ok()?.read_at(&mut text, address).ok()?;
    let text = text[..n].split(|&byte| byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_was_started_by_its_path() {
        let started = started(Path::new("/proc/self")).expect("a path");
        assert_eq!(started.file_name(), std::env::current_exe().expect("a path").file_name());
        let user = effective_user(Path::new("/proc/self"));
        assert_eq!(user, Some(rustix::process::geteuid().as_raw()));
    }
}
