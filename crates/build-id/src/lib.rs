//! For build scripts: names what the library is made of, so that a library and a command, or two
//! libraries, of different sources can be told apart. No clock and no version control have a say:
//! the same sources give the same name everywhere.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Crates that are in libshortwire.so, beside this one.
const CRATES: [&str; 6] = ["dibs", "preload", "shm", "smc", "socket", "verbs"];

/// Gives the crate that is built `SHORTWIRE_BUILD`, twelve hexadecimal digits, as a variable of its
/// compilation.
///
/// # Panics
/// If the sources cannot be read.
pub fn tell() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates lie beside crates");
    let mut files = Vec::new();
    for name in CRATES {
        let sources = crates.join(name).join("src");
        println!("cargo:rerun-if-changed={}", sources.display());
        collect(&sources, &mut files).expect("sources that can be read");
    }
    files.sort();
    let mut sum = Fnv::new();
    for file in &files {
        let name = file.strip_prefix(crates).expect("a file below the crates");
        sum.add(name.as_os_str().as_encoded_bytes());
        sum.add(&fs::read(file).expect("a source that can be read"));
    }
    println!("cargo:rustc-env=SHORTWIRE_BUILD={:012x}", sum.0 >> 16);
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => collect(&entry.path(), files)?,
            false => files.push(entry.path()),
        }
    }
    Ok(())
}

/// FNV-1a, 64 bits: it tells sources apart that nobody made to collide.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_algorithm() {
        let mut sum = Fnv::new();
        sum.add(b"foo");
        sum.add(b"bar");
        assert_eq!(sum.0, 0x8594_4171_f739_67e8);
    }
}
