//! What the memif target does with its input: a peer of either role that says what it likes, hands
//! memory over that it likes, and writes into it what it likes.

use engine::apps::memif::{Memif, MemifArgs};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::table::{Script, Table};

const MEMORY: u64 = 1 << 14;
/// Entries of the rings of an honest client, and where they and their buffers lie.
const LOG2: u8 = 3;
const RING: u32 = 128 + 16 * 8;
const BUFFERS: u32 = 0x1000;
const BUFFER: u32 = 256;
const COOKIE: u32 = 0x03e3_1f20;

/// The other side of the app.
struct Peer {
    listener: Option<OwnedFd>,
    socket: Option<OwnedFd>,
    /// A client's own, or what a server was handed.
    memory: OwnedFd,
    bell: OwnedFd,
}

fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

fn memory() -> OwnedFd {
    let memory = memfd_create(c"peer", MemfdFlags::ALLOW_SEALING).expect("memory");
    ftruncate(&memory, MEMORY).expect("memory");
    fcntl_add_seals(&memory, SealFlags::SHRINK).expect("seals");
    memory
}

impl Peer {
    fn new(path: &Path, serves: bool) -> Self {
        let listener = serves.then(|| {
            let socket = seqpacket();
            bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("a name");
            listen(&socket, 4).expect("a listener");
            socket
        });
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        Self { listener, socket: None, memory: memory(), bell }
    }

    /// A connection, if there is none.
    fn meet(&mut self, path: &Path) {
        if self.socket.is_some() {
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.socket = match &self.listener {
            Some(listener) => accept_with(listener, flags).ok(),
            None => {
                let socket = seqpacket();
                let address = SocketAddrUnix::new(path).expect("a path");
                connect(&socket, &address).is_ok().then_some(socket)
            }
        };
    }

    fn send(&mut self, bytes: &[u8], file: Option<BorrowedFd>) {
        let Some(socket) = &self.socket else { return };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        if sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags).is_err() {
            self.socket = None;
        }
    }

    fn say(&mut self, kind: u16, body: &[u8], file: u8) {
        let mut message = [0; 128];
        message[..2].copy_from_slice(&kind.to_ne_bytes());
        let length = body.len().min(126);
        message[2..2 + length].copy_from_slice(&body[..length]);
        let copy = match file {
            1 => self.memory.try_clone().ok(),
            2 => self.bell.try_clone().ok(),
            _ => None,
        };
        self.send(&message, copy.as_ref().map(AsFd::as_fd));
    }

    /// Reads what the app says; memory that comes is this peer's from then on.
    fn read(&mut self) {
        let Some(socket) = &self.socket else { return };
        for _ in 0..200 {
            let mut bytes = [0; 128];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            let Ok(got) = recvmsg(socket, parts, &mut ancillary, flags) else { return };
            if got.bytes == 0 {
                self.socket = None;
                return;
            }
            let file = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                _ => None,
            });
            match (u16::from_ne_bytes([bytes[0], bytes[1]]), file) {
                (4, Some(file)) => self.memory = file,
                (5, Some(file)) => self.bell = file,
                _ => {}
            }
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let fitting = bytes.len().min(MEMORY.saturating_sub(at) as usize);
        let _ = pwrite(&self.memory, &bytes[..fitting], at);
    }

    /// What a client lays out and says that plays by the rules: a ring each way.
    fn start_as_client(&mut self) {
        for (ring, at) in [(0, 0), (1, RING)] {
            let head = if ring == 0 { 0_u16 } else { 8 };
            let words = [COOKIE.to_ne_bytes(), [0, 0, head.to_ne_bytes()[0], 0]].concat();
            self.write(at.into(), &words);
            self.write(u64::from(at) + 64, &[0; 2]);
            for slot in 0..8 {
                let buffer = BUFFERS + (ring * 8 + slot) * BUFFER;
                let words = [0, BUFFER, buffer, 0].map(u32::to_ne_bytes).concat();
                self.write(u64::from(at + 128 + 16 * slot), &words);
            }
        }
        let mut init = [&0x200_u16.to_ne_bytes()[..], &[0; 4], &[0], &[0; 24]].concat();
        init.extend(*b"fuzz");
        self.say(3, &init, 0);
        self.say(4, &[&[0, 0][..], &MEMORY.to_ne_bytes()].concat(), 1);
        for (flags, at) in [(1_u16, 0_u32), (0, RING)] {
            let ring = [&flags.to_ne_bytes()[..], &[0; 4], &at.to_ne_bytes(), &[LOG2, 0, 0]];
            self.say(5, &ring.concat(), 2);
        }
        self.say(6, b"fuzz", 0);
    }

    /// What a server says that plays by the rules.
    fn start_as_server(&mut self, connected: bool) {
        if connected {
            return self.say(7, b"fuzz", 0);
        }
        let words = [0x200_u16, 0x200, 255, 3, 3].map(u16::to_ne_bytes).concat();
        self.say(2, &[&[0; 32][..], &words, &[LOG2]].concat(), 0);
    }
}

/// Whatever is said and written, the app goes on, sends nothing but whole packets, and loses none
/// of its own. Returns how many packets came from the peer.
pub fn peer(bytes: &[u8]) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let (serves, mut script) = (first & 1 != 0, Script(rest));
    let mut peer = Peer::new(&path, serves);
    let args = MemifArgs {
        path: path.clone(),
        listen: !serves,
        id: 0,
        secret: String::new(),
        queues: 1 + u16::from(first >> 1 & 3),
        ring: 8,
        buffer: 256,
        unsealed: false,
    };
    let mut table = Table::<Memif>::new(args);
    while let Some(step) = script.byte() {
        peer.meet(&path);
        match step {
            0 if serves => peer.start_as_server(script.byte().is_some_and(|byte| byte & 1 != 0)),
            0 => peer.start_as_client(),
            // A message with a descriptor of memory, of an eventfd, or none.
            1..=3 => {
                let Some(kind) = script.byte() else { break };
                let Some(body) = script.bytes() else { break };
                peer.say(kind.into(), body, step % 3);
            }
            // Anything at all.
            4 => {
                let Some(bytes) = script.bytes() else { break };
                peer.send(bytes, None);
            }
            // The peer writes into the memory.
            5 => {
                let Some((at, bytes)) = script.place() else { break };
                peer.write(at, bytes);
            }
            6 => table.send(usize::from(script.byte().unwrap_or(60)).max(1)),
            // An honest word: so many entries more are sent, by whichever index is the peer's.
            7 => {
                let at: u64 = if serves { u64::from(RING) + 64 } else { 6 };
                let mut word = [0; 2];
                let _ = pread(&peer.memory, &mut word, at);
                let more = u16::from(script.byte().unwrap_or(1));
                peer.write(at, &u16::from_ne_bytes(word).wrapping_add(more).to_ne_bytes());
            }
            8 => peer.socket = None,
            // The file is cut off, as far as its seals let it.
            9 => drop(ftruncate(&peer.memory, 0)),
            _ => {
                table.tick();
                peer.meet(&path);
                peer.read();
                table.breathe();
            }
        }
    }
    table.end()
}
