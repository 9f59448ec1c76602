//! What the vhost-user target does with its input: a front end and a guest that say and write what
//! they like.

use engine::apps::vhost_user::{VhostUser, VhostUserArgs};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::table::{Script, Table};

/// The guest's memory, its address there and in the emulator.
const MEMORY: u64 = 1 << 16;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000;
/// Entries of both queues of an honest start, and where the second queue lies.
const ENTRIES: u32 = 8;
const TRANSMITQ: u64 = 0x1000;

/// The other side of the app.
struct FrontEnd {
    socket: UnixStream,
    memory: File,
}

impl FrontEnd {
    fn new(path: &Path) -> Self {
        let memory = memfd_create(c"guest", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&memory, MEMORY).expect("memory");
        fcntl_add_seals(&memory, SealFlags::SHRINK).expect("seals");
        Self { socket: connect(path), memory: memory.into() }
    }

    /// False when the app has left, or does not read.
    fn send(&self, bytes: &[u8], with_file: bool) -> bool {
        let files = [self.memory.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if with_file {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags).is_ok()
    }

    fn say(&self, number: u32, body: &[u8], with_file: bool) -> bool {
        let header = [number, 1, body.len() as u32].map(u32::to_ne_bytes).concat();
        self.send(&[header, body.to_vec()].concat(), with_file)
    }

    /// What an emulator says when a guest's driver starts.
    fn start(&self) -> bool {
        let long =
            |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let word = |words: [u32; 2]| words.map(u32::to_ne_bytes).concat();
        let mut fine = self.say(2, &long(&[1 << 32 | 1]), false);
        fine &= self.say(5, &long(&[1, GUEST, MEMORY, USER, 0]), true);
        for (queue, at) in [(0, USER), (1, USER + TRANSMITQ)] {
            fine &= self.say(8, &word([queue, ENTRIES]), false);
            fine &= self.say(9, &long(&[queue.into(), at, at + 0x200, at + 0x100, 0]), false);
            fine &= self.say(10, &word([queue, 0]), false);
            fine &= self.say(12, &long(&[u64::from(queue) | 1 << 8]), false);
        }
        fine
    }
}

fn connect(path: &Path) -> UnixStream {
    let socket = UnixStream::connect(path).expect("the app listens");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Whatever is said and written, the app goes on, sends nothing but whole packets, and loses none
/// of its own. Returns how many packets came from the guest.
pub fn front_end(bytes: &[u8]) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let args = VhostUserArgs { path: path.clone(), connect: false, unsealed: false };
    let mut table = Table::<VhostUser>::new(args);
    let mut peer = FrontEnd::new(&path);
    let mut script = Script(bytes);
    table.tick();
    while let Some(step) = script.byte() {
        let there = match step {
            0 => peer.start(),
            // A message, with a descriptor or without.
            1 | 2 => {
                let Some(number) = script.byte() else { break };
                let Some(body) = script.bytes() else { break };
                peer.say(number.into(), body, step == 1)
            }
            // Anything at all.
            3 => script.bytes().is_none_or(|bytes| peer.send(bytes, false)),
            // The guest writes into its memory.
            4 => {
                let Some((at, some)) = script.place() else { break };
                let fitting = some.len().min((MEMORY - at) as usize);
                peer.memory.write_all_at(&some[..fitting], at).expect("within memory");
                true
            }
            5 => {
                table.send(usize::from(script.byte().unwrap_or(60)));
                true
            }
            _ => {
                table.tick();
                table.breathe();
                true
            }
        };
        if !there {
            table.tick();
            peer.socket = connect(&path);
            table.tick();
        }
    }
    table.end()
}
