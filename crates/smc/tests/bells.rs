//! Bells: how they come to a wait of the peer's, what rings by them, and what a peer can do with
//! what it was given.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use common::{End, bytes, open_fds, rings, serial};
use dibs::loopback::arena_of;
use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, epoll_event};
use smc::conn::Waits;
use smc::group::bells::Source;
use smc::group::{bells, lanes};
use smc::{channel, hidden, sys};

const WAIT: u32 = 9;

/// Two ends that have just met, so that their link group has a channel.
fn acquainted() -> (End, End) {
    lanes::forget_peers();
    smc::after_fork_child();
    rings()
}

/// The waits of an end, in its peer's control page.
fn page(end: &End) -> &'static Waits {
    // SAFETY: upgraded, and a control page is never unmapped.
    unsafe { &*end.conn.peer_waits() }
}

/// What is unread in the kernel's socket of an end.
fn doorbells(end: &End) -> usize {
    sys::ioctl_int(end.fd, libc::FIONREAD).unwrap() as usize
}

/// An epoll set with a bell.
struct Set(i32);

impl Set {
    fn new(bell: i32) -> Self {
        let set = sys::epoll_create();
        let event = epoll_event { events: (EPOLLIN | EPOLLET) as u32, u64: 0 };
        assert_eq!(sys::epoll_ctl(set, EPOLL_CTL_ADD, bell, &event), 0);
        Self(set)
    }

