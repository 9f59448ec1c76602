//! A file that appears whole or not at all.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

/// Beside its later place until `commit`; gone if that is never called.
pub struct Pending {
    file: NamedTempFile,
    path: PathBuf,
}

impl Pending {
    /// Finds out at once whether `path` can be written. Where it is a link, what that leads to is
    /// replaced, not the link; what is no ordinary file is left alone.
    pub fn create(path: &Path) -> Result<Pending> {
        let is_other = fs::metadata(path).is_ok_and(|there| !there.is_file());
        ensure!(!is_other, "cannot write {}: it is no ordinary file", path.display());
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(".shortwire-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(directory)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Pending { file, path: path.into() })
    }

    /// As `create`, and makes the directory.
    pub fn create_all(path: &Path) -> Result<Pending> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make the directory {}", parent.display()))?;
        }
        Pending::create(path)
    }

    /// For every user to read, whatever the umask says.
    pub fn for_all(self) -> Result<Pending> {
        self.file.as_file().set_permissions(Permissions::from_mode(0o644))?;
        Ok(self)
    }

    pub fn commit(mut self, content: &[u8]) -> Result<()> {
        let path = self.path;
        let write = |file: &mut NamedTempFile| {
            file.write_all(content)?;
            file.as_file().sync_all()
        };
        write(&mut self.file).with_context(|| format!("cannot write {}", path.display()))?;
        self.file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_content_stays_until_the_new_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/file");
        Pending::create_all(&path).unwrap().commit(b"old").unwrap();
        drop(Pending::create(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        Pending::create(&path).unwrap().commit(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_link_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        Pending::create(&link).unwrap().commit(b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_at_once() {
        let error = Pending::create(Path::new("/nonexistent/curves.svg")).err().unwrap();
        assert!(error.to_string().contains("/nonexistent/curves.svg"));
        // It would be put in the place of the device.
        let error = Pending::create(Path::new("/dev/full")).err().unwrap();
        assert!(error.to_string().contains("no ordinary file"), "{error}");
    }
}
