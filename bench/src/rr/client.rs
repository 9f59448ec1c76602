//! The asking side of `rr`.

use std::time::{Duration, Instant};

use super::channel::{Channel, Input};
use super::dialogue::Dialogue;
use crate::args::Client;
use crate::epoll::{Epoll, Ready};
use crate::failure::{Doing, Failure, Result};
use crate::figures::Figures;
use crate::histogram::Histogram;

/// Requests on each connection before the clock starts, where not all of them have one under way: a
/// connection that has said nothing yet is not as it is later.
const FIRST: u64 = 16;

/// How long answers may take once no more questions are asked.
const PATIENCE: Duration = Duration::from_secs(5);

struct Asker {
    channel: Channel,
    id: u32,
    counter: u64,
    asked_at: Instant,
    waiting: bool,
}

struct Exchange {
    dialogue: Dialogue,
    histogram: Histogram,
}

pub fn run(args: &Client) -> Result<Figures> {
    let size = args.size();
    let mut epoll = Epoll::new().doing("cannot make an epoll set")?;
    let mut exchange =
        Exchange { dialogue: Dialogue::new(args.protocol, size), histogram: Histogram::new() };
    exchange.dialogue.prepare(&args.connect)?;
    let mut askers = Vec::new();
    for id in 0..args.connections {
        let channel = Channel::new(args.connect.connect()?, u64::from(id), &epoll)
            .doing("cannot watch a connection")?;
        askers.push(Asker { channel, id, counter: 0, asked_at: Instant::now(), waiting: false });
    }

    let all = askers.len();
    let active = args.active.map_or(all, |active| (active as usize).min(all));
    if active < all {
        say_first(&mut askers, &mut exchange, &mut epoll)?;
    }
    let span = args.start();
    for asker in &mut askers[..active] {
        asker.ask(&exchange, span.began, &epoll)?;
    }
    let mut next = active % all;
    let mut now = span.began;
    while now < span.deadline && exchange.histogram.count() < args.count {
        for ready in epoll.wait(Some(span.deadline - now)).doing("cannot wait for events")? {
            let mut at = ready.token as usize;
            if !askers[at].advance(ready, &mut exchange, &epoll)? {
                continue;
            }
            if active < all {
                while askers[next].waiting {
                    next = (next + 1) % all;
                }
                at = next;
                next = (next + 1) % all;
            }
            askers[at].ask(&exchange, Instant::now(), &epoll)?;
        }
        now = Instant::now();
    }
    let messages = exchange.histogram.count();
    let seconds = (now - span.began).as_secs_f64();
    collect_the_rest(&mut askers, &mut exchange, &mut epoll)?;
    let bytes = messages * exchange.dialogue.bytes_per_message() as u64;
    Ok(Figures::new("rr", size, args.connections, seconds, messages, bytes)
        .with_latency(&exchange.histogram))
}

/// The first requests on each connection, one at a time. They are not measured.
fn say_first(askers: &mut [Asker], exchange: &mut Exchange, epoll: &mut Epoll) -> Result<()> {
    for at in 0..askers.len() {
        while askers[at].counter < FIRST {
            askers[at].ask(exchange, Instant::now(), epoll)?;
            collect_the_rest(askers, exchange, epoll)?;
        }
    }
    exchange.histogram = Histogram::new();
    Ok(())
}

/// What was asked must be answered: a connection that was forgotten while the others went on is
/// found here.
fn collect_the_rest(
    askers: &mut [Asker],
    exchange: &mut Exchange,
    epoll: &mut Epoll,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let waiting = askers.iter().filter(|asker| asker.waiting).count();
        if waiting == 0 {
            return Ok(());
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(Failure::Protocol(format!(
                "{waiting} of {} connections got no answer within {} s: the transport lost a message or a wake-up",
                askers.len(),
                PATIENCE.as_secs()
            )));
        }
        for ready in epoll.wait(Some(deadline - now)).doing("cannot wait for events")? {
            askers[ready.token as usize].advance(ready, exchange, epoll)?;
        }
    }
}

impl Asker {
    fn ask(&mut self, exchange: &Exchange, now: Instant, epoll: &Epoll) -> Result<()> {
        let request = exchange.dialogue.request(self.id, self.counter);
        self.asked_at = now;
        self.waiting = true;
        let sent = if self.counter > 0 {
            self.channel.send(request, epoll)
        } else {
            let opening = exchange.dialogue.opening(self.id);
            self.channel.send(&[&opening, request].concat(), epoll)
        };
        sent.doing("cannot send a request")
    }

    /// Takes in what came; `true` when the answer is complete and right.
    fn advance(&mut self, ready: Ready, exchange: &mut Exchange, epoll: &Epoll) -> Result<bool> {
        if ready.writable {
            self.channel.flush(epoll).doing("cannot send")?;
        }
        if ready.readable && self.channel.receive().doing("cannot read a response")? == Input::Ended
        {
            return Err(Failure::Protocol(
                "the server closed a connection instead of answering".into(),
            ));
        }
        let size = exchange.dialogue.response_size();
        let received = self.channel.received();
        if received.len() < size {
            return Ok(false);
        }
        if received.len() > size || !self.waiting {
            return Err(Failure::Protocol(
                "WRONG DATA: more came than the one response that was asked for".into(),
            ));
        }
        exchange.dialogue.check(self.id, self.counter, received)?;
        self.channel.consume(size);
        exchange.histogram.record(self.asked_at.elapsed().as_nanos() as u64);
        self.counter += 1;
        self.waiting = false;
        Ok(true)
    }
}
