//! The app around a peer: it meets one, looks at its socket, moves packets while it keeps to the
//! rules, and leaves it otherwise, for the next one.

use std::fmt;
use std::path::Path;

use crate::app::{App, AppError, Io};
use crate::apps::unix_socket::meet::{Meeting, Role};
use crate::link::Link;
use crate::packet::Packet;

use super::notices::Notices;
use super::{Broken, Leaving, Peer};

/// What such apps count, in the order of [`Counters::NAMES`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Packets longer than the engine's, empty, or in too many pieces.
    pub rx_oversize: u64,
    /// Packets for which there was no memory.
    pub rx_dropped: u64,
    /// Packets that came while there was no peer, or for which its buffers were too small.
    pub tx_dropped: u64,
    /// Peers that were met, as [`Talk::is_met`] says.
    pub connections: u64,
    /// Times that a peer broke the rules.
    pub violations: u64,
}

impl Counters {
    pub const NAMES: &'static [&'static str] =
        &["rx_oversize", "rx_dropped", "tx_dropped", "connections", "violations"];
}

/// What became of a packet of the peer.
pub enum Copied {
    Packet(Packet),
    /// Too long, or nothing.
    Unfit,
    NoMemory,
}

impl Copied {
    /// The packet; what is none is counted.
    #[inline(always)]
    pub fn counted(self, counters: &mut Counters) -> Option<Packet> {
        match self {
            Copied::Packet(packet) => return Some(packet),
            Copied::Unfit => counters.rx_oversize += 1,
            Copied::NoMemory => counters.rx_dropped += 1,
        }
        None
    }
}

/// One connection with a peer.
pub trait Talk: Sized + Send + 'static {
    type Args: 'static;
    /// What an app keeps from one peer to the next.
    type Desk: Default + 'static;
    /// What the peer is called.
    const WHO: &'static str;

    fn role(args: &Self::Args) -> Role;
    fn path(args: &Self::Args) -> &Path;
    /// Memory of any file system is taken, and such as can be cut off.
    fn is_trusting(args: &Self::Args) -> bool;
    fn start(socket: Peer, args: &Self::Args, now: u64) -> Result<Self, Broken>;
    /// Answers what has come.
    fn poll(&mut self, args: &Self::Args, now: u64) -> Result<(), Broken>;
    /// It counts as a connection.
    fn is_met(&self) -> bool;
    /// Packets flow.
    fn is_running(&self) -> bool;
    /// Tells the peer why it is left, if it listens and the protocol has a word for it.
    fn tell(&self, _why: &str) {}
    /// Packets from the peer.
    fn receive(&mut self, at: &mut Seat<'_, Self>, output: &Link) -> Result<(), Broken>;
    /// Packets to a peer that [runs](Self::is_running). What it has no buffers for waits in the link.
    fn send(&mut self, at: &mut Seat<'_, Self>, input: &Link) -> Result<(), Broken>;
    /// Packets that wait for no peer any more.
    fn clear(_desk: &mut Self::Desk) -> u64 {
        0
    }
    fn describe(talk: Option<&Self>, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// What is an app's and not a peer's.
pub struct Seat<'a, T: Talk> {
    pub desk: &'a mut T::Desk,
    pub counters: &'a mut Counters,
}

/// The app.
pub struct Hosted<T: Talk> {
    args: T::Args,
    meeting: Meeting,
    leaving: Leaving,
    talk: Option<T>,
    desk: T::Desk,
    counters: Counters,
    notices: Notices,
}

impl<T: Talk> Hosted<T> {
    pub(in crate::apps) fn open(args: T::Args) -> Result<Self, AppError> {
        let meeting = Meeting::new(T::role(&args), T::path(&args), None, true)?;
        Ok(Self {
            args,
            meeting,
            leaving: Leaving::default(),
            talk: None,
            desk: T::Desk::default(),
            counters: Counters::default(),
            notices: Notices::default(),
        })
    }

    /// Looks at the socket.
    fn look(&mut self, now: u64) -> Result<(), Broken> {
        let (met, running) =
            self.talk.as_ref().map_or((false, false), |talk| (talk.is_met(), talk.is_running()));
        match &mut self.talk {
            None if !self.leaving.is_room() => return Ok(()),
            None => {
                let Some(socket) = self.meeting.poll(now) else { return Ok(()) };
                let socket = Peer::new(socket, &self.leaving, T::is_trusting(&self.args));
                self.talk = Some(T::start(socket, &self.args, now)?);
            }
            Some(talk) => talk.poll(&self.args, now)?,
        }
        let Some(talk) = &self.talk else { return Ok(()) };
        self.counters.connections += u64::from(talk.is_met() && !met);
        if talk.is_running() && !running {
            self.notices.forget();
        }
        Ok(())
    }

    #[cold]
    fn part(&mut self, error: &Broken, now: u64) {
        if error.is_violation() {
            self.counters.violations += 1;
            if let Some(talk) = &self.talk {
                talk.tell(&error.to_string());
            }
        }
        self.end();
        let path = T::path(&self.args).display();
        self.notices
            .tell(now, &error.reason(), || format!("{} at {path} is left: {error}", T::WHO));
    }

    /// What is the peer's goes where it may take its time.
    fn end(&mut self) {
        if let Some(talk) = self.talk.take() {
            self.leaving.drop(talk);
        }
        self.counters.tx_dropped += T::clear(&mut self.desk);
    }
}

impl<T: Talk> App for Hosted<T> {
    fn pull(&mut self, io: &Io) {
        let (Some(output), Some(talk)) = (io.output(0), &mut self.talk) else { return };
        let mut seat = Seat { desk: &mut self.desk, counters: &mut self.counters };
        if let Err(error) = talk.receive(&mut seat, output) {
            self.part(&error, io.now());
        }
    }

    fn push(&mut self, io: &Io) {
        let Some(input) = io.input(0) else { return };
        let Some(talk) = self.talk.as_mut().filter(|talk| talk.is_running()) else {
            self.counters.tx_dropped += input.discard() as u64;
            return;
        };
        let mut seat = Seat { desk: &mut self.desk, counters: &mut self.counters };
        if let Err(error) = talk.send(&mut seat, input) {
            self.part(&error, io.now());
        }
    }

    fn tick(&mut self, io: &Io) {
        if let Err(error) = self.look(io.now()) {
            self.part(&error, io.now());
        }
    }

    fn notice(&mut self) -> Option<String> {
        self.notices.take()
    }

    fn counters(&self, values: &mut [u64]) {
        let Counters { rx_oversize, rx_dropped, tx_dropped, connections, violations } =
            self.counters;
        values.copy_from_slice(&[rx_oversize, rx_dropped, tx_dropped, connections, violations]);
    }

    fn report(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{}: ", T::path(&self.args).display())?;
        T::describe(self.talk.as_ref(), out)?;
        let Counters { rx_oversize, rx_dropped, tx_dropped, .. } = self.counters;
        writeln!(
            out,
            "\ndropped: {rx_dropped} without memory, {rx_oversize} of impossible length, {tx_dropped} to send"
        )
    }

    fn stop(&mut self) -> Result<(), AppError> {
        if let Some(talk) = &self.talk {
            talk.tell("the engine ends");
        }
        self.end();
        self.meeting.stop();
        Ok(())
    }
}
