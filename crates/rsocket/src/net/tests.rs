//! As a program would use it.
#![allow(unsafe_code)]

use super::*;

#[test]
fn reads_like_std_net() {
    let listener = Builder::new().iomaps(2).receive_buffer(8192).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), peer);
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        stream.write_all(text.to_uppercase().as_bytes()).unwrap();
    });
    let mut client = RsocketStream::connect(address).unwrap();
    assert_eq!(client.peer_addr().unwrap(), address);
    let text = "all of this ".repeat(5000);
    write!(client, "{text}").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    client.read_to_string(&mut back).unwrap();
    assert_eq!(back, text.to_uppercase());
    assert!(client.take_error().unwrap().is_none());
    assert_ne!(client.wait(libc::POLLIN, None).unwrap() & libc::POLLIN, 0, "the end is readable");
    server.join().unwrap();
    assert_eq!(
        RsocketStream::connect(address).unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
}

#[test]
fn sets_tell_who_is_ready() {
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let set = RsocketSet::new().unwrap();
    set.add(&listener, libc::EPOLLIN as u32, 7).unwrap();
    assert_eq!(set.add(&listener, 0, 0).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || RsocketStream::connect(address).unwrap());
    let ready = set.wait(4, Some(Duration::from_secs(20))).unwrap();
    assert_eq!(ready, [Event { events: libc::EPOLLIN as u32, data: 7 }]);
    let (server, _) = listener.accept().unwrap();
    set.add(&server, libc::EPOLLOUT as u32, 8).unwrap();
    let ready = set.wait(4, Some(Duration::from_secs(20))).unwrap();
    assert_eq!(ready, [Event { events: libc::EPOLLOUT as u32, data: 8 }]);
    drop(client.join().unwrap());
}

#[test]
fn writes_into_mapped_memory() {
    let listener = Builder::new().iomaps(4).listen("[::1]:0").unwrap();
    let address = listener.local_addr().unwrap();
    let writer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(stream.write_at(&[7; 1000], 500).unwrap(), 1000);
        assert_eq!(stream.write_at(&[7; 1000], 99_500).unwrap(), 500, "to the end of the map");
        stream.write_all(&[1]).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    });
    let mut client = RsocketStream::connect(address).unwrap();
    let mut memory = vec![1u8; 100_000];
    // SAFETY: it lives until the stream has ended, and is looked at when the peer has said so.
    assert_eq!(unsafe { client.map(memory.as_mut_ptr(), memory.len(), Some(0)) }.unwrap(), 0);
    client.write_all(&[1]).unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    client.unmap(memory.as_mut_ptr(), memory.len()).unwrap();
    let written = |i: usize| (500..1500).contains(&i) || i >= 99_500;
    assert!(memory.iter().enumerate().all(|(i, b)| *b == if written(i) { 7 } else { 1 }));
    drop(client);
    writer.join().unwrap();
}

#[test]
fn datagrams_know_their_sender() {
    let (a, b) = (
        RsocketDatagram::bind("127.0.0.1:0").unwrap(),
        RsocketDatagram::bind("127.0.0.1:0").unwrap(),
    );
    let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    assert_eq!(a.send_to(b"one", to_b).unwrap(), 3);
    let mut buffer = [0; 8];
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (3, to_a));
    b.connect(to_a).unwrap();
    assert_eq!(b.send(&buffer[..3]).unwrap(), 3);
    assert_eq!((a.recv(&mut buffer).unwrap(), &buffer[..3]), (3, &b"one"[..]));
}

fn connected() -> (RsocketStream, RsocketStream) {
    let listener = Builder::new().iomaps(4).listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || Builder::new().iomaps(4).connect(address).unwrap());
    let (server, _) = listener.accept().unwrap();
    // Both ends have introduced themselves.
    let client = client.join().unwrap();
    assert_eq!(server.wait(libc::POLLOUT, None).unwrap(), libc::POLLOUT);
    (client, server)
}

/// A send that fails at once is no reason to wait.
#[test]
fn who_waits_for_room_comes_back_behind_an_end() {
    let (client, mut server) = connected();
    server.write_all(b"an early answer").unwrap();
    drop(server);
    let out = client.wait(libc::POLLOUT, Some(Duration::from_secs(20))).unwrap();
    assert_eq!(out & libc::POLLOUT, libc::POLLOUT);
    let (client, _server) = connected();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.wait(libc::POLLOUT, None).unwrap(), libc::POLLOUT);
}

