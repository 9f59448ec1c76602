//! One connection of a front end: the vhost-user protocol, as QEMU documents it
//! (docs/interop/vhost-user.rst).
//!
//! Messages come rarely, when a guest's driver starts or stops; all that is read is checked, and
//! nothing waits.

use std::collections::VecDeque;

use rustix::net::{SendFlags, send};

use super::memory::{Memory, Place};
use super::queue::{Addresses, LARGEST, Queue};
use crate::apps::peer::bell::Bell;
use crate::apps::peer::{Broken, Foreign, MOST_FILES, Peer};

/// Requests by their numbers.
mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
}

/// The guest may leave checksums open, and we may: VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM.
const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
pub const FEATURES: u64 = CSUM | GUEST_CSUM | PROTOCOL_FEATURES | VERSION_1;
const REPLY_ACK: u64 = 1 << 3;

const HEADER: usize = 12;
/// Flags of a message: the version, an answer, one is wished for.
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// Longest message that is understood: a table of eight regions.
const LONGEST: usize = 8 + 8 * 32;
/// Messages per look, so that a front end that talks without end does not stop the engine.
const PER_LOOK: usize = 64;
/// In the number with a kick: there is no descriptor.
const NO_FILE: u64 = 1 << 8;

/// What the front end made of the device.
pub struct Session {
    socket: Peer,
    /// The beginning of a message, and what came with it.
    message: Vec<u8>,
    files: VecDeque<Foreign>,
    features: u64,
    protocol: u64,
    unsealed: bool,
    memory: Memory,
    /// Packets to the guest, and from it.
    queues: [Queue; 2],
}

impl Session {
    pub fn new(socket: Peer, unsealed: bool) -> Self {
        Self {
            socket,
            message: Vec::new(),
            files: VecDeque::new(),
            features: 0,
            protocol: 0,
            unsealed,
            memory: Memory::default(),
            queues: Default::default(),
        }
    }

    /// Virtio's receiveq, towards the guest, and the memory of its buffers.
    #[inline]
    pub fn receiveq(&mut self) -> (&mut Queue, &Memory) {
        (&mut self.queues[0], &self.memory)
    }

    #[inline]
    pub fn transmitq(&mut self) -> (&mut Queue, &Memory) {
        (&mut self.queues[1], &self.memory)
    }

    /// The guest's driver has started both queues.
    pub fn is_started(&self) -> bool {
        self.queues.iter().all(Queue::is_running)
    }

    #[inline]
    pub fn takes_packets(&self) -> bool {
        self.queues[0].is_running()
    }

    /// The guest finishes checksums that we leave open.
    pub fn takes_open_checksums(&self) -> bool {
        self.features & GUEST_CSUM != 0
    }

    /// Answers what has come.
    pub fn answer_all(&mut self) -> Result<(), Broken> {
        // A message is two reads at least.
        for _ in 0..2 * PER_LOOK {
            if !self.read()? {
                return Ok(());
            }
            if self.message.len() >= HEADER && self.message.len() == HEADER + self.expected()? {
                let message = std::mem::take(&mut self.message);
                self.handle(&message)?;
                self.files.clear();
            }
        }
        Ok(())
    }

    /// Bytes of the message behind its header.
    fn expected(&self) -> Result<usize, Broken> {
        let size = word(&self.message, 8) as usize;
        if size > LONGEST { Err(Broken::Protocol("a message that is too long")) } else { Ok(size) }
    }

    /// Some of a message: false if there is nothing now.
    fn read(&mut self) -> Result<bool, Broken> {
        let have = self.message.len();
        let wanted = if have < HEADER {
            HEADER - have
        } else {
            HEADER + word(&self.message, 8) as usize - have
        };
        let mut bytes = [0; HEADER + LONGEST];
        let part = &mut bytes[..wanted.min(HEADER + LONGEST)];
        // Memory that was given up may pile up no further.
        if !self.socket.leaving().is_room() {
            return Ok(false);
        }
        let Some((got, files)) = self.socket.receive(part, MOST_FILES)? else {
            return Ok(false);
        };
        self.files.extend(files);
        if self.files.len() > MOST_FILES {
            return Err(Broken::Protocol("more descriptors than belong to a message"));
        }
        if got == 0 {
            return Err(Broken::Ended);
        }
        self.message.extend_from_slice(&bytes[..got]);
        Ok(true)
    }

    fn handle(&mut self, message: &[u8]) -> Result<(), Broken> {
        let (number, flags) = (word(message, 0), word(message, 4));
        if flags & 3 != VERSION || flags & REPLY != 0 {
            return Err(Broken::Protocol("a message of another version"));
        }
        let body = &message[HEADER..];
        let answer = match number {
            request::GET_FEATURES => Some(FEATURES.to_ne_bytes().to_vec()),
            request::GET_PROTOCOL_FEATURES => Some(REPLY_ACK.to_ne_bytes().to_vec()),
            request::GET_QUEUE_NUM => Some(1_u64.to_ne_bytes().to_vec()),
            request::GET_VRING_BASE => {
                let (queue, index) = self.queue(body)?;
                let base = queue.base();
                queue.stop();
                Some([index.to_ne_bytes(), u32::from(base).to_ne_bytes()].concat())
            }
            _ => {
                self.set(number, body)?;
                None
            }
        };
        match answer {
            Some(answer) => self.answer(number, &answer),
            None if flags & NEED_REPLY != 0 && self.protocol & REPLY_ACK != 0 => {
                self.answer(number, &[0; 8])
            }
            None => Ok(()),
        }
    }