    /// Whether it was told of a ring, or of the end of the bell, since it was last asked.
    fn told(&self) -> Option<u32> {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let n = unsafe { sys::epoll_pwait(self.0, &raw mut event, 1, 0, std::ptr::null()) };
        (n == 1).then_some(event.events)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// One message to a sleeper, which then reads it.
fn message(from: &End, to: &End) {
    page(to).sleep(WAIT);
    assert_eq!(from.send(&bytes(1, 0, 10)), Ok(10));
    page(to).wake(WAIT);
    assert_eq!(to.recv(&mut [0; 20], 0), Ok(10));
}

/// A wait that covers its connection has asked for a bell, and fetches it when it was rung for the
/// first time.
fn bell(from: &End, to: &End) -> (u32, Option<i32>) {
    to.conn.cover(WAIT, 0);
    let number = bells::number();
    page(to).ask_for_bell(WAIT, number);
    // The first message rings what every connection begins with.
    for _ in 0..2 {
        message(from, to);
    }
    assert!(page(to).has_bell(WAIT, number));
    (number, bells::fetch(to.conn, WAIT, number))
}

#[test]
fn a_wait_is_rung_by_its_bell_and_not_by_the_connection() {
    let _serial = serial();
    let (from, to) = acquainted();
    let (number, bell) = bell(&from, &to);
    let bell = bell.expect("it has come");
    let (set, before) = (Set::new(bell), doorbells(&to));
    message(&from, &to);
    assert_eq!((set.told(), doorbells(&to)), (None, before + 1), "it does not listen yet");
    page(&to).listen(WAIT, number);
    for _ in 0..3 {
        message(&from, &to);
        assert_eq!((set.told(), doorbells(&to)), (Some(EPOLLIN as u32), before + 1));
        assert_eq!(set.told(), None, "once for each ring");
    }
    assert_eq!(from.send(&bytes(1, 0, 10)), Ok(10));
    assert_eq!(set.told(), None, "nobody sleeps");
    assert_eq!(to.recv(&mut [0; 20], 0), Ok(10));
    page(&to).stop_listening(WAIT, number);
    message(&from, &to);
    assert_eq!((set.told(), doorbells(&to)), (None, before + 2));
    hidden::close(bell);
}

#[test]
fn a_full_bell_is_taken_away_and_another_one_given() {
    let _serial = serial();
    let (from, to) = acquainted();
    let (number, bell) = bell(&from, &to);
    let bell = bell.expect("it has come");
    let set = Set::new(bell);
    page(&to).listen(WAIT, number);
    let mut rings = 0;
    while page(&to).has_bell(WAIT, number) {
        message(&from, &to);
        // The last one came over the connection.
        let told = set.told().expect("each ring is told");
        rings += 1;
        assert!(
            rings < 100_000
                && (told & libc::EPOLLHUP as u32 == 0 || !page(&to).has_bell(WAIT, number))
        );
    }
    assert!(rings > 4_000, "{rings}");
    let before = doorbells(&to);
    message(&from, &to);
    assert_eq!((set.told(), doorbells(&to)), (None, before + 1));
    hidden::close(bell);
    let number = bells::number();
    page(&to).ask_for_bell(WAIT, number);
    message(&from, &to);
    let bell = bells::fetch(to.conn, WAIT, number).expect("another one");
    let set = Set::new(bell);
    page(&to).listen(WAIT, number);
    message(&from, &to);
    assert_eq!(set.told(), Some(EPOLLIN as u32));
    hidden::close(bell);
}

#[test]
fn a_peer_that_closes_its_end_costs_no_signal() {
    let _serial = serial();
    let (from, to) = acquainted();
    let (number, bell) = bell(&from, &to);
    hidden::close(bell.expect("it has come"));
    page(&to).listen(WAIT, number);
    // A SIGPIPE would end this test.
    for _ in 0..3 {
        message(&from, &to);
    }
}

/// What a peer can do with the end that it was given: empty it, let reads and writes of it block,
/// and fill it if it can.
#[test]
fn a_hostile_peer_delays_nobody() {
    let _serial = serial();
    let (from, to) = acquainted();
    let (number, bell) = bell(&from, &to);
    let bell = bell.expect("it has come");
    page(&to).listen(WAIT, number);
    sys::fcntl(bell, libc::F_SETFL, 0);
    let path = format!("/proc/self/fd/{bell}");
    let other_end = std::fs::OpenOptions::new().write(true).open(path);
    if let Ok(mut other_end) = other_end {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        sys::fcntl(other_end.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as usize);
        while other_end.write(&[0; 4096]).is_ok() {}
    }
    for _ in 0..3 {
        message(&from, &to);
    }
    hidden::close(bell);
}

/// What is fetched must be a pipe: who watches anything else may be told of more than rings, or be
/// kept waiting.
#[test]
fn what_is_no_pipe_is_not_fetched() {
    let _serial = serial();
    let (_from, to) = acquainted();
    let number = bells::number();
    page(&to).ask_for_bell(WAIT, number);
    let mut label = arena_of(to.conn.identity.peer_token.load(Relaxed)).to_ne_bytes().to_vec();
    label.extend_from_slice(&WAIT.to_ne_bytes());
    label.extend_from_slice(&number.to_ne_bytes());
    let (file, [read, write]) = (sys::memfd(c"no pipe"), sys::pipe().unwrap());
    let channels: Vec<i32> =
        hidden::all().filter(|&fd| sys::kind_of(fd) == libc::S_IFSOCK).collect();
    let give = |fd| {
        // One of them is the right one.
        assert!(channels.iter().filter(|&&to| channel::send(to, &label, Some(fd))).count() > 0);
        bells::fetch(to.conn, WAIT, number)
    };
    assert_eq!(give(file), None);
    let bell = give(read).expect("a pipe is what it takes");
    hidden::close(bell);
    assert_eq!(bells::fetch(to.conn, WAIT, number), None, "it comes once");
    [file, read, write].into_iter().for_each(|fd| _ = sys::close(fd));
}

#[test]
fn a_group_takes_its_bells_along() {
    let _serial = serial();
    drop(acquainted());
    lanes::forget_peers();
    smc::after_fork_child();
    let before = open_fds();
    let (from, to) = rings();
    let (_, bell) = bell(&from, &to);
    hidden::close(bell.expect("it has come"));
    drop((from, to));
    lanes::forget_peers();
    smc::after_fork_child();
    assert!(open_fds() <= before, "{} {before}", open_fds());
}

/// Runs `f` as a thread of another effective user, for whom the peer of every link group is a
/// stranger; false if that is not allowed.
fn as_somebody_else(f: impl FnOnce()) -> bool {
    let become_user = |user: u32| {
        // SAFETY: integers; of this thread alone, not of the process as through libc.
        unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, user, u32::MAX) == 0 }
    };
    // SAFETY: no arguments.
    let before = unsafe { libc::geteuid() };
    if before != 0 || !become_user(65534) {
        println!("skipped: only root can be two users");
        return false;
    }
    f();
    assert!(become_user(before));
    true
}

/// A wait makes its bell for a peer of another user, and listens at once.
fn made_bell(to: &End) -> Option<(u32, i32)> {
    to.conn.cover(WAIT, 0);
    let (mut seldom, mut made) = (Source::Nowhere, Source::Nowhere);
    let ask =
        || (seldom, made) = (bells::make(to.conn, WAIT, false), bells::make(to.conn, WAIT, true));
    if !as_somebody_else(ask) {
        return None;
    }
    assert_eq!(seldom, Source::Later);
    let Source::Made(bell, number) = made else {
        println!("skipped: the kernel cannot keep descriptors off a socket (Linux 6.16)");
        return None;
    };
    page(to).listen(WAIT, number);
    Some((number, bell))
}

/// Unix stream sockets among what is hidden.
fn sockets() -> Vec<i32> {
    hidden::all().filter(|&fd| sys::is_connected_unix_stream(fd)).collect()
}

