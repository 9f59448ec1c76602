//! Any interleaving of sends, receives and ends, against a queue of bytes; with small buffers, few
//! credits, and a provider that is late, short of room, or breaks.
#![allow(unsafe_code)]

mod maps;

use super::cq::GENEROUS;
use super::*;
use crate::provider::faulty::{Faults, Faulty};
use crate::provider::{Lane, Remote};
use crate::shared::{QueuePair, tests::pair};
use crate::wire::Message;
use proptest::prelude::*;
use std::collections::VecDeque;

fn config(rq: u16, half: u32) -> Config {
    let (usual_half, away) = (half.div_ceil(3), Duration::ZERO);
    Config { sq: 16, rq, sbuf: 4096, rbuf: half * 2, usual_half, away, iomaps: 2 }
}

fn streams<E: Endpoint>(configs: [Config; 2], wrap: impl Fn(QueuePair) -> E) -> [Stream<E>; 2] {
    let [a, b] = pair(configs.map(|c| c.rq), configs.map(|c| c.memory())).map(wrap);
    let [to_b, to_a] = [(&a, &configs[0]), (&b, &configs[1])]
        .map(|(end, config)| conn_data(config, &end.memory()));
    over([(a, to_a), (b, to_b)], configs)
}

/// Streams over ends that have been told of each other.
fn over<E: Endpoint>(ends: [(E, ConnData); 2], configs: [Config; 2]) -> [Stream<E>; 2] {
    let mut configs = configs.into_iter();
    ends.map(|(end, peer)| {
        let config = configs.next().unwrap();
        let private = vec![0u64; config.private() / 8 + 1].leak().as_mut_ptr().cast();
        end.lend(private, config.private()).unwrap();
        Stream::new(end, config, &peer, private, Duration::ZERO)
    })
}

/// Gives back what an end was made of: a process has room for some thousand.
trait Close {
    fn close(&self);
}

impl Close for QueuePair {
    fn close(&self) {
        QueuePair::close(self, true);
    }
}

impl Close for crate::verbs::VerbsEndpoint {
    fn close(&self) {
        self.tear_down();
    }
}

impl<E: Close> Close for Faulty<E> {
    fn close(&self) {
        self.inner.close();
    }
}

fn close<E: Close>(ends: &[Stream<E>; 2]) {
    ends.iter().for_each(|end| end.endpoint.close());
}

fn send<E: Endpoint>(s: &Stream<E>, bytes: &[u8], block: bool) -> Result<usize, Errno> {
    // An odd number of bytes in two pieces, as writev would: another way than that of one buffer.
    let (x, y) =
        bytes.split_at(if bytes.len().is_multiple_of(2) { bytes.len() } else { bytes.len() / 3 });
    let bufs = [(x.as_ptr(), x.len()), (y.as_ptr(), y.len())];
    // SAFETY: slices.
    unsafe { s.send(&bufs[..if y.is_empty() { 1 } else { 2 }], block) }
}

fn recv<E: Endpoint>(s: &Stream<E>, max: usize, options: RecvOptions) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; max];
    let (x, y) = out.split_at_mut(if max.is_multiple_of(2) { max } else { max / 2 });
    let bufs = [(x.as_mut_ptr(), x.len()), (y.as_mut_ptr(), y.len())];
    // SAFETY: slices.
    let n = unsafe { s.recv(&bufs[..if y.is_empty() { 1 } else { 2 }], options)? };
    out.truncate(n);
    Ok(out)
}

const NOW: RecvOptions = RecvOptions { block: false, peek: false, wait_all: false };

#[derive(Clone, Debug)]
enum Step {
    Send(bool, usize),
    Recv(bool, usize),
    Peek(bool, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1usize..20, 1usize..6000];
    let step = (0..5, any::<bool>(), size).prop_map(|(kind, end, n)| match kind {
        0 | 1 => Step::Send(end, n),
        2 | 3 => Step::Recv(end, n),
        _ => Step::Peek(end, n),
    });
    prop::collection::vec(step, 1..150)
}

/// Runs the steps and then reads to the end, which `close` makes. The bytes that arrive are those
/// sent.
fn check<E: Endpoint + Close>(ends: &[Stream<E>; 2], steps: &[Step]) {
    let mut expected = [VecDeque::new(), VecDeque::new()];
    let mut next = [0u8, 100];
    for step in steps {
        match *step {
            Step::Send(end, n) => {
                let i = usize::from(end);
                let bytes: Vec<u8> = (0..n).map(|k| next[i].wrapping_add(k as u8)).collect();
                if let Ok(sent) = send(&ends[i], &bytes, false) {
                    expected[1 - i].extend(&bytes[..sent]);
                    next[i] = next[i].wrapping_add(sent as u8);
                }
            }
            Step::Recv(end, n) => {
                take(&ends[usize::from(end)], &mut expected[usize::from(end)], n, NOW)
            }
            Step::Peek(end, n) => {
                take(
                    &ends[usize::from(end)],
                    &mut expected[usize::from(end)],
                    n,
                    RecvOptions { peek: true, ..NOW },
                );
            }
        }
    }
    for i in [0, 1] {
        while !expected[i].is_empty() {
            let _ = ends[1 - i].poll(0);
            take(&ends[i], &mut expected[i], 5000, NOW);
        }
        assert_eq!(recv(&ends[i], 10, NOW), Err(Errno::AGAIN), "no byte too many");
    }
    close(ends);
}

