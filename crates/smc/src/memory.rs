//! How much memory this process may have: the machine's, or that of its control groups where it is
//! less.

use alloc::vec;
use rustix::fs::{Mode, OFlags, open};

/// Longest path of a control group that is looked at.
const LONGEST: usize = 512;

/// Bytes of memory.
pub fn available() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    // Here and below not on the stack: the thread may have the least that there is.
    let mut groups = vec![0u8; 4096];
    let groups = read(b"/proc/self/cgroup", &mut groups);
    groups
        .split(|&byte| byte == b'\n')
        .filter_map(of_line)
        .fold(machine, |least, limit| limit.min(least))
}

/// The limit that a line of /proc/self/cgroup leads to, HIERARCHY:CONTROLLERS:PATH.
fn of_line(line: &[u8]) -> Option<u64> {
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, file): (&[u8], &[u8]) = match controllers {
        b"" => (b"/sys/fs/cgroup", b"memory.max"),
        _ if controllers.split(|&byte| byte == b',').any(|name| name == b"memory") => {
            (b"/sys/fs/cgroup/memory", b"memory.limit_in_bytes")
        }
        _ => return None,
    };
    least(root, path, |folder| {
        let mut name = vec![0u8; LONGEST + 64];
        let mut at = 0;
        for part in [folder, b"/", file] {
            name.get_mut(at..at + part.len())?.copy_from_slice(part);
            at += part.len();
        }
        number(read(&name[..at], &mut [0; 32]))
    })
}

/// The least limit of a group and of those it lies in, up to the root of what is mounted at `root`.
fn least(root: &[u8], path: &[u8], limit: impl Fn(&[u8]) -> Option<u64>) -> Option<u64> {
    let mut folder = vec![0u8; LONGEST];
    // In a container the path may be the one outside, of which nothing is mounted but the root.
    let mut len = if path == b"/" { 0 } else { path.len() };
    folder.get_mut(..root.len() + len)?.copy_from_slice(&[root, &path[..len]].concat());
    let mut least = None;
    loop {
        let found = limit(&folder[..root.len() + len]);
        least = match (least, found) {
            (Some(a), Some(b)) => Some(u64::min(a, b)),
            (a, b) => a.or(b),
        };
        if len == 0 {
            return least;
        }
        len = path[..len].iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    }
}

/// None for "max" and for what is no number.
fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text.trim_ascii_end()).ok()?.parse().ok()
}

/// The beginning of a file; nothing of one that cannot be read.
fn read<'a>(path: &[u8], into: &'a mut [u8]) -> &'a [u8] {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let n = file.ok().and_then(|file| rustix::io::read(file, &mut *into).ok()).unwrap_or(0);
    &into[..n]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let of = |folder: &[u8]| match folder {
            b"/root" => Some(900),
            b"/root/a" => Some(100),
            b"/root/a/b" => None,
            b"/root/a/b/c" => Some(500),
            other => panic!("{:?}", core::str::from_utf8(other)),
        };
        assert_eq!(least(b"/root", b"/a/b/c", of), Some(100));
        assert_eq!(least(b"/root", b"/", of), Some(900));
        assert_eq!(least(b"/root", b"/a", |_| None), None);
        assert_eq!(least(b"/root", &[b'x'; LONGEST], of), None);
    }

    #[test]
    fn what_the_files_say() {
        assert_eq!(number(b"1048576\n"), Some(1 << 20));
        assert_eq!(number(b"max\n"), None);
        assert_eq!(number(b""), None);
    }

    #[test]
    fn no_more_than_the_machine_has() {
        let info = rustix::system::sysinfo();
        let all = info.totalram as u64 * u64::from(info.mem_unit);
        assert!((1..=all).contains(&available()));
    }
}
