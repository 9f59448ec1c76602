//! A program before it is started: what its file and its libraries tell.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind};

use super::Report;
use crate::conffiles::Health;
use crate::finding::{Finding, obstacle};
use crate::run::{Calls, calls_of, find_program, is_go, needs_device, obstacles};

/// For who looks at a program that makes three calls, and finds TCP.
const BEGINS: &str = "connections leave TCP after 8 sends and receives (--after), so short ones stay; where another one of the same two processes led before, with the second answer";

/// What is read of a file at most.
const LARGEST: u64 = 1 << 30;

pub fn examine(name: &OsStr) -> Result<Report> {
    let path = match find_program(name, std::env::var_os("PATH").as_deref()) {
        Ok(path) => path,
        Err(error) => bail!("{error}"),
    };
    let mut findings: Vec<Finding> =
        obstacles(&path).iter().map(|found| obstacle(&path, found)).collect();
    if findings.is_empty() {
        findings.push(Finding::good("the library can be loaded into it"));
        if is_go(&path) {
            findings.push(Finding::good(
                "it is a Go program with the C library: the system calls that Go makes itself are followed, too",
            ));
        }
        findings.push(match calls_of(&path) {
            Some(Calls::Rsockets) => Finding::note(
                "it is written to rsockets, which this library for TCP does not carry",
                format!("Start it by `shortwire run --rsocket -- {}`.", name.to_string_lossy()),
            ),
            Some(Calls::Devices) => {
                let (why, advice) = needs_device();
                Finding::note(why, advice)
            }
            None => Finding::good(BEGINS),
        });
        findings.extend(habits(&files_of(&path)));
    }
    findings.extend(Health::here(None).problems().map(|problem| {
        Finding::obstacle(
            problem,
            "Correct the file: until then programs that are started from here stay on TCP.",
        )
    }));
    Ok(Report { subject: path.display().to_string(), findings })
}

/// The program and the libraries it names, as the loader finds them; the C library and the loader,
/// which are ours to know, left out.
fn files_of(program: &Path) -> Vec<PathBuf> {
    let interpreter = crate::run::interpreter_of(program);
    let (program, loader) = match interpreter {
        Some((program, loader)) => (program, loader),
        None => return Vec::new(),
    };
    let listed = Command::new(loader).arg("--list").arg(&program).env_remove("LD_PRELOAD").output();
    let listed = listed
        .map_or_else(|_| String::new(), |said| String::from_utf8_lossy(&said.stdout).into_owned());
    let libraries = listed.lines().filter_map(|line| line.split(" => ").nth(1)?.split(" (").next());
    [program]
        .into_iter()
        .chain(libraries.map(PathBuf::from))
        .filter(|path| !is_system(path))
        .collect()
}

pub fn is_system(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ["libc.so", "libc-", "libpthread", "libm.so", "ld-linux", "libshortwire"]
        .iter()
        .any(|ours| name.starts_with(ours))
}

/// What these files do that the library cannot follow.
pub fn habits(files: &[PathBuf]) -> Vec<Finding> {
    let mut by_habit: [BTreeSet<String>; 3] = Default::default();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for habit in habits_of(path) {
            by_habit[habit as usize].insert(name.clone());
        }
    }
    let [uring, aio, raw] = by_habit.map(|names| names.into_iter().collect::<Vec<_>>().join(", "));
    let mut findings = Vec::new();
    if !uring.is_empty() {
        findings.push(Finding::note(
            format!("can use io_uring ({uring}); connections on which it does stay TCP"),
            "Nothing, unless it does so on sockets that should be fast: then tell it to use epoll, or run it with `shortwire run --io-uring deny`.",
        ));
    }
    if !aio.is_empty() {
        findings.push(Finding::note(
            format!(
                "can use POSIX asynchronous I/O ({aio}); connections on which it does stay TCP"
            ),
            "Nothing, unless it does so on sockets that should be fast.",
        ));
    }
    if !raw.is_empty() {
        findings.push(Finding::note(
            format!("contains system calls on sockets that pass the C library ({raw})"),
            "If it makes them on TCP sockets, run it with `shortwire run --disable`.",
        ));
    }
    findings
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    Uring,
    Aio,
    Raw,
}

/// A file that cannot be read or is damaged has no habits: the loader will tell.
fn habits_of(path: &Path) -> Vec<Habit> {
    let small = fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST);
    let Some(content) = small.then(|| fs::read(path).ok()).flatten() else { return Vec::new() };
    let Ok(file) = object::File::parse(&*content) else { return Vec::new() };
    let mut habits = Vec::new();
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_undefined()) {
        let name = symbol.name().unwrap_or_default();
        let habit = match name {
            _ if name.starts_with("io_uring_") => Habit::Uring,
            _ if name.starts_with("aio_") || name.starts_with("lio_listio") => Habit::Aio,
            _ => continue,
        };
        if !habits.contains(&habit) {
            habits.push(habit);
        }
    }
    let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
    if code.filter_map(|section| section.data().ok()).any(makes_socket_calls) {
        habits.push(Habit::Raw);
    }
    habits
}

/// Whether the instructions contain `mov $NUMBER, %eax` shortly before `syscall`. Numbers that a
/// program computes are not found, and data between instructions may look like it: a note, not a
/// proof.
#[cfg(target_arch = "x86_64")]
fn makes_socket_calls(code: &[u8]) -> bool {
    // readv, writev, sendfile, connect, accept, sendto, recvfrom, sendmsg, recvmsg, accept4,
    // recvmmsg, sendmmsg, io_uring_enter. Files are read and written too, so read and write say
    // nothing.
    const NUMBERS: [u32; 13] = [19, 20, 40, 42, 43, 44, 45, 46, 47, 288, 299, 307, 426];
    const FAR: usize = 24;
    let calls = code.windows(2).enumerate().filter(|(_, two)| *two == [0x0f, 0x05]);
    calls.map(|(at, _)| &code[at.saturating_sub(FAR)..at]).any(|before| {
        before.windows(5).any(|five| {
            five[0] == 0xb8
                && NUMBERS.contains(&u32::from_le_bytes([five[1], five[2], five[3], five[4]]))
        })
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn makes_socket_calls(_: &[u8]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn system_calls_by_instruction() {
        let sendto = [0xb8, 44, 0, 0, 0, 0x4c, 0x89, 0xd6, 0x0f, 0x05];
        assert!(makes_socket_calls(&sendto));
        let exit = [0xb8, 60, 0, 0, 0, 0x0f, 0x05];
        assert!(!makes_socket_calls(&exit));
        let far = [&sendto[..5], &[0x90; 40], &sendto[8..]].concat();
        assert!(!makes_socket_calls(&far));
        assert!(!makes_socket_calls(&[]) && !makes_socket_calls(&[0x0f, 0x05]));
    }

    #[test]
    fn this_test_has_no_bad_habits_but_the_c_library_makes_calls() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(habits_of(&own), []);
        let libraries = files_of(&own);
        assert!(
            libraries.len() >= 2 && !libraries.iter().any(|path| is_system(path)),
            "{libraries:?}"
        );
        #[cfg(target_arch = "x86_64")]
        {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            let libc = maps.lines().find(|line| line.contains("/libc.so")).unwrap();
            assert_eq!(habits_of(Path::new(libc.split_whitespace().last().unwrap())), [Habit::Raw]);
        }
    }

    #[test]
    fn a_damaged_file_has_no_habits() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x7fELF\x02\x01\x01 and then nothing of use").unwrap();
        assert_eq!(habits_of(file.path()), []);
    }
}
