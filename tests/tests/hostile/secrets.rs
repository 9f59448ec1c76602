//! What a peer could see of other connections, looked for: in every page, descriptor, token and
//! name that it is given or can guess.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{SealFlags, fcntl_get_seals};
use system_tests::stream::mix;
use system_tests::{Case, Outcome, Ports, Proc, Side, compile, secs};

use crate::attacks::Victim;
use crate::channel::say;
use crate::peer::{Claim, Peer, arena, half, nudge, propose};
use crate::{dial, echo_rounds, hostile};

const ROUNDS: u64 = 20_000;

/// The first words of all messages of `many talk`, eight bytes each: chance does not make them.
pub struct Secrets(HashSet<u64>);

impl Secrets {
    pub fn of_talk() -> Secrets {
        Secrets((0..ROUNDS).map(|i| mix(mix(i + 1000))).collect())
    }

    pub fn found_in(&self, memory: &[u8]) -> usize {
        let word = |at: &[u8]| u64::from_ne_bytes(at.try_into().unwrap_or_default());
        memory.windows(8).filter(|at| self.0.contains(&word(at))).count()
    }
}

/// The shared memory of a process, as its debugger sees it.
fn all_arenas(pid: i32) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the mappings of a child");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the memory of a child");
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains("/memfd:shortwire-arena")) {
        let (from, to) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let ends = [from, to].map(|end| u64::from_str_radix(end, 16).expect("an address"));
        // The first buffers, which hold the connections of this test; the rest is a hole of a
        // gigabyte.
        let mut part = vec![0; (ends[1] - ends[0]).min(4 << 20) as usize];
        memory.read_exact_at(&mut part, ends[0]).expect("mapped memory");
        all.extend(part);
    }
    all
}

fn talk(c: &Case, victim: &Victim) -> Result<Proc, system_tests::Skip> {
    let args = ["talk".to_string(), victim.port.to_string(), ROUNDS.to_string()];
    Ok(c.start("honest", Side::Run.command(compile("many")?).args(args)))
}

/// An honest client whose messages lie in the victim's memory.
pub fn talker(c: &Case, victim: &Victim) -> Result<Proc, system_tests::Skip> {
    let watch = c.watch(&[victim.port]);
    let mut honest = talk(c, victim)?;
    watch.wait_smcd(2, secs(60));
    honest.wait_line("talked", secs(60));
    Ok(honest)
}

/// All that a peer has been given.
pub fn nothing_seen(peer: &Peer, secrets: &Secrets) {
    for shared in [&peer.theirs, &peer.ours] {
        assert_eq!(
            secrets.found_in(&shared.contents()),
            0,
            "bytes of another connection in memory given to a peer"
        );
    }
}

#[test]
fn no_memory_of_other_connections() {
    for ports in [Ports::Low, Ports::High] {
        hostile("secrets", |c| -> Outcome {
            let mut victim = Victim::new(c, ports)?;
            let secrets = Secrets::of_talk();
            let mut honest = talker(c, &victim)?;
            // A connection that rests for a second gives back what its rings have grown to, and what
            // is left holds a few messages: one that was looked at too late talks again.
            for tries in 0.. {
                let there = secrets.found_in(&all_arenas(victim.server.pid()));
                if there > 10 {
                    break;
                }
                assert!(tries < 5, "the search finds what is there: {there}");
                honest.say("\n");
                honest.success(secs(60));
                honest = talk(c, &victim)?;
                honest.wait_line("talked", secs(60));
            }
            let own = |pid: u32| {
                fs::read_dir(format!("/proc/{pid}/fd")).expect("own descriptors").count()
            };
            let before = own(std::process::id());
            let mut peers: Vec<Peer> = Vec::new();
            for _ in 0..4 {
                let mut peer = victim.attach().expect("a peer that keeps to the rules");
                let link = fs::read_link(format!("/proc/self/fd/{}", peer.theirs.fd.as_raw_fd()))
                    .expect("a link");
                assert_eq!(link.to_string_lossy(), "/memfd:shortwire-arena (deleted)");
                let seals = fcntl_get_seals(&peer.theirs.fd).expect("seals");
                assert!(
                    seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
                    "{seals:?}"
                );
                // Beyond the end of the file there is nothing.
                let file = File::from(peer.theirs.fd.try_clone().expect("a copy"));
                assert_eq!(
                    file.read_at(&mut [0; 4096], peer.theirs.len as u64).expect("reading"),
                    0
                );
                peer.switch();
                peer.publish(b"words of a peer");
                nothing_seen(&peer, &secrets);
                peers.push(peer);
            }
            // Each peer brought a connection, a channel at most, and two pieces of memory, and has
            // nothing else.
            assert!(own(std::process::id()) <= before + 4 * 4, "descriptors that nobody asked for");
            // None of them has the memory of another one.
            let arenas: HashSet<u64> = peers.iter().map(|p| p.token >> 24).collect();
            assert_eq!(arenas.len(), peers.len(), "each has an arena of its own");
            honest.say("\n");
            honest.success(secs(60));
            peers.iter().for_each(|peer| nothing_seen(peer, &secrets));
            drop(peers);
            victim.server.stop();
            Ok(())
        });
    }
}

