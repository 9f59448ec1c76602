//! How two ends find each other: connection management of the shared-memory provider.
//!
//! An rsocket is a real TCP socket of the kernel, so that ports, their conflicts, ephemeral ports,
//! network namespaces, addresses and refusals are the kernel's. The TCP connection carries the
//! request and a status; memory goes over a Unix connection beside it:
//!
//! ```text
//! connector                                                     acceptor
//!   listens on a Unix socket with a random name
//!   TCP   request: name, secret, connection data  ------------>  connects to that name
//!         <------------------ status: secret of the acceptor  TCP
//!         <---- introduction: connector's secret, buffer, connection data, memfd  Unix
//!   Unix  introduction: acceptor's secret, buffer, memfd  ----->
//! ```
//!
//! Who echoes a secret has read it from the TCP connection, so the ends of both connections are the
//! same two processes, whoever else knows the name (which any user can list). The Unix connection
//! stays, as doorbell and as sign of life.

mod bytes;
#[cfg(test)]
mod tests;

use bytes::{Reader, Writer, borrow, receive_whole, send_whole};

use super::exposed::pid;
use super::{DEVICE, GOODBYE, Layout, MEMORY_KEY, QueuePair};
use crate::hidden::{close, park};
use crate::kernel;
use crate::provider::Region;
use crate::stream::{Config, conn_data};
use crate::wire::{ConnData, ConnError};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use dibs::{Device, Dmb, Gid};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use shm::Errno;
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"RSOCKv1\0";
/// How long an acceptor waits for a request that has begun to arrive, and for its beginning: the
/// kernel holds back a connection until it has bytes, or for a second.
const PATIENCE: Duration = Duration::from_millis(200);
const MOMENT: Duration = Duration::from_millis(20);
/// Strangers who have connected in the acceptor's place and say nothing are kept for so long, while
/// there is no room for others: any user can list the name.
const STRANGER: Duration = Duration::from_millis(100);
/// Room for those who have connected.
const CANDIDATES: usize = 4;

type Secret = [u8; 16];

/// Why an acceptor said no.
mod status {
    pub const OK: u32 = 0;
    pub const VERSION: u32 = 1;
    pub const ELSEWHERE: u32 = 2;
    pub const RESOURCES: u32 = 3;
}

const REQUEST: usize = 8 + 16 + 16 + 16 + ConnData::LEN;
const STATUS: usize = 8 + 4 + 16;
const INTRODUCTION: usize = 8 + 16 + 16 + 8 + 12 + ConnData::LEN;

/// The connector's half of a meeting. Plain data, as a fork may share it.
#[derive(Clone, Copy)]
pub struct Request {
    config: Config,
    listener: RawFd,
    secret: Secret,
    /// What has come of the acceptor's answer, and its secret once that is all.
    status: ([u8; STATUS], usize),
    answer: Option<Secret>,
    /// Who has connected and not introduced itself yet, and since when.
    candidates: [(RawFd, Option<Instant>); CANDIDATES],
    /// Whom the kernel names to the acceptor.
    pid: i32,
}

/// The acceptor's half.
#[derive(Clone, Copy)]
pub struct Answer {
    config: Config,
    peer: ConnData,
    secret: Secret,
    gid: Gid,
    own: Own,
    unix: RawFd,
    /// Whom the kernel names to the connector.
    pid: i32,
}

/// A buffer of ours, made for this connection.
#[derive(Clone, Copy)]
struct Own {
    dmb: Dmb,
    layout: Layout,
    group: u32,
}

/// What a meeting leads to.
pub struct Met {
    pub qp: QueuePair,
    pub peer: ConnData,
    pub config: Config,
}

/// What this end says of itself: addresses count from the beginning of its memory.
fn own_data(config: &Config) -> ConnData {
    let memory =
        Region { ptr: core::ptr::null_mut(), len: config.memory(), addr: 0, key: MEMORY_KEY };
    conn_data(config, &memory)
}