#[test]
fn a_wait_makes_its_bell_for_a_peer_of_another_user() {
    let _serial = serial();
    let (from, to) = acquainted();
    assert_eq!(bells::make(to.conn, WAIT, true), Source::Peer, "one of the same user makes it");
    let Some((number, bell)) = made_bell(&to) else { return };
    let set = Set::new(bell);
    // The first message rings what every connection begins with.
    message(&from, &to);
    let before = doorbells(&to);
    for ring in 0..100 {
        message(&from, &to);
        assert_eq!(
            (set.told(), set.told(), doorbells(&to)),
            (Some(EPOLLIN as u32), None, before),
            "ring {ring}"
        );
    }
    // Whoever rings can do no more than that.
    let (mut passed, memory) = (0, sys::memfd(c"not for it"));
    for other in sockets().into_iter().filter(|&fd| fd != bell) {
        passed += usize::from(channel::send(other, b"1", Some(memory)));
    }
    assert_eq!((sockets().len(), passed), (2, 0));
    sys::close(memory);
    // Nobody empties it: it is full one day.
    let mut rings = 0;
    while doorbells(&to) == before {
        message(&from, &to);
        rings += 1;
        assert!(rings < 100_000);
    }
    assert!(rings > 100, "{rings}");
    while let Some(events) = set.told() {
        if events & libc::EPOLLHUP as u32 != 0 {
            break;
        }
    }
    assert_eq!(sockets(), [bell], "the peer has given it up");
    assert_eq!(page(&to).bell_asked_for(WAIT), number);
    hidden::close(bell);
    let Some((next, bell)) = made_bell(&to) else { return };
    assert_ne!(next, number);
    let (set, before) = (Set::new(bell), doorbells(&to));
    message(&from, &to);
    assert_eq!(
        (set.told(), doorbells(&to)),
        (Some(EPOLLIN as u32), before),
        "and takes another one"
    );
    hidden::close(bell);
    message(&from, &to);
    assert_eq!(doorbells(&to), before + 1);
}

/// Sends one urgent byte with a descriptor.
fn pass_urgently(to: i32, fd: i32) -> bool {
    let iov = libc::iovec { iov_base: b"1".as_ptr().cast_mut().cast(), iov_len: 1 };
    let mut control = [0u64; 3];
    // SAFETY: all-zero is a valid msghdr; what it points to is live, and has room for one
    // descriptor.
    unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        (msg.msg_iov, msg.msg_iovlen) = ((&raw const iov).cast_mut(), 1);
        (msg.msg_control, msg.msg_controllen) = (control.as_mut_ptr().cast(), 24);
        let header = &mut *libc::CMSG_FIRSTHDR(&raw const msg);
        (header.cmsg_len, header.cmsg_level, header.cmsg_type) =
            (20, libc::SOL_SOCKET, libc::SCM_RIGHTS);
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        sys::sendmsg(to, &raw const msg, libc::MSG_OOB) == 1
    }
}

/// A connected Unix socket that another process has made, and that process.
fn made_by_another() -> (i32, libc::pid_t) {
    let [own, its] = sys::unix_pair().unwrap();
    // SAFETY: the child makes system calls alone until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: integers only. A test that fails must leave nobody behind who keeps its output
        // open.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let [given, _kept] = sys::unix_pair().unwrap_or([-1, -1]);
        let _ = channel::send(its, b"1", Some(given));
        loop {
            // SAFETY: no arguments.
            unsafe { libc::pause() };
        }
    }
    sys::close(its);
    let mut given = libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 };
    // SAFETY: a live pollfd.
    assert_eq!(unsafe { libc::poll(&mut given, 1, 60_000) }, 1);
    let came = channel::recv(own, &mut [0; channel::MAX]).ok().and_then(|(_, fd)| fd);
    sys::close(own);
    (came.expect("it was given"), child)
}

