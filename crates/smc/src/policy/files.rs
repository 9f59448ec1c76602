//! Which configuration files there are, and whether they are to be trusted: those of root and of
//! the user whom the program runs as, that nobody else can write.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::fmt;

use super::syntax::LONGEST;
use crate::{directory, sys};

/// The system's file; `.d` behind it is the folder of further ones.
pub const SYSTEM: &[u8] = b"/etc/shortwire.conf";
/// Files of that folder that are read at most.
const MOST: usize = 256;

/// Where files are looked for.
#[derive(Clone, Default)]
pub struct Places {
    /// `$SHORTWIRE_CONFIG`; empty: none.
    pub named: Vec<u8>,
    /// The user's; empty: none.
    pub own: Vec<u8>,
    /// `SYSTEM`, but in tests.
    pub system: Vec<u8>,
}

impl Places {
    /// By the variables of a program's environment, which `variable` tells.
    pub fn of<'a>(variable: impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        let set = |name| variable(name).filter(|value: &&[u8]| !value.is_empty());
        let own = match (set("XDG_CONFIG_HOME"), set("HOME")) {
            (Some(folder), _) => [folder, b"/shortwire.conf"].concat(),
            (None, Some(home)) => [home, b"/.config/shortwire.conf"].concat(),
            (None, None) => Vec::new(),
        };
        let named = set("SHORTWIRE_CONFIG").unwrap_or_default().to_vec();
        // A relative one would be another file in another folder.
        let own = if own.starts_with(b"/") { own } else { Vec::new() };
        Self { named, own, system: SYSTEM.to_vec() }
    }
}

/// Why a file is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// There is none, where one was named.
    Missing,
    /// This errno.
    Error(i32),
    /// A folder, a device or the like.
    NoFile,
    /// Neither root's nor the user's, but this one's.
    Owner(u32),
    /// The group, or everybody, can write it.
    Writable,
    /// More than `LONGEST` bytes, or too many files.
    TooLong,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Unread::Missing => {
                f.write_str("there is no such file: create it, or unset SHORTWIRE_CONFIG")
            }
            Unread::Error(libc::EACCES) => {
                f.write_str("this user may not read it: chmod a+r it, and a+rx its folders")
            }
            Unread::Error(errno) => write!(f, "cannot be read (errno {errno})"),
            Unread::NoFile => f.write_str("is not a regular file: put one there"),
            Unread::Owner(uid) => write!(
                f,
                "belongs to user {uid}, who could change it: chown it to root or to the user of the program"
            ),
            Unread::Writable => f.write_str("others can write it: chmod go-w it"),
            Unread::TooLong => write!(
                f,
                "is longer than {} KiB, or one of more than {MOST} files: make it shorter",
                LONGEST >> 10
            ),
        }
    }
}

/// A file that counts.
pub struct File {
    /// Where it is.
    pub path: Vec<u8>,
    /// What it says.
    pub text: Vec<u8>,
}

/// A file that was found and does not count.
pub struct Refused {
    /// Where it is.
    pub path: Vec<u8>,
    /// Why it does not count.
    pub why: Unread,
    /// Whether programs go on as if it were not there. Of others they do not know what it says: it
    /// may be there to keep programs apart, so they share memory with nobody.
    pub harmless: bool,
}

/// All that there are.
#[derive(Default)]
pub struct Found {
    /// In the order in which they count.
    pub files: Vec<File>,
    /// The others.
    pub refused: Vec<Refused>,
}

impl Found {
    /// Reads them, for a program of this user.
    pub fn read(places: &Places, user: u32) -> Self {
        let mut found = Found::default();
        if !places.named.is_empty() {
            let must = |text: Option<Vec<u8>>| text.ok_or(Unread::Missing);
            found.take(&places.named, read(&places.named, user).and_then(must).map(Some), false);
        }
        // Another user's, whose HOME was kept by su or sudo, says nothing about this one.
        found.take(&places.own, read(&places.own, user), true);
        let folder = [&places.system, &b".d"[..]].concat();
        match names(&folder) {
            Ok(mut names) => {
                names.sort_unstable();
                for name in names {
                    let path = [&folder, &b"/"[..], &name].concat();
                    let text = if found.files.len() < MOST {
                        read(&path, 0)
                    } else {
                        Err(Unread::TooLong)
                    };
                    found.take(&path, text, false);
                }
            }
            Err(why) => found.take(&folder, Err(why), false),
        }
        found.take(&places.system, read(&places.system, 0), false);
        found
    }

