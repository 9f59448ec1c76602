//! Meetings that strangers disturb.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const CONFIG: Config = Config {
    sq: 16,
    rq: 16,
    sbuf: 4096,
    rbuf: 8192,
    usual_half: 4096,
    away: Duration::ZERO,
    iomaps: 0,
};

fn tcp() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [client, listener.accept().unwrap().0]
}

fn stranger(name: &Secret) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let unix = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&unix, &address(name)?)?;
    Ok(unix)
}

/// The name that the request on this connection has in it, which stays to be read.
fn name_in(tcp: &TcpStream) -> Secret {
    let mut bytes = [0; 24];
    while tcp.peek(&mut bytes).unwrap() < bytes.len() {}
    bytes[8..].try_into().unwrap()
}

/// More of them than there is room for, in front of the acceptor and behind it.
#[test]
fn silent_strangers_do_not_keep_the_acceptor_out() {
    let [client, server] = tcp();
    let mut request = Request::send(client.as_fd(), CONFIG).unwrap();
    let name = name_in(&server);
    let before: Vec<_> = (0..2 * CANDIDATES).map(|_| stranger(&name).unwrap()).collect();
    assert!(request.advance(client.as_fd()).unwrap().is_none());
    let mut answer = Answer::send(server.as_fd(), CONFIG).unwrap();
    let behind: Vec<_> = (0..2).map(|_| stranger(&name).unwrap()).collect();
    let start = Instant::now();
    let met = loop {
        if let Some(met) = request.advance(client.as_fd()).unwrap() {
            break met;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nobody was met");
        std::thread::yield_now();
    };
    let theirs = answer.advance().unwrap().expect("the connector has introduced itself");
    [met, theirs].iter().for_each(|met| met.qp.close(true));
    drop((before, behind));
}

#[test]
fn an_acceptor_that_goes_away_ends_the_attempt() {
    let [client, server] = tcp();
    let mut request = Request::send(client.as_fd(), CONFIG).unwrap();
    let stays = stranger(&name_in(&server)).unwrap();
    send_status(server.as_fd(), status::OK, &[7; 16]).unwrap();
    assert!(request.advance(client.as_fd()).unwrap().is_none());
    let mut bytes = [0; REQUEST];
    receive_whole(server.as_fd(), &mut bytes).unwrap();
    // The child of another test's fork may have a copy.
    rustix::net::shutdown(&server, rustix::net::Shutdown::Both).unwrap();
    drop(server);
    assert!(matches!(request.advance(client.as_fd()), Err(Errno::CONNREFUSED)));
    request.cancel();
    drop(stays);
}

/// A name whose owner accepts nobody, and has no room for more.
#[test]
fn a_connector_that_is_not_at_home_does_not_block_the_acceptor() {
    let [mut client, server] = tcp();
    let name = random().unwrap();
    let flags = SocketFlags::CLOEXEC;
    let unix =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&unix, &address(&name).unwrap()).unwrap();
    rustix::net::listen(&unix, 0).unwrap();
    let mut full = Vec::new();
    while let Ok(one) = stranger(&name) {
        full.push(one);
    }
    let mut out = Writer(Vec::new());
    out.put(&MAGIC).put(&name).put(&[1; 16]).put(&DEVICE.gid().to_bytes());
    out.put(&own_data(&CONFIG).encode());
    client.write_all(&out.0).unwrap();
    assert!(matches!(Answer::send(server.as_fd(), CONFIG), Err(Errno::AGAIN)));
    let mut status = [0; STATUS];
    client.read_exact(&mut status).unwrap();
    assert_eq!(status[..MAGIC.len() + 4], [&MAGIC[..], &status::RESOURCES.to_be_bytes()].concat());
}

/// Byte for byte, each well within what a whole request may take.
#[test]
fn a_request_has_an_end() {
    let [mut client, server] = tcp();
    let trickle = std::thread::spawn(move || {
        (0..REQUEST)
            .take_while(|_| {
                std::thread::sleep(MOMENT);
                client.write_all(&MAGIC[..1]).is_ok()
            })
            .count()
    });
    let mut bytes = [0; REQUEST];
    std::thread::sleep(MOMENT);
    assert_eq!(receive_whole(server.as_fd(), &mut bytes), Err(Errno::TIMEDOUT));
    drop(server);
    assert!(trickle.join().unwrap() < REQUEST, "it waited for the last byte");
}

/// A stranger that has learned our GID and the token of a buffer of another connection.
#[test]
fn a_process_that_names_this_ones_device_gets_none_of_its_buffers() {
    let own = Own::register(&CONFIG, DEVICE.gid()).unwrap();
    let name = random().unwrap();
    let flags = SocketFlags::CLOEXEC;
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&listener, &address(&name).unwrap()).unwrap();
    rustix::net::listen(&listener, 2).unwrap();
    let arena = borrow(DEVICE.lend(own.dmb.token).unwrap().raw()).try_clone_to_owned().unwrap();
    let attach = || {
        let unix = rustix::net::accept(&listener).unwrap();
        let introduction = Introduction {
            gid: DEVICE.gid(),
            token: own.dmb.token,
            dmb_len: own.dmb.len,
            layout: Some(own.layout),
            data: own_data(&CONFIG),
            memory: arena.try_clone().unwrap(),
        };
        introduction.attach(unix.as_fd(), &own).map(|(at, _)| at)
    };
    let ours = stranger(&name).unwrap();
    assert_eq!(attach(), Ok(own.dmb.addr));
    // SAFETY: the child makes a system call or two, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = stranger(&name).map(std::mem::forget);
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(done.is_err().into()) };
    }
    assert_eq!(attach(), Err(Errno::PROTO));
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(ours);
    own.drop();
}
