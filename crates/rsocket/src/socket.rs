//! One rsocket: from `rsocket` over listening or connecting to a stream, and its end.
//!
//! Its number is that of a real TCP (or UDP) socket of the kernel; see [`crate::shared::meet`].
//! Over verbs it is that of an epoll set; see [`crate::verbs::connect`]. All fields live in memory
//! that a fork shares, so there are no pointers into the heap but for verbs, which a fork does not
//! share.
#![allow(unsafe_code)]

mod datagram;
mod exit;
mod lifecycle;
mod options;
mod transfer;
mod verbs;
mod wait;

pub use exit::{before_exit, is_linked};
pub use lifecycle::{
    accept, accept_either, bind, close, connect, last_error, listen, open, shutdown, take_over,
};
pub use transfer::{map, recv, recv_from, send, send_to, unmap, write_mapped};
pub use wait::Wait;

use crate::provider::{Any, Endpoint};
use crate::shared::meet::{Answer, Request};
use crate::stream::{Config, How, Stream};
use crate::verbs::connect::Connector;
use crate::wire::ConnData;
use crate::{census, config, table};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{BorrowedFd, RawFd};
use shm::rsockets::Row;
use shm::{Errno, FastLock};
use std::time::{Duration, Instant};

/// Longer than a receiver that has a processor copies between two looks.
const AWAY: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// New, or bound.
    Idle,
    Listening,
    /// The kernel's connect is under way.
    Connecting,
    /// The request is with the acceptor.
    Requested,
    /// Accepted; the connector has not yet introduced itself.
    Accepting,
    Streaming,
    /// Connecting failed; the error is kept for SO_ERROR.
    Failed,
    Datagram,
    Closed,
}

impl Phase {
    pub fn is_opening(self) -> bool {
        matches!(self, Self::Connecting | Self::Requested | Self::Accepting)
    }
}

/// Sizes and flags that the application sets.
struct Options {
    sq: AtomicU32,
    rq: AtomicU32,
    sbuf: AtomicU32,
    /// 0 until somebody has chosen.
    rbuf: AtomicU32,
    /// What it is then, over shared memory.
    usual_rbuf: u32,
    inline: AtomicU32,
    iomaps: AtomicU32,
    /// Bits by option number, for SOL_SOCKET and IPPROTO_TCP.
    socket: AtomicU64,
    tcp: AtomicU64,
    keepalive_time: AtomicU32,
    /// How long a receive and a send may wait, in microseconds; 0: for ever.
    limits: [AtomicU64; 2],
}

/// How far a connection has come that is being made.
enum Meeting {
    None,
    Request(Request),
    Answer(Answer),
}

/// It passes over the stack of whoever connects, several times: threads have stacks of 16 KiB.
const _: () = assert!(size_of::<Stream<Any>>() <= 2048);

/// What connecting or accepting leads to.
struct Begun {
    endpoint: Any,
    peer: ConnData,
    config: Config,
}

pub struct Socket {
    fd: AtomicI32,
    domain: i32,
    phase: AtomicU32,
    status_flags: AtomicI32,
    error: AtomicI32,
    /// Processes that have it: it ends with the last.
    holders: AtomicU32,
    /// The process that it was made in.
    maker: u32,
    /// Of a listener; -1: none (`sockets`).
    beacon: AtomicI32,
    /// Where it is shown. Mapped at the same place in the child of a fork.
    row: AtomicPtr<Row>,
    born: u32,
    /// Where the stream and its private memory are mapped: in this era, and its forks.
    begun: AtomicU64,
    options: Options,
    /// What the application has shut down of an accepted connection that is still being made:
    /// bits of `How`.
    ends: AtomicU32,
    /// Guards `meeting`, and the change to a stream.
    setup: FastLock<true>,
    meeting: UnsafeCell<Meeting>,
    /// Over verbs; null over shared memory. Used under `setup`.
    connector: AtomicPtr<Connector>,
    private: AtomicPtr<u8>,
    private_len: AtomicU64,
    stream: UnsafeCell<MaybeUninit<Stream<Any>>>,
}

// SAFETY: `meeting` is used under `setup`; `stream` is written once, before `phase` says so.
unsafe impl Sync for Socket {}