    fn take(&mut self, path: &[u8], text: Result<Option<Vec<u8>>, Unread>, harmless: bool) {
        match text {
            Ok(Some(text)) => self.files.push(File { path: path.to_vec(), text }),
            Ok(None) => {}
            Err(why) => self.refused.push(Refused { path: path.to_vec(), why, harmless }),
        }
    }

    /// Whether one is there of which nobody knows what it says.
    pub fn is_broken(&self) -> bool {
        self.refused.iter().any(|file| !file.harmless)
    }
}

/// The same bytes with a NUL behind them; None if there is one among them.
fn open(path: &[u8], flags: i32) -> Result<Option<i32>, Unread> {
    let path = [path, b"\0"].concat();
    let Ok(path) = CStr::from_bytes_with_nul(&path) else {
        return Err(Unread::Error(libc::EINVAL));
    };
    // Not a terminal, and not for the other end of a pipe.
    match sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | flags, 0) {
        fd @ 0.. => Ok(Some(fd)),
        e if [libc::ENOENT, libc::ENOTDIR].contains(&-e) => Ok(None),
        e => Err(Unread::Error(-e)),
    }
}

/// A file of root's or of this user's; None if there is none.
fn read(path: &[u8], user: u32) -> Result<Option<Vec<u8>>, Unread> {
    if path.is_empty() {
        return Ok(None);
    }
    // Looked at before it is opened: a link of somebody else's may lead root to a device that does
    // something when it is opened, or closed.
    let Some(place) = open(path, libc::O_PATH)? else { return Ok(None) };
    let text = trusted(place, user).and_then(|()| {
        match open(format!("/proc/self/fd/{place}").as_bytes(), 0)? {
            Some(fd) => {
                let text = all(fd);
                sys::close(fd);
                text
            }
            None => Err(Unread::NoFile),
        }
    });
    sys::close(place);
    text.map(Some)
}

fn trusted(fd: i32, user: u32) -> Result<(), Unread> {
    let Some(st) = sys::stat(fd) else { return Err(Unread::NoFile) };
    match () {
        () if st.st_mode & libc::S_IFMT != libc::S_IFREG => Err(Unread::NoFile),
        () if st.st_uid != 0 && st.st_uid != user => Err(Unread::Owner(st.st_uid)),
        () if st.st_mode & 0o022 != 0 => Err(Unread::Writable),
        () => Ok(()),
    }
}

fn all(fd: i32) -> Result<Vec<u8>, Unread> {
    let mut text = vec![0; LONGEST + 1];
    let mut len = 0;
    loop {
        match sys::read(fd, &mut text[len..]) {
            0 => break,
            n @ 1.. => len += n as usize,
            e if e == -(libc::EINTR as isize) => {}
            e => return Err(Unread::Error(-e as i32)),
        }
        if len > LONGEST {
            return Err(Unread::TooLong);
        }
    }
    text.truncate(len);
    Ok(text)
}

/// The names in a folder that end in .conf, and do not begin with a dot.
fn names(folder: &[u8]) -> Result<Vec<Vec<u8>>, Unread> {
    let Some(fd) = open(folder, libc::O_DIRECTORY)? else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    directory::entries(fd, |name| {
        if name.ends_with(b".conf") && !name.starts_with(b".") {
            names.push(name.to_vec());
        }
    });
    sys::close(fd);
    Ok(names)
}

/// What /etc/passwd says; nothing if it is longer than anybody's.
pub fn passwd() -> Vec<u8> {
    let Ok(Some(fd)) = open(b"/etc/passwd", 0) else { return Vec::new() };
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while text.len() < 16 << 20 {
        match sys::read(fd, &mut part) {
            n @ 1.. => text.extend_from_slice(&part[..n as usize]),
            _ => break,
        }
    }
    sys::close(fd);
    text
}
