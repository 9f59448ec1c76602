//! A directory in which processes of different network namespaces meet, bind-mounted into all of
//! them.
//!
//! A socket there is named by what NAT seldom changes, the port of the end that opened the
//! connection, by a check over the first bytes that this end has sent, and by chance: no name is
//! ever taken twice, so that one whose owner was killed can be removed by anybody who finds it.
//! Names only say whom to ask first; who is who is found out by `meet::prove`.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::CStr;

use crate::channel::{self, NoSocket};
use crate::sys;

/// `PPPP-CCCC-RRRRRRRR` in hexadecimal digits: port, check, chance.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Name {
    /// Port of the end that opened the connection.
    pub port: u16,
    /// Of its first bytes; 0: fewer were seen.
    pub check: u16,
    /// Random.
    pub chance: u32,
}

const LEN: usize = 18;
/// Longest path of a directory: `sockaddr_un` has 108 bytes.
pub const LONGEST: usize = 108 - 1 - LEN - 1;
/// A socket that nobody listens on is left alone for so long: it may be about to be listened on.
const YOUNG: i64 = 10;
/// Most entries of the directory that are looked at, in bytes of their records.
const LOOKED_AT: usize = 256 << 10;

struct Path(UnsafeCell<([u8; LONGEST], usize)>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new(([0; LONGEST], 0)));

pub(crate) fn set(name: &[u8]) {
    // SAFETY: see `Path`.
    let (bytes, len) = unsafe { &mut *PATH.0.get() };
    // A relative path would be another directory after chdir.
    if name.starts_with(b"/")
        && let Some(place) = bytes.get_mut(..name.len())
    {
        place.copy_from_slice(name);
        *len = name.len();
    }
}

fn path() -> &'static [u8] {
    // SAFETY: see `Path`.
    let (bytes, len) = unsafe { &*PATH.0.get() };
    &bytes[..*len]
}

/// Whether the user named a directory.
pub fn is_set() -> bool {
    !path().is_empty()
}

impl Name {
    /// A name that nobody has.
    pub fn fresh(port: u16, check: u16) -> Name {
        Name { port, check, chance: random() as u32 | 1 }
    }

    /// In one word, which is not 0.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.chance) | u64::from(self.check) << 32 | u64::from(self.port) << 48
    }

    /// Back from `pack`; None from 0.
    pub(crate) fn unpack(word: u64) -> Option<Name> {
        (word != 0).then_some(Name {
            port: (word >> 48) as u16,
            check: (word >> 32) as u16,
            chance: word as u32,
        })
    }

    fn text(self) -> [u8; LEN] {
        let mut text = [b'-'; LEN];
        let mut hex = |at: usize, digits: usize, value: u32| {
            for i in 0..digits {
                text[at + i] = b"0123456789abcdef"[(value >> (4 * (digits - 1 - i))) as usize & 15];
            }
        };
        hex(0, 4, self.port.into());
        hex(5, 4, self.check.into());
        hex(10, 8, self.chance);
        text
    }

    fn parse(text: &[u8]) -> Option<Name> {
        let text: &[u8; LEN] = text.try_into().ok()?;
        let hex = |part: &[u8]| {
            part.iter().try_fold(0u32, |n, &c| match c {
                b'0'..=b'9' => Some(n << 4 | u32::from(c - b'0')),
                b'a'..=b'f' => Some(n << 4 | u32::from(c - b'a' + 10)),
                _ => None,
            })
        };
        (text[4] == b'-' && text[9] == b'-').then_some(())?;
        Some(Name {
            port: hex(&text[..4])? as u16,
            check: hex(&text[5..9])? as u16,
            chance: hex(&text[10..])?,
        })
    }

    fn address(self) -> ([u8; 110], u32) {
        let mut raw = [0u8; 110];
        raw[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        let parts = path().iter().chain(b"/").chain(&self.text()).copied().collect::<Text>();
        raw[2..2 + parts.1].copy_from_slice(&parts.0[..parts.1]);
        (raw, (2 + parts.1 + 1) as u32)
    }

    /// Listens under it; the hidden descriptor.
    pub fn listen(self) -> Result<i32, NoSocket> {
        channel::listen_at(&self.address())
    }

    /// Calls whoever listens under it, if that is a socket of our own user's and not a way to
    /// somewhere else. A name whose owner is gone is removed.
    pub fn connect(self) -> Result<i32, NoSocket> {
        if self.made().is_none_or(|(_, owner)| owner != rustix::process::geteuid().as_raw()) {
            return Err(NoSocket::Failed);
        }
        let r = channel::connect_to(&self.address());
        if r == Err(NoSocket::Refused) && self.is_old() {
            self.remove();
        }
        r
    }

    /// Takes the name away.
    pub fn remove(self) {
        let (raw, _) = self.address();
        if let Ok(path) = CStr::from_bytes_until_nul(&raw[2..]) {
            sys::unlink(path);
        }
    }

    /// When it was made, in seconds, and whose it is; None if it is no socket.
    fn made(self) -> Option<(i64, u32)> {
        let (raw, _) = self.address();
        let st =
            sys::stat_path(CStr::from_bytes_until_nul(&raw[2..]).ok()?, libc::AT_SYMLINK_NOFOLLOW)?;
        (st.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some((st.st_mtime, st.st_uid))
    }

    /// Whether it is a socket that was made a while ago.
    fn is_old(self) -> bool {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is live.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
        self.made().is_some_and(|(at, _)| now.tv_sec - at > YOUNG)
    }

    /// Whether its owner is gone. A socket of another type is refused for its type if somebody
    /// holds the name, so that who listens does not notice.
    fn is_stale(self) -> bool {
        let (raw, len) = self.address();
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0) as i32;
        if fd < 0 {
            return false;
        }
        let r = sys::connect(fd, &raw[..len as usize]);
        sys::close(fd);
        r == -(libc::ECONNREFUSED as isize) && self.is_old()
    }
}

