//! A peer that has shaken hands as a true one does, and then owns a share of the memory: it may
//! write there what it likes, whenever it likes.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use rustix::fs::{SealFlags, fcntl_add_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{RecvFlags, accept, bind, connect, listen, recv};
use system_tests::{Deadline, bytes_sent, millis, secs};

use crate::channel::{address, hear_with, memory, name, say, seqpacket};

pub const PAGE: usize = 4096;
/// Bytes before the control page.
pub const FRONT: usize = 9 * PAGE;
const HEADER: usize = 64;
/// Of our own buffers: size code 2.
const SLOT: usize = 64 << 10;
/// Bytes behind each message that tell one stream from another.
const TRAILER: usize = 24;

/// Places of the words in a buffer's header, and how long they are. ARCHITECTURE.md, "Memory".
pub const WORDS: [(usize, usize); 10] =
    [(0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 4), (44, 4), (48, 4), (56, 8)];
pub const PROD: usize = 8;
pub const CONS: usize = 16;
pub const SWITCH: usize = 24;
pub const RX_ARM: usize = 32;
pub const RUNG: usize = 48;

/// A mapping of shared memory, written as another process writes it: past all rules of this one.
pub struct Shared {
    base: *mut u8,
    pub len: usize,
    pub fd: OwnedFd,
}

// SAFETY: the memory is reached by atomics and volatile accesses only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn map(fd: OwnedFd) -> Shared {
        let len = fstat(&fd).expect("its size").st_size as usize;
        // SAFETY: a new mapping.
        let base = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        };
        Shared { base: base.expect("memory that was given can be mapped").cast(), len, fd }
    }

    pub fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        // SAFETY: within the mapping and aligned; atomics may be shared with anybody.
        unsafe { &*self.base.add(at).cast() }
    }

    pub fn short(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= self.len && at.is_multiple_of(4));
        // SAFETY: as above.
        unsafe { &*self.base.add(at).cast() }
    }

    pub fn copy(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: within the mapping.
        (at..at + len).map(|i| unsafe { self.base.add(i).read_volatile() }).collect()
    }

    pub fn put(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len);
        // SAFETY: within the mapping.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.base.add(at), data.len()) };
    }

    /// Pages that hold anything, by the file's own account: an arena is mostly a hole.
    pub fn contents(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut at = 0;
        while let Ok(from) = rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Data(at)) {
            let to = rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Hole(from))
                .expect("the end of the data");
            all.extend(self.copy(from as usize, (to - from) as usize));
            at = to;
        }
        all
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Who the peer says it is.
#[derive(Clone, Copy)]
pub struct Claim {
    pub gid: [u8; 16],
    pub token: u64,
}

impl Claim {
    pub fn new(number: u64) -> Claim {
        let mut gid = [0x4d; 16];
        gid[8..].copy_from_slice(&number.to_be_bytes());
        Claim { gid, token: (number | 1 << 39) << 24 }
    }
}

/// What was said before there was any memory, or instead of it.
#[derive(Debug)]
pub struct Refusal {
    pub said: Vec<u8>,
    pub descriptors: usize,
}

pub struct Peer {
    pub conn: TcpStream,
    /// The arena in which our buffer at the victim lies, and where.
    pub theirs: Shared,
    pub at: usize,
    pub size: usize,
    pub token: u64,
    pub gid: [u8; 16],
    /// Our own arena, which the victim has mapped: its buffer is the first.
    pub ours: Shared,
    pos: u64,
}

/// A recorded Proposal, in the name of another and for another stream.
fn proposal(recorded: &[u8], claim: &Claim) -> Vec<u8> {
    let mut m = recorded[..recorded.len() - TRAILER].to_vec();
    let end = m.len() - 4;
    // A device takes 20 bytes, and its CHID is behind each half of its GID: ours is loopback,
    // wherever it stands.
    let loopback = |at: &usize| m[at + 8..at + 10] == [0xff; 2] && m[at + 18..at + 20] == [0xff; 2];
    let at = (1..=4).map(|n| end - 20 * n).find(loopback).expect("loopback among the devices");
    m[at..at + 8].copy_from_slice(&claim.gid[..8]);
    m[at + 10..at + 18].copy_from_slice(&claim.gid[8..]);
    m.extend(NOTHING);
    m
}

