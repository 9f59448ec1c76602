//! For build scripts: links what this package makes so that it runs with glibc 2.28 (Debian 10,
//! RHEL 8) and later.
//!
//! The linker takes the newest version of every symbol that it sees, so a program linked on a new
//! system asks for the C library of that system. Here it sees stand-ins instead: shared libraries
//! with glibc's names, in each of which a symbol has the newest version that glibc 2.28 has, made
//! from the symbol table of the C library that is installed. `stat.c` and `start.c` have the few
//! functions that are newer. The code that runs is that of whatever C library the machine has.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What is asked for at most.
const OLDEST: Version = Version(2, 28, 0);
/// Where glibc took libpthread, libdl and librt into libc.
const MERGED: Version = Version(2, 34, 0);
const LIBRARIES: [&str; 5] =
    ["libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libc.so.6"];

/// Of which of a package's products the link is changed: cargo's `rustc-link-arg-bins` or
/// `rustc-cdylib-link-arg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Programs.
    Programs,
    /// The shared library.
    Library,
}

/// Called by a build script. Where there is no glibc, or one from before the merge, the link stays
/// as it is. Says as a warning of cargo's what is missing, and leaves the link as it is then, too.
pub fn link(product: Product) {
    println!("cargo:rerun-if-changed=build.rs");
    let key = match product {
        Product::Programs => "rustc-link-arg-bins",
        Product::Library => "rustc-cdylib-link-arg",
    };
    // By this number debuggers find the symbols that a package has apart from the file.
    println!("cargo:{key}=-Wl,--build-id=sha1");
    let loader = match (
        variable("CARGO_CFG_TARGET_ENV").as_str(),
        variable("CARGO_CFG_TARGET_ARCH").as_str(),
    ) {
        ("gnu", "x86_64") => "ld-linux-x86-64.so.2",
        ("gnu", "aarch64") => "ld-linux-aarch64.so.1",
        _ => return,
    };
    let out = PathBuf::from(variable("OUT_DIR")).join("old-glibc");
    match stand_ins(&out, loader) {
        Ok(true) => {
            println!("cargo:{key}=-L{}", out.display());
            // The compiler's own library may ask for the installed C library: it is replaced
            // together with that.
            println!("cargo:{key}=-Wl,--allow-shlib-undefined");
        }
        Ok(false) => (),
        Err(why) => {
            println!("cargo:warning=what is built here needs the C library of this system: {why}")
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// Whether they were made.
fn stand_ins(out: &Path, loader: &str) -> Result<bool, String> {
    let cc = match variable("RUSTC_LINKER") {
        named if named.is_empty() => "cc".to_string(),
        named => named,
    };
    let installed = |name: &str| said(Command::new(&cc).arg(format!("-print-file-name={name}")));
    let table = |name: &str| {
        let path = installed(name)?;
        println!("cargo:rerun-if-changed={}", path.trim());
        said(Command::new("readelf").args(["--wide", "--dyn-syms", path.trim()]))
    };
    let (libc, libm) = (table("libc.so.6")?, table("libm.so.6")?);
    let (libc, libm) = (symbols(&libc), symbols(&libm));
    if !libc.values().any(|symbol| symbol.newest >= MERGED) {
        return Ok(false);
    }
    fs::create_dir_all(out).map_err(|e| format!("cannot make {}: {e}", out.display()))?;
    let write = |name: &str, text: &str| {
        fs::write(out.join(name), text).map_err(|e| format!("cannot write {name}: {e}"))
    };
    for library in LIBRARIES {
        let all = if library == "libm.so.6" { &libm } else { &libc };
        let own =
            all.iter().filter(|(name, symbol)| symbol.old.is_some() && home(name, symbol, library));
        let (source, versions) = stand_in(own);
        let [source_name, versions_name] = ["s", "map"].map(|ending| format!("{library}.{ending}"));
        write(&source_name, &source)?;
        write(&versions_name, &versions)?;
        let mut link = Command::new(&cc);
        link.current_dir(out).args(["-shared", "-nostdlib", "-o", library, &source_name]);
        said(link.arg(format!("-Wl,-soname,{library},--version-script,{versions_name}")))?;
    }
    write("stat.c", include_str!("stat.c"))?;
    write("start.c", include_str!("start.c"))?;
    said(Command::new(&cc).current_dir(out).args([
        "-O2",
        "-fPIC",
        "-fno-builtin",
        "-w",
        "-c",
        "stat.c",
        "start.c",
    ]))?;
    fs::remove_file(out.join("libnewer.a")).ok();
    // The compiler's own, for an archiver of another architecture makes no index of what it does not know.
    let ar = said(Command::new(&cc).arg("-print-prog-name=ar"))?;
    said(Command::new(ar.trim()).current_dir(out).args(["cr", "libnewer.a", "stat.o", "start.o"]))?;
    let place = |name: &str| out.join(name).display().to_string();
    let [stands, loader, rest] = [
        LIBRARIES
            .iter()
            .filter(|name| **name != "libm.so.6")
            .map(|name| place(name))
            .collect::<Vec<_>>()
            .join(" "),
        installed(loader)?,
        installed("libc_nonshared.a")?,
    ];
    let newer = place("libnewer.a");
    write(
        "libc.so",
        &format!("GROUP({newer} AS_NEEDED({stands} {}) {})\n", loader.trim(), rest.trim()),
    )?;
    write("libm.so", &format!("INPUT({})\n", place("libm.so.6")))?;
    Ok(true)
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|e| format!("cannot run {}: {e}", command.get_program().display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// Of `GLIBC_2.2.5`; none of `GLIBC_PRIVATE`.
    fn of(name: &str) -> Option<Version> {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
        let mut next = || numbers.next().unwrap_or(Ok(0)).ok();
        Some(Version(next()?, next()?, next()?))
    }

    fn name(self) -> String {
        let Version(major, minor, patch) = self;
        if patch == 0 {
            format!("GLIBC_{major}.{minor}")
        } else {
            format!("GLIBC_{major}.{minor}.{patch}")
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Symbol {
    /// Its newest version that is old enough, if it has one.
    old: Option<Version>,
    newest: Version,
    /// The size of a variable.
    variable: Option<u64>,
}

/// What a C library has, by what readelf prints: "number: value size type binding visibility
/// section name@@version".
fn symbols(table: &str) -> BTreeMap<&str, Symbol> {
    let mut found = BTreeMap::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, size, kind, _, _, section, name, ..] = words[..] else { continue };
        let Some((name, version)) = name.split_once('@') else { continue };
        let Some(version) =
            Version::of(version.trim_start_matches('@')).filter(|_| section != "UND")
        else {
            continue;
        };
        let variable = (kind == "OBJECT").then(|| size.parse().unwrap_or(8));
        let symbol = found.entry(name).or_insert(Symbol { old: None, newest: version, variable });
        symbol.newest = symbol.newest.max(version);
        if version <= OLDEST {
            symbol.old = symbol.old.max(Some(version));
        }
    }
    // A version's own name is a symbol of its table.
    found.retain(|name, _| !name.starts_with("GLIBC_"));
    found
}

/// Whether the library had it in 2.28. What moved into libc got one more version there, 2.32 to
/// 2.34.
fn home(name: &str, symbol: &Symbol, library: &str) -> bool {
    let moved = symbol.newest > OLDEST && symbol.newest <= MERGED;
    let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
    match library {
        "libpthread.so.0" => moved && starts(&["pthread_", "sem_", "__pthread_"]),
        "libdl.so.2" => moved && starts(&["dl"]),
        "librt.so.1" => moved && starts(&["aio_", "lio_", "mq_", "shm_", "timer_"]),
        "libc.so.6" => !LIBRARIES[..3].iter().any(|other| home(name, symbol, other)),
        _ => true,
    }
}

/// Assembly of a library that defines them, and its list of versions.
fn stand_in<'a>(symbols: impl Iterator<Item = (&'a &'a str, &'a Symbol)>) -> (String, String) {
    let mut source = String::new();
    let mut versions: BTreeMap<Version, Vec<&str>> = BTreeMap::new();
    for (name, symbol) in symbols {
        let (section, kind, size) = match symbol.variable {
            Some(size) => (".data", "object", size),
            None => (".text", "function", 8),
        };
        let _ = writeln!(
            source,
            "{section}\n.globl {name}\n.type {name}, %{kind}\n.size {name}, {size}\n{name}: .zero {size}"
        );
        versions.entry(symbol.old.unwrap_or(OLDEST)).or_default().push(name);
    }
    let mut script = String::new();
    for (version, names) in versions {
        let _ = writeln!(script, "{} {{ {}; }};", version.name(), names.join("; "));
    }
    (source, script)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
   Num:    Value          Size Type    Bind   Vis      Ndx Name
   143: 0000000000087b20    13 FUNC    GLOBAL DEFAULT   15 pthread_key_create@@GLIBC_2.34
   144: 0000000000087b20    13 FUNC    GLOBAL DEFAULT   15 pthread_key_create@GLIBC_2.2.5
   145: 0000000000087b20    13 FUNC    GLOBAL DEFAULT   15 memcpy@@GLIBC_2.14
   146: 0000000000087b20    13 FUNC    GLOBAL DEFAULT   15 memcpy@GLIBC_2.2.5
   147: 0000000000087b20    13 FUNC    GLOBAL DEFAULT   15 gettid@@GLIBC_2.30
   148: 00000000001d3d08     8 OBJECT  WEAK   DEFAULT   35 environ@@GLIBC_2.2.5
   149: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND _dl_find_dso@GLIBC_PRIVATE (37)
   150: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS GLIBC_2.28@@GLIBC_2.28
";

    #[test]
    fn the_newest_old_version_is_taken() {
        let all = symbols(TABLE);
        assert_eq!(
            all.keys().copied().collect::<Vec<_>>(),
            ["environ", "gettid", "memcpy", "pthread_key_create"]
        );
        assert_eq!(all["memcpy"].old, Some(Version(2, 14, 0)));
        assert_eq!(all["gettid"].old, None);
        assert_eq!(all["environ"].variable, Some(8));
    }

    #[test]
    fn what_moved_into_libc_is_asked_of_where_it_was() {
        let all = symbols(TABLE);
        let homes = |name: &str| -> Vec<&str> {
            LIBRARIES
                .into_iter()
                .filter(|library| *library != "libm.so.6" && home(name, &all[name], library))
                .collect()
        };
        assert_eq!(homes("pthread_key_create"), ["libpthread.so.0"]);
        assert_eq!(homes("memcpy"), ["libc.so.6"]);
        let (source, versions) = stand_in(all.iter().filter(|(name, _)| **name == "memcpy"));
        assert!(source.contains("\nmemcpy: .zero 8\n"), "{source}");
        assert_eq!(versions, "GLIBC_2.14 { memcpy; };\n");
    }
}