/// Tokens that were not given to the peer, with memory that is not what they name, or none: the
/// connection stays TCP.
#[test]
fn guessed_tokens_name_nothing() {
    hostile("tokens", |c| {
        let mut victim = Victim::new(c, Ports::Low)?;
        let mut honest = talker(c, &victim)?;
        let friend = victim.attach().expect("a peer that keeps to the rules");
        let given = friend.token;
        let theirs_of_friend = Claim::new(2).token;
        let guesses = [
            (given, false),
            (given, true),
            (given + 1, false),
            (given ^ 1 << 24, false),
            (theirs_of_friend, false),
            (theirs_of_friend, true),
            (theirs_of_friend + 1, false),
            (0, false),
            (0xff_ffff, true),
            (5 << 24 | 17, true),
            (u64::MAX, true),
            (u64::MAX, false),
        ];
        for (i, (token, with_memory)) in guesses.into_iter().enumerate() {
            let mut conn = dial(victim.port);
            echo_rounds(&mut conn, 0, 5);
            let claim = Claim { token, ..Claim::new(100 + i as u64) };
            let (channel, accept, memory) =
                propose(&mut conn, victim.port, &victim.proposal, &claim).expect("an answer");
            assert_eq!((accept[4], memory.len()), (2, 1), "an Accept and one descriptor");
            let (own, false_memory) = (arena(), crate::channel::memory(1 << 20));
            let fds = if i % 2 == 0 { [own.as_fd()] } else { [false_memory.as_fd()] };
            // A memory of our own under a token of our own is what a true peer has; these tokens
            // are others'.
            let own_name =
                with_memory && token >> 24 != given >> 24 && token >> 24 != theirs_of_friend >> 24;
            say(&channel, &half(&accept, 3, &claim), if with_memory { &fds } else { &[] });
            if own_name && i % 2 == 0 && token & 0xff_ffff < 16 {
                continue;
            }
            // Every byte still comes back over TCP.
            assert!(
                (0..100).all(|_| nudge(&mut conn)),
                "guess {i}: the connection does not go on over TCP"
            );
            echo_rounds(&mut conn, 0, 50);
            assert!(victim.server.running(), "guess {i}: {}", victim.server.stderr());
        }
        honest.say("\n");
        honest.success(secs(60));
        drop(friend);
        victim.server.stop();
        Ok(())
    });
}

/// A peer that says it is the victim itself would have the victim's own buffers taken for its own.
#[test]
fn nobody_else_is_the_victim() {
    for ports in [Ports::Low, Ports::High] {
        hostile("identity", |c| -> Outcome {
            let mut victim = Victim::new(c, ports)?;
            let friend = victim.attach().expect("a peer that keeps to the rules");
            for token in [friend.token, friend.token + 1] {
                let refused =
                    victim.attach_as(Claim { gid: friend.gid, token }).err().expect("a refusal");
                assert_eq!(refused.descriptors, 0, "memory for somebody under a false name");
                assert_eq!(refused.said.get(4), Some(&4), "a Decline: {refused:?}");
            }
            drop(friend);
            victim.server.stop();
            Ok(())
        });
    }
}