/// As if nothing had been sent or had arrived yet, which nobody can hold against us.
const NOTHING: [u8; TRAILER] = *b"SHORTW\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// An Accept or Confirm turned into ours: same choice, our device and buffer.
pub fn half(theirs: &[u8], kind: u8, claim: &Claim) -> Vec<u8> {
    let mut m = theirs[..theirs.len() - TRAILER].to_vec();
    m[4] = kind;
    m[8..16].copy_from_slice(&claim.gid[..8]);
    m[16..24].copy_from_slice(&claim.token.to_be_bytes());
    m[25] = m[25] & 0x0f | 2 << 4;
    m[66..74].copy_from_slice(&claim.gid[8..]);
    m.extend(NOTHING);
    m
}

pub fn arena() -> OwnedFd {
    let fd = memory((FRONT + 2 * PAGE + 16 * SLOT) as u64);
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
    fd
}

/// One echoed byte: each is an operation of the victim, at which it takes its steps.
pub fn nudge(conn: &mut TcpStream) -> bool {
    conn.write_all(b"n").is_ok() && conn.read_exact(&mut [0]).is_ok()
}

/// Nudges until `done` gives something.
fn until<T>(conn: &mut TcpStream, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Deadline::within(secs(30));
    while !end.is_over() {
        if let Some(found) = done() {
            return Some(found);
        }
        if !nudge(conn) {
            return None;
        }
    }
    None
}

/// The victim's Accept, to our Proposal; where the victim's end has the lower address.
pub fn propose(
    conn: &mut TcpStream,
    port: u16,
    recorded: &[u8],
    claim: &Claim,
) -> Option<(OwnedFd, Vec<u8>, Vec<OwnedFd>)> {
    let channel = seqpacket();
    let name = name(conn.local_addr().ok()?.port(), port);
    until(conn, || connect(&channel, &address(&name)).ok())?;
    say(&channel, &proposal(recorded, claim), &[]);
    let heard = until(conn, || hear_with(&channel))?;
    Some((channel, heard.0, heard.1))
}

impl Peer {
    /// Attaches to an echo server under Shortwire whose port is below ours.
    pub fn call(
        mut conn: TcpStream,
        port: u16,
        recorded: &[u8],
        claim: Claim,
    ) -> Result<Peer, Refusal> {
        let Some((channel, accept, mut fds)) = propose(&mut conn, port, recorded, &claim) else {
            return Err(Refusal { said: Vec::new(), descriptors: 0 });
        };
        if accept.get(4) != Some(&2) || fds.len() != 1 {
            return Err(Refusal { said: accept, descriptors: fds.len() });
        }
        let (theirs, ours) = (Shared::map(fds.remove(0)), Shared::map(arena()));
        say(&channel, &half(&accept, 3, &claim), &[ours.fd.as_fd()]);
        Peer::new(conn, accept, theirs, ours)
    }

    /// The same where the victim's end calls: `trap` holds the connection's name.
    pub fn answer(
        mut conn: TcpStream,
        trap: &OwnedFd,
        recorded: &[u8],
        claim: Claim,
    ) -> Result<Peer, Refusal> {
        let none = || Refusal { said: Vec::new(), descriptors: 0 };
        let channel = until(&mut conn, || accept(trap).ok()).ok_or_else(none)?;
        let proposal = until(&mut conn, || hear_with(&channel)).ok_or_else(none)?;
        if proposal.0.get(4) == Some(&4) {
            return Err(Refusal { said: proposal.0, descriptors: proposal.1.len() });
        }
        if proposal.0.is_empty() {
            return Err(none());
        }
        assert_eq!((proposal.0[4], proposal.1.len()), (1, 0), "a Proposal and no memory");
        let ours = Shared::map(arena());
        say(&channel, &half(recorded, 2, &claim), &[ours.fd.as_fd()]);
        let (said, mut fds) = until(&mut conn, || hear_with(&channel)).ok_or_else(none)?;
        if said.get(4) != Some(&3) || fds.len() != 1 {
            return Err(Refusal { said, descriptors: fds.len() });
        }
        let theirs = Shared::map(fds.remove(0));
        Peer::new(conn, said, theirs, ours)
    }