/// Bytes of a path.
struct Text([u8; 108], usize);

impl FromIterator<u8> for Text {
    fn from_iter<I: IntoIterator<Item = u8>>(all: I) -> Self {
        let mut text = Text([0; 108], 0);
        for byte in all.into_iter().take(107) {
            text.0[text.1] = byte;
            text.1 += 1;
        }
        text
    }
}

pub(crate) fn random() -> u64 {
    sys::random().unwrap_or_else(|| sys::now_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Calls `see` for each name in the directory, or as many as are looked at.
fn each(mut see: impl FnMut(Name)) -> Result<(), NoSocket> {
    let mut dir = [0u8; LONGEST + 1];
    dir[..path().len()].copy_from_slice(path());
    let Ok(dir) = CStr::from_bytes_until_nul(&dir) else { return Ok(()) };
    let fd = sys::open(dir, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK, 0);
    if fd < 0 {
        return Err(NoSocket::of(-fd));
    }
    entries(fd, |name| Name::parse(name).into_iter().for_each(&mut see));
    sys::close(fd);
    Ok(())
}

/// Calls `see` with the name of each entry of an open directory, or as many as are looked at.
pub(crate) fn entries(fd: i32, mut see: impl FnMut(&[u8])) {
    let mut records = [0u64; 512];
    let mut looked = 0;
    while looked < LOOKED_AT {
        let n = sys::read_folder(fd, &mut records);
        if n <= 0 {
            break;
        }
        looked += n as usize;
        // SAFETY: the bytes of `records`, which the kernel has filled.
        let bytes =
            unsafe { core::slice::from_raw_parts(records.as_ptr().cast::<u8>(), n as usize) };
        let mut at = 0;
        // linux_dirent64: inode, offset, length of the record (2 bytes at 16), type, name.
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() > 19) {
            let len = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
            let name = rest.get(19..len).unwrap_or_default();
            name.split(|&b| b == 0).next().into_iter().for_each(&mut see);
            at += len.max(1);
        }
    }
}

/// Whom to ask for the other end of a connection that this end opened: those whose port is ours
/// first, then some where the port was changed on the way but the bytes fit. None of `tried`. How
/// many of `out` were filled.
pub fn candidates(
    port: u16,
    check: u16,
    tried: &[u32],
    out: &mut [Name; 4],
) -> Result<usize, NoSocket> {
    const FAR: usize = 1;
    let mut near = 0;
    let mut far = (0u64, Name::default());
    each(|name| {
        if tried.contains(&name.chance) {
            return;
        }
        if name.port == port && near < out.len() - FAR {
            out[near] = name;
            near += 1;
        } else if name.port != port && check != 0 && name.check == check {
            // Each with the same probability.
            far.0 += 1;
            if random().is_multiple_of(far.0) {
                far.1 = name;
            }
        }
    })?;
    if far.0 > 0 {
        out[near] = far.1;
        near += 1;
    }
    Ok(near)
}

/// Removes what killed processes have left, a few at a time.
pub fn sweep() {
    let mut found = [Name::default(); 32];
    let mut n = 0u64;
    let _ = each(|name| {
        n += 1;
        let at = if n <= 32 { n - 1 } else { random() % n };
        if let Some(place) = found.get_mut(at as usize) {
            *place = name;
        }
    });
    found.iter().take(n as usize).filter(|name| name.is_stale()).for_each(|name| name.remove());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in [
            Name { port: 80, check: 0xbeef, chance: 7 },
            Name { port: 65535, check: 0, chance: u32::MAX },
        ] {
            assert_eq!(Name::parse(&name.text()), Some(name));
            assert_eq!(Name::unpack(name.pack()), Some(name));
        }
        for bad in [
            &b"0050-beef-0000000"[..],
            b"0050-beef-000000070",
            b"0050_beef-00000007",
            b"0050-BEEF-00000007",
            b"",
        ] {
            assert_eq!(Name::parse(bad), None);
        }
    }
}
