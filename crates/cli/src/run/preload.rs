//! The value of LD_PRELOAD: ours first, what was there kept.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Ours comes first, so that calls of other preloaded libraries pass through it too. A nested `run`
/// adds nothing.
pub fn compose(library: &Path, existing: Option<&OsStr>) -> OsString {
    let ours = library.as_os_str().as_bytes();
    let mut value = ours.to_vec();
    for entry in existing.unwrap_or_default().as_bytes().split(is_separator) {
        if !entry.is_empty() && entry != ours {
            value.push(b':');
            value.extend_from_slice(entry);
        }
    }
    OsString::from_vec(value)
}

/// The dynamic loader knows no way to quote these.
pub fn can_be_named(library: &Path) -> bool {
    !library.as_os_str().as_bytes().iter().any(is_separator)
}

fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(existing: Option<&str>) -> String {
        compose(Path::new("/opt/lib/libshortwire.so"), existing.map(OsStr::new))
            .into_string()
            .unwrap()
    }

    #[test]
    fn alone() {
        assert_eq!(composed(None), "/opt/lib/libshortwire.so");
        assert_eq!(composed(Some("")), "/opt/lib/libshortwire.so");
    }

    #[test]
    fn others_are_kept_behind_ours() {
        assert_eq!(composed(Some("libjemalloc.so.2")), "/opt/lib/libshortwire.so:libjemalloc.so.2");
        assert_eq!(composed(Some("a.so b.so::c.so ")), "/opt/lib/libshortwire.so:a.so:b.so:c.so");
    }

    #[test]
    fn nesting_changes_nothing() {
        assert_eq!(composed(Some("/opt/lib/libshortwire.so")), "/opt/lib/libshortwire.so");
        assert_eq!(
            composed(Some("a.so:/opt/lib/libshortwire.so")),
            "/opt/lib/libshortwire.so:a.so"
        );
    }

    #[test]
    fn separators_cannot_be_named() {
        assert!(can_be_named(Path::new("/opt/lib/libshortwire.so")));
        assert!(!can_be_named(Path::new("/opt/my lib/libshortwire.so")));
        assert!(!can_be_named(Path::new("/opt/a:b/libshortwire.so")));
    }
}
