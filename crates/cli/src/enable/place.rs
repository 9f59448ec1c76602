//! What `enable` leaves on the machine, and `disable` takes away again: files that are ours alone,
//! and a block of lines in a file of somebody else.

use std::fs;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// By this line a file of ours is known, and the beginning of a block.
const MARK: &str = "# Written by `shortwire enable`; `shortwire disable` removes it.";
const END: &str = "# End of what `shortwire enable` wrote.";

/// Where something is written, and what.
pub enum Place {
    /// A file of our own.
    File { path: PathBuf, text: String, mode: u32 },
    /// Lines at the end of another file.
    Block { path: PathBuf, text: String },
}

impl Place {
    /// A drop-in of a unit.
    pub fn drop_in(path: PathBuf, lines: &[String]) -> Place {
        Place::File {
            path,
            text: format!("{MARK}\n[Service]\n{}\n", lines.join("\n")),
            mode: 0o644,
        }
    }

    /// A shell script that becomes another program.
    pub fn wrapper(path: PathBuf, command: &str) -> Place {
        Place::File {
            path,
            text: format!("#!/bin/sh\n{MARK}\nexec {command} \"$@\"\n"),
            mode: 0o755,
        }
    }

    /// Lines in the file of somebody else.
    pub fn block(path: PathBuf, lines: &[String]) -> Place {
        Place::Block { path, text: format!("{MARK}\n{}\n{END}\n", lines.join("\n")) }
    }

    pub fn path(&self) -> &Path {
        match self {
            Place::File { path, .. } | Place::Block { path, .. } => path,
        }
    }

    /// What stands there once it is written.
    pub fn text(&self) -> &str {
        match self {
            Place::File { text, .. } | Place::Block { text, .. } => text,
        }
    }

    /// Whether it stands there already; an error if what is there is not ours.
    pub fn stands(&self) -> Result<bool> {
        let there = read(self.path())?;
        match self {
            Place::File { .. } if there.as_ref().is_some_and(|there| !is_ours(there)) => bail!(
                "{} is there, and `shortwire enable` has not written it: move it out of the way",
                self.path().display()
            ),
            Place::File { text, .. } => Ok(there.is_some_and(|there| there == *text)),
            Place::Block { text, .. } => {
                Ok(there.is_some_and(|there| there.contains(text.as_str())))
            }
        }
    }

    /// Writes it.
    pub fn put(&self) -> Result<()> {
        match self {
            Place::File { path, text, mode } => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                fs::create_dir_all(folder)
                    .with_context(|| format!("cannot make {}", folder.display()))?;
                replace(path, text, *mode)
            }
            Place::Block { path, text } => rewrite(path, true, |there| {
                let before = without_block(there);
                let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
                format!("{before}{gap}{text}")
            }),
        }
    }

    /// Removes it, and the folder if it was alone there; false if there is nothing of ours.
    pub fn take(&self) -> Result<bool> {
        let path = self.path();
        if !read(path)?.is_some_and(|there| is_ours(&there)) {
            return Ok(false);
        }
        let failed = || format!("cannot remove what is in {}", path.display());
        match self {
            Place::File { .. } => {
                fs::remove_file(path).with_context(failed)?;
                // If others have something there, it stays.
                let is_drop_in =
                    path.parent().filter(|folder| folder.to_string_lossy().ends_with(".d"));
                is_drop_in.map(fs::remove_dir);
            }
            Place::Block { .. } => rewrite(path, false, without_block)?,
        }
        Ok(true)
    }

    /// Whether `take` would find something.
    pub fn is_there(&self) -> Result<bool> {
        Ok(read(self.path())?.is_some_and(|there| is_ours(&there)))
    }
}

/// Whether a program is a script of ours.
pub fn is_script(program: &Path) -> bool {
    // No more of a large program than the lines that would say so.
    let mut text = Vec::new();
    let read = fs::File::open(program).and_then(|file| file.take(4096).read_to_end(&mut text));
    read.is_ok() && is_ours(&String::from_utf8_lossy(&text))
}

fn is_ours(text: &str) -> bool {
    text.lines().any(|line| line == MARK)
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes a file anew, in place, so that it keeps its owner. Whose folder it is in may put links
/// there, also between a look and the write, to files that only we may write: nothing on the way is
/// followed, and what is read and written is one file, of one name.
fn rewrite(path: &Path, creates: bool, text: impl FnOnce(&str) -> String) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let made = if creates { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | made;
    let mode = Mode::from_raw_mode(if creates { 0o644 } else { 0 });
    let opened = openat2(CWD, path, flags, mode, ResolveFlags::NO_SYMLINKS);
    let mut file = fs::File::from(opened.map_err(std::io::Error::from).with_context(failed)?);
    let meta = file.metadata().with_context(failed)?;
    ensure!(
        meta.is_file() && meta.nlink() == 1,
        "{} is no file of one name: not written",
        path.display()
    );
    let mut there = String::new();
    file.read_to_string(&mut there).with_context(failed)?;
    let new = text(&there);
    file.rewind().with_context(failed)?;
    file.write_all(new.as_bytes()).with_context(failed)?;
    file.set_len(new.len() as u64).with_context(failed)
}

/// The text of a file as it was before a block of ours.
pub fn without_block(text: &str) -> String {
    let mut is_in = false;
    let kept = text.split_inclusive('\n').filter(|line| {
        let line = line.trim_end();
        is_in |= line == MARK;
        let keeps = !is_in;
        is_in &= line != END;
        keeps
    });
    kept.collect()
}

/// In one step, so that nobody reads half of it.
fn replace(path: &Path, text: &str, mode: u32) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    let mode = fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(mode).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_known_again_and_removed_with_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.service.d/50-shortwire.conf");
        let place = Place::drop_in(path.clone(), &["Environment=A=1".into()]);
        assert!(!place.stands().unwrap() && !place.take().unwrap());
        place.put().unwrap();
        assert!(place.stands().unwrap());
        let other = Place::drop_in(path.clone(), &["Environment=A=2".into()]);
        assert!(!other.stands().unwrap());
        other.put().unwrap();
        assert!(other.take().unwrap() && !path.parent().unwrap().exists());
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, "[Service]\n").unwrap();
        assert!(place.stands().unwrap_err().to_string().contains("has not written it"));
        assert!(!place.take().unwrap() && path.exists(), "what is not ours stays");
    }

    #[test]
    fn a_block_leaves_the_rest_of_a_file_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("environment");
        for before in ["", "A = 'b'\n", "# without an end"] {
            fs::write(&path, before).unwrap();
            let place = Place::block(path.clone(), &["L = 'x'".into()]);
            place.put().unwrap();
            Place::block(path.clone(), &["L = 'y'".into()]).put().unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("L = 'y'") && !text.contains("'x'"), "{text}");
            assert!(!place.stands().unwrap() && place.take().unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), before.trim_end());
        }
    }
}
