//! Programs of two machines talk through an engine that is the cable between them. Their kernels
//! leave checksums and the cutting of streams to the devices, which the engine must finish: a
//! receiver drops what has a wrong checksum, and a stream stands still if its packets are too long
//! to pass.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};

use rustix::process::Signal;
use system_tests::{Case, Deadline, Outcome, Proc, Skip, case, millis, patience, secs, stream};

use super::{await_interfaces, cables, engine};
use crate::wire::Namespace;

const NEAR: &str = "10.1.0.1";
const FAR: &str = "10.1.0.2";

/// Two machines, and the engine between them.
struct Machines {
    left: Namespace,
    right: Namespace,
    engine: Proc,
    _middle: Namespace,
}

/// Ports of `kind`. `mtu` of the machines' interfaces; 0: what it is anyway.
fn machines(case: &Case, kind: &str, more: &str, mtu: u32) -> Result<Machines, Skip> {
    let (middle, left, right) = (cables()?, Namespace::new()?, Namespace::new()?);
    let port = |interface: &str| format!("interface = \"{interface}\"{more}");
    let taps = kind == "Tap";
    let (one, other) = if taps { ("tap0", "tap1") } else { ("a1", "b1") };
    let mut engine = engine::start(case, &middle, &engine::wire(kind, &port(one), &port(other)))?;
    // Whoever looks for a neighbour gives up after three seconds.
    engine.wait_line("running:", secs(60));
    if taps {
        await_interfaces(&middle, &[one, other], &mut engine);
    }
    let sides = [
        (&left, if taps { one } else { "a0" }, NEAR),
        (&right, if taps { other } else { "b0" }, FAR),
    ];
    for (side, interface, address) in sides {
        middle.ip(&format!("link set {interface} netns {}", side.name()));
        side.ip(&format!("address add {address}/24 dev {interface}"));
        if mtu != 0 {
            side.ip(&format!("link set {interface} mtu {mtu}"));
        }
        side.up(interface);
    }
    Ok(Machines { left, right, engine, _middle: middle })
}

fn datagrams(case: &Case, kind: &str, more: &str) -> Outcome {
    let machines = machines(case, kind, more, 0)?;
    let open = |address: &str| {
        let socket = UdpSocket::bind((address, 7000)).expect("a socket");
        socket.set_read_timeout(Some(millis(200))).expect("a limit");
        socket
    };
    let (near, far) = (machines.left.inside(|| open(NEAR)), machines.right.inside(|| open(FAR)));
    // Again after a while, in which the engine has looked after its interfaces.
    let ways = [(&near, &far, FAR), (&far, &near, NEAR)];
    for (round, (from, to, address)) in ways.into_iter().chain(ways).enumerate() {
        std::thread::sleep(millis(if round == 2 { 300 } else { 0 }));
        for length in [1usize, 2, 17, 512, 1471, 1472] {
            let sent = stream::bytes(length as u64, length);
            assert_eq!(
                exchange(from, to, address, &sent),
                sent,
                "the engine says: {}",
                machines.engine.stderr()
            );
        }
    }
    engine::stop(machines.engine);
    Ok(())
}

/// Sends until it arrives: the first datagrams may be lost while neighbours are looked for.
fn exchange(from: &UdpSocket, to: &UdpSocket, address: &str, sent: &[u8]) -> Vec<u8> {
    let end = Deadline::within(secs(20));
    let mut buffer = vec![0; 2000];
    while !end.is_over() {
        from.send_to(sent, (address, 7000)).expect("sent");
        while let Ok((length, _)) = to.recv_from(&mut buffer) {
            if length == sent.len() {
                return buffer[..length].to_vec();
            }
        }
    }
    panic!("{} bytes never arrived", sent.len());
}

const STREAM: usize = 4 << 20;

/// A stream each way at once. Nothing may be too long on the way.
fn streams(case: &Case, kind: &str, more: &str) -> Outcome {
    let machines = machines(case, kind, more, 0)?;
    let listener = machines.right.inside(|| TcpListener::bind((FAR, 7000)).expect("a listener"));
    let near = machines.left.inside(|| TcpStream::connect((FAR, 7000)).expect("a connection"));
    let (far, _) = listener.accept().expect("a connection");
    std::thread::scope(|scope| {
        for (seed, mut from, mut to) in [(1, &near, &far), (2, &far, &near)] {
            let limit = Some(secs(60) * patience());
            from.set_write_timeout(limit).expect("a limit");
            to.set_read_timeout(limit).expect("a limit");
            scope.spawn(move || from.write_all(&stream::bytes(seed, STREAM)).expect("all sent"));
            scope.spawn(move || {
                let mut got = vec![0; STREAM];
                to.read_exact(&mut got).expect("all received");
                assert!(got == stream::bytes(seed, STREAM), "other bytes arrived");
            });
        }
    });
    let mut engine = machines.engine;
    engine.signal(Signal::INT);
    let report = engine.success(secs(60));
    assert_eq!(report.matches(" 0 too long").count(), 2, "packets were too long: {report}");
    Ok(())
}

macro_rules! talk {
    ($($test:ident $how:ident $kind:literal $more:literal),* $(,)?) => {
        $(#[test] fn $test() { case(stringify!($test), |case| $how(case, $kind, $more)); })*
    };
}

talk! {
    datagrams_through_raw_sockets datagrams "RawSocket" "",
    datagrams_through_taps datagrams "Tap" "",
    datagrams_through_taps_with_vnet_headers datagrams "Tap" ", vnet-header = true",
    streams_through_raw_sockets streams "RawSocket" "",
    streams_through_taps streams "Tap" "",
    streams_through_taps_with_vnet_headers streams "Tap" ", vnet-header = true",
}
