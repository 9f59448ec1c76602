//! A peer that shook hands and then writes anything into every page that it shares, at any time,
//! while another connection of the same thread of the victim carries checked bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::{scope, sleep};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use system_tests::stream::{Random, bytes};
use system_tests::{Case, Deadline, Outcome, Ports, Proc, Side, bytes_sent, compile, millis, secs};

use crate::peer::{
    CONS, Claim, FRONT, PAGE, PROD, Peer, RUNG, RX_ARM, Refusal, SWITCH, WORDS, trap,
};
use crate::{dial, echo_rounds, echo_server, hostile, record};

/// An echo server under Shortwire, and what a peer needs to meet it.
pub struct Victim {
    pub port: u16,
    pub server: Proc,
    pub proposal: Vec<u8>,
    pub accept: Vec<u8>,
    next: u64,
}

impl Victim {
    pub fn new(c: &Case, ports: Ports) -> Result<Victim, system_tests::Skip> {
        let (proposal, accept) = record(c)?;
        let port = ports.free();
        Ok(Victim { port, server: echo_server(c, port)?, proposal, accept, next: 1 })
    }

    /// The next stranger; each has a device of its own.
    pub fn attach(&mut self) -> Result<Peer, Refusal> {
        self.next += 1;
        self.attach_as(Claim::new(self.next))
    }

    pub fn attach_as(&self, claim: Claim) -> Result<Peer, Refusal> {
        let mut conn = dial(self.port);
        // Who has the lower address is the one who listens.
        if conn.local_addr().expect("own address").port() < self.port {
            let trap: OwnedFd = trap(&conn, self.port);
            echo_rounds(&mut conn, 0, 5);
            return Peer::answer(conn, &trap, &self.accept, claim);
        }
        echo_rounds(&mut conn, 0, 5);
        Peer::call(conn, self.port, &self.proposal, claim)
    }

    fn peer(&mut self) -> Peer {
        self.attach().unwrap_or_else(|refused| {
            panic!("the victim refused: {refused:?}\n{}", self.server.stderr())
        })
    }
}

/// A value for a word: what an honest peer might write, values at the edges, or nothing of the
/// kind.
fn value(random: &mut Random, peer: &Peer) -> u64 {
    let size = peer.size as u64;
    let flags = [0, 0x80 << 56, 0x40 << 56, 0x20 << 56, 0x10 << 56, 1 << 48, 1 << 49, 0xff << 48];
    let flag = flags[random.below(8) as usize];
    let edges = [
        0,
        1,
        2,
        size - 1,
        size,
        size + 1,
        size / 3,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        u64::MAX,
        u64::MAX >> 1,
    ];
    match random.below(5) {
        0 => random.below(u64::MAX),
        1 => edges[random.below(12) as usize] | flag,
        2 => (random.below(4) | random.below(size + 2) << 16) | flag,
        3 => peer
            .word(WORDS[random.below(10) as usize].0)
            .wrapping_add(random.below(3))
            .wrapping_sub(1),
        _ => edges[random.below(12) as usize] << 16 | flag,
    }
}

/// Any word of any shared page.
fn scribble(random: &mut Random, peer: &Peer) {
    let (all, buffer) =
        (peer.theirs.len, peer.at + 64 + random.below(peer.size as u64 - 8) as usize);
    let at = match random.below(8) {
        0 => random.below((FRONT + PAGE) as u64) as usize,
        1 => all - PAGE + random.below(PAGE as u64) as usize,
        2 => buffer,
        _ => peer.at + WORDS[random.below(10) as usize].0,
    } & !7;
    let value = value(random, peer);
    peer.theirs.long(at).store(value, SeqCst);
    if random.below(4) == 0 {
        // What the victim writes is its own to remember, not to read back.
        let at = FRONT + PAGE + WORDS[random.below(10) as usize].0;
        peer.ours.long(at & !7).store(value, SeqCst);
    }
}

