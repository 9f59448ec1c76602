//! A file that its readers always see whole.

use std::path::Path;

use anyhow::Result;
use measure::pending::Pending;

/// Written beside the file, under a name that node_exporter does not read, and renamed. It is for
/// node_exporter, who is another user.
pub fn write(path: &Path, text: &str) -> Result<()> {
    Pending::create(path)?.for_all()?.commit(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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
