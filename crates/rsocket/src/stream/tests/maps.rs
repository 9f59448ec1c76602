//! Buffers of the application that the peer writes to.
#![allow(unsafe_code)]

use super::*;

#[test]
fn direct_writes_find_their_map() {
    let [a, b] = streams([config(16, 500), config(16, 500)], |qp| qp);
    let mut buffer = vec![0u8; 10_000];
    let byte = [9u8; 100];
    // SAFETY: an array; so below.
    let write = |offset| unsafe { a.write_mapped(byte.as_ptr(), 100, offset, false) };
    assert_eq!(write(0), Ok(0), "nothing is mapped");
    assert_eq!(b.map(buffer.as_mut_ptr(), 10_000, true, Some(5000)), Ok(5000));
    send(&b, b"mapped", false).unwrap();
    assert_eq!(recv(&a, 6, NOW).unwrap(), b"mapped");
    assert_eq!(write(4999), Ok(0), "before it");
    assert_eq!(write(5050), Ok(100));
    assert_eq!(write(14_950), Ok(50), "to its end");
    assert_eq!(write(15_000), Ok(0), "behind it");
    assert!(buffer[50..150].iter().all(|b| *b == 9) && buffer[150..9950].iter().all(|b| *b == 0));
    assert!(buffer[9950..].iter().all(|b| *b == 9));
    assert_eq!(b.unmap(buffer.as_mut_ptr(), 9), Err(Errno::INVAL));
    assert_eq!(b.unmap(buffer.as_mut_ptr(), 10_000), Ok(()));
    assert_eq!(b.map(buffer.as_mut_ptr(), 1, true, Some(u64::MAX)), Err(Errno::INVAL));
    assert_eq!(b.map(core::ptr::null_mut(), 1, true, None), Err(Errno::INVAL));
    let more: Vec<_> = (0..3).map(|_| b.map(buffer.as_mut_ptr(), 1, true, Some(0))).collect();
    assert_eq!(more, [Ok(0), Ok(0), Err(Errno::NOMEM)], "two entries");
}

fn maps_for_ever<E: Endpoint + Close>(ends: [Stream<E>; 2]) {
    let [a, b] = &ends;
    let mut buffer = [0u64; 8];
    let buffer = buffer.as_mut_ptr().cast();
    for i in 0..100 {
        assert_eq!(b.map(buffer, 64, true, Some(0)), Ok(0));
        assert_eq!(send(b, &[i], false), Ok(1), "map {i}");
        assert_eq!(recv(a, 9, NOW).unwrap(), [i]);
        assert_eq!(b.unmap(buffer, 64), Ok(()));
        // What the other end has granted is found.
        assert_eq!(recv(b, 1, NOW), Err(Errno::AGAIN));
    }
    close(&ends);
}

/// Each costs a credit, which comes back.
#[test]
fn maps_do_not_use_up_the_connection() {
    let configs = [config(16, 500); 2];
    maps_for_ever(streams(configs, |qp| qp));
    maps_for_ever(over(crate::verbs::tests::pair(configs), configs));
}

/// They come back by the very look that finds the maps: it may be the last one before a sleep from which
/// only a peer with credits wakes.
#[test]
fn maps_that_use_up_all_credits_give_them_back() {
    let config = Config { iomaps: 16, ..config(16, 500) };
    let ends = streams([config; 2], |qp| qp);
    let [a, b] = &ends;
    let mut buffer = [0u8; 16];
    for i in 0..16 {
        let at = buffer.as_mut_ptr().wrapping_add(i as usize);
        assert_eq!(b.map(at, 1, true, Some(i)), Ok(i));
    }
    assert_eq!(send(b, b"x", false), Err(Errno::AGAIN), "a credit for each map");
    assert_eq!(a.poll(0), 0);
    assert_eq!(send(b, b"x", false), Ok(1));
    assert_eq!(recv(a, 9, NOW).unwrap(), b"x");
    // SAFETY: an array.
    assert_eq!(unsafe { a.write_mapped([7; 16].as_ptr(), 16, 0, false) }, Ok(16));
    assert_eq!(buffer, [7; 16]);
    b.unmap_all();
    close(&ends);
}
