//! Whether Shortwire is switched off: for all users by a file of root's, for one by a file of its
//! own. `shortwire off` makes them, and tells the tables of processes that run (`table`); who makes
//! a table looks here.

use core::ffi::CStr;

use crate::{run_dir, sys};

/// Root's file.
pub const OF_ALL: &CStr = c"/run/shortwire.off";

/// The user's own file: its path, and NULs behind it.
pub fn of_user(uid: u32) -> [u8; 192] {
    run_dir::path(b"shortwire-off-", uid)
}

/// Whether a file there was made by root or by this user: the folder may be everybody's.
fn is_there(path: &CStr, uid: u32) -> bool {
    sys::stat_path(path, libc::AT_SYMLINK_NOFOLLOW).is_some_and(|st| {
        st.st_mode & libc::S_IFMT == libc::S_IFREG && [0, uid].contains(&st.st_uid)
    })
}

/// Whether root has switched it off for all users.
pub fn is_for_all() -> bool {
    is_there(OF_ALL, 0)
}

/// Whether a user has switched it off.
pub fn is_for(uid: u32) -> bool {
    CStr::from_bytes_until_nul(&of_user(uid)).is_ok_and(|path| is_there(path, uid))
}