/// Runs `attack` on one connection after another while an honest client exchanges checked bytes
/// with the same thread of the victim; that client must come to its end while the attack is still
/// going on, and be none the worse for it.
fn besieged(
    title: &'static str,
    ports: Ports,
    mut attack: impl FnMut(&mut Victim, &mut Random, &dyn Fn() -> bool),
) {
    hostile(title, |c| {
        let mut victim = Victim::new(c, ports)?;
        let port = victim.port.to_string();
        let watch = c.watch(&[victim.port]);
        let mut honest =
            c.start("honest", Side::Run.command(compile("many")?).args(["talk", &port, "20000"]));
        watch.wait_smcd(2, secs(60));
        drop(watch);
        let said = honest.stdout_path().to_path_buf();
        let over = || std::fs::read_to_string(&said).is_ok_and(|text| text.contains("talked"));
        let (mut random, mut rounds) = (Random::new(title.len() as u64), 0);
        while !over() || rounds < 3 {
            assert!(
                honest.running() && victim.server.running(),
                "after {rounds} attacks: {}",
                victim.server.stderr()
            );
            attack(&mut victim, &mut random, &over);
            rounds += 1;
        }
        honest.wait_line("talked", secs(60));
        honest.say("\n");
        honest.success(secs(60));
        // New connections are as welcome as before.
        let mut after =
            c.start("after", Side::Run.command(compile("many")?).args(["idle", &port, "2", "50"]));
        after.wait_line("ready", secs(60));
        after.say("\n");
        after.success(secs(60));
        victim.server.stop();
        println!("{title}: {rounds} hostile connections");
        Ok(())
    });
}

fn scribbles(victim: &mut Victim, random: &mut Random, over: &dyn Fn() -> bool) {
    let mut peer = victim.peer();
    peer.switch();
    for i in 0..3000 {
        scribble(random, &peer);
        match i % 16 {
            0 => peer.publish(&bytes(i, 100)),
            8 => peer.poke(),
            _ => {}
        }
        if i % 64 == 0 && (peer.is_over() || over()) {
            break;
        }
    }
}

#[test]
fn anything_into_every_page() {
    besieged("scribbles", Ports::Low, scribbles);
}

#[test]
fn anything_into_every_page_of_one_that_called() {
    besieged("scribbles-high", Ports::High, scribbles);
}

/// Every word by itself at its edges, on a connection that was in order until then.
#[test]
fn the_edges_of_every_word() {
    let mut turn = 0;
    besieged("edges", Ports::Low, |victim, random, _| {
        let mut peer = victim.peer();
        peer.switch();
        peer.publish(&bytes(1, 300));
        let word = WORDS[turn % WORDS.len()].0;
        turn += 1;
        for _ in 0..40 {
            peer.set(word, value(random, &peer));
            peer.ring();
            if peer.is_over() {
                break;
            }
        }
    });
}

/// States of the header that were true once, put back later and in any order.
#[test]
fn old_headers_come_back() {
    besieged("replays", Ports::Low, |victim, random, _| {
        let mut peer = victim.peer();
        peer.switch();
        let mut past: Vec<Vec<u64>> = Vec::new();
        for i in 0..60 {
            past.push(WORDS.iter().map(|w| peer.word(w.0)).collect());
            peer.publish(&bytes(i, 200 + random.below(3000) as usize));
            sleep(millis(random.below(2)));
            if i > 10 && random.below(3) == 0 {
                let then = &past[random.below(past.len() as u64) as usize];
                let all = random.below(2) == 0;
                for (word, value) in WORDS.iter().zip(then) {
                    if all || random.below(3) == 0 {
                        peer.set(word.0, *value);
                    }
                }
                peer.ring();
            }
            if peer.is_over() {
                break;
            }
        }
    });
}

