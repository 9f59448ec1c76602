//! Two ends of one ring against a queue of the standard library, and ends that lie.

#![allow(unsafe_code)]

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

const LOG2: u8 = 3;
const BUFFERS: Buffers = Buffers { offset: 0x1000, size: 64 };

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// The client's end and the server's, of the direction that the client reads or writes.
fn ends(client_reads: bool) -> (Vec<Region>, Ring, Ring, OwnedFd) {
    let region = Region::create(0x2000).unwrap();
    let bell = bell();
    let ring = |reads, own| {
        Ring::place(&region, 0, LOG2, reads, own, Bell::new(bell.try_clone().unwrap()).unwrap())
            .unwrap()
    };
    let mut client = ring(client_reads, Some(BUFFERS));
    let mut server = ring(!client_reads, None);
    client.lay_out();
    server.start().unwrap();
    client.start().unwrap();
    (vec![region], client, server, bell)
}

fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        let mut part = vec![0; piece.length];
        // SAFETY: the piece is mapped, and `part` as long.
        unsafe { piece.at.as_ptr().copy_to_nonoverlapping(part.as_mut_ptr(), piece.length) };
        all.extend(part);
    }
    all
}

proptest! {
    /// Packets of one buffer and of several, both directions, in any interleaving, many times
    /// around: what comes out is what went in, in order, and what was refused had no room.
    #[test]
    fn two_ends_are_a_queue(
        client_reads: bool,
        steps in vec((any::<bool>(), 1_usize..600), 1..400),
    ) {
        let (regions, client, server, _bell) = ends(client_reads);
        let (mut writer, mut reader) =
            if client_reads { (server, client) } else { (client, server) };
        let (mut oracle, mut pieces) = (VecDeque::<Vec<u8>>::new(), Vec::new());
        for (number, (write, length)) in steps.into_iter().enumerate() {
            if write {
                let packet: Vec<u8> = (0..length).map(|i| (i * 7 + number) as u8).collect();
                let used: usize = oracle.iter().map(|packet| packet.len().div_ceil(64)).sum();
                let fits = used + length.div_ceil(64) <= 8;
                let mut said = writer.put(&regions, &packet).unwrap();
                if said.is_none() {
                    // It may have gone by what it saw before.
                    said = writer.put(&regions, &packet).unwrap();
                }
                let never = !fits && used == 0;
                prop_assert_eq!(said, if fits { Some(true) } else { never.then_some(false) });
                if fits {
                    oracle.push_back(packet);
                }
                writer.show();
            } else {
                let got = reader.take(&regions, &mut pieces).unwrap();
                prop_assert_eq!((got > 0).then(|| bytes_of(&pieces)), oracle.pop_front());
                reader.show();
            }
        }
    }

    /// Whatever the client writes into its memory, a server finds pieces inside of it or an error.
    #[test]
    fn a_server_never_leaves_the_regions(
        words in vec(any::<u64>(), 32), index in any::<u16>(), reads: bool
    ) {
        let (regions, _client, mut server, _bell) = ends(!reads);
        for (number, word) in words.iter().enumerate() {
            let at = regions[0].at(DESCRIPTORS as u32 + 8 * number as u32, 8).unwrap();
            // Small numbers more often than not: an address that is right must be tried, too.
            let word = if word & 3 == 0 { *word } else { word & 0x0000_0fff_0001_0001 };
            // SAFETY: in the region, aligned.
            unsafe { at.cast::<u64>().as_ptr().write_volatile(word) };
        }
        server.word(HEAD).store(index & 15, Ordering::Relaxed);
        let start = regions[0].at(0, 1).unwrap().as_ptr().addr();
        let mut pieces = Vec::new();
        for _ in 0..20 {
            if reads {
                match server.take(&regions, &mut pieces) {
                    Ok(1..) => {
                        let inside = pieces.iter().all(|piece| {
                            let at = piece.at.as_ptr().addr();
                            at >= start && at + piece.length <= start + 0x2000
                        });
                        prop_assert!(inside);
                    }
                    Ok(0) | Err(_) => break,
                }
            } else if server.put(&regions, &[7; 100]) != Ok(Some(true)) {
                break;
            }
        }
    }
}