    fn new(
        mut conn: TcpStream,
        said: Vec<u8>,
        theirs: Shared,
        ours: Shared,
    ) -> Result<Peer, Refusal> {
        let token = u64::from_be_bytes(said[16..24].try_into().expect("a token"));
        let slot = 16usize << 10 << (said[25] >> 4);
        let at = FRONT + PAGE + (token & 0xff_ffff) as usize * slot;
        assert!(at + slot + PAGE <= theirs.len, "the buffer lies in the arena");
        // The victim's own sends wait until we have attached its buffer, if it is the one that
        // called.
        theirs.long(at).store(0xfe, SeqCst);
        let gid = [&said[8..16], &said[66..74]].concat().try_into().expect("a GID");
        // Operations of the victim, so that it reads the Confirm; its answers may come through the
        // ring by then.
        conn.set_read_timeout(Some(millis(20))).expect("a time limit");
        let end = Deadline::within(secs(30));
        while !end.is_over() && conn.write_all(b"n").is_ok() {
            let _ = conn.read_exact(&mut [0]);
            if ours.long(FRONT + PAGE + SWITCH).load(SeqCst) & 1 == 1 {
                return Ok(Peer {
                    conn,
                    theirs,
                    at,
                    size: slot - HEADER,
                    token,
                    gid,
                    ours,
                    pos: 0,
                });
            }
        }
        Err(Refusal { said, descriptors: 1 })
    }

    pub fn word(&self, at: usize) -> u64 {
        if matches!(at, 32..=52) {
            self.theirs.short(self.at + at).load(SeqCst).into()
        } else {
            self.theirs.long(self.at + at).load(SeqCst)
        }
    }

    /// One word of the header that the victim reads.
    pub fn set(&self, at: usize, value: u64) {
        if matches!(at, 32..=52) {
            self.theirs.short(self.at + at).store(value as u32, SeqCst)
        } else {
            self.theirs.long(self.at + at).store(value, SeqCst)
        }
    }

    /// Our sends leave TCP, as a true peer's would: where they stand.
    pub fn switch(&mut self) {
        self.set(SWITCH, bytes_sent(&self.conn) << 1 | 1);
    }

    /// Bytes into the victim's ring as a true peer writes them, with a doorbell.
    pub fn publish(&mut self, data: &[u8]) {
        for &byte in data {
            self.theirs.put(self.at + HEADER + (self.pos as usize % self.size), &[byte]);
            self.pos += 1;
        }
        let (lap, count) = (self.pos / self.size as u64, self.pos % self.size as u64);
        self.set(PROD, lap & 0xffff | count << 16);
        self.ring();
    }

    /// A doorbell, counted and sent.
    pub fn ring(&mut self) {
        self.theirs.short(self.at + RUNG).fetch_add(1, SeqCst);
        self.poke();
    }

    /// A byte on the TCP stream that nothing accounts for.
    pub fn poke(&mut self) {
        let _ = rustix::net::send(
            self.conn.as_fd(),
            &[0],
            rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
        );
    }

    /// Whether the victim has ended the connection.
    pub fn is_over(&self) -> bool {
        let mut junk = [0; 4096];
        loop {
            match recv(self.conn.as_fd(), &mut junk, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok(_) => {}
                Err(e) => return e != rustix::io::Errno::AGAIN,
            }
        }
    }

    /// Bytes that the victim had sent over TCP when its sends left it.
    pub fn switched_at(&self) -> u64 {
        self.ours.long(FRONT + PAGE + SWITCH).load(SeqCst) >> 1
    }

    /// What the victim has sent us, as far as its first lap goes.
    pub fn echoed(&self) -> Vec<u8> {
        let prod = self.ours.long(FRONT + PAGE + PROD).load(SeqCst);
        self.ours.copy(FRONT + PAGE + HEADER, ((prod >> 16) as u32 as usize).min(SLOT - HEADER))
    }
}

/// Takes the name of a connection whose other end will call.
pub fn trap(conn: &TcpStream, port: u16) -> OwnedFd {
    let trap = seqpacket();
    let own = conn.local_addr().expect("own address").port();
    bind(&trap, &address(&name(own, port))).expect("binding the name");
    listen(&trap, 4).expect("listening on it");
    trap
}