    fn set(&mut self, number: u32, body: &[u8]) -> Result<(), Broken> {
        match number {
            request::SET_OWNER => {}
            request::RESET_OWNER => self.queues = Default::default(),
            request::SET_FEATURES => self.set_features(long(body, 0)?)?,
            request::SET_PROTOCOL_FEATURES => self.protocol = long(body, 0)? & REPLY_ACK,
            request::SET_MEM_TABLE => self.set_memory(body)?,
            request::SET_VRING_NUM => {
                let size = word(body.get(4..8).ok_or(SHORT)?, 0);
                if !size.is_power_of_two() || size > LARGEST {
                    return Err(Broken::Protocol("a queue of impossible size"));
                }
                self.queue(body)?.0.set_size(size as u16)?;
            }
            request::SET_VRING_ADDR => {
                let addresses = Addresses {
                    descriptors: long(body, 8)?,
                    used: long(body, 16)?,
                    available: long(body, 24)?,
                };
                let index = self.index(word(body, 0))?;
                self.queues[index].addresses = Some(addresses);
                self.queues[index].place(&self.memory)?;
            }
            request::SET_VRING_BASE => {
                let base = word(body.get(4..8).ok_or(SHORT)?, 0) as u16;
                self.queue(body)?.0.set_base(base);
            }
            // Only that it is there: we look by ourselves, and tell the driver so.
            request::SET_VRING_KICK => {
                let index = self.index((long(body, 0)? & 0xff) as u32)?;
                self.queues[index].started = true;
                self.queues[index].enabled |= self.features & PROTOCOL_FEATURES == 0;
                self.queues[index].place(&self.memory)?;
            }
            request::SET_VRING_CALL => {
                let word = long(body, 0)?;
                let index = self.index((word & 0xff) as u32)?;
                let file = self.files.pop_front().filter(|_| word & NO_FILE == 0);
                let bell = file.map(|file| file.into_bell().ok_or(NO_BELL)).transpose()?;
                self.queues[index].call = bell.map(Bell::new).transpose().map_err(Broken::Bell)?;
            }
            request::SET_VRING_ERR => {}
            request::SET_VRING_ENABLE => {
                let enabled = word(body.get(4..8).ok_or(SHORT)?, 0) != 0;
                self.queue(body)?.0.enabled = enabled;
            }
            _ => return Err(Broken::Protocol("a request that was not agreed on")),
        }
        Ok(())
    }

    fn set_features(&mut self, features: u64) -> Result<(), Broken> {
        if features & !FEATURES != 0 {
            return Err(Broken::Protocol("features that were not offered"));
        }
        if features & VERSION_1 == 0 {
            return Err(Broken::Protocol(
                "a driver of before virtio 1.0, which this app does not speak with",
            ));
        }
        self.features = features;
        Ok(())
    }

    /// The old mappings go when nothing points into them any more.
    fn set_memory(&mut self, body: &[u8]) -> Result<(), Broken> {
        let count = word(body.get(..8).ok_or(SHORT)?, 0) as usize;
        if count > MOST_FILES || self.files.len() < count {
            return Err(Broken::Protocol("a table of memory without the memory"));
        }
        let files: Vec<Foreign> = self.files.drain(..count).collect();
        let mut places = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let at = |field: usize| long(body, 8 + i * 32 + field * 8);
            let place = Place { guest: at(0)?, size: at(1)?, user: at(2)?, offset: at(3)? };
            let file = file.memory().ok_or(Broken::Protocol("a region that is no memory"))?;
            places.push((place, file));
        }
        let memory = Memory::map(&places, self.unsealed)?;
        files.into_iter().for_each(Foreign::close_copy);
        for queue in &mut self.queues {
            queue.place(&memory)?;
        }
        let old = std::mem::replace(&mut self.memory, memory);
        if !old.is_empty() {
            self.socket.leaving().drop(old);
        }
        Ok(())
    }

    /// The queue that a message is about, by its first word.
    fn queue(&mut self, body: &[u8]) -> Result<(&mut Queue, u32), Broken> {
        let index = word(body.get(..4).ok_or(SHORT)?, 0);
        let at = self.index(index)?;
        Ok((&mut self.queues[at], index))
    }

    fn index(&self, index: u32) -> Result<usize, Broken> {
        if index < 2 {
            Ok(index as usize)
        } else {
            Err(Broken::Protocol("a queue that the device does not have"))
        }
    }

    fn answer(&self, number: u32, body: &[u8]) -> Result<(), Broken> {
        let header = [number, VERSION | REPLY, body.len() as u32].map(u32::to_ne_bytes).concat();
        let message = [header, body.to_vec()].concat();
        match send(&self.socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) if sent == message.len() => Ok(()),
            _ => Err(Broken::Protocol("it does not take answers")),
        }
    }
}