impl Socket {
    /// In its own memory, not yet in the table.
    fn create(fd: RawFd, domain: i32, phase: Phase) -> Result<&'static Self, Errno> {
        let d = config::defaults();
        let options = Options {
            sq: AtomicU32::new(d.sq.into()),
            rq: AtomicU32::new(d.rq.into()),
            sbuf: AtomicU32::new(d.sbuf),
            rbuf: AtomicU32::new(d.rbuf.unwrap_or(0)),
            usual_rbuf: config::receive_buffer(table::live()),
            inline: AtomicU32::new(d.inline.into()),
            iomaps: AtomicU32::new(d.iomaps.into()),
            socket: AtomicU64::new(0),
            tcp: AtomicU64::new(0),
            keepalive_time: AtomicU32::new(7200),
            limits: Default::default(),
        };
        let socket = Self {
            fd: AtomicI32::new(fd),
            domain,
            phase: AtomicU32::new(phase as u32),
            status_flags: AtomicI32::new(libc::O_RDWR),
            error: AtomicI32::new(0),
            ends: AtomicU32::new(0),
            holders: AtomicU32::new(1),
            maker: std::process::id(),
            beacon: AtomicI32::new(-1),
            row: AtomicPtr::default(),
            born: table::forks(),
            begun: AtomicU64::new(0),
            options,
            setup: FastLock::new(),
            meeting: UnsafeCell::new(Meeting::None),
            connector: AtomicPtr::default(),
            private: AtomicPtr::default(),
            private_len: AtomicU64::new(0),
            stream: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let memory = table::allocate()?;
        // SAFETY: memory for one socket, which nobody uses any more; never freed.
        unsafe { memory.write(socket) };
        // SAFETY: as above.
        Ok(unsafe { &*memory })
    }

    pub fn born(&self) -> u32 {
        self.born
    }

    /// Whether this process is the last that has it. What a device has of a connection only the process
    /// that has made it can use, and give back.
    fn is_last(&self) -> bool {
        let is_last = self.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if self.is_verbs() { self.maker == std::process::id() } else { is_last }
    }

    /// A fork is about to give it to another process.
    pub fn share(&self) {
        self.holders.fetch_add(1, Ordering::AcqRel);
    }

    pub fn phase(&self) -> Phase {
        // SYNC: phase. What belongs to a phase was written before it.
        let phase = self.phase.load(Ordering::Acquire);
        // SAFETY: only `set_phase` and `create` write it.
        unsafe { core::mem::transmute(phase) }
    }

    fn set_phase(&self, phase: Phase) {
        // SYNC: phase.
        self.phase.store(phase as u32, Ordering::Release);
    }

    fn is_nonblocking(&self) -> bool {
        self.status_flags.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    /// Where it is shown, or a row that nobody sees.
    fn row(&self) -> &'static Row {
        // SAFETY: null, or a row that is never unmapped.
        unsafe { self.row.load(Ordering::Relaxed).as_ref() }.unwrap_or_else(census::unseen)
    }

    /// The descriptor of its beacon, in place of the one that is given back.
    pub fn swap_beacon(&self, beacon: RawFd) -> RawFd {
        self.beacon.swap(beacon, Ordering::Relaxed)
    }

    /// Shows it.
    fn show(&self, row: &'static Row) {
        self.row.store(core::ptr::from_ref(row).cast_mut(), Ordering::Relaxed);
    }

    pub fn raw(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    fn kernel(&self) -> BorrowedFd<'_> {
        // SAFETY: open until `close`; a late user of a closed number gets EBADF from the kernel.
        unsafe { BorrowedFd::borrow_raw(self.raw()) }
    }

    fn is_verbs(&self) -> bool {
        // SYNC: connector. In front of the look at it; pairs with `verbs::place`.
        !self.connector.load(Ordering::Acquire).is_null()
    }

    /// # Safety
    /// Under `setup`, and not kept longer.
    #[expect(clippy::mut_from_ref, reason = "the lock is the exclusive reference")]
    unsafe fn connector(&self) -> Option<&mut Connector> {
        // SAFETY: null, or a box that lives until `close`.
        unsafe { self.connector.load(Ordering::Acquire).as_mut() }
    }

    fn inline(&self) -> u16 {
        self.options.inline.load(Ordering::Relaxed) as u16
    }

    fn config(&self) -> Config {
        let o = &self.options;
        let read = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let (rbuf, usual) = match read(&o.rbuf) {
            // Memory of a device is held as long as the stream lives.
            0 if self.is_verbs() => (config::USUAL, config::USUAL),
            0 => (o.usual_rbuf, config::USUAL),
            chosen => (chosen, chosen),
        };
        Config {
            sq: read(&o.sq) as u16,
            rq: read(&o.rq) as u16,
            sbuf: read(&o.sbuf),
            rbuf,
            usual_half: usual / 2,
            away: AWAY,
            iomaps: read(&o.iomaps) as u16,
        }
    }

