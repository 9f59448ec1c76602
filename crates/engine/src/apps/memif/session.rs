//! One connection: messages over the socket until the rings are joined, then only its end.
//!
//! A client lays memory and rings out and hands them over; a server says what it can take, checks
//! what it is given, and maps it. Messages come rarely; all that is read is checked, and nothing
//! waits.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::message::{AddRing, Hello, Init, LARGEST_RING, LENGTH, Message, VERSION, field, text};
use super::region::Region;
use super::ring::{self, Buffers, Ring};
use super::{MAX_QUEUES, MemifArgs};
use crate::apps::peer::bell::Bell;
use crate::apps::peer::{Broken, Foreign, PATIENCE, Peer};

/// Most regions: a peer without copies has one for each piece of its packet memory.
const MOST_REGIONS: u16 = 256;
/// Messages per look, so that a peer that talks without end does not stop the engine.
const PER_LOOK: usize = 64;
/// Bytes that all regions of a peer have at most: room for addresses is the engine's, too.
const MOST_MEMORY: usize = 1 << 40;
const ETHERNET: u8 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Of a client: for the server's hello. Of a server: for the client's init.
    Greeting,
    /// Of a client: everything is sent. Of a server: memory and rings come.
    Building,
    Joined,
}

pub struct Session {
    socket: Peer,
    stage: Stage,
    deadline: u64,
    pub regions: Vec<Region>,
    /// By index: rings that this end reads, and that it writes.
    pub receive: Vec<Ring>,
    pub transmit: Vec<Ring>,
    /// The other end, as it calls itself.
    pub peer: String,
}

impl Session {
    pub fn new(socket: Peer, args: &MemifArgs, now: u64) -> Result<Session, Broken> {
        let this = Session {
            socket,
            stage: Stage::Greeting,
            deadline: now.saturating_add(PATIENCE),
            regions: Vec::new(),
            receive: Vec::new(),
            transmit: Vec::new(),
            peer: String::new(),
        };
        if args.listen {
            let last = args.queues - 1;
            let hello = Hello {
                name: field("Shortwire"),
                min_version: VERSION,
                max_version: VERSION,
                max_region: MOST_REGIONS - 1,
                max_to_client: last,
                max_to_server: last,
                max_log2: LARGEST_RING,
            };
            this.say(&Message::Hello(hello), None)?;
        }
        Ok(this)
    }

    #[inline]
    pub fn is_joined(&self) -> bool {
        self.stage == Stage::Joined
    }

