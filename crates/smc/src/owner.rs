//! Whose the other end of a connection is, where netlink is not to be had: by the kernel's list of
//! connections in /proc, which has to be read from its beginning.
//!
//! That takes milliseconds, so it is done seldom: each reading answers for all connections that
//! have asked by then, and takes so small a share of the time.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shm::Guarded;

use crate::inet::Addr;
use crate::{sys, user};

/// Of the time, one part in so many is spent on reading.
const SHARE: u64 = 32;
/// Connections that wait for an answer at a time; more drive out the oldest ones.
const MOST: usize = 256;

/// What is known of the owner of a connection's other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This user; nobody has accepted it yet, or there is no such connection.
    Is(Option<u32>),
    /// To be asked again.
    NotYet,
    /// The list cannot be read.
    Unknown,
}

/// A connection that asks, by a number that it has made up.
struct Ask {
    number: u64,
    /// How its other end stands in the lists of IPv4 and of IPv6.
    rows: [Vec<u8>; 2],
    found: Option<Option<u32>>,
}

static ASKED: Guarded<Vec<Ask>> = Guarded::new();
/// When the list may be read again, in nanoseconds.
static AGAIN: AtomicU64 = AtomicU64::new(0);

/// Who owns the other end of the connection of these names, as it asks under this number.
pub fn of(number: u64, names: &[Addr; 2]) -> Owner {
    let asked = ASKED.with(|list| {
        if let Some(at) = list.iter().position(|ask| ask.number == number) {
            if let Some(owner) = list[at].found {
                list.swap_remove(at);
                return Owner::Is(owner);
            }
        } else {
            if list.len() == MOST {
                list.remove(0);
            }
            list.push(Ask { number, rows: rows(names), found: None });
        }
        let began = sys::now_ns();
        if began < AGAIN.load(Relaxed) {
            return Owner::NotYet;
        }
        let could = [c"/proc/thread-self/net/tcp", c"/proc/thread-self/net/tcp6"]
            .iter()
            .enumerate()
            .map(|(family, path)| look(path, |row| note(list, family, row)))
            .fold(false, |any, one| any | one);
        let now = sys::now_ns();
        AGAIN.store(now + (now - began) * SHARE, Relaxed);
        list.iter_mut().filter(|_| could).for_each(|ask| {
            ask.found.get_or_insert(None);
        });
        let Some(at) = list.iter().position(|ask| ask.number == number) else {
            return Owner::NotYet;
        };
        let owner = list.swap_remove(at).found;
        owner.map_or(Owner::Unknown, Owner::Is)
    });
    asked.unwrap_or(Owner::NotYet)
}

/// Addresses and ports of the other end, which sees them the other way round, as the lists have
/// them; nothing in a list in which it cannot be.
fn rows([local, peer]: &[Addr; 2]) -> [Vec<u8>; 2] {
    let row = |digits: usize| {
        let end = |addr: &Addr| {
            let ip = addr.mapped();
            let words = ip[16 - digits / 2..].as_chunks::<4>().0.iter();
            let words = words.map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
            format!("{}:{:04X} ", words.collect::<String>(), addr.port)
        };
        (end(peer) + &end(local)).into_bytes()
    };
    let is_v4 = local.mapped()[..12] == peer.mapped()[..12] && local.mapped()[10..12] == [0xff; 2];
    [if is_v4 { row(8) } else { Vec::new() }, row(32)]
}

/// A row of the list of this family, without its number: of whom who asks is it?
fn note(list: &mut [Ask], family: usize, row: &[u8]) {
    let is = |ask: &&mut Ask| !ask.rows[family].is_empty() && row.starts_with(&ask.rows[family]);
    let Some(ask) = list.iter_mut().find(is) else { return };
    let rest = row.get(ask.rows[family].len()..).unwrap_or_default();
    let mut words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let number = |word: Option<&[u8]>| core::str::from_utf8(word?).ok()?.parse::<u32>().ok();
    // State, queues, timer, retransmissions, user, timeout, inode.
    let (owner, inode) = (number(words.nth(4)), number(words.nth(1)));
    if inode != Some(0) {
        ask.found = Some(owner);
    }
}

/// Shows the rows of a list; false if it cannot be read.
fn look(path: &CStr, mut see: impl FnMut(&[u8])) -> bool {
    let Some(fd) = user::open_proc(path) else { return false };
    let mut buffer = vec![0u8; 16 << 10];
    let mut len = 0;
    loop {
        let n = sys::read(fd, &mut buffer[len..]);
        if n <= 0 {
            break;
        }
        len += n as usize;
        let whole = buffer[..len].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in buffer[..whole].split(|&byte| byte == b'\n') {
            let number = line.iter().position(|&byte| byte == b':');
            number.and_then(|at| line.get(at + 2..)).into_iter().for_each(&mut see);
        }
        buffer.copy_within(whole..len, 0);
        len -= whole;
    }
    sys::close(fd);
    true
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// The list, and the time from which on it may be read, are the process's.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// As soon as the list may be read.
    fn owner(number: u64, names: &[Addr; 2]) -> Owner {
        loop {
            match of(number, names) {
                Owner::NotYet => std::thread::sleep(std::time::Duration::from_millis(1)),
                owner => return owner,
            }
        }
    }

    #[test]
    fn the_owner_is_in_the_list_once_it_has_accepted() {
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let names = crate::inet::names(client.as_raw_fd()).unwrap();
            assert_eq!(owner(1, &names), Owner::Is(None), "nobody has accepted it");
            let (server, _) = listener.accept().unwrap();
            assert_eq!(owner(2, &names), Owner::Is(Some(own)));
            let back = crate::inet::names(server.as_raw_fd()).unwrap();
            assert_eq!(owner(3, &back), Owner::Is(Some(own)));
            let nobodys = [names[0], Addr { port: 1, ..names[1] }];
            assert_eq!(owner(4, &nobodys), Owner::Is(None));
        }
    }

    #[test]
    fn one_reading_answers_for_all_who_have_asked() {
        let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let clients: Vec<_> =
            (0..20).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
        let _servers: Vec<_> = (0..20).map(|_| listener.accept().unwrap()).collect();
        AGAIN.store(u64::MAX, Relaxed);
        let all = || clients.iter().enumerate();
        let names = |client: &TcpStream| crate::inet::names(client.as_raw_fd()).unwrap();
        for (i, client) in all() {
            assert_eq!(of(100 + i as u64, &names(client)), Owner::NotYet);
        }
        AGAIN.store(0, Relaxed);
        assert!(matches!(of(100, &names(&clients[0])), Owner::Is(Some(_))));
        for (i, client) in all().skip(1) {
            assert!(matches!(of(100 + i as u64, &names(client)), Owner::Is(Some(_))), "{i}");
        }
    }
}
