//! Edges that nothing new in the events shows.

use super::*;

/// A peer's half of an end where its data was shown: read by then, or not.
fn half_an_end<K: Kind>(asked: u32, is_read: bool) -> [Vec<u32>; 3] {
    let (mut here, mut there) = pair::<K>();
    let set = K::create();
    K::control(set, libc::EPOLL_CTL_ADD, here.as_raw_fd(), asked).unwrap();
    let shows =
        |limit| -> Vec<u32> { K::wait(set, 8, limit).into_iter().map(|(_, e)| e).collect() };
    // What comes for sure may come late.
    let late = Duration::from_secs(20);
    there.write_all(b"a").unwrap();
    let data = shows(late);
    if is_read {
        here.read_exact(&mut [0; 1]).unwrap();
    }
    K::end(&there);
    let end = shows(late);
    let seen = [data, end, shows(if asked & EDGE == 0 { late } else { SOON })];
    K::close(set);
    seen
}

#[test]
fn half_an_end_is_an_edge_behind_data() {
    for asked in [IN, IN | EDGE, IN | HALF | EDGE] {
        for is_read in [true, false] {
            let kernels = half_an_end::<Kernels>(asked, is_read);
            assert_eq!(half_an_end::<Ours>(asked, is_read), kernels, "{asked:x}, {is_read}");
            assert_eq!(half_an_end::<Verbs>(asked, is_read), kernels, "{asked:x}, over verbs");
        }
    }
}

/// A writer that has filled the connection is told once when the reader has made room. What is under way
/// when a write finds no room comes back as room.
fn room<K: Kind>() -> [Vec<u32>; 2] {
    let (mut here, mut there) = pair::<K>();
    K::nonblocking(&here);
    let set = K::create();
    K::control(set, libc::EPOLL_CTL_ADD, here.as_raw_fd(), OUT | EDGE).unwrap();
    let shows = || -> Vec<u32> { K::wait(set, 8, SOON).into_iter().map(|(_, e)| e).collect() };
    let first = shows();
    let mut sent = 0;
    loop {
        while let Ok(n) = here.write(&[7; 1 << 16]) {
            sent += n;
        }
        if shows().is_empty() {
            break;
        }
    }
    let reader = std::thread::spawn(move || {
        there.read_exact(&mut vec![0; sent]).unwrap();
        there
    });
    let set_is_told =
        K::wait(set, 8, Duration::from_secs(20)).into_iter().map(|(_, e)| e).collect();
    drop(reader.join().unwrap());
    drop(here);
    K::close(set);
    [first, set_is_told]
}

#[test]
fn room_is_an_edge() {
    let kernels = room::<Kernels>();
    assert_eq!(room::<Ours>(), kernels);
    assert_eq!(room::<Verbs>(), kernels);
}