/// Of every size: within a page, whole pages, and both.
#[test]
fn a_buffer_that_was_taken_back_is_not_written() {
    for (len, before) in [(256, false), (256, true), (20_000, false), (20_000, true)] {
        let (mut client, mut server) = connected();
        let mut buffer = vec![1u8; len];
        // SAFETY: unmapped below; read only when the peer has written.
        unsafe { server.map(buffer.as_mut_ptr(), len, Some(0)) }.unwrap();
        server.write_all(&[0]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        if before {
            assert_eq!(client.write_at(&vec![2; len], 0).unwrap(), len);
            assert!(buffer.iter().all(|byte| *byte == 2));
        }
        server.unmap(buffer.as_mut_ptr(), len).unwrap();
        let known = buffer[0];
        let error = client.write_at(&vec![3; len], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert!(buffer.iter().all(|byte| *byte == known), "{len} {before}");
    }
}

#[test]
fn a_server_that_closes_at_once_ends_the_stream() {
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        loop {
            drop(listener.accept().unwrap());
        }
    });
    for _ in 0..20 {
        let mut client = RsocketStream::connect(address).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_connection_that_was_refused_can_be_tried_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let fd = socket::open(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    table::get(fd).unwrap().fcntl(libc::F_SETFL, libc::O_NONBLOCK.into()).unwrap();
    let to: SocketAddr = ([127, 0, 0, 1], port).into();
    let attempt = || {
        // SAFETY: an address and its length.
        let begun = addr::with(&to, |at, len| unsafe { socket::connect(fd, at, len) });
        if begun.is_ok()
            || begun.as_ref().is_err_and(|e| e.raw_os_error() != Some(libc::EINPROGRESS))
        {
            return begun;
        }
        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        poll(&mut fds, Some(Duration::from_secs(20))).unwrap();
        let mut out = [0; 4];
        let socket = table::get(fd).unwrap();
        socket.get_option(libc::SOL_SOCKET, libc::SO_ERROR, &mut out).unwrap();
        match i32::from_ne_bytes(out) {
            0 => Ok(()),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    };
    assert_eq!(attempt().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let listener = RsocketListener::bind(to).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap());
    // The kernel may tell of the refusal once more first.
    if attempt().is_err() {
        attempt().unwrap();
    }
    socket::close(fd).unwrap();
    drop(accepting.join().unwrap());
}

/// A listener that is no rsocket has accepted the TCP connection and answered something else. The same
/// socket then connects to an rsocket: EISCONN would tell the program that it is connected.
#[test]
fn a_connection_to_a_listener_of_another_kind_can_be_tried_elsewhere() {
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = socket::open(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let attempt = |to: SocketAddr| {
        // SAFETY: an address and its length.
        addr::with(&to, |at, len| unsafe { socket::connect(fd, at, len) })
    };
    let to_plain = plain.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        let mut peer = plain.accept().unwrap().0;
        peer.write_all(b"220 mail.example ready").unwrap();
        // The end of the connection, which the socket leaves when it is tried elsewhere.
        let mut rest = Vec::new();
        let _ = peer.read_to_end(&mut rest);
    });
    assert_eq!(attempt(to_plain).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap());
    attempt(to).unwrap();
    answers.join().unwrap();
    socket::close(fd).unwrap();
    drop(accepting.join().unwrap());
}

#[test]
fn an_accept_ends_when_the_listener_is_shut_down() {
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    socket::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR).unwrap();
    let refused = listener.accept().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
}

/// As of TCP: EAGAIN behind the time, or what was done by then.
#[test]
fn calls_wait_as_long_as_they_are_told() {
    let (client, mut server) = connected();
    let limit = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    let bytes: Vec<u8> =
        [limit.tv_sec, limit.tv_usec].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let socket = table::get(client.as_raw_fd()).unwrap();
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        socket.set_option(libc::SOL_SOCKET, name, &bytes).unwrap();
        let mut out = [0; 16];
        assert_eq!(socket.get_option(libc::SOL_SOCKET, name, &mut out), Ok(16));
        assert_eq!(out[..8], bytes[..8]);
    }
    let again = std::io::ErrorKind::WouldBlock;
    let mut buffer = [0; 8];
    assert_eq!((&client).read(&mut buffer).unwrap_err().kind(), again);
    server.write_all(b"abc").unwrap();
    assert_eq!((&client).read(&mut buffer).unwrap(), 3);
    server.write_all(b"de").unwrap();
    let bufs = [(buffer.as_mut_ptr(), 1), (buffer.as_mut_ptr().wrapping_add(1), 7)];
    // SAFETY: within the buffer.
    let got = unsafe { socket::recv(client.as_raw_fd(), &bufs, libc::MSG_WAITALL) };
    assert_eq!((got, &buffer[..2]), (Ok(2), &b"de"[..]));
    // Nobody reads: what fits is sent, and then nothing.
    let much = vec![7; 64 << 20];
    let sent = (&client).write(&much).unwrap();
    assert!(sent > 0 && sent < much.len(), "{sent}");
    assert_eq!((&client).write(&much).unwrap_err().kind(), again);
    drop(client);
    let mut all = Vec::new();
    server.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent);
}

