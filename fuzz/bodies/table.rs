//! What the targets of apps with a peer have in common: the input as a script, and the app between
//! its two links.

use engine::app::{App, Context, Io, Kind};
use engine::{Link, Packet, pool};
use std::rc::Rc;

/// The input, from its front on.
pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// As many as the next byte says.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = usize::from(self.byte()?).min(self.0.len());
        let (some, rest) = self.0.split_at(count);
        self.0 = rest;
        Some(some)
    }

    /// Where something is written, and what.
    pub fn place(&mut self) -> Option<(u64, &'a [u8])> {
        let at = u16::from_be_bytes([self.byte()?, self.byte()?]);
        Some((at.into(), self.bytes()?))
    }
}

pub struct Table<A> {
    app: A,
    input: Rc<Link>,
    output: Rc<Link>,
    now: u64,
    before: i64,
    /// What came from the peer.
    packets: usize,
}

impl<A: App + Kind> Table<A> {
    pub fn new(args: A::Args) -> Self {
        let before = pool::stats().live;
        let context = Context { name: "fuzz".into(), thread: 0 };
        let app = A::new(args, &context).expect("a socket");
        let (input, output) = (Rc::new(Link::new()), Rc::new(Link::new()));
        Self { app, input, output, now: 0, before, packets: 0 }
    }

    fn io(&self) -> Io {
        Io::new(vec![Some(self.input.clone())], vec![Some(self.output.clone())], self.now)
    }

    /// Time goes on: an app tries to connect from time to time, and waits so long for a greeting.
    pub fn tick(&mut self) {
        self.now += 300_000_000;
        self.app.tick(&self.io());
    }

    /// A packet for the peer.
    pub fn send(&self, length: usize) {
        let packet = Packet::from_slice(&vec![0; length]);
        packet.into_iter().for_each(|packet| self.input.transmit(packet));
    }

    /// The app sends nothing but whole packets.
    pub fn breathe(&mut self) {
        let io = self.io();
        self.app.pull(&io);
        self.app.push(&io);
        while let Some(packet) = self.output.receive() {
            let length = packet.length();
            assert!(length > 0 && length + packet.headroom() < 2048, "{length}");
            self.packets += 1;
        }
    }

    /// It has lost no packet, and made none. Returns how many came from the peer.
    pub fn end(mut self) -> usize {
        self.app.stop().expect("an end");
        self.input.discard();
        drop(self.app);
        assert_eq!(pool::stats().live, self.before, "packets lost or made");
        self.packets
    }
}
