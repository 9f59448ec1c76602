//! Two kernels talk through an access list and a translation of addresses: streams, datagrams and
//! the errors about them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::*;

const NETWORK: &str = "
links = [
    'near.tx -> arp.south', 'arp.south -> near.rx', 'arp.north -> router.left', 'router.left -> arp.north',
    'router.right -> acl.inside', 'acl.inside -> router.right',
    'acl.outside -> nat.inside', 'nat.inside -> acl.outside',
    'nat.outside -> arp_outside.north', 'arp_outside.north -> nat.outside',
    'far.tx -> arp_outside.south', 'arp_outside.south -> far.rx',
]
[apps]
near = { kind = 'Tap', interface = 'tap0' }
far = { kind = 'Tap', interface = 'tap1' }
arp = { kind = 'Neighbour', mac = '02:00:00:00:00:10', addresses = ['10.0.0.1'] }
arp_outside = { kind = 'Neighbour', mac = '02:00:00:00:00:20', addresses = ['203.0.113.7'] }
acl = { kind = 'Acl', rules = [{ action = 'allow', from = 'inside' }] }
nat = { kind = 'Nat', address = '203.0.113.7' }
[apps.router]
kind = 'Forwarder'
ports.left = { mac = '02:00:00:00:00:10', addresses = ['10.0.0.1'] }
ports.right = '02:00:00:00:00:20'
routes = [
    { prefix = '10.0.0.0/24', port = 'left', mac = '02:00:00:00:00:05' },
    { prefix = '203.0.113.0/24', port = 'right', mac = '02:00:00:00:00:09' },
]
";

const LENGTH: usize = 200_000;

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 % 251) as u8).collect()
}

/// The host outside: it answers one stream and one datagram, once it has said that it would.
fn outside(listens: &Sender<()>) {
    for line in [
        "link set lo up",
        "link set tap1 address 02:00:00:00:00:09",
        "address add 203.0.113.9/24 dev tap1",
        "link set tap1 up",
    ] {
        ip(line);
    }
    let listener = TcpListener::bind("203.0.113.9:80").expect("a listener");
    let socket = UdpSocket::bind("203.0.113.9:53").expect("a socket");
    listens.send(()).expect("it is waited for");
    let (mut stream, peer) = listener.accept().expect("a client");
    assert_eq!(peer.ip().to_string(), "203.0.113.7", "the address outside");
    let mut data = vec![0; LENGTH];
    stream.read_exact(&mut data).expect("what the client sends");
    stream.write_all(&data).expect("the client reads");
    let (length, peer) = socket.recv_from(&mut data).expect("a datagram");
    assert_eq!(peer.ip().to_string(), "203.0.113.7", "the address outside");
    // A stranger may not answer for us.
    let stranger = UdpSocket::bind("203.0.113.9:54").expect("a socket");
    stranger.send_to(b"stranger", peer).expect("it is sent");
    socket.send_to(&data[..length], peer).expect("it is sent");
}

/// The host inside.
fn inside() {
    let mut stream = TcpStream::connect("203.0.113.9:80").expect("a connection");
    let mut writer = stream.try_clone().expect("a second handle");
    let writes = thread::spawn(move || writer.write_all(&pattern()).expect("the server reads"));
    let mut data = vec![0; LENGTH];
    stream.read_exact(&mut data).expect("what the server sends");
    writes.join().expect("all was written");
    assert!(data == pattern(), "what comes back is what was sent");
    let socket = UdpSocket::bind("10.0.0.5:0").expect("a socket");
    socket.set_read_timeout(Some(LIMIT)).expect("a limit");
    socket.connect("203.0.113.9:53").expect("connect");
    socket.send(b"question").expect("it is sent");
    let length = socket.recv(&mut data).expect("an answer");
    assert_eq!(&data[..length], b"question");
    // Nobody is at this port, which the kernel outside tells.
    socket.connect("203.0.113.9:99").expect("connect");
    socket.send(b"question").expect("it is sent");
    let error = socket.recv(&mut data).expect_err("nobody answers");
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
}

#[test]
fn kernels_talk_through_a_translation() {
    if !namespace("kernels_talk_through_a_translation") {
        return;
    }
    let mut engine = engine(NETWORK);
    for line in [
        "link set tap0 address 02:00:00:00:00:05",
        "address add 10.0.0.5/24 dev tap0",
        "route add default via 10.0.0.1",
    ] {
        ip(line);
    }
    let (tell, told) = channel();
    let (go, may_go) = channel::<()>();
    let (listens, listening) = channel();
    let far = thread::spawn(move || {
        assert!(namespace("kernels_talk_through_a_translation"));
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("it is waited for");
        may_go.recv().expect("the interface");
        outside(&listens);
    });
    let thread = told.recv().expect("the other namespace");
    ip(&format!("link set tap1 netns {thread}"));
    go.send(()).expect("it waits");
    listening.recv().expect("the host outside");
    let near = thread::spawn(inside);
    until(&mut engine, "an end", || (near.is_finished() || far.is_finished()).then_some(()));
    until(&mut engine, "both ends", || (near.is_finished() && far.is_finished()).then_some(()));
    near.join().expect("the host inside");
    far.join().expect("the host outside");
    assert_eq!(counter(&engine, "acl", "Acl", "related"), 1);
    assert!(counter(&engine, "acl", "Acl", "denied") >= 1, "the stranger");
    assert_eq!(counter(&engine, "nat", "Nat", "mappings"), 2);
}