fn take<E: Endpoint>(end: &Stream<E>, expected: &mut VecDeque<u8>, n: usize, options: RecvOptions) {
    match recv(end, n, options) {
        Ok(got) => {
            assert!(got.iter().eq(expected.iter().take(got.len())), "in order, unchanged");
            if !options.peek {
                expected.drain(..got.len());
            }
        }
        Err(e) => assert_eq!(e, Errno::AGAIN),
    }
}

/// As [`check`], but the second end goes after so many steps.
fn cut<E: Endpoint + Close>(
    ends: &[Stream<E>; 2],
    steps: &[Step],
    at: usize,
    kill: impl Fn(&Stream<E>),
    dies: bool,
) {
    let (mut expected, mut next) = (VecDeque::new(), 0u8);
    for step in &steps[..at.min(steps.len())] {
        let (Step::Send(end, n) | Step::Recv(end, n) | Step::Peek(end, n)) = *step;
        match (step, end) {
            (Step::Send(..), true) => {
                let bytes: Vec<u8> = (0..n).map(|k| next.wrapping_add(k as u8)).collect();
                if let Ok(sent) = send(&ends[1], &bytes, false) {
                    expected.extend(&bytes[..sent]);
                    next = next.wrapping_add(sent as u8);
                }
            }
            (Step::Send(..), false) => drop(send(&ends[0], &vec![7; n], false)),
            (_, true) => drop(recv(&ends[1], n, NOW)),
            (_, false) => take(&ends[0], &mut expected, n, NOW),
        }
    }
    if dies {
        kill(&ends[1]);
    } else {
        ends[1].shutdown(How::Both).unwrap();
    }
    ends[0].endpoint.probe();
    let block = RecvOptions { block: true, ..NOW };
    loop {
        match recv(&ends[0], 4000, block) {
            Ok(got) if got.is_empty() => {
                break assert!(!dies && expected.is_empty(), "the end comes last");
            }
            Ok(got) => assert!(
                got.iter().eq(expected.drain(..got.len()).collect::<Vec<_>>().iter()),
                "in order"
            ),
            Err(e) => break assert!(dies && e == Errno::CONNRESET && expected.is_empty(), "{e}"),
        }
    }
    assert_eq!(send(&ends[0], &[1], true), Err(Errno::CONNRESET));
    ends[0].shutdown(How::Both).unwrap();
    close(ends);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bytes_arrive_in_order(steps in steps(), rq in 16u16..40, half in 1u32..3000) {
        check(&streams([config(rq, half), config(16, 2048)], |qp| qp), &steps);
    }

    #[test]
    fn also_late_and_short_of_room(
        steps in steps(), rq in 16u16..40, half in 1u32..3000,
        inline in prop_oneof![Just(0usize), Just(16), Just(64)], full in prop_oneof![Just(0u32), 2u32..9], seed: u64,
    ) {
        let faults = Faults { inline, full, burst: 3, fail: 0 };
        check(&streams([config(rq, half), config(16, 2048)], |qp| Faulty::new(qp, faults, seed)), &steps);
    }

    #[test]
    fn also_over_verbs(steps in steps(), rq in 16u16..40, half in 1u32..3000) {
        let configs = [config(rq, half), config(16, 2048)];
        check(&over(crate::verbs::tests::pair(configs), configs), &steps);
    }

    #[test]
    fn also_over_verbs_that_are_late(
        steps in steps(), rq in 16u16..40, half in 1u32..3000, full in prop_oneof![Just(0u32), 2u32..9], seed: u64,
    ) {
        let configs = [config(rq, half), config(16, 2048)];
        let faults = Faults { inline: 16, full, burst: 3, fail: 0 };
        let ends = crate::verbs::tests::pair(configs).map(|(end, data)| (Faulty::new(end, faults, seed), data));
        check(&over(ends, configs), &steps);
    }

    /// The peer ends, or dies without a word, after any step: what it sent before is read, then the
    /// end is told, and no call hangs or panics.
    #[test]
    fn a_peer_may_end_at_any_step(steps in steps(), at in 0usize..150, dies: bool, verbs: bool) {
        let configs = [config(20, 700), config(16, 500)];
        if verbs {
            let ends = over(crate::verbs::tests::pair(configs), configs);
            cut(&ends, &steps, at, |end| end.endpoint.disconnect(), dies);
        } else {
            let ends = streams(configs, |qp| qp);
            cut(&ends, &steps, at, |end| QueuePair::close(&end.endpoint, true), dies);
        }
    }

    #[test]
    fn what_was_sent_before_the_end_is_read(steps in steps(), how in 0usize..2) {
        let ends = streams([config(16, 3000), config(20, 500)], |qp| qp);
        let bytes: Vec<u8> = (0..steps.len() * 37).map(|i| i as u8).collect();
        let sent = send(&ends[0], &bytes, false).unwrap_or(0);
        let how = [How::Write, How::Both][how];
        ends[0].shutdown(how).unwrap();
        let mut got = Vec::new();
        while got.len() < sent {
            got.extend(recv(&ends[1], 999, NOW).unwrap());
        }
        prop_assert_eq!(&got, &bytes[..sent]);
        prop_assert_eq!(recv(&ends[1], 1, NOW).unwrap(), vec![], "the end");
        prop_assert_eq!(send(&ends[0], &[1], false), Err(Errno::CONNRESET));
        // The other half lives on only if it was not ended.
        prop_assert_eq!(send(&ends[1], &[1], false).is_ok(), how == How::Write);
        close(&ends);
    }

    /// Forged immediates and entries: an error of this connection, nothing else.
    #[test]
    fn a_hostile_peer_breaks_only_its_connection(words in prop::collection::vec(any::<u32>(), 1..60), at: u16, junk: [u8; 32]) {
        let ends = streams([config(16, 500), config(16, 500)], |qp| qp);
        let peer = &ends[1].endpoint;
        for (i, word) in words.iter().enumerate() {
            let to = Remote { addr: u64::from(at) % 80, key: crate::shared::MEMORY_KEY };
            let word = match i % 3 { 0 => *word, 1 => Message::Data(word % 600).encode(), _ => Message::Credits(*word as u16).encode() };
            // SAFETY: an array; the peer's own stream does not post.
            let _ = unsafe { peer.post_write(Lane::Stream, &[(junk.as_ptr(), 32)], to, Some(word), 0) };
            let _ = recv(&ends[0], 700, NOW);
            let _ = send(&ends[0], &[1; 300], false);
            // SAFETY: an array.
            let _ = unsafe { ends[0].write_mapped(junk.as_ptr(), 32, word.into(), false) };
        }
        let _ = ends[0].poll(libc::POLLIN | libc::POLLOUT);
        ends[0].shutdown(How::Both).unwrap();
        close(&ends);
    }
}

