//! Which library a process has loaded, and what about it is not as a reader would think.

use std::fs;
use std::path::{Path, PathBuf};

use object::Object;

use crate::finding::Finding;
use crate::run::find_library;

/// Behind the path of a mapping whose file was removed, or replaced.
const GONE: &str = " (deleted)";

/// What of Shortwire is mapped into a process.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The file, as the process sees it.
    path: PathBuf,
    is_gone: bool,
}

impl Loaded {
    /// The library of this name, among files that are mapped.
    pub fn find(name: &str, files: &[PathBuf]) -> Option<Loaded> {
        files.iter().find_map(|file| {
            let text = file.to_str()?;
            let path = text.strip_suffix(GONE).unwrap_or(text);
            let is_it = Path::new(path).file_name()? == name;
            is_it.then(|| Loaded { path: path.into(), is_gone: path.len() < text.len() })
        })
    }

    /// For the library of sockets in the process of which /proc/PID is this folder.
    pub fn findings(&self, process: &Path) -> Vec<Finding> {
        let mut findings = vec![Finding::good("the library is loaded")];
        if self.is_gone {
            findings.push(Finding::note(
                format!(
                    "{} was replaced since: the process goes on with the one it has",
                    self.path.display()
                ),
                "Nothing has to be done; from its next start on it has the new one.",
            ));
            return findings;
        }
        let theirs = process.join("root").join(self.path.strip_prefix("/").unwrap_or(&self.path));
        let own = find_library().ok().and_then(|own| build(&own.path));
        if let (Some(theirs), Some(own)) = (build(&theirs), own)
            && theirs != own
        {
            findings.push(Finding::note(
                format!("{} is of another build than this command", self.path.display()),
                "Install both from one build: what the command shows of another one may be wrong.",
            ));
        }
        findings
    }
}

/// What tells one build of a library from another.
fn build(path: &Path) -> Option<Vec<u8>> {
    let content = fs::read(path).ok()?;
    let file = object::File::parse(&*content).ok()?;
    let id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
    id.or(Some(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_was_replaced_is_loaded_all_the_same() {
        let files = ["/lib/libc.so.6", "/opt/libshortwire.so (deleted)"].map(PathBuf::from);
        let loaded = Loaded::find("libshortwire.so", &files).unwrap();
        assert_eq!(loaded, Loaded { path: "/opt/libshortwire.so".into(), is_gone: true });
        let said = loaded.findings(Path::new("/proc/self"));
        assert!(said.len() == 2 && said[1].words.contains("was replaced"), "{said:?}");
        assert_eq!(Loaded::find("libshortwire_rsocket.so", &files), None);
    }

    #[test]
    fn builds_are_told_apart() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(build(&own), build(&own));
        let libc = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = libc.lines().find(|line| line.contains("/libc.so")).unwrap();
        assert_ne!(build(&own), build(Path::new(libc.split_whitespace().last().unwrap())));
    }
}
