//! What every provider has to do. A provider's own tests call [`run`] on two connected ends.
#![allow(unsafe_code)]

use super::{Completion, Endpoint, Lane, PostError, Region, Remote};
use core::cell::Cell;
use std::collections::VecDeque;

/// Bytes from which the suite posts.
const STAGE: usize = 1 << 20;

/// Memory that was lent, and how much of it was used.
struct End<'a, E> {
    end: &'a E,
    stage: *mut u8,
    used: Cell<usize>,
}

impl<E> core::ops::Deref for End<'_, E> {
    type Target = E;

    fn deref(&self) -> &E {
        self.end
    }
}

/// Two ends, each with at least 4096 bytes of memory, to which nothing was lent. Breaches panic.
pub fn run<E: Endpoint>(a: &E, b: &E) {
    // For ever: a provider may keep what it was lent.
    let [a, b] = [a, b].map(|end| {
        let stage = Box::leak(vec![0u8; STAGE].into_boxed_slice()).as_mut_ptr();
        end.lend(stage, STAGE).expect("memory of this process");
        End { end, stage, used: Cell::new(0) }
    });
    let (a, b) = (&a, &b);
    for (from, to) in [(a, b), (b, a)] {
        writes_land_in_place(from, to);
        immediate_data_follows_its_bytes(from, to);
        a_lane_keeps_its_order(from, to);
        beyond_the_memory_is_refused(from, to);
        a_peer_without_receives_is_waited_for(from, to);
        events_come_once_asked_for(from, to);
    }
    exposed_memory_is_written(a, b);
    the_end_is_noticed(a, b);
}

fn post<E: Endpoint>(
    from: &End<'_, E>,
    bytes: &[u8],
    region: &Region,
    at: usize,
    imm: Option<u32>,
) -> Result<(), PostError> {
    let to = Remote { addr: region.addr + at as u64, key: region.key };
    let start = if from.used.get() + bytes.len() > STAGE { 0 } else { from.used.get() };
    from.used.set(start + bytes.len());
    let staged = from.stage.wrapping_add(start);
    // SAFETY: within the stage, whose older bytes have been sent by now.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), staged, bytes.len()) };
    // SAFETY: the stage is for ever.
    unsafe { from.post_write(Lane::Stream, &[(staged.cast_const(), bytes.len())], to, imm, 1) }
}

/// Polls both until `to` has `n` more receives.
fn receive<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>, n: usize) -> VecDeque<u32> {
    let mut got = VecDeque::new();
    let mut out = [Completion::Recv(0); 8];
    while got.len() < n {
        from.poll_cq(&mut out);
        let count = to.poll_cq(&mut out);
        let receives = out[..count]
            .iter()
            .filter_map(|c| if let Completion::Recv(imm) = c { Some(*imm) } else { None });
        let before = got.len();
        got.extend(receives);
        if got.len() != before {
            to.post_recv((got.len() - before) as u32);
        }
    }
    assert_eq!(got.len(), n, "no more than was sent");
    got
}

fn contents(region: &Region, at: usize, len: usize) -> Vec<u8> {
    // SAFETY: within the region, to which nobody writes meanwhile.
    (at..at + len).map(|i| unsafe { region.ptr.wrapping_add(i).read_volatile() }).collect()
}

fn writes_land_in_place<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    let region = to.memory();
    for (at, len) in [(0, 1), (1, 63), (100, 1000), (4095, 1), (0, 0)] {
        let bytes: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31) ^ at as u8).collect();
        let before = contents(&region, 0, 4096);
        post(from, &bytes, &region, at, Some(7)).expect("within the memory");
        assert_eq!(receive(from, to, 1), [7]);
        let mut expected = before;
        expected[at..at + len].copy_from_slice(&bytes);
        assert!(contents(&region, 0, 4096) == expected, "{len} bytes at {at}");
    }
}

fn immediate_data_follows_its_bytes<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    let region = to.memory();
    for round in 1..50u32 {
        let bytes = round.to_ne_bytes();
        post(from, &bytes, &region, 8, None).expect("a plain write");
        post(from, &bytes, &region, 16, Some(round)).expect("within the memory");
        assert_eq!(receive(from, to, 1), [round]);
        assert_eq!(contents(&region, 8, 4), bytes, "an earlier write is there as well");
        assert_eq!(contents(&region, 16, 4), bytes);
    }
}