    /// The stream, if there is one already, and it is mapped here.
    #[inline]
    pub fn streaming(&self) -> Option<&Stream<Any>> {
        if self.phase() == Phase::Streaming && table::is_here(self.begun.load(Ordering::Relaxed)) {
            // SAFETY: not changed since the phase was set.
            let stream = unsafe { &*self.stream.get() };
            // SAFETY: written before the phase was set.
            Some(unsafe { stream.assume_init_ref() })
        } else {
            None
        }
    }

    /// Whether there is one that another process has begun, after the fork that gave the socket to
    /// both.
    pub fn is_elsewhere(&self) -> bool {
        self.phase() == Phase::Streaming && !table::is_here(self.begun.load(Ordering::Relaxed))
    }

    /// The stream, for a call that moves data; finishes connecting first.
    #[inline]
    pub fn stream(&self, wait: Wait) -> Result<&Stream<Any>, Errno> {
        match self.streaming() {
            Some(stream) => Ok(stream),
            None => self.become_stream(wait),
        }
    }

    /// The stream, for a call that needs it and that programs do not expect to be put off: a peer
    /// that was accepted introduces itself at once, unless it means ill.
    pub fn stream_soon(&self) -> Result<&Stream<Any>, Errno> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let start = Instant::now();
        loop {
            match self.stream(Wait::Not) {
                Err(Errno::AGAIN) if !self.is_nonblocking() || start.elapsed() < PATIENCE => {
                    self.wait_to_advance(Wait::ForEver)?;
                }
                done => return done,
            }
        }
    }

    #[cold]
    fn become_stream(&self, wait: Wait) -> Result<&Stream<Any>, Errno> {
        match self.phase() {
            Phase::Connecting | Phase::Requested | Phase::Accepting => {
                self.advance(wait)?;
                self.streaming().ok_or(Errno::AGAIN)
            }
            Phase::Streaming => self.streaming().ok_or(Errno::NOTCONN),
            Phase::Closed => Err(Errno::BADF),
            Phase::Datagram => Err(Errno::OPNOTSUPP),
            Phase::Idle | Phase::Listening => Err(Errno::NOTCONN),
            Phase::Failed => Err(Errno::CONNRESET),
        }
    }

    /// Goes on connecting. EAGAIN: not finished, and not to be waited for any longer. Other errors end
    /// the attempt, but for EINTR.
    pub fn advance(&self, wait: Wait) -> Result<(), Errno> {
        loop {
            {
                let _held = self.setup.lock().map_err(|_| Errno::AGAIN)?;
                if !self.phase().is_opening() {
                    return if self.phase() == Phase::Streaming {
                        Ok(())
                    } else {
                        Err(Errno::CONNRESET)
                    };
                }
                match self.step() {
                    Ok(Some(met)) => return self.begin(met),
                    Ok(None) => {}
                    Err(e) => {
                        self.give_up(e);
                        return Err(e);
                    }
                }
            }
            self.wait_to_advance(wait)?;
        }
    }

    /// Under `setup`: one attempt.
    fn step(&self) -> Result<Option<Begun>, Errno> {
        // SAFETY: under `setup`.
        if let Some(connector) = unsafe { self.connector() } {
            let config = self.config();
            let begun = connector.step(&config, self.inline()).map_err(|e| match self.phase() {
                // Whatever a peer does wrong after it was accepted is a reset for the application.
                Phase::Accepting => Errno::CONNRESET,
                _ => e,
            })?;
            return Ok(begun.map(|(end, peer)| Begun { endpoint: Any::Verbs(end), peer, config }));
        }
        // SAFETY: under `setup`.
        let meeting = unsafe { &mut *self.meeting.get() };
        if self.phase() == Phase::Connecting {
            let kernel = self.kernel();
            let mut fds = [PollFd::new(&kernel, PollFlags::OUT)];
            if rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())) != Ok(1) {
                return Ok(None);
            }
            rustix::net::sockopt::socket_error(self.kernel())??;
            *meeting = Meeting::Request(Request::send(self.kernel(), self.config())?);
            self.set_phase(Phase::Requested);
        }
        let met = match meeting {
            Meeting::Request(request) => request.advance(self.kernel())?,
            // As above.
            Meeting::Answer(answer) => answer.advance().map_err(|_| Errno::CONNRESET)?,
            Meeting::None => return Err(Errno::NOTCONN),
        };
        Ok(met.map(|met| Begun {
            endpoint: Any::Shared(met.qp),
            peer: met.peer,
            config: met.config,
        }))
    }

    /// Under `setup`: the meeting has succeeded.
    fn begin(&self, met: Begun) -> Result<(), Errno> {
        // SAFETY: under `setup`. What it held is in `met`.
        unsafe { *self.meeting.get() = Meeting::None };
        let len = met.config.private();
        let private = match table::map(len) {
            Ok(private) => private,
            Err(e) => {
                met.endpoint.close(true);
                self.give_up(e);
                return Err(e);
            }
        };
        self.begun.store(table::era(), Ordering::Relaxed);
        self.private.store(private, Ordering::Relaxed);
        self.private_len.store(len as u64, Ordering::Relaxed);
        if let Err(e) = met.endpoint.lend(private, len) {
            met.endpoint.close(true);
            self.give_up(e);
            return Err(e);
        }
        let row = self.row();
        met.endpoint.note(row);
        let buffers = [met.config.rbuf, met.config.sbuf];
        census::connected(row, met.endpoint.is_verbs(), met.endpoint.peer_pid(), buffers);
        let stream = Stream::new(met.endpoint, met.config, &met.peer, private, lifecycle::spin());
        let stream = stream.noted(row);
        // SAFETY: under `setup`.
        if let Some(connector) = unsafe { self.connector() } {
            census::name(row, &[connector.address(false), connector.address(true)]);
        }
        // SAFETY: the phase, which changes under `setup` only, says that there is none yet.
        unsafe { (*self.stream.get()).write(stream) };
        self.set_phase(Phase::Streaming);
        let end = match self.ends.load(Ordering::Relaxed) {
            0 => return Ok(()),
            1 => How::Read,
            2 => How::Write,
            _ => How::Both,
        };
        self.streaming().map_or(Ok(()), |stream| stream.shutdown(end))
    }

    /// Notes what is to be shut down of a connection that is still being made; false if it is not.
    fn ends_once_begun(&self, how: How) -> bool {
        let bits = match how {
            How::Read => 1,
            How::Write => 2,
            How::Both => 3,
        };
        let Ok(_held) = self.setup.lock() else { return false };
        let is_opening = self.phase().is_opening();
        if is_opening {
            self.ends.fetch_or(bits, Ordering::Relaxed);
        }
        is_opening
    }

    /// A connection that failed may be tried again, as of TCP.
    fn start_anew(&self) -> Result<(), Errno> {
        let _held = self.setup.lock().map_err(|_| Errno::AGAIN)?;
        if self.is_verbs() {
            return Err(Errno::INVAL);
        }
        if self.phase() == Phase::Failed {
            // A listener of another kind has the TCP connection still, and another cannot be made by
            // this socket.
            lifecycle::dissolve(self.raw());
            self.error.store(0, Ordering::Relaxed);
            self.set_phase(Phase::Idle);
        }
        Ok(())
    }

    /// Under `setup`.
    fn give_up(&self, error: Errno) {
        // SAFETY: under `setup`.
        match core::mem::replace(unsafe { &mut *self.meeting.get() }, Meeting::None) {
            Meeting::Request(mut request) => request.cancel(),
            Meeting::Answer(mut answer) => {
                if error == Errno::BADF {
                    answer.part();
                }
                answer.cancel();
            }
            Meeting::None => {}
        }
        if self.phase().is_opening() && error != Errno::BADF {
            census::failed();
        }
        self.error.store(error.raw_os_error(), Ordering::Relaxed);
        self.set_phase(Phase::Failed);
    }

    /// Under `setup`: this process gives up its share of a connection that others go on making.
    fn leave(&self) {
        // SAFETY: under `setup`.
        match unsafe { &*self.meeting.get() } {
            Meeting::Request(request) => request.leave(),
            Meeting::Answer(answer) => answer.leave(),
            Meeting::None => {}
        }
        if self.is_elsewhere() {
            // SAFETY: it lies in the socket itself, and is not changed since the phase was set.
            let stream = unsafe { &*self.stream.get() };
            // SAFETY: written before the phase was set.
            unsafe { stream.assume_init_ref() }.endpoint.leave();
        }
    }

    /// The descriptors, and what to wait for on them, while the socket is no stream.
    pub fn wait_fds(&self) -> impl Iterator<Item = (RawFd, i16)> + use<> {
        let mut fds = [(-1, libc::POLLIN); 6];
        if let Ok(_held) = self.setup.lock() {
            // SAFETY: under `setup`.
            match (self.phase(), unsafe { &*self.meeting.get() }) {
                (phase, _) if phase.is_opening() && self.is_verbs() => fds[0].0 = self.raw(),
                (Phase::Connecting, _) => fds[0] = (self.raw(), libc::POLLOUT),
                (_, Meeting::Request(request)) => {
                    fds[0] = (self.raw(), request.events());
                    fds[1..].iter_mut().zip(request.fds()).for_each(|(to, fd)| to.0 = fd);
                }
                (_, Meeting::Answer(answer)) => fds[0].0 = answer.fd(),
                _ => {}
            }
        }
        fds.into_iter().filter(|(fd, _)| *fd >= 0)
    }
}
