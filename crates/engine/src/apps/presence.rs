//! Interfaces and connections that come and go while the engine runs.
//!
//! A missing one at the start is an error of the configuration. One that is lost later costs only
//! its own packets: the app says so once, drops and counts what is sent to it, and tries every
//! second to open it again.

use std::fmt;

use crate::app::AppError;
use crate::netdev::Netdev;

/// A sentence if frames may arrive that are longer than the `most` bytes that there is room for.
pub(super) fn too_large(netdev: &Netdev, most: usize) -> Option<String> {
    /// Addresses, type and a VLAN tag, which the MTU does not count.
    const HEADER: usize = 18;
    let mtu = netdev.mtu().ok()? as usize;
    (mtu + HEADER > most).then(|| {
        let (name, best) = (netdev.name(), most - HEADER);
        format!(
            "interface {name} has an MTU of {mtu}: frames of more than {most} bytes do not fit into a packet of the engine; \
             they are dropped and counted. An MTU of {best} avoids it: `ip link set {name} mtu {best}` at both ends"
        )
    })
}

/// What can be opened, lost and opened again.
pub(crate) trait Port: Sized {
    type Args;

    fn open(args: &Self::Args) -> Result<Self, AppError>;

    /// What an operator should know about it once it is open.
    fn caution(&self) -> Option<String> {
        None
    }

    /// Why it cannot go on, if it cannot; asked about ten times a second.
    fn lost(&mut self) -> Option<String>;

    fn close(self) {}
}

/// Nanoseconds between looks at an open port.
const LOOK: u64 = 100_000_000;
/// Nanoseconds between tries to open a lost one.
const RETRY: u64 = 1_000_000_000;

pub(crate) struct Presence<P> {
    state: State<P>,
    next_look: u64,
    notice: Option<String>,
    /// Times that it came back.
    pub reopened: u64,
}

enum State<P> {
    Up(Box<P>),
    Down(String),
}

impl<P: Port> Presence<P> {
    pub fn open(args: &P::Args) -> Result<Self, AppError> {
        let port = P::open(args)?;
        let notice = port.caution();
        Ok(Presence { state: State::Up(Box::new(port)), next_look: 0, notice, reopened: 0 })
    }

    #[inline]
    pub fn port(&mut self) -> Option<&mut P> {
        match &mut self.state {
            State::Up(port) => Some(port),
            State::Down(_) => None,
        }
    }

    /// Closes it until it can be opened again.
    #[cold]
    pub fn lose(&mut self, why: String) {
        self.notice = Some(format!("{why}; what is sent there is dropped until it is back"));
        if let State::Up(port) = std::mem::replace(&mut self.state, State::Down(why)) {
            port.close();
        }
    }

    /// To be called at every tick; `look` sees the open port about ten times a second.
    #[inline]
    pub fn tick(&mut self, now: u64, args: &P::Args, look: impl FnOnce(&mut P)) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        match &mut self.state {
            State::Up(port) => {
                look(port);
                if let Some(why) = port.lost() {
                    self.lose(why);
                }
            }
            State::Down(_) => self.retry(now, args),
        }
    }

    fn retry(&mut self, now: u64, args: &P::Args) {
        self.next_look = now + RETRY;
        match P::open(args) {
            Ok(port) => {
                self.notice = Some(
                    port.caution()
                        .map_or("it is back".into(), |caution| format!("it is back; {caution}")),
                );
                self.state = State::Up(Box::new(port));
                self.reopened += 1;
            }
            Err(error) => self.state = State::Down(error.to_string()),
        }
    }

    pub fn stop(&mut self) {
        if let State::Up(port) = std::mem::replace(&mut self.state, State::Down("stopped".into())) {
            port.close();
        }
    }

    /// A sentence about a change since the last call.
    pub fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    pub fn describe(
        &self,
        out: &mut dyn fmt::Write,
        up: impl FnOnce(&P, &mut dyn fmt::Write) -> fmt::Result,
    ) -> fmt::Result {
        match &self.state {
            State::Up(port) => up(port, out),
            State::Down(why) => writeln!(out, "down: {why}"),
        }
    }
}