/// Waiting for an answer that never becomes whole takes no processor.
#[test]
fn half_an_answer_is_waited_for_asleep() {
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = plain.local_addr().unwrap();
    let answers = std::thread::spawn(move || {
        let mut peer = plain.accept().unwrap().0;
        peer.write_all(b"RS").unwrap();
        std::thread::sleep(Duration::from_millis(500));
    });
    let before = thread_time();
    let refused = RsocketStream::connect(to).err().map(|e| e.kind());
    assert_eq!(refused, Some(std::io::ErrorKind::ConnectionRefused));
    let took = thread_time() - before;
    assert!(took < Duration::from_millis(250), "{took:?} of a processor");
    answers.join().unwrap();
}

/// For how long the calling thread has had a processor.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

#[test]
fn the_other_names_of_events_are_told() {
    let (mut client, mut server) = connected();
    let (read, write) = (libc::POLLRDNORM, libc::POLLWRNORM);
    let set = RsocketSet::new().unwrap();
    set.add(&client, (libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32, 3).unwrap();
    assert_eq!(client.wait(read | write, Some(Duration::ZERO)).unwrap(), write);
    server.write_all(b"x").unwrap();
    assert_eq!(client.wait(read, None).unwrap(), read);
    let shown = |events: i32| [Event { events: events as u32, data: 3 }];
    assert_eq!(set.wait(1, None).unwrap(), shown(libc::EPOLLRDNORM));
    client.read_exact(&mut [0]).unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.wait(libc::POLLRDHUP, None).unwrap() & libc::POLLRDHUP, libc::POLLRDHUP);
    assert_eq!(set.wait(1, None).unwrap(), shown(libc::EPOLLRDNORM | libc::EPOLLRDHUP));
}

/// With sets that have room for more numbers than `fd_set` has.
#[test]
fn select_takes_large_sets_and_an_end_is_nothing_exceptional() {
    let (client, mut server) = connected();
    let (at, bit) = (client.as_raw_fd() as usize / 64, 1u64 << (client.as_raw_fd() % 64));
    let select = |read: bool, except: bool, micros: i64| {
        let mut sets = [[0u64; 128]; 2];
        sets[0][at] = bit * u64::from(read);
        sets[1][at] = bit * u64::from(except);
        let mut time = libc::timeval { tv_sec: 0, tv_usec: micros };
        let [read, except] = sets.each_mut().map(|set| set.as_mut_ptr().cast());
        // SAFETY: sets of 8192 bits.
        let count =
            unsafe { crate::capi::rselect(8192, read, core::ptr::null_mut(), except, &mut time) };
        (count, sets[0][at] == bit, sets[1][at] == bit)
    };
    assert_eq!(select(true, true, 0), (0, false, false));
    server.write_all(b"x").unwrap();
    client.wait(libc::POLLIN, None).unwrap();
    assert_eq!(select(true, true, 0), (1, true, false));
    drop(server);
    (&client).read_exact(&mut [0]).unwrap();
    client.wait(libc::POLLIN, None).unwrap();
    let start = std::time::Instant::now();
    assert_eq!(select(false, true, 50_000), (0, false, false));
    assert!(start.elapsed() >= Duration::from_millis(50), "it did not wait");
    assert_eq!(select(true, true, 0), (1, true, false));
}

#[test]
fn a_wait_begun_before_the_connection_sees_it() {
    let listener = RsocketListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let fd = crate::socket::open(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    let waits = std::thread::spawn(move || {
        let mut entry = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        crate::poll::poll(&mut entry, None).map(|_| entry[0].revents)
    });
    std::thread::sleep(Duration::from_millis(20));
    let server = std::thread::spawn(move || {
        let mut server = listener.accept().unwrap().0;
        server.write_all(b"hello").unwrap();
        server
    });
    let std::net::SocketAddr::V4(v4) = address else { unreachable!() };
    let name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: an address of that length.
    unsafe { crate::socket::connect(fd, (&raw const name).cast(), size_of_val(&name) as u32) }
        .unwrap();
    assert_eq!(waits.join().unwrap(), Ok(libc::POLLIN));
    crate::socket::close(fd).unwrap();
    drop(server.join().unwrap());
}

#[test]
fn a_datagram_that_was_cut_says_so() {
    let (a, b) = (
        RsocketDatagram::bind("127.0.0.1:0").unwrap(),
        RsocketDatagram::bind("127.0.0.1:0").unwrap(),
    );
    a.send_to(b"abcdef", b.local_addr().unwrap()).unwrap();
    let mut room = [0u8; 2];
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: 2 };
    // SAFETY: all of a msghdr may be zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    // SAFETY: one buffer of two bytes.
    let got = unsafe { crate::capi::rrecvmsg(b.as_raw_fd(), &mut message, libc::MSG_TRUNC) };
    assert_eq!((got, message.msg_flags & libc::MSG_TRUNC), (6, libc::MSG_TRUNC));
}
