//! Finds the program as the shell would, and what stands in the way of loading a library into it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{getgid, getuid};

use super::{Alone, NOT_EXECUTABLE, NOT_FOUND, elf, go};
use crate::sys;

/// Nested `#!` lines that the kernel follows.
const MOST_INTERPRETERS: usize = 5;

#[derive(Debug)]
pub enum NotStartable {
    NotFound(String),
    NotExecutable(PathBuf),
}

impl NotStartable {
    pub fn exit_status(&self) -> u8 {
        match self {
            NotStartable::NotFound(_) => NOT_FOUND,
            NotStartable::NotExecutable(_) => NOT_EXECUTABLE,
        }
    }
}

impl fmt::Display for NotStartable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotStartable::NotFound(name) if name.contains('/') => {
                write!(f, "there is no program {name}; check the path")
            }
            NotStartable::NotFound(name) => {
                write!(
                    f,
                    "there is no program {name} in PATH; give its path (such as ./{name}) or install it"
                )
            }
            NotStartable::NotExecutable(path) => {
                write!(
                    f,
                    "{} cannot be executed; it is a directory or lacks permission (chmod +x)",
                    path.display()
                )
            }
        }
    }
}

/// As execvp: a name with a slash is a path, any other is looked up.
pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, NotStartable> {
    let not_found = || NotStartable::NotFound(name.to_string_lossy().into_owned());
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.exists() {
            true if is_executable(&path) => Ok(path),
            true => Err(NotStartable::NotExecutable(path)),
            false => Err(not_found()),
        };
    }
    if name.is_empty() {
        return Err(not_found());
    }
    let search = search.map_or_else(|| OsString::from("/bin:/usr/bin"), OsStr::to_os_string);
    let mut unusable = None;
    for directory in std::env::split_paths(&search) {
        let directory =
            if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        let path = directory.join(name);
        if is_executable(&path) {
            return Ok(path);
        }
        if path.is_file() {
            unusable.get_or_insert(path);
        }
    }
    Err(unusable.map_or_else(not_found, NotStartable::NotExecutable))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Why a program will stay on plain TCP although it is run under Shortwire.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    Static,
    Go(Alone),
    OtherMachine,
    Musl,
    Privileged(&'static str),
    /// The same for the interpreter of a script.
    Interpreter(PathBuf, Box<Obstacle>),
}

impl Obstacle {
    /// What it comes down to, through interpreters.
    pub fn root(&self) -> &Obstacle {
        match self {
            Obstacle::Interpreter(_, inner) => inner.root(),
            own => own,
        }
    }

    /// The file that it concerns: the program, or its interpreter.
    pub fn file<'a>(&'a self, program: &'a Path) -> &'a Path {
        match self {
            Obstacle::Interpreter(path, inner) => inner.file(path),
            _ => program,
        }
    }

    /// Whether the program is one that can be followed without the library being loaded into it.
    pub fn is_for_raw(&self) -> bool {
        matches!(self.root(), Obstacle::Static | Obstacle::Go(Alone::NoLibc) | Obstacle::Musl)
    }

    /// Whether the library must not even be named: another C library would fail to load it, and the
    /// program with it.
    pub fn forbids_preloading(&self) -> bool {
        match self {
            Obstacle::Musl => true,
            Obstacle::Interpreter(_, inner) => inner.forbids_preloading(),
            _ => false,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str(
                "is statically linked, so nothing can be loaded into it; its own connections stay plain TCP",
            ),
            Obstacle::Go(Alone::NoLibc) => f.write_str(
                "is a Go program without the C library, which the library needs; its own connections stay plain TCP",
            ),
            Obstacle::Go(Alone::Undecided) => f.write_str(
                "is a Go program whose own system calls cannot all be found in its code; its own connections stay plain TCP",
            ),
            Obstacle::OtherMachine => {
                f.write_str("is built for another machine or word size than the library; it stays plain TCP")
            }
            Obstacle::Musl => {
                f.write_str("uses the musl C library, the library is built for glibc; it runs without it, as plain TCP")
            }
            Obstacle::Privileged(how) => {
                write!(
                    f,
                    "{how}, so the system loads nothing foreign into it; it stays plain TCP unless you are already that user"
                )
            }
            Obstacle::Interpreter(path, inner) => write!(f, "its interpreter {} {inner}", path.display()),
        }
    }
}

/// Looks through scripts at their interpreters. What cannot be read raises no objection: exec will
/// tell.
pub fn obstacles(program: &Path) -> Vec<Obstacle> {
    let mut found: Vec<Obstacle> = privileges(program).into_iter().collect();
    let mut path = program.to_path_buf();
    for depth in 0..MOST_INTERPRETERS {
        let Ok(mut file) = File::open(&path) else {
            break;
        };
        let obstacle = match elf::read(&file) {
            Ok(Some(elf)) if !elf.is_native() => Some(Obstacle::OtherMachine),
            Ok(Some(elf)) if elf.uses_musl() => Some(Obstacle::Musl),
            Ok(Some(elf)) if elf.is_go && elf.interpreter.is_none() => {
                Some(Obstacle::Go(Alone::NoLibc))
            }
            Ok(Some(elf)) if elf.is_go => go::alone(&path).map(Obstacle::Go),
            Ok(Some(elf)) if elf.interpreter.is_none() => Some(Obstacle::Static),
            Ok(Some(_)) | Err(_) => None,
            Ok(None) => match interpreter(&mut file) {
                Some(next) => {
                    path = next;
                    continue;
                }
                None => None,
            },
        };
        found.extend(obstacle.map(|inner| {
            if depth == 0 { inner } else { Obstacle::Interpreter(path.clone(), Box::new(inner)) }
        }));
        break;
    }
    found
}