    /// Answers what has come.
    pub fn answer(&mut self, args: &MemifArgs, now: u64) -> Result<(), Broken> {
        for _ in 0..PER_LOOK {
            match self.read(usize::from(args.listen))? {
                Some((message, file)) => self.handle(&message, file, args)?,
                None if self.stage != Stage::Joined && now > self.deadline => {
                    return Err(Broken::Slow);
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Tells the peer why it is left, if it listens.
    pub fn say_why(&self, why: &str) {
        let _ = self.say(&Message::Disconnect { code: 0, reason: field(why) }, None);
    }

    /// A message and what came with it: of a server nothing comes. None: there is none now.
    fn read(&self, most: usize) -> Result<Option<(Message, Option<Foreign>)>, Broken> {
        let mut bytes = [0; LENGTH];
        let Some((got, files)) = self.socket.receive(&mut bytes, most)? else { return Ok(None) };
        let file = files.into_iter().next();
        match got {
            0 => Err(Broken::Ended),
            LENGTH => {
                let message = Message::decode(&bytes);
                let message = message.ok_or(Broken::Protocol("a message that is none of memif"))?;
                Ok(Some((message, file)))
            }
            _ => Err(Broken::Protocol("a message that is not of 128 bytes")),
        }
    }

    fn say(&self, message: &Message, file: Option<BorrowedFd>) -> Result<(), Broken> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file]);
        if let Some(files) = &files {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(Broken::Protocol("it does not take answers")),
            Err(errno) => Err(Broken::Socket(errno)),
        }
    }

    fn handle(
        &mut self,
        message: &Message,
        file: Option<Foreign>,
        args: &MemifArgs,
    ) -> Result<(), Broken> {
        match (message, self.stage, args.listen) {
            (Message::Disconnect { reason, .. }, ..) => Err(Broken::Left(text(reason))),
            (Message::Hello(hello), Stage::Greeting, false) => self.hand_over(hello, args),
            (Message::Ack, Stage::Building, false) => Ok(()),
            (Message::Connected(name), Stage::Building, false) => self.join(name),
            (Message::Init(init), Stage::Greeting, true) => self.greet(init, args),
            (Message::AddRegion { index, size }, Stage::Building, true) => {
                let file = file.ok_or(Broken::Protocol("a region without a descriptor"))?;
                if usize::from(*index) != self.regions.len() || *index >= MOST_REGIONS {
                    return Err(Broken::Protocol("a region out of turn"));
                }
                let memory = file.memory();
                let memory = memory.ok_or(Broken::Protocol("a region that is no memory"))?;
                let region = Region::map(memory, *size, args.unsealed)?;
                let all = self.regions.iter().map(Region::length).sum::<usize>() + region.length();
                if all > MOST_MEMORY {
                    self.socket.leaving().drop(region);
                    return Err(Broken::Protocol("more memory than a tebibyte"));
                }
                self.regions.push(region);
                file.close_copy();
                self.say(&Message::Ack, None)
            }
            (Message::AddRing(ring), Stage::Building, true) => {
                self.add(ring, file, args)?;
                self.say(&Message::Ack, None)
            }
            (Message::Connect(name), Stage::Building, true) => {
                self.join(name)?;
                self.say(&Message::Connected(field("Shortwire")), None)
            }
            _ => Err(Broken::Protocol("a message out of turn")),
        }
    }

    /// Of a client: memory and rings as the server can take them.
    fn hand_over(&mut self, hello: &Hello, args: &MemifArgs) -> Result<(), Broken> {
        if !(hello.min_version..=hello.max_version).contains(&VERSION) {
            return Err(Broken::Protocol("another version of memif than 2.0"));
        }
        let count = |most: u16| usize::from(args.queues.min(most.saturating_add(1)));
        let to_server = count(hello.max_to_server);
        let to_client = count(hello.max_to_client);
        let log2 = (args.ring.ilog2() as u8).min(hello.max_log2);
        let (entries, rings) = (1_usize << log2, to_server + to_client);
        let ring_bytes = ring::bytes(entries);
        // Buffers begin at a line of their own.
        let buffers = (rings * ring_bytes).next_multiple_of(64);
        let region = Region::create(buffers + rings * entries * args.buffer as usize)?;
        let mut add = Vec::new();
        for number in 0..rings {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let bell = bell.map_err(Broken::Map)?;
            let own = Buffers {
                offset: (buffers + number * entries * args.buffer as usize) as u32,
                size: args.buffer,
            };
            let writes = number < to_server;
            let offset = (number * ring_bytes) as u32;
            let copy = bell.try_clone().map_err(|_| Broken::Map(Errno::MFILE))?;
            let bell = Bell::new(bell).map_err(Broken::Bell)?;
            let mut ring = Ring::place(&region, offset, log2, !writes, Some(own), bell)?;
            ring.lay_out();
            let (list, index) = match writes {
                true => (&mut self.transmit, number),
                false => (&mut self.receive, number - to_server),
            };
            list.push(ring);
            let index = index as u16;
            let told =
                AddRing { to_server: writes, index, region: 0, offset, log2, private_header: 0 };
            add.push((Message::AddRing(told), copy));
        }
        let init = Init {
            version: VERSION,
            id: args.id,
            mode: ETHERNET,
            secret: field(&args.secret),
            name: field("Shortwire"),
        };
        self.say(&Message::Init(init), None)?;
        let size = region.length() as u64;
        let file = region.file().ok_or(Broken::Map(Errno::BADF))?;
        self.say(&Message::AddRegion { index: 0, size }, Some(file))?;
        for (message, bell) in &add {
            self.say(message, Some(bell.as_fd()))?;
        }
        self.say(&Message::Connect(field("Shortwire")), None)?;
        self.regions.push(region);
        self.stage = Stage::Building;
        Ok(())
    }

    /// Of a server: whether this is the client for this app.
    fn greet(&mut self, init: &Init, args: &MemifArgs) -> Result<(), Broken> {
        if init.version != VERSION {
            return Err(Broken::Protocol("another version of memif than 2.0"));
        }
        if init.id != args.id {
            return Err(Broken::Protocol("another interface (`id`) than this one"));
        }
        if init.mode != ETHERNET {
            return Err(Broken::Protocol("another mode than Ethernet"));
        }
        let wanted = field::<24>(&args.secret);
        // In a time that says nothing about how much was right.
        let differs = wanted.iter().zip(&init.secret).fold(0, |all, (a, b)| all | (a ^ b));
        if !args.secret.is_empty() && std::hint::black_box(differs) != 0 {
            return Err(Broken::Protocol("a wrong secret"));
        }
        self.peer = text(&init.name);
        self.stage = Stage::Building;
        self.say(&Message::Ack, None)
    }

    /// Of a server: a ring in the client's memory.
    fn add(
        &mut self,
        add: &AddRing,
        bell: Option<Foreign>,
        args: &MemifArgs,
    ) -> Result<(), Broken> {
        let bell = bell.ok_or(Broken::Protocol("a ring without a descriptor"))?;
        let bell = bell.into_bell();
        let bell = bell.ok_or(Broken::Protocol("a ring whose descriptor is no eventfd"))?;
        let bell = Bell::new(bell).map_err(Broken::Bell)?;
        let list = if add.to_server { &mut self.receive } else { &mut self.transmit };
        if usize::from(add.index) != list.len() || add.index >= args.queues.min(MAX_QUEUES) {
            return Err(Broken::Protocol("a ring out of turn, or more than were offered"));
        }
        if add.log2 > LARGEST_RING {
            return Err(Broken::Protocol("a ring of impossible size"));
        }
        let region = self.regions.get(usize::from(add.region));
        let region = region.ok_or(Broken::Protocol("a ring in a region that is not there"))?;
        list.push(Ring::place(region, add.offset, add.log2, add.to_server, None, bell)?);
        Ok(())
    }

    fn join(&mut self, name: &[u8]) -> Result<(), Broken> {
        for ring in self.receive.iter_mut().chain(&mut self.transmit) {
            ring.start()?;
        }
        if self.peer.is_empty() {
            self.peer = text(name);
        }
        self.stage = Stage::Joined;
        Ok(())
    }
}
