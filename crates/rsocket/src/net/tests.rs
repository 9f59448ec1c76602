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