/// Whether the file itself is a Go program.
pub fn is_go(program: &Path) -> bool {
    File::open(program).is_ok_and(|file| matches!(elf::read(&file), Ok(Some(elf)) if elf.is_go))
}

/// The ELF file that runs when the program is started, and the loader that it names.
pub fn interpreter_of(program: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut path = program.to_path_buf();
    for _ in 0..MOST_INTERPRETERS {
        let mut file = File::open(&path).ok()?;
        match elf::read(&file).ok()? {
            Some(elf) => return Some((path, elf.interpreter?.into())),
            None => path = interpreter(&mut file)?,
        }
    }
    None
}

/// The interpreter or the loader by which this is to be started, if it is not there.
pub fn missing(program: &Path) -> Option<PathBuf> {
    let mut path = program.to_path_buf();
    for _ in 0..MOST_INTERPRETERS {
        let Ok(mut file) = File::open(&path) else { return Some(path) };
        match elf::read(&file).ok()? {
            Some(elf) => return elf.interpreter.map(PathBuf::from).filter(|file| !file.exists()),
            None => path = interpreter(&mut file)?,
        }
    }
    None
}

/// The program behind `#!`; with `env`, the one that env will look up.
fn interpreter(file: &mut File) -> Option<PathBuf> {
    let mut head = Vec::new();
    file.take(512).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let mut words =
        line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let program = PathBuf::from(words.next()?);
    if program.file_name() == Some(OsStr::new("env")) {
        let target = words
            .find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='))?;
        return find(target, std::env::var_os("PATH").as_deref()).ok();
    }
    Some(program)
}

/// Only a change of identity makes the loader ignore LD_PRELOAD: root may preload into what is
/// setuid root.
fn privileges(program: &Path) -> Option<Obstacle> {
    let meta = program.metadata().ok()?;
    let mode = meta.mode();
    if mode & 0o4000 != 0 && meta.uid() != getuid().as_raw() {
        Some(Obstacle::Privileged("runs as another user (setuid)"))
    } else if mode & 0o2010 == 0o2010 && meta.gid() != getgid().as_raw() {
        Some(Obstacle::Privileged("runs as another group (setgid)"))
    } else if !getuid().is_root() && sys::has_file_capabilities(program) {
        Some(Obstacle::Privileged("has file capabilities"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(directory: &Path, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn lookup_as_the_shell_does() {
        let directory = tempfile::tempdir().unwrap();
        let good = script(directory.path(), "good", "#!/bin/sh\n", 0o755);
        let plain = script(directory.path(), "plain", "", 0o644);
        let search = Some(directory.path().as_os_str());
        assert_eq!(find("good".as_ref(), search).unwrap(), good);
        assert_eq!(find(good.as_os_str(), None).unwrap(), good);
        assert_eq!(find("plain".as_ref(), search).unwrap_err().exit_status(), 126);
        assert_eq!(find(plain.as_os_str(), search).unwrap_err().exit_status(), 126);
        assert_eq!(find(directory.path().as_os_str(), None).unwrap_err().exit_status(), 126);
        for missing in ["none", "", "./none", "/no/such/program"] {
            assert_eq!(find(missing.as_ref(), search).unwrap_err().exit_status(), 127, "{missing}");
        }
    }

    #[test]
    fn ordinary_programs_and_scripts_raise_nothing() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(obstacles(Path::new("/proc/self/exe")), []);
        for line in [
            "#!/bin/sh\n",
            "#! /bin/sh -e\n",
            "#!/usr/bin/env sh\n",
            "#!/usr/bin/env -S A=b sh -x\n",
            "echo no interpreter\n",
        ] {
            let path = script(directory.path(), "script", line, 0o755);
            assert_eq!(obstacles(&path), [], "{line}");
        }
    }

    #[test]
    fn a_static_interpreter_is_found_through_scripts() {
        let directory = tempfile::tempdir().unwrap();
        let mut image = b"\x7fELF\x02\x01\x01".to_vec();
        image.resize(16, 0);
        let native = fs::read("/proc/self/exe").unwrap()[18..20].to_vec();
        image.extend([2, 0]);
        image.extend(native);
        image.resize(64, 0);
        let interpreter = directory.path().join("interpreter");
        fs::write(&interpreter, image).unwrap();
        assert_eq!(obstacles(&interpreter), [Obstacle::Static]);
        let inner =
            script(directory.path(), "inner", &format!("#!{}\n", interpreter.display()), 0o755);
        let outer =
            script(directory.path(), "outer", &format!("#!{} -x\n", inner.display()), 0o755);
        assert_eq!(
            obstacles(&outer),
            [Obstacle::Interpreter(interpreter, Box::new(Obstacle::Static))]
        );
    }

    #[test]
    fn an_interpreter_that_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let lost = script(directory.path(), "lost", "#!/no/such/interpreter -x\n", 0o755);
        assert_eq!(missing(&lost), Some("/no/such/interpreter".into()));
        let outer = script(directory.path(), "outer", &format!("#!{}\n", lost.display()), 0o755);
        assert_eq!(missing(&outer), Some("/no/such/interpreter".into()));
        assert_eq!(missing(Path::new("/bin/sh")), None);
    }

    #[test]
    fn setuid_matters_only_when_it_changes_the_user() {
        let directory = tempfile::tempdir().unwrap();
        let mine = script(directory.path(), "mine", "#!/bin/sh\n", 0o4755);
        assert_eq!(obstacles(&mine), [], "setuid to oneself changes nothing");
        if getuid().is_root() {
            std::os::unix::fs::chown(&mine, Some(65_534), None).unwrap();
            fs::set_permissions(&mine, Permissions::from_mode(0o4755)).unwrap();
            assert!(matches!(obstacles(&mine)[..], [Obstacle::Privileged(_)]));
        }
    }
}