/// Between the victim's look at a word and its use of it the word changes: true and impossible
/// values, as fast as a processor can write them.
#[test]
fn words_change_between_look_and_use() {
    let mut turn = 0;
    besieged("races", Ports::Low, |victim, random, over| {
        let mut peer = victim.peer();
        peer.switch();
        peer.publish(&bytes(7, 1000));
        let size = peer.size as u64;
        let pairs = [
            (PROD, [peer.word(PROD), peer.word(PROD) + (1 << 16)]),
            (PROD, [peer.word(PROD), (size - 1) << 16]),
            (PROD, [peer.word(PROD), peer.word(PROD) | 1 << 48]),
            (CONS, [peer.word(CONS), u64::MAX]),
            (CONS, [peer.word(CONS), peer.word(CONS) | 0x80 << 56]),
            (CONS, [0, 100 << 16]),
            (SWITCH, [peer.word(SWITCH), 0]),
            (RUNG, [0, 0xffff_ffff]),
            (RX_ARM, [1, 2]),
            (56, [0, 1]),
        ];
        let (word, values) = pairs[turn % pairs.len()];
        turn += 1;
        let stop = AtomicBool::new(false);
        scope(|s| {
            let (theirs, at, stop) = (&peer.theirs, peer.at + word, &stop);
            s.spawn(move || {
                while !stop.load(Relaxed) {
                    for value in values {
                        match word {
                            32..=52 => theirs.short(at).store(value as u32, Relaxed),
                            _ => theirs.long(at).store(value, Relaxed),
                        }
                    }
                }
            });
            let conn = peer.conn.as_fd();
            for _ in 0..200 {
                let _ = rustix::net::send(
                    conn,
                    &[1; 3],
                    rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
                );
                sleep(std::time::Duration::from_micros(random.below(300)));
                if over() {
                    break;
                }
            }
            stop.store(true, Relaxed);
        });
    });
}

/// Bytes on the TCP connection without end, while the ring says that the stream is over, or
/// nothing, or anything: the victim's thread has other connections to look after.
#[test]
fn doorbells_without_end() {
    let mut turn = 0u64;
    besieged("flood", Ports::Low, |victim, _, over| {
        let mut peer = victim.peer();
        peer.switch();
        peer.publish(&bytes(3, 50));
        let ends = [0, 0x80 << 56, 0xc0 << 56, 0x20 << 56, 0x40 << 56][turn as usize % 5];
        turn += 1;
        peer.set(CONS, peer.word(CONS) | ends);
        let junk = [0u8; 16 << 10];
        let mut last = 0;
        while !over() {
            peer.set(RUNG, turn.wrapping_mul(0x1234_5677) & 0x7fff_ffff);
            match rustix::net::send(
                peer.conn.as_fd(),
                &junk,
                rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
            ) {
                Ok(_) => last = 0,
                Err(rustix::io::Errno::AGAIN) if last < 200 => {
                    last += 1;
                    sleep(millis(1));
                }
                Err(_) => break,
            }
        }
    });
}

/// The memory itself: neither arena can be resized by its peer, and holes in it harm nobody.
#[test]
fn the_memory_is_pulled_away() {
    besieged("memory", Ports::Low, |victim, random, _| {
        let mut peer = victim.peer();
        peer.switch();
        for shared in [&peer.theirs, &peer.ours] {
            for len in [0, 4096, shared.len as u64 / 2, shared.len as u64 * 2] {
                assert!(ftruncate(&shared.fd, len).is_err(), "a sealed arena was resized to {len}");
            }
        }
        for i in 0..50 {
            peer.publish(&bytes(i, 2000));
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            for shared in [&peer.theirs, &peer.ours] {
                let at = random.below(shared.len as u64 / 4096) * 4096;
                fallocate(&shared.fd, hole, at, shared.len as u64 - at).expect("a hole");
            }
            if peer.is_over() {
                break;
            }
        }
    });
}

/// A peer that keeps to the rules is served: what the others do wrong is what ends them.
#[test]
fn an_orderly_peer_is_served() {
    for ports in [Ports::Low, Ports::High] {
        hostile("orderly", |c| -> Outcome {
            let mut victim = Victim::new(c, ports)?;
            let mut peer = victim.peer();
            // What it was sent over TCP may still be on its way back, through the ring.
            let end = Deadline::within(secs(30));
            while peer.switched_at() + (peer.echoed().len() as u64) < bytes_sent(&peer.conn) {
                assert!(!end.is_over(), "what was sent over TCP does not come back");
                sleep(millis(1));
            }
            let before = peer.echoed();
            peer.switch();
            let sent = bytes(11, 5000);
            peer.publish(&sent);
            let end = Deadline::within(secs(30));
            while peer.echoed().len() < before.len() + sent.len() && !end.is_over() {
                sleep(millis(1));
            }
            let echoed = peer.echoed();
            assert!(
                echoed[before.len()..] == sent,
                "{} bytes came back",
                echoed.len() - before.len()
            );
            drop(peer);
            victim.server.stop();
            Ok(())
        });
    }
}
