//! The verbs provider over [`super::software`].
#![allow(unsafe_code)]

use super::abi::*;
use super::connect::Connector;
use super::{VerbsEndpoint, software};
use crate::provider::faulty::{Faults, Faulty};
use crate::provider::{Completion, Endpoint, Lane, PostError, Remote, conformance};
use crate::stream::Config;
use crate::wire::{ConnData, Message};
use core::sync::atomic::{AtomicU16, Ordering};
use shm::Errno;

fn address(port: u16) -> libc::sockaddr_in {
    // SAFETY: all of it may be zero.
    let mut address: libc::sockaddr_in = unsafe { core::mem::zeroed() };
    (address.sin_family, address.sin_port) = (libc::AF_INET as u16, port.to_be());
    address
}

fn open() -> Connector {
    Connector::open(software::api()).unwrap()
}

fn listener() -> (Connector, u16) {
    static PORT: AtomicU16 = AtomicU16::new(1000);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let mut listener = open();
    // SAFETY: a complete address.
    unsafe { listener.bind(core::ptr::from_ref(&address(port)).cast()) }.unwrap();
    listener.listen(5).unwrap();
    (listener, port)
}

/// Two connected ends and what each was told of the other.
pub fn pair(configs: [Config; 2]) -> [(VerbsEndpoint, ConnData); 2] {
    let (mut listener, port) = listener();
    let mut client = open();
    assert!(listener.accept().unwrap().is_none());
    // SAFETY: a complete address.
    unsafe { client.connect(core::ptr::from_ref(&address(port)).cast()) }.unwrap();
    assert!(client.step(&configs[0], 64).unwrap().is_none());
    let mut server = listener.accept().unwrap().unwrap();
    assert!(client.step(&configs[0], 64).unwrap().is_none());
    server.answer(&configs[1], 64).unwrap();
    let ends = [client.step(&configs[0], 64), server.step(&configs[1], 64)]
        .map(|end| end.unwrap().unwrap());
    // Ids and channels are needed as long as the ends are.
    std::mem::forget((client, server));
    ends
}

const CONFIG: Config = Config {
    sq: 64,
    rq: 64,
    sbuf: 8192,
    rbuf: 16384,
    usual_half: 8192,
    away: std::time::Duration::ZERO,
    iomaps: 2,
};

#[test]
fn conforms() {
    let [a, b] = pair([CONFIG; 2]).map(|end| end.0);
    conformance::run(&a, &b);
}

#[test]
fn conforms_when_it_is_late() {
    let faults = Faults { inline: 16, full: 0, burst: 3, fail: 0 };
    let [a, b] = pair([CONFIG; 2]).map(|end| Faulty::new(end.0, faults, 77));
    conformance::run(&a, &b);
}

#[test]
fn connection_data_is_exchanged() {
    let [a, b] = pair([CONFIG, Config { rq: 32, iomaps: 0, ..CONFIG }]);
    assert_eq!((a.1.credits, a.1.iomaps), (32, Some(0)), "the server's");
    assert_eq!((b.1.credits, b.1.iomaps, b.1.data_buf.length), (64, Some(2), 8192), "the client's");
    assert_eq!((b.1.target_sgl.addr, b.1.target_sgl.key), (a.0.memory().addr, a.0.memory().key));
}

#[test]
fn nobody_listens() {
    let mut client = open();
    // SAFETY: a complete address.
    unsafe { client.connect(core::ptr::from_ref(&address(1)).cast()) }.unwrap();
    assert_eq!(client.step(&CONFIG, 0).err(), Some(Errno::CONNREFUSED));
    client.close();
}

/// Connects with other private data, as a stranger may.
fn request(port: u16, data: &[u8]) -> i32 {
    let api = software::api();
    let to = address(port);
    // SAFETY: each call has what it asks for; the data is copied.
    unsafe {
        let channel = (api.rdma_create_event_channel)();
        let mut id = core::ptr::null_mut();
        (api.rdma_create_id)(channel, &mut id, core::ptr::null_mut(), PS_TCP);
        (api.rdma_resolve_addr)(id, core::ptr::null(), (&raw const to).cast(), 0);
        let mut param: ConnParam = core::mem::zeroed();
        (param.private_data, param.private_data_len) = (data.as_ptr().cast(), data.len() as u8);
        (api.rdma_connect)(id, &mut param);
        (*channel).fd
    }
}

#[test]
fn damaged_connection_data_is_refused() {
    let (mut listener, port) = listener();
    let good = pair([CONFIG; 2])[0].1.encode();
    let mut others = [good; 3];
    others[0][0] = 9;
    others[1][23] = 0;
    others[2][8..16].fill(0xff);
    for data in others {
        request(port, &data);
        assert!(listener.accept().unwrap().is_none(), "{data:?}");
    }
    request(port, &[]);
    assert!(listener.accept().unwrap().is_none(), "no data at all");
    request(port, &good);
    assert!(listener.accept().unwrap().is_some(), "and goes on");
}

#[test]
fn a_wrong_key_ends_the_connection() {
    let [(a, _), (b, to)] = pair([CONFIG; 2]);
    let _ = to;
    let to = Remote { addr: b.memory().addr, key: b.memory().key + 1 };
    // SAFETY: an array, taken along.
    unsafe {
        a.post_write(
            Lane::Stream,
            &[([1u8; 4].as_ptr(), 4)],
            to,
            Some(Message::Data(4).encode()),
            7,
        )
    }
    .unwrap();
    let mut out = [Completion::Recv(0); 4];
    assert_eq!(a.poll_cq(&mut out), 1);
    assert_eq!(out[0], Completion::Sent { id: 7, ok: false });
    assert!(a.is_gone());
    assert_eq!(b.poll_cq(&mut out), 0, "flushed receives are not told");
}

#[test]
fn a_full_queue_is_waited_for() {
    let [(a, _), (b, _)] = pair([Config { sq: 16, ..CONFIG }, Config { rq: 16, ..CONFIG }]);
    let to = Remote { addr: b.memory().addr, key: b.memory().key };
    // SAFETY: no bytes.
    let post = || unsafe { a.post_write(Lane::Stream, &[], to, Some(1), 0) };
    let posted = (0..1000).take_while(|_| post().is_ok()).count();
    assert_eq!(posted, 16 + 4 + 16, "receives of the peer, then our queue");
    assert_eq!(post(), Err(PostError::Full));
    let mut out = [Completion::Recv(0); 100];
    assert_eq!(b.poll_cq(&mut out), 20);
    b.post_recv(20);
    assert!(post().is_ok());
}

#[test]
fn the_systems_libraries_have_all_functions() {
    match Api::system() {
        Some(api) => {
            // Without a device this fails, with errno, and is no crash.
            if let Ok(mut connector) = Connector::open(api) {
                connector.close();
            }
        }
        None => {
            println!(
                "skipped: the_systems_libraries_have_all_functions: libibverbs1 or librdmacm1 is not installed"
            )
        }
    }
}
