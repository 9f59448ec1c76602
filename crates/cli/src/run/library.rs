//! Where the preload library is, and whether the dynamic loader will take it.

use std::env;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{elf, preload};

/// A library, and the variable that names another file in its place.
pub struct Name {
    file: &'static str,
    variable: &'static str,
}

/// Takes over the sockets of the C library.
pub const SOCKETS: Name = Name { file: "libshortwire.so", variable: "SHORTWIRE_LIB" };
/// Takes over the functions of librdmacm's rsockets.
pub const RSOCKET: Name =
    Name { file: "libshortwire_rsocket.so", variable: "SHORTWIRE_RSOCKET_LIB" };

/// Makes TCP sockets rsockets.
pub const RSPRELOAD: Name =
    Name { file: "libshortwire_rspreload.so", variable: "SHORTWIRE_RSPRELOAD_LIB" };

/// The variables of all.
pub const VARIABLES: [&str; 3] = [SOCKETS.variable, RSOCKET.variable, RSPRELOAD.variable];

pub struct Library {
    pub path: PathBuf,
}

/// What a library was built from, as its file says.
pub fn build_of(file: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"shortwire build: ";
    const DIGITS: usize = 12;
    let at = file.windows(MARK.len()).position(|bytes| bytes == MARK)? + MARK.len();
    let digits = file.get(at..at + DIGITS)?;
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| digits.to_string())
}

/// The library for sockets.
pub fn find() -> Result<Library> {
    find_named(SOCKETS)
}

/// The first that exists of: what the variable says, beside this executable, ../lib/shortwire/. The
/// error says what to do.
pub fn find_named(name: Name) -> Result<Library> {
    let Name { file, variable } = name;
    let named = env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = env::current_exe().with_context(|| {
        format!("cannot find this executable, and so not the library beside it; set {variable} to the path of {file}")
    })?;
    let path = match named {
        Some(path) => path,
        None => beside(&own, &name)?,
    };
    check(&path)
}

fn beside(own: &Path, name: &Name) -> Result<PathBuf> {
    let Name { file, variable } = name;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let candidates = [directory.join(file), directory.join("../lib/shortwire").join(file)];
    match candidates.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => bail!(
            "{file} is neither in {} nor in ../lib/shortwire beside it; build it with `make build`, or set {variable} to its path",
            directory.display()
        ),
    }
}

/// Refuses now what the dynamic loader would only ignore with a message, leaving the program
/// without the library.
fn check(path: &Path) -> Result<Library> {
    let hint = "build it again with `make build`, or set SHORTWIRE_LIB to another";
    let path = path.canonicalize().with_context(|| {
        format!(
            "cannot find the library {} (from SHORTWIRE_LIB, or beside this executable)",
            path.display()
        )
    })?;
    let file = File::open(&path).with_context(|| {
        format!("cannot read the library {}; check its permissions", path.display())
    })?;
    match elf::read(&file) {
        Ok(Some(elf)) if !elf.is_native() => {
            bail!("{} is built for another machine; {hint}", path.display())
        }
        Ok(Some(elf)) if !elf.is_shared => {
            bail!("{} is a program, not a shared library; {hint}", path.display())
        }
        Ok(Some(_)) => {}
        Ok(None) => bail!("{} is not a shared library; {hint}", path.display()),
        Err(error) => bail!("{} is not a shared library ({error}); {hint}", path.display()),
    }
    if is_cut(&file).unwrap_or(true) {
        bail!("{} is not a shared library (the file ends too early); {hint}", path.display());
    }
    if !preload::can_be_named(&path) {
        bail!(
            "the path {} contains a space or colon, which LD_PRELOAD cannot express; move the library and set SHORTWIRE_LIB to the new place",
            path.display()
        );
    }
    Ok(Library { path })
}

/// Whether the file ends before its section table, which linkers put last.
fn is_cut(file: &File) -> std::io::Result<bool> {
    let mut head = [0u8; 64];
    file.read_exact_at(&mut head, 0)?;
    let word = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let sections = u64::from_le_bytes(head[40..48].try_into().unwrap_or_default());
    let end = sections.saturating_add(word(58) * word(60));
    Ok(file.metadata()?.len() < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_why() {
        let directory = tempfile::tempdir().unwrap();
        let missing = check(&directory.path().join("none.so")).err().unwrap();
        assert!(format!("{missing:#}").contains("cannot find"), "{missing:#}");
        let text = directory.path().join("text.so");
        std::fs::write(&text, "not a library").unwrap();
        let refused = check(&text).err().unwrap();
        assert!(format!("{refused:#}").contains("not a shared library"), "{refused:#}");
    }

    #[test]
    fn nothing_beside_names_both_places() {
        let directory = tempfile::tempdir().unwrap();
        let error =
            beside(&directory.path().join("shortwire"), &SOCKETS).err().unwrap().to_string();
        assert!(error.contains("SHORTWIRE_LIB") && error.contains("lib/shortwire"), "{error}");
    }
}
