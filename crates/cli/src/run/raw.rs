//! Whether shortwire-raw can follow a program that loads no library, as it decides itself, and whether
//! it is asked for.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use object::read::elf::ProgramHeader;
use object::{Object, ObjectSegment, SegmentFlags};
use smc::policy::{Found, Program, asks_for_names, judge, passwd};

use super::args::{Raw, Run};
use crate::{conffiles, sys};

/// Segments with code that it takes.
const MOST_CODE: usize = 4;

/// How it follows a program, which `obstacles` said is one for it: what that costs, if there is something
/// to say; or why it cannot. Both begin with what the program is or does.
pub fn way(program: &Path) -> Result<Option<String>, String> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Err("is not for x86-64 or arm64, for which alone shortwire-raw is there".into());
    }
    let Ok(meta) = program.metadata() else { return Err("cannot be looked at".into()) };
    if meta.mode() & 0o6000 != 0 {
        return Err("has the rights of its owner or group (setuid, setgid)".into());
    }
    if sys::has_file_capabilities(program) {
        return Err("has file capabilities".into());
    }
    let loader = super::interpreter_of(program).map(|(_, loader)| loader);
    let untold: Vec<_> = [Some(program), loader.as_deref()]
        .into_iter()
        .flatten()
        .map(|path| Ok((path, untold_in(path)?)))
        .collect::<Result<_, String>>()?;
    let Some((path, n)) = untold.into_iter().find(|(_, n)| *n > 0) else { return Ok(None) };
    let calls = format!(
        "makes system calls that cannot be told, or cannot be made to jump ({n} of them in {})",
        path.display()
    );
    match () {
        () if loader.is_some() => Err(calls),
        () if !sys::has_user_dispatch() => Err(format!(
            "{calls}, and this kernel does not send those to others (Syscall User Dispatch, on x86-64 since Linux 5.11)"
        )),
        () => Ok(Some(format!(
            "{calls}, so the kernel sends those to Shortwire by a signal (Syscall User Dispatch): some microseconds for each, and 0.04 for any other call"
        ))),
    }
}

/// How many calls in the code of a file are in the way; or what else is.
fn untold_in(path: &Path) -> Result<usize, String> {
    let Ok(content) = fs::read(path) else { return Err("cannot be read".into()) };
    let Ok(file) = object::File::parse(&*content) else { return Err("is damaged".into()) };
    if let object::File::Elf64(elf) = &file
        && elf.elf_program_headers().iter().any(|part| {
            let (kind, flags) = (part.p_type(elf.endian()), part.p_flags(elf.endian()));
            kind == object::elf::PT_GNU_STACK && flags & object::elf::PF_X != 0
        })
    {
        return Err("has its stack executed".into());
    }
    let has = |flags: SegmentFlags, flag| matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & flag != 0);
    let code: Vec<_> =
        file.segments().filter(|part| has(part.flags(), object::elf::PF_X)).collect();
    if code.len() > MOST_CODE || code.iter().any(|part| has(part.flags(), object::elf::PF_W)) {
        return Err("has code that it may write, or in many parts".into());
    }
    let all = code.iter().filter_map(|part| part.data().ok());
    let found = all.flat_map(|code| sites::find(code, &sites::OF_PROGRAMS));
    Ok(found.filter(|(_, found)| matches!(found, sites::Found::Undecided(_))).count())
}

/// Whether programs are to be followed so: by the option or its variable, or by what files say of
/// this one.
pub fn is_wanted(args: &Run, program: &Path) -> bool {
    match args.raw {
        Some(mode) => mode == Raw::Auto,
        None => in_files(args, program).unwrap_or(false),
    }
}

fn in_files(args: &Run, program: &Path) -> Option<bool> {
    let mut places = conffiles::places();
    if let Some(named) = &args.config {
        places.named = named.clone().into();
    }
    let user = rustix::process::geteuid().as_raw();
    let found = Found::read(&places, user);
    let passwd = if asks_for_names(&found.files) { passwd() } else { Vec::new() };
    let file = fs::canonicalize(program).ok()?;
    let words: Vec<_> =
        args.program[1..].iter().map(OsString::as_os_str).map(OsStrExt::as_bytes).collect();
    let program = Program {
        file: file.as_os_str().as_bytes(),
        started: program.as_os_str().as_bytes(),
        args: &words.join(&b' '),
        user,
        passwd: &passwd,
    };
    let verdict = judge(&found.files, &program);
    let said = verdict.settings.iter().find(|said| said.setting.variable == "RAW")?;
    smc::setting::follows_go(said.value)
}

/// What of shortwire-raw beside the library is not as it should be.
pub fn doubt(library: &Path, raw: &Path) -> Option<String> {
    let build = |path: &Path| fs::read(path).ok().and_then(|file| super::build_of(&file));
    if !raw.exists() {
        return Some(format!(
            "{} is not there, by which `--raw auto` follows programs that load no library: `make build`, or install it",
            raw.display()
        ));
    }
    (build(raw) != build(library)).then(|| {
        format!(
            "{} is of another build than {}: install both from one, `make build`",
            raw.display(),
            library.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_cannot_be_followed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        fs::copy("/proc/self/exe", &copy).unwrap();
        assert_eq!(way(&copy), Ok(None), "this test has no call that cannot be told");
        fs::set_permissions(&copy, Permissions::from_mode(0o4755)).unwrap();
        assert!(way(&copy).unwrap_err().contains("setuid"));
        fs::write(folder.path().join("none"), b"\x7fELF").unwrap();
        assert!(way(&folder.path().join("none")).unwrap_err().contains("damaged"));
        assert!(way(&folder.path().join("missing")).unwrap_err().contains("looked at"));
    }

    #[test]
    fn builds_of_both_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let [library, raw] = ["library", "raw"].map(|name| folder.path().join(name));
        fs::write(&library, b"..shortwire build: 0123456789ab..").unwrap();
        assert!(doubt(&library, &raw).unwrap().contains("is not there"));
        fs::write(&raw, b"shortwire build: 0123456789ac").unwrap();
        assert!(doubt(&library, &raw).unwrap().contains("another build"));
        fs::write(&raw, b"shortwire build: 0123456789ab").unwrap();
        assert_eq!(doubt(&library, &raw), None);
    }
}