fn a_lane_keeps_its_order<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    let region = to.memory();
    for imm in 0..10 {
        post(from, &[], &region, 0, Some(imm)).expect("room");
    }
    assert!(receive(from, to, 10).into_iter().eq(0..10));
}

fn beyond_the_memory_is_refused<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    if !from.synchronous() {
        return;
    }
    let region = to.memory();
    let before = contents(&region, 0, region.len);
    for (at, len) in [(region.len, 1), (region.len - 1, 2), (usize::MAX / 2, 1)] {
        assert_eq!(
            post(from, &vec![9; len], &region, at, Some(1)),
            Err(PostError::Access),
            "{len} bytes at {at}"
        );
    }
    let other = Region { key: !region.key, ..region };
    assert_eq!(
        post(from, &[9], &Region { addr: 8, ..other }, 0, None),
        Err(PostError::Access),
        "an unknown key"
    );
    assert!(contents(&region, 0, region.len) == before);
    assert_eq!(to.poll_cq(&mut [Completion::Recv(0); 8]), 0, "and nothing was told");
}

fn a_peer_without_receives_is_waited_for<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    if !from.synchronous() {
        return;
    }
    let region = to.memory();
    let mut posted = 0;
    while post(from, &[], &region, 0, Some(posted)).is_ok() {
        posted += 1;
        assert!(posted < 1 << 20, "a queue has an end");
    }
    assert!(receive(from, to, posted as usize).into_iter().eq(0..posted), "none lost, none twice");
    post(from, &[], &region, 0, Some(99)).expect("room again");
    assert_eq!(receive(from, to, 1), [99]);
}

fn events_come_once_asked_for<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    let region = to.memory();
    to.take_event();
    to.request_event();
    assert!(!readable(to), "nothing has happened");
    post(from, &[], &region, 0, Some(1)).expect("room");
    from.poll_cq(&mut [Completion::Recv(0); 8]);
    while !readable(to) {
        from.poll_cq(&mut [Completion::Recv(0); 8]);
    }
    to.await_event().expect("an event");
    to.take_event();
    assert!(!readable(to), "taken");
    assert_eq!(receive(from, to, 1), [1]);
    post(from, &[], &region, 0, Some(2)).expect("room");
    assert_eq!(receive(from, to, 1), [2]);
    assert!(!readable(to), "not asked for");
}

fn readable<E: Endpoint>(end: &End<'_, E>) -> bool {
    let mut fds = [libc::pollfd { fd: end.event_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: one entry.
    unsafe { libc::poll(fds.as_mut_ptr(), 1, 0) == 1 }
}

fn exposed_memory_is_written<E: Endpoint>(from: &End<'_, E>, to: &End<'_, E>) {
    let mut buffer = vec![0u8; 100_000];
    let region = to.expose(buffer.as_mut_ptr(), buffer.len()).expect("memory of this process");
    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i * 7) as u8).collect();
    post(from, &bytes, &region, 1234, None).expect("exposed");
    post(from, &[], &to.memory(), 0, Some(5)).expect("room");
    assert_eq!(receive(from, to, 1), [5]);
    assert!(contents(&region, 1234, bytes.len()) == bytes);
    assert!(buffer[..1234].iter().all(|b| *b == 0));
    to.conceal(region);
}

fn the_end_is_noticed<E: Endpoint>(a: &End<'_, E>, b: &End<'_, E>) {
    post(a, &[], &b.memory(), 0, Some(42)).expect("room");
    a.poll_cq(&mut [Completion::Recv(0); 8]);
    while a.poll_cq(&mut [Completion::Recv(0); 8]) != 0 {}
    assert!(!b.is_gone());
    b.probe();
    assert!(!b.is_gone());
    assert_eq!(receive(a, b, 1), [42]);
    a.disconnect();
    b.probe();
    assert!(b.is_gone());
    b.await_event().expect("awake, for the end");
}