impl Own {
    fn register(config: &Config, peer: Gid) -> Result<Self, Errno> {
        static GROUP: AtomicU32 = AtomicU32::new(1);
        let layout = Layout::new(config.rq, config.memory()).ok_or(Errno::NOBUFS)?;
        let len = layout.dmb_len().ok_or(Errno::NOBUFS)?;
        let group = GROUP.fetch_add(1, Ordering::Relaxed);
        let dmb = DEVICE.register_dmb(group, peer, len).map_err(|e| match e {
            dibs::RegisterError::Os(e) => e,
            _ => Errno::NOBUFS,
        })?;
        Ok(Self { dmb, layout, group })
    }

    /// In place of the memory of a peer that has ended and, being this process, taken it back.
    fn stand_in(&self, peer: &Introduction) -> Result<(*mut u8, Layout), Errno> {
        let layout = peer.layout.ok_or(Errno::PROTO)?;
        let made = DEVICE.register_dmb(self.group, DEVICE.gid(), peer.dmb_len);
        Ok((made.map_err(|_| Errno::NOBUFS)?.addr, layout))
    }

    fn drop(self) {
        DEVICE.drop_group(self.group);
    }
}

impl Request {
    /// Asks for a connection over the connected socket `tcp`.
    pub fn send(tcp: BorrowedFd<'_>, config: Config) -> Result<Self, Errno> {
        let (name, secret) = (random()?, random()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&listener, &address(&name)?)?;
        rustix::net::listen(&listener, 128)?;
        let mut out = Writer(Vec::with_capacity(REQUEST));
        out.put(&MAGIC)
            .put(&name)
            .put(&secret)
            .put(&DEVICE.gid().to_bytes())
            .put(&own_data(&config).encode());
        send_whole(tcp, &out.0)?;
        Ok(Self {
            config,
            listener: park(listener),
            secret,
            status: ([0; STATUS], 0),
            answer: None,
            candidates: [(-1, None); CANDIDATES],
            pid: pid(),
        })
    }

    /// The descriptors one of which becomes readable when the acceptor comes, beside the TCP socket;
    /// -1 is none.
    pub fn fds(&self) -> [RawFd; 1 + CANDIDATES] {
        let mut fds = [self.listener; 1 + CANDIDATES];
        fds[1..].iter_mut().zip(&self.candidates).for_each(|(fd, one)| *fd = one.0);
        fds
    }

