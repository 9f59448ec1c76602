//! A file that its readers always see whole.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Written beside the file, under a name that node_exporter does not read, and renamed.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path
        .parent()
        .filter(|folder| *folder != Path::new(""))
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    let mut file = tempfile::Builder::new()
        .prefix(".shortwire-")
        .suffix(".tmp")
        .tempfile_in(&folder)
        .with_context(|| format!("cannot make a file in {}", folder.display()))?;
    file.write_all(text.as_bytes())?;
    // node_exporter is another user.
    // By the file, not its name: the folder may be theirs, and another file there by now.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.prom");
        write(&path, "one\n").unwrap();
        write(&path, "two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("no/x.prom"), "").is_err());
    }
}