#[test]
fn a_failed_write_is_an_error_of_the_connection() {
    let faults = Faults { inline: 0, full: 0, burst: 9, fail: 3 };
    let ends = streams([config(16, 4000), config(16, 4000)], |qp| Faulty::new(qp, faults, 1));
    let result = (0..100)
        .find_map(|_| send(&ends[0], &[0; 100], false).err().filter(|e| *e != Errno::AGAIN));
    assert_eq!(result, Some(Errno::CONNRESET));
    assert_eq!(ends[0].take_error(), Errno::IO.raw_os_error());
    assert_eq!(ends[0].take_error(), 0, "read once");
    assert_ne!(ends[0].poll(libc::POLLIN) & libc::POLLERR, 0);
}

/// A grant that finds the queue full must leave alone the bytes of one that is on its way.
#[test]
fn grants_on_their_way_are_not_written_over() {
    let faults = Faults { inline: 0, full: 2, burst: 1, fail: 0 };
    let steps: Vec<_> = (0..300)
        .map(|i| if i % 2 == 0 { Step::Send(false, 9) } else { Step::Recv(true, 9) })
        .collect();
    for seed in 0..50 {
        check(&streams([config(16, 4), config(16, 4)], |qp| Faulty::new(qp, faults, seed)), &steps);
    }
}