    /// Where the next who connects is kept.
    fn room(&mut self) -> Option<usize> {
        if let Some(free) = self.candidates.iter().position(|one| one.0 < 0) {
            return Some(free);
        }
        let mut fds = [PollFd::from_borrowed_fd(borrow(self.listener), PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(1) {
            return None;
        }
        let oldest = (0..CANDIDATES).min_by_key(|i| self.candidates[*i].1)?;
        let (fd, since) = self.candidates[oldest];
        since.filter(|since| since.elapsed() >= STRANGER)?;
        close(fd);
        self.candidates[oldest] = (-1, None);
        Some(oldest)
    }

    /// Goes on as far as it can without waiting; None if that is not to the end.
    pub fn advance(&mut self, tcp: BorrowedFd<'_>) -> Result<Option<Met>, Errno> {
        if self.answer.is_none() {
            self.answer = self.receive_status(tcp)?;
        }
        // Before the look at who has come: an acceptor that has gone may have been here.
        let is_over = self.answer.is_some() && has_hung_up(tcp);
        while let Some(place) = self.room() {
            match rustix::net::accept_with(borrow(self.listener), SocketFlags::CLOEXEC) {
                Ok(unix) => self.candidates[place] = (park(unix), Some(Instant::now())),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e),
            }
        }
        let Some(answer) = self.answer else { return Ok(None) };
        for i in 0..CANDIDATES {
            let fd = self.candidates[i].0;
            if fd < 0 {
                continue;
            }
            match Introduction::receive(borrow(fd), &self.secret) {
                Ok(Some(theirs)) => return self.finish(i, &theirs, &answer).map(Some),
                Ok(None) => {}
                // Not the acceptor, who may yet come.
                Err(_) => {
                    close(fd);
                    self.candidates[i] = (-1, None);
                }
            }
        }
        if is_over { Err(Errno::CONNREFUSED) } else { Ok(None) }
    }

    /// The acceptor's secret, once it is there. What has come is taken off the connection: one that an
    /// answer stays on that never becomes whole would be readable, and a wait on it no wait.
    fn receive_status(&mut self, tcp: BorrowedFd<'_>) -> Result<Option<Secret>, Errno> {
        let (bytes, have) = &mut self.status;
        match rustix::net::recv(tcp, &mut bytes[*have..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // A listener of another kind, or an application that closed without accepting.
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(Errno::CONNREFUSED),
            other => *have += other?.1,
        }
        let said = (*have).min(MAGIC.len());
        if bytes[..said] != MAGIC[..said] {
            return Err(Errno::CONNREFUSED);
        }
        if *have < STATUS {
            return Ok(None);
        }
        let mut rest = Reader(&bytes[MAGIC.len()..]);
        match u32::from_be_bytes(rest.take()) {
            status::OK => Ok(Some(rest.take())),
            status::VERSION => Err(Errno::OPNOTSUPP),
            status::ELSEWHERE => Err(Errno::HOSTUNREACH),
            _ => Err(Errno::CONNREFUSED),
        }
    }

    /// What to wait for on the TCP connection: the answer, then only its end. A byte behind the answer
    /// is nobody's, and would keep it readable.
    pub fn events(&self) -> i16 {
        if self.answer.is_none() { libc::POLLIN } else { libc::POLLRDHUP }
    }

    fn finish(&mut self, at: usize, theirs: &Introduction, answer: &Secret) -> Result<Met, Errno> {
        let own = Own::register(&self.config, theirs.gid)?;
        let fd = self.candidates[at].0;
        let unix = borrow(fd);
        // An acceptor that has closed already has accepted, and sent nothing: the end of a stream.
        let sent = Introduction::send(unix, answer, &own, &own_data(&self.config));
        let attached = theirs.attach(unix, &own);
        let is_over = matches!(sent, Err(Errno::PIPE | Errno::CONNRESET))
            || attached.is_err() && has_hung_up(unix);
        let done = match (sent, attached) {
            (_, attached) if is_over => attached.or_else(|_| own.stand_in(theirs)),
            (Ok(()), attached) => attached,
            (Err(e), _) => Err(e),
        };
        match done.and_then(|peer| Ok((peer, Process::behind(unix)?))) {
            Ok((peer, process)) => {
                let pids = [self.pid, process.pid];
                let mut qp = QueuePair::new((own.dmb, own.layout), peer, own.group, fd, pids);
                qp.same_user = process.is_ours;
                if is_over {
                    qp.note_end();
                }
                self.candidates[at] = (-1, None);
                self.cancel();
                Ok(Met { qp, peer: theirs.data, config: self.config })
            }
            Err(e) => {
                own.drop();
                Err(e)
            }
        }
    }

    /// Closes this process's descriptors; another that has them by fork goes on.
    pub fn leave(&self) {
        self.fds().into_iter().for_each(close);
    }

    pub fn cancel(&mut self) {
        self.leave();
        (self.listener, self.candidates) = (-1, [(-1, None); CANDIDATES]);
    }
}

impl Answer {
    /// Reads the request on a connection that was just accepted, and answers it. Err: not a
    /// connection for us, to be closed.
    pub fn send(tcp: BorrowedFd<'_>, config: Config) -> Result<Self, Errno> {
        let mut bytes = [0; REQUEST];
        receive_whole(tcp, &mut bytes)?;
        let mut rest = Reader(&bytes);
        let (magic, name, secret, gid): ([u8; 8], Secret, Secret, [u8; 16]) =
            (rest.take(), rest.take(), rest.take(), rest.take());
        let data = ConnData::decode(&rest.take());
        let (MAGIC, Ok(peer)) = (magic, data) else {
            let code = if matches!(data, Err(ConnError::Version(_))) {
                status::VERSION
            } else {
                status::RESOURCES
            };
            let _ = send_status(tcp, code, &[0; 16]);
            return Err(Errno::PROTO);
        };
        match Self::introduce(tcp, config, peer, (name, secret), Gid::from_bytes(gid)) {
            Ok(answer) => Ok(answer),
            Err(e) => {
                let code =
                    if e == Errno::CONNREFUSED { status::ELSEWHERE } else { status::RESOURCES };
                let _ = send_status(tcp, code, &[0; 16]);
                Err(e)
            }
        }
    }

    fn introduce(
        tcp: BorrowedFd<'_>,
        config: Config,
        peer: ConnData,
        (name, theirs): (Secret, Secret),
        gid: Gid,
    ) -> Result<Self, Errno> {
        let unix = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        // Never waits: a stranger may have named a socket that nobody accepts from.
        rustix::net::connect(&unix, &address(&name)?)?;
        rustix::io::ioctl_fionbio(&unix, false)?;
        let secret = random()?;
        let own = Own::register(&config, gid)?;
        let done = send_status(tcp, status::OK, &secret)
            .and_then(|()| Introduction::send(unix.as_fd(), &theirs, &own, &own_data(&config)));
        match done {
            Ok(()) => Ok(Self { config, peer, secret, gid, own, unix: park(unix), pid: pid() }),
            Err(e) => {
                own.drop();
                Err(e)
            }
        }
    }

    pub fn fd(&self) -> RawFd {
        self.unix
    }

    pub fn advance(&mut self) -> Result<Option<Met>, Errno> {
        let unix = borrow(self.unix);
        let Some(theirs) = Introduction::receive(unix, &self.secret)? else { return Ok(None) };
        if theirs.gid != self.gid {
            return Err(Errno::PROTO);
        }
        let peer = match theirs.attach(unix, &self.own) {
            // A connector in this very process that has closed: what it sent, and its end, lie here.
            Err(_) if has_hung_up(unix) => self.own.stand_in(&theirs)?,
            attached => attached?,
        };
        let process = Process::behind(unix)?;
        let pids = [self.pid, process.pid];
        let mut qp =
            QueuePair::new((self.own.dmb, self.own.layout), peer, self.own.group, self.unix, pids);
        qp.since_accept = true;
        qp.same_user = process.is_ours;
        self.unix = -1;
        Ok(Some(Met { qp, peer: self.peer, config: self.config }))
    }

    pub fn cancel(&mut self) {
        close(core::mem::replace(&mut self.unix, -1));
        self.own.drop();
    }

    /// The application closes what it has accepted before the connector has introduced itself: that
    /// is the end of a stream for it, and no reset.
    pub fn part(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(borrow(self.unix), &[GOODBYE], flags);
    }

    /// Closes what this process has of it; another that has it by fork goes on.
    pub fn leave(&self) {
        close(self.unix);
        self.own.drop();
    }
}

/// Whether the first bytes of a connection that was just accepted are a request. Who has connected
/// and said nothing is no rsocket: the kernel holds back a connection until it has bytes, or for a
/// second.
pub fn has_request(tcp: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&tcp, PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, Timespec::try_from(MOMENT).ok().as_ref());
    let mut bytes = [0; MAGIC.len()];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match rustix::net::recv(tcp, &mut bytes[..], flags) {
        Ok((_, n)) => n == MAGIC.len() && bytes == MAGIC,
        Err(_) => false,
    }
}

/// A buffer, and the proof that its owner is the other end of the TCP connection.
struct Introduction {
    gid: Gid,
    token: u64,
    dmb_len: u32,
    layout: Option<Layout>,
    data: ConnData,
    memory: OwnedFd,
}

impl Introduction {
    fn send(
        unix: BorrowedFd<'_>,
        secret: &Secret,
        own: &Own,
        data: &ConnData,
    ) -> Result<(), Errno> {
        let arena = DEVICE.lend(own.dmb.token).ok_or(Errno::NOBUFS)?;
        let mut out = Writer(Vec::with_capacity(INTRODUCTION));
        out.put(&MAGIC).put(secret).put(&DEVICE.gid().to_bytes()).put(&own.dmb.token.to_be_bytes());
        out.put(&own.dmb.len.to_be_bytes());
        out.put(&own.layout.stream_slots.to_be_bytes())
            .put(&own.layout.memory.to_be_bytes())
            .put(&data.encode());
        let fds = [borrow(arena.raw())];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let n =
            rustix::net::sendmsg(unix, &[IoSlice::new(&out.0)], &mut control, SendFlags::NOSIGNAL)?;
        if n == INTRODUCTION { Ok(()) } else { Err(Errno::PROTO) }
    }