const NO_BELL: Broken = Broken::Protocol("a queue whose descriptor is no eventfd");
const SHORT: Broken = Broken::Protocol("a message that is too short");

/// The word at a place that is there.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> Result<u64, Broken> {
    let bytes = bytes.get(at..at + 8).ok_or(SHORT)?;
    bytes.try_into().map(u64::from_ne_bytes).map_err(|_| SHORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::peer::Leaving;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use std::os::fd::OwnedFd;

    fn pair() -> (OwnedFd, Session) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (front, back) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (front, Session::new(Peer::new(back, &Leaving::default(), false), false))
    }

    fn message(number: u32, flags: u32, body: &[u8]) -> Vec<u8> {
        [[number, flags, body.len() as u32].map(u32::to_ne_bytes).concat(), body.to_vec()].concat()
    }

    #[test]
    fn messages_in_pieces_are_answered_once_they_are_whole() {
        let (front, mut session) = pair();
        let all = [
            message(request::GET_FEATURES, VERSION, &[]),
            message(request::SET_FEATURES, VERSION, &(VERSION_1 | PROTOCOL_FEATURES).to_ne_bytes()),
            message(request::SET_PROTOCOL_FEATURES, VERSION, &REPLY_ACK.to_ne_bytes()),
            message(request::SET_OWNER, VERSION | NEED_REPLY, &[]),
        ];
        for byte in all.concat() {
            send(&front, &[byte], SendFlags::empty()).unwrap();
            assert_eq!(session.answer_all(), Ok(()));
        }
        let mut answers = [0; 256];
        let (length, _) = recv(&front, &mut answers, RecvFlags::DONTWAIT).unwrap();
        assert_eq!(length, 2 * (HEADER + 8));
        assert_eq!(long(&answers, HEADER), Ok(FEATURES));
        assert_eq!((word(&answers, 20), long(&answers, 32)), (request::SET_OWNER, Ok(0)));
        drop(front);
        assert_eq!(session.answer_all(), Err(Broken::Ended));
    }

    proptest! {
        /// Requests of all numbers with any content, small numbers more often than not.
        #[test]
        fn whatever_a_front_end_says_ends_in_answers_or_an_error(
            said in vec((0_u32..24, any::<bool>(), vec(prop_oneof![0_u8..4, any::<u8>()], 0..LONGEST)), 1..20)
        ) {
            let (front, mut session) = pair();
            for (number, asks, body) in said {
                let flags = if asks { VERSION | NEED_REPLY } else { VERSION };
                send(&front, &message(number, flags, &body), SendFlags::empty()).unwrap();
                match session.answer_all() {
                    Ok(()) => prop_assert!(!session.is_started(), "it has no memory to run in"),
                    Err(_) => return Ok(()),
                }
            }
        }
    }

    #[test]
    fn a_hostile_front_end_is_told_apart_from_one_that_leaves() {
        let table = |count: u32| [count.to_ne_bytes().to_vec(), vec![0; 4 + 32]].concat();
        let two = |index: u32, value: u32| [index.to_ne_bytes(), value.to_ne_bytes()].concat();
        for (what, bytes) in [
            ("another version", message(request::SET_OWNER, 2, &[])),
            (
                "too long",
                [request::SET_MEM_TABLE, VERSION, u32::MAX].map(u32::to_ne_bytes).concat(),
            ),
            ("not agreed on", message(6, VERSION, &[0; 16])),
            ("not offered", message(request::SET_FEATURES, VERSION, &[0xff; 8])),
            ("before virtio 1.0", message(request::SET_FEATURES, VERSION, &[0; 8])),
            ("too short", message(request::SET_VRING_NUM, VERSION, &[0; 4])),
            ("too short", message(request::SET_VRING_ADDR, VERSION, &[0; 12])),
            ("impossible size", message(request::SET_VRING_NUM, VERSION, &two(0, 3))),
            ("impossible size", message(request::SET_VRING_NUM, VERSION, &two(0, 65536))),
            ("does not have", message(request::SET_VRING_BASE, VERSION, &two(2, 0))),
            ("does not have", message(request::SET_VRING_KICK, VERSION, &[7, 0, 0, 0, 0, 0, 0, 0])),
            ("without the memory", message(request::SET_MEM_TABLE, VERSION, &table(1))),
            ("without the memory", message(request::SET_MEM_TABLE, VERSION, &table(u32::MAX))),
        ] {
            let (front, mut session) = pair();
            send(&front, &bytes, SendFlags::empty()).unwrap();
            let error = session.answer_all().unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