/// Each look that finds the granted room full counts as a late one here.
#[test]
fn a_receiver_that_is_late_is_sent_more_at_a_time_until_it_keeps_up() {
    let config = config(64, 3000);
    let ends = streams([config; 2], |end| end);
    let round = || {
        // A look grants the second half.
        assert_eq!(recv(&ends[1], 1, NOW), Err(Errno::AGAIN));
        let mut sent = 0;
        while let Ok(n) = send(&ends[0], &[7; 500], false) {
            sent += n;
        }
        let mut read = 0;
        while let Ok(bytes) = recv(&ends[1], 10_000, NOW) {
            read += bytes.len();
        }
        assert_eq!(read, sent);
        sent as u32
    };
    assert_eq!(round(), 2 * config.usual_half);
    let rounds: Vec<u32> = (0..5).map(|_| round()).collect();
    assert_eq!(rounds.last(), Some(&config.rbuf), "{rounds:?}");
    for _ in 0..config.rbuf * GENEROUS {
        send(&ends[0], &[7], true).unwrap();
        recv(&ends[1], 1, NOW).unwrap();
    }
    assert_eq!(round(), 2 * config.usual_half, "a receiver that keeps up has what is usual again");
    // What an application has chosen is granted whole from the start.
    let chosen = Config { usual_half: config.half(), ..config };
    close(&ends);
    let ends = streams([chosen; 2], |end| end);
    assert_eq!(recv(&ends[1], 1, NOW), Err(Errno::AGAIN));
    let mut sent = 0;
    while let Ok(n) = send(&ends[0], &[7; 500], false) {
        sent += n;
    }
    assert_eq!(sent as u32, chosen.rbuf);
    close(&ends);
}

#[test]
fn a_peer_that_dies_resets_after_its_last_bytes() {
    let [a, b] = streams([config(16, 500), config(16, 500)], |qp| qp);
    send(&b, b"last words", false).unwrap();
    QueuePair::close(&b.endpoint, true);
    a.endpoint.probe();
    assert_eq!(recv(&a, 100, RecvOptions { block: true, ..NOW }).unwrap(), b"last words");
    assert_eq!(recv(&a, 100, RecvOptions { block: true, ..NOW }), Err(Errno::CONNRESET));
    assert_eq!(send(&a, b"x", true), Err(Errno::CONNRESET));
}

/// Both directions full at once, four threads: hangs if a blocked send stalls a receive, or the
/// reverse.
#[test]
fn directions_do_not_wait_for_each_other() {
    const TOTAL: usize = 1 << 20;
    let ends = streams([config(16, 700), config(16, 700)], |qp| qp);
    std::thread::scope(|scope| {
        for end in &ends {
            scope.spawn(move || {
                let bytes: Vec<u8> = (0..TOTAL).map(|i| (i / 7) as u8).collect();
                let mut done = 0;
                while done < TOTAL {
                    done += send(end, &bytes[done..TOTAL.min(done + 5000)], true).unwrap();
                }
            });
            scope.spawn(move || {
                let mut done = 0;
                while done < TOTAL {
                    let got = recv(end, 3000, RecvOptions { block: true, ..NOW }).unwrap();
                    assert!(got.iter().enumerate().all(|(i, b)| *b == ((done + i) / 7) as u8));
                    done += got.len();
                }
            });
        }
    });
}

/// A send that can never go on, since the peer does not read, must not keep a receive from
/// returning.
#[test]
fn a_blocked_send_leaves_receives_alone() {
    let [a, b] = &streams([config(16, 500), config(16, 500)], |qp| qp);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || send(a, &[1; 100_000], true));
        while !a.send.waiting.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for i in 0..100u8 {
            send(b, &[i; 9], true).unwrap();
            assert_eq!(
                recv(a, 9, RecvOptions { block: true, wait_all: true, ..NOW }).unwrap(),
                [i; 9]
            );
        }
        // Its end wakes the blocked send.
        b.shutdown(How::Both).unwrap();
        assert!(sender.join().unwrap().is_ok_and(|n| n < 100_000));
    });
}

/// Programs take a receive that gives less than they have room for as one that found no more.
#[test]
fn a_receive_with_room_left_has_looked_for_more() {
    let ends = streams([config(8, 4096), config(8, 4096)], |qp| qp);
    assert_eq!(send(&ends[0], b"abc", false), Ok(3));
    assert_eq!(ends[1].poll(libc::POLLIN), libc::POLLIN);
    assert_eq!(send(&ends[0], b"de", false), Ok(2));
    assert_eq!(recv(&ends[1], 2, NOW).unwrap(), b"ab");
    assert_eq!(recv(&ends[1], 9, NOW).unwrap(), b"cde");
    assert_eq!(recv(&ends[1], 9, NOW), Err(Errno::AGAIN));
    close(&ends);
}

/// No call takes longer than the messages of both queues.
#[test]
fn a_peer_that_talks_on_keeps_nobody_in_a_call() {
    let configs = [config(16, 4096); 2];
    let faults = Faults { inline: 16, full: 0, burst: 3, fail: 0 };
    let ends = streams(configs, |end| Faulty::new(end, faults, 1));
    ends[0].endpoint.talks_on.store(true, Ordering::Relaxed);
    assert_eq!(ends[0].poll(libc::POLLIN), 0);
    assert_eq!(recv(&ends[0], 1, NOW), Err(Errno::AGAIN));
    ends[0].shutdown(How::Both).unwrap();
    close(&ends);
}