    /// None if nothing has arrived yet; Err for anything but an introduction with `secret`.
    fn receive(unix: BorrowedFd<'_>, secret: &Secret) -> Result<Option<Self>, Errno> {
        let mut bytes = [0; INTRODUCTION];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got =
            rustix::net::recvmsg(unix, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        let n = match got {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            other => other?.bytes,
        };
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let mut rest = Reader(&bytes);
        let (magic, echo, gid): ([u8; 8], Secret, [u8; 16]) =
            (rest.take(), rest.take(), rest.take());
        let token = u64::from_be_bytes(rest.take());
        let [dmb_len, slots, memory] = [(); 3].map(|()| u32::from_be_bytes(rest.take()));
        let data = ConnData::decode(&rest.take());
        match (n, magic, data, rights) {
            (INTRODUCTION, MAGIC, Ok(data), Some(fd)) if echo == *secret => {
                let layout = Layout::of_peer(slots, memory, dmb_len);
                Ok(Some(Self {
                    gid: Gid::from_bytes(gid),
                    token,
                    dmb_len,
                    layout,
                    data,
                    memory: fd,
                }))
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// The peer's buffer, mapped here.
    fn attach(&self, unix: BorrowedFd<'_>, own: &Own) -> Result<(*mut u8, Layout), Errno> {
        let layout = self.layout.ok_or(Errno::PROTO)?;
        // Buffers of this process are in place, and no descriptor proves that they are the peer's: a
        // stranger that has seen our GID would be given another connection's.
        if self.gid == DEVICE.gid() && Process::behind(unix)?.pid != pid() {
            return Err(Errno::PROTO);
        }
        let arena = Some(self.memory.as_raw_fd());
        let mapped = DEVICE
            .map_dmb(own.group, self.gid, self.token, self.dmb_len, arena)
            .map_err(|_| Errno::PROTO)?;
        // It is mapped on both sides now, and nobody else is to get it.
        DEVICE.close_share(own.dmb.token);
        Ok((mapped, layout))
    }
}

fn address(name: &Secret) -> Result<SocketAddrUnix, Errno> {
    let mut full = *b"shortwire-rsocket/0123456789abcdef0123456789abcdef";
    for (i, byte) in name.iter().enumerate() {
        let digit = |n: u8| b"0123456789abcdef"[usize::from(n)];
        full[18 + 2 * i] = digit(byte >> 4);
        full[19 + 2 * i] = digit(byte & 15);
    }
    SocketAddrUnix::new_abstract_name(&full)
}

fn random() -> Result<Secret, Errno> {
    let mut bytes = [0; 16];
    let n = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if n == bytes.len() { Ok(bytes) } else { Err(Errno::AGAIN) }
}

/// Who made the other end of a Unix socket.
struct Process {
    /// 0 of another PID namespace that is not below ours.
    pid: i32,
    is_ours: bool,
}

impl Process {
    fn behind(unix: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut of = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&of) as u32;
        let (fd, level, name) = (unix.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: at most `len` bytes are written, and any are valid.
        let got = unsafe { kernel::getsockopt(fd, level, name, (&raw mut of).cast(), &mut len) };
        if got != 0 {
            return Err(crate::socket::last_error());
        }
        Ok(Self { pid: of.pid, is_ours: of.uid == rustix::process::geteuid().as_raw() })
    }
}

fn send_status(tcp: BorrowedFd<'_>, code: u32, secret: &Secret) -> Result<(), Errno> {
    let mut out = Writer(Vec::with_capacity(STATUS));
    out.put(&MAGIC).put(&code.to_be_bytes()).put(secret);
    send_whole(tcp, &out.0)
}

fn has_hung_up(unix: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&unix, PollFlags::RDHUP)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}
