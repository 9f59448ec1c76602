//! An app of the engine at work alone: a port to send to and to receive from.

use std::rc::Rc;

use ::engine::app::{Context, Io};
use ::engine::clock::monotonic;
use ::engine::registry::{Instance, KindInfo, Registry};
use ::engine::{Link, Packet};
use anyhow::{Context as _, Result};
use toml::Table;

/// Between two ticks of the app, in nanoseconds.
const TICK: u64 = 1_000_000;

pub struct Port {
    app: Box<dyn Instance>,
    info: KindInfo,
    io: Io,
    input: Rc<Link>,
    output: Rc<Link>,
    next_tick: u64,
}

impl Port {
    /// Opens what the kind stands for.
    pub fn open(kind: &str, args: Table) -> Result<Port> {
        let info =
            Registry::standard().get(kind).with_context(|| format!("this build has no {kind}"))?;
        if let Some(problem) = (info.check)(&args).into_iter().next() {
            return Err(problem.into());
        }
        let app = (info.make)(&args, &Context { name: kind.to_lowercase(), thread: 0 })?;
        let (input, output) = (Rc::new(Link::new()), Rc::new(Link::new()));
        let io =
            Io::new(vec![Some(Rc::clone(&input))], vec![Some(Rc::clone(&output))], monotonic());
        Ok(Port { app, info: *info, io, input, output, next_tick: 0 })
    }

    pub fn xdp(interface: &str, queue: u32) -> Result<Port> {
        let args = [
            ("interface", toml::Value::from(interface)),
            ("queue", toml::Value::from(i64::from(queue))),
        ];
        Self::open("XDP", args.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
    }

    /// Packets that can wait to be sent.
    pub fn room(&self) -> usize {
        self.input.room()
    }

    /// Queues copies; gives how many were made.
    pub fn queue(&self, packets: &[Packet]) -> usize {
        let fitting = &packets[..packets.len().min(self.input.room())];
        self.input.transmit_copies_of(fitting)
    }

    pub fn queue_one(&self, packet: Packet) {
        self.input.transmit(packet);
    }

    /// Sends what is queued and receives what has come. Gives what an operator should hear.
    pub fn step(&mut self, now: u64) -> Option<String> {
        if self.info.pulls {
            self.app.pull(&self.io);
        }
        self.app.push(&self.io);
        if now < self.next_tick {
            return None;
        }
        self.next_tick = now + TICK;
        let io =
            Io::new(vec![Some(Rc::clone(&self.input))], vec![Some(Rc::clone(&self.output))], now);
        self.app.tick(&io);
        self.io = io;
        self.app.notice()
    }

    /// Packets that the port took.
    pub fn sent(&self) -> u64 {
        self.input.received() - self.dropped()
    }

    /// Packets that still wait to be sent.
    pub fn waiting(&self) -> usize {
        self.input.length()
    }

    /// What was queued.
    pub fn to_send(&self) -> &Link {
        &self.input
    }

    /// What came in.
    pub fn received(&self) -> &Link {
        &self.output
    }

    /// Packets that the app could not send.
    fn dropped(&self) -> u64 {
        ::engine::report::lost(self.info.counters, &*self.app)
    }

    pub fn close(mut self) -> Result<()> {
        Ok(self.app.stop()?)
    }
}