/// What could keep whoever rings in a write or a close is not taken, nor what is a third party's,
/// who may.
#[test]
fn only_a_connected_socket_is_rung() {
    let _serial = serial();
    let (from, to) = acquainted();
    to.conn.cover(WAIT, 0);
    message(&from, &to);
    let channels: Vec<i32> =
        hidden::all().filter(|&fd| sys::kind_of(fd) == libc::S_IFSOCK).collect();
    let unix = |kind| sys::socket(libc::AF_UNIX, kind, 0) as i32;
    let listening = unix(libc::SOCK_STREAM);
    // A family alone: any free name.
    assert_eq!((sys::bind(listening, &1u16.to_ne_bytes()), sys::listen(listening, 1)), (0, 0));
    let ([used, other], memory) = (sys::unix_pair().unwrap(), sys::memfd(c"not for it"));
    assert!(channel::send(other, b"1", Some(memory)));
    // An urgent byte with a descriptor, which was read: it is counted no more, and the descriptor
    // lies there yet.
    let [urgent, others] = sys::unix_pair().unwrap();
    assert!(pass_urgently(others, memory));
    // SAFETY: room for a byte.
    let read_it =
        unsafe { sys::recv(urgent, [0u8].as_mut_ptr(), 1, libc::MSG_OOB | libc::MSG_DONTWAIT) };
    assert_eq!(
        (read_it, sys::ioctl_int(urgent, libc::FIONREAD), sys::descriptors_on(urgent)),
        (1, Ok(0), Some(1))
    );
    let [read, write] = sys::pipe().unwrap();
    let tcp = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0) as i32;
    let [good, end] = sys::unix_pair().unwrap();
    let (strangers, stranger) = made_by_another();
    assert!(
        sys::is_connected_unix_stream(strangers)
            && channel::peer(strangers).unwrap().pid == stranger
    );
    let [stream, datagrams] = [libc::SOCK_STREAM, libc::SOCK_DGRAM].map(unix);
    let offered = [memory, write, tcp, stream, datagrams, listening, used, urgent, strangers, good];
    for (at, fd) in offered.into_iter().enumerate() {
        let number = at as u32 + 100;
        let mut label = arena_of(to.conn.identity.peer_token.load(Relaxed)).to_ne_bytes().to_vec();
        label.extend_from_slice(&WAIT.to_ne_bytes());
        label.extend_from_slice(&number.to_ne_bytes());
        // One of them is the right one.
        assert!(channels.iter().filter(|&&to| channel::send(to, &label, Some(fd))).count() > 0);
        page(&to).listen(WAIT, number);
        let (fds, before) = (open_fds(), doorbells(&to));
        for _ in 0..3 {
            message(&from, &to);
        }
        let by_tcp = if fd == good { 0 } else { 3 };
        // Under reno the last of them wait for acknowledgements, which the kernel delays.
        let due = Instant::now() + Duration::from_secs(60);
        while doorbells(&to) < before + by_tcp && Instant::now() < due {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((at, doorbells(&to)), (at, before + by_tcp));
        assert!(open_fds() <= fds + usize::from(fd == good), "what is not taken is closed");
    }
    for fd in offered.into_iter().chain([other, others, read, end]) {
        sys::close(fd);
    }
    // SAFETY: a child of this process, which has ended then.
    unsafe {
        libc::kill(stranger, libc::SIGKILL);
        libc::waitpid(stranger, std::ptr::null_mut(), 0);
    }
}

/// A send under a cork wakes later, by the byte that the kernel holds back. That stands for its own
/// connection alone: news of others of the same wait ring at once.
#[test]
fn a_cork_holds_no_other_connection_back() {
    let _serial = serial();
    let (from, to) = acquainted();
    let (number, bell) = bell(&from, &to);
    let bell = bell.expect("it has come");
    let set = Set::new(bell);
    let (other_from, other_to) = rings();
    assert!(std::ptr::eq(page(&to), page(&other_to)), "of one link group");
    other_to.conn.cover(WAIT, 0);
    // The first message rings what every connection begins with.
    message(&other_from, &other_to);
    page(&to).listen(WAIT, number);
    message(&from, &to);
    assert_eq!(set.told(), Some(EPOLLIN as u32));
    for round in 0..3 {
        page(&to).sleep(WAIT);
        from.conn.keep_nodelay(2, true);
        for _ in 0..2 {
            assert_eq!(from.send(&bytes(1, 0, 10)), Ok(10));
            assert_eq!(set.told(), None, "round {round}: corked");
        }
        assert_eq!(other_from.send(&bytes(1, 0, 10)), Ok(10));
        assert_eq!(set.told(), Some(EPOLLIN as u32), "round {round}");
        page(&to).wake(WAIT);
        assert_eq!((to.recv(&mut [0; 40], 0), other_to.recv(&mut [0; 20], 0)), (Ok(20), Ok(10)));
        // A byte for a sleep that is over, which the kernel may have let go by now, is none for the next.
        let rung = to.conn.doorbells_seen();
        page(&to).sleep(WAIT);
        assert_eq!(from.send(&bytes(1, 0, 10)), Ok(10));
        assert_eq!(to.conn.doorbells_seen(), rung + 1, "round {round}");
        page(&to).wake(WAIT);
        from.conn.keep_nodelay(2, false);
        from.conn.push(from.fd);
        assert_eq!(to.recv(&mut [0; 40], 0), Ok(10));
    }
    hidden::close(bell);
}