#[test]
fn ends_that_lie_are_found_out() {
    for (what, word, at) in [("further", 9, HEAD), ("further", 0xffff, HEAD)] {
        let (regions, _client, mut server, _bell) = ends(false);
        server.word(at).store(word, Ordering::Relaxed);
        let error = server.take(&regions, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains(what), "{word:x}: {error}");
    }
    let (regions, mut client, _server, _bell) = ends(false);
    client.word(TAIL).store(1, Ordering::Relaxed);
    assert!(client.put(&regions, b"taken before it was sent").is_err());
    let (regions, mut client, _server, _bell) = ends(true);
    client.write_descriptor(0, 0, 65);
    client.word(TAIL).store(1, Ordering::Relaxed);
    assert!(client.take(&regions, &mut Vec::new()).is_err(), "more than the buffer has");
    let (regions, client, mut server, _bell) = ends(false);
    (0..8).for_each(|slot| client.write_descriptor(slot, NEXT, 4));
    client.word(HEAD).store(8, Ordering::Relaxed);
    let error = server.take(&regions, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("does not end"), "{error}");
    server.cookie().store(0, Ordering::Relaxed);
    assert!(server.start().is_err());
}

#[test]
fn a_reader_that_sleeps_is_woken_and_one_that_looks_is_not() {
    let (regions, mut client, server, bell) = ends(false);
    let mut count = [0; 8];
    client.put(&regions, b"one").unwrap();
    client.show();
    assert_eq!(rustix::io::read(&bell, &mut count), Err(rustix::io::Errno::AGAIN));
    server.word(FLAGS).store(0, Ordering::Relaxed);
    client.put(&regions, b"two").unwrap();
    client.show();
    assert_eq!(rustix::io::read(&bell, &mut count), Ok(8));
    // A counter that is full is not waited for, whatever the peer does to the descriptor.
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&bell, rustix::fs::OFlags::empty()).unwrap();
    client.put(&regions, b"three").unwrap();
    client.show();
}

/// A packet in more buffers than any packet needs has none here, and the next one is itself.
#[test]
fn a_chain_without_end_is_no_packet() {
    let (log2, size) = (8, 64);
    let region = Region::create(0x8000).unwrap();
    let own = Buffers { offset: 0x2000, size };
    let ring =
        |reads, own| Ring::place(&region, 0, log2, reads, own, Bell::new(bell()).unwrap()).unwrap();
    let (mut client, mut server) = (ring(false, Some(own)), ring(true, None));
    client.lay_out();
    server.start().unwrap();
    for (slot, flags) in (0..200).zip(std::iter::repeat(NEXT)) {
        client.write_descriptor(slot, if slot == 199 { 0 } else { flags }, 1);
    }
    client.word(HEAD).store(200, Ordering::Relaxed);
    let (regions, mut pieces) = (vec![region], Vec::new());
    assert_eq!(server.take(&regions, &mut pieces), Ok(200));
    assert!(pieces.is_empty() && pieces.capacity() <= MOST_PIECES);
    server.show();
    (200..200 + 64).for_each(|slot| {
        client.write_descriptor(slot % 256, if slot == 263 { 0 } else { NEXT }, 1);
    });
    client.word(HEAD).store(264, Ordering::Relaxed);
    assert_eq!(server.take(&regions, &mut pieces), Ok(64));
    assert_eq!(pieces.len(), 64);
    // And none is sent so.
    client.start().unwrap();
    let mut server = Ring { reads: false, ..server };
    (server.next, server.ready) = (0, 0);
    (0..=255).for_each(|slot| client.write_descriptor(slot, 0, 1));
    client.word(HEAD).store(255, Ordering::Relaxed);
    assert_eq!(server.put(&regions, &[5; 65]), Ok(Some(false)));
    assert_eq!(server.put(&regions, &[5; 64]), Ok(Some(true)));
}
