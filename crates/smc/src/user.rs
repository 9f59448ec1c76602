//! Users, as this process sees them.

use core::ffi::CStr;

use crate::sys;

/// What any user is called who has no name in a user namespace; outside of one also a user of its
/// own, `nobody`.
pub const NOBODY: u32 = 65_534;

/// Whether it is one certain user, rather than any that our user namespace does not know.
pub fn is_somebody(uid: u32) -> bool {
    uid != NOBODY || all_have_names()
}

/// Whether it is our own effective user.
pub fn is_own(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() && is_somebody(uid)
}

/// Whether each user has a number here, as outside of all user namespaces. Looked up each time: a
/// program may enter a user namespace whenever it likes.
fn all_have_names() -> bool {
    let mut text = [0u8; 128];
    read_proc(c"/proc/self/uid_map", &mut text).is_some_and(|text| {
        let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        words.eq([&b"0"[..], b"0", b"4294967295"])
    })
}

/// A file of /proc; None if it is not the kernel's: in another root directory somebody may have put
/// one there.
pub(crate) fn open_proc(path: &CStr) -> Option<i32> {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    let fd = sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK, 0);
    if fd >= 0 && sys::file_system_of(fd) != Some(PROC_SUPER_MAGIC) {
        sys::close(fd);
        return None;
    }
    (fd >= 0).then_some(fd)
}

/// The beginning of a file of /proc, as much as one read gives.
fn read_proc<'a>(path: &CStr, to: &'a mut [u8]) -> Option<&'a [u8]> {
    let fd = open_proc(path)?;
    let n = sys::read(fd, to);
    sys::close(fd);
    usize::try_from(n).ok().and_then(|n| to.get(..n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_user_namespaces_nobody_is_a_user() {
        let own = std::fs::read_to_string("/proc/self/uid_map").expect("the map");
        let all = own.split_whitespace().eq(["0", "0", "4294967295"]);
        assert_eq!(is_somebody(NOBODY), all);
        assert!(is_somebody(0) && is_somebody(NOBODY - 1));
    }

    #[test]
    fn what_is_not_the_kernels_is_not_believed() {
        let file = std::env::temp_dir().join(format!("shortwire-uid-map-{}", std::process::id()));
        std::fs::write(&file, "0 0 4294967295\n").expect("a file");
        let path = std::ffi::CString::new(file.to_str().expect("a path")).expect("a path");
        assert_eq!(read_proc(&path, &mut [0; 64]), None);
        assert!(read_proc(c"/proc/self/uid_map", &mut [0; 64]).is_some());
        std::fs::remove_file(file).expect("it is there");
    }
}
