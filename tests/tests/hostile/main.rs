//! Strangers at the rendezvous: whatever they say, the connection stays TCP and right, and the
//! program lives. Peers that were let in (`attacks`): whatever they write, other connections don't
//! notice, nor can they be looked at (`secrets`).

mod attacks;
mod channel;
mod peer;
mod secrets;
mod users;
mod worker;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::thread::sleep;

use rustix::fs::ftruncate;
use rustix::net::{RecvFlags, accept, bind, connect, listen, recv};
use system_tests::stream::{Random, bytes, mix};
use system_tests::{
    Case, Deadline, Outcome, Ports, Proc, Side, Skip, case, compile, expect_silence, millis,
    open_files, patience, plain, secs, skip,
};

use crate::channel::{address, hear, memory, name, nonsense, say, seqpacket};
use crate::peer::Claim;

fn echo_rounds(conn: &mut TcpStream, from: u64, to: u64) -> u64 {
    let mut total = 0;
    for i in from..to {
        let sent = bytes(mix(i), 1 + (mix(i) % 1000) as usize);
        conn.write_all(&sent).expect("sending");
        let mut got = vec![0; sent.len()];
        conn.read_exact(&mut got).unwrap_or_else(|e| panic!("round {i}: {e}"));
        assert!(got == sent, "round {i} came back wrong");
        total += sent.len() as u64;
    }
    total
}

fn dial(port: u16) -> TcpStream {
    let conn = TcpStream::connect(("127.0.0.1", port)).expect("connecting");
    conn.set_nodelay(true).expect("TCP_NODELAY");
    conn.set_read_timeout(Some(secs(10) * patience())).expect("a time limit");
    conn
}

fn echo_server(c: &Case, port: u16) -> Result<Proc, Skip> {
    Ok(c.serve(
        "server",
        port,
        Side::Run.command(compile("many")?).args(["server", &port.to_string()]),
    ))
}

fn hostile(title: &str, test: impl FnOnce(&Case) -> Outcome) {
    case(
        title,
        |c| if plain() { skip("there is no rendezvous without the library") } else { test(c) },
    );
}

/// Connects where the server's end waits for its peer.
fn reach(conn: &TcpStream, port: u16) -> Option<OwnedFd> {
    let own = conn.local_addr().expect("own address").port();
    let channel = seqpacket();
    connect(&channel, &address(&name(own, port))).ok().map(|()| channel)
}

/// The server's end has the lower address and listens; a stranger comes instead of its peer.
#[test]
fn a_stranger_calls_the_server() {
    hostile("calls", |c| {
        let port = Ports::Low.free();
        let mut server = echo_server(c, port)?;
        let watch = c.watch(&[port]);
        // What the first connection opens for good is there when the server has ended it.
        let mut first = dial(port);
        first.shutdown(Shutdown::Write).expect("the end");
        assert_eq!(first.read(&mut [0; 8]).expect("the server's end"), 0);
        let files = open_files(server.pid());
        let mut reached = 0;
        for kind in 0..45 {
            let mut conn = dial(port);
            let mut total = echo_rounds(&mut conn, 0, 20);
            let stranger = reach(&conn, port);
            if let Some(channel) = &stranger {
                reached += 1;
                nonsense(kind, channel);
            }
            total += echo_rounds(&mut conn, 20, 200);
            drop(stranger);
            total += echo_rounds(&mut conn, 200, 300);
            if kind < 9 {
                expect_silence(&mut conn, total);
            }
        }
        assert!(reached > 30, "only {reached} of 45 rendezvous were there to be reached");
        watch.expect_tcp();
        let end = Deadline::within(secs(30));
        while open_files(server.pid()) > files + 1 {
            assert!(!end.is_over(), "the server kept descriptors of strangers");
            sleep(millis(10));
        }
        server.stop();
        Ok(())
    });
}

/// The client's end has the higher address and calls; a stranger answers instead of its peer.
#[test]
fn a_stranger_answers_the_client() {
    hostile("answers", |c| {
        let (mut called, port) = (0, Ports::Low.free());
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listening");
        for kind in 0..18 {
            let mut client = c.start(
                "client",
                Side::Run.command(compile("many")?).args(["talk", &port.to_string(), "300"]),
            );
            let (mut conn, from) = listener.accept().expect("accept");
            let trap = seqpacket();
            bind(&trap, &address(&name(port, from.port()))).expect("binding the name first");
            listen(&trap, 4).expect("listening on it");
            let mut channel: Option<OwnedFd> = None;
            for i in 0..300 {
                let mut got = vec![0; 1 + (mix(i) % 1500) as usize];
                conn.read_exact(&mut got)
                    .unwrap_or_else(|e| panic!("round {i} of kind {kind}: {e}"));
                assert!(
                    got == bytes(mix(i + 1000), got.len()),
                    "round {i} of kind {kind} arrived wrong"
                );
                if channel.is_none() {
                    channel = accept(&trap).ok();
                    if let Some(channel) = &channel {
                        called += 1;
                        nonsense(kind, channel);
                    }
                }
                conn.write_all(&got).expect("echoing");
            }
            client.wait_line("talked", secs(60));
            client.say("\n");
            let mut rest = Vec::new();
            conn.read_to_end(&mut rest).expect("the end");
            assert!(rest.is_empty(), "with the end came {rest:?}");
            drop(conn);
            client.success(secs(60));
        }
        assert!(called > 10, "only {called} of 18 clients called");
        Ok(())
    });
}

#[test]
fn a_squatter_takes_the_name_first() {
    hostile("squatter", |c| {
        let port = Ports::Low.free();
        let mut server = echo_server(c, port)?;
        let watch = c.watch(&[port]);
        let mut conn = dial(port);
        let trap = seqpacket();
        bind(&trap, &address(&name(port, conn.local_addr().expect("own address").port())))
            .expect("binding the name first");
        listen(&trap, 4).expect("listening on it");
        let total = echo_rounds(&mut conn, 0, 1000);
        expect_silence(&mut conn, total);
        drop(conn);
        watch.expect_tcp();
        server.stop();
        Ok(())
    });
}

/// A Proposal of a true client, and the Accept of a true server.
fn record(c: &Case) -> Result<(Vec<u8>, Vec<u8>), Skip> {
    static RECORDED: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    if let Some(recorded) = RECORDED.get() {
        return Ok(recorded.clone());
    }
    let port = Ports::Low.free();
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("listening");
    let mut client = Side::Run.command(compile("many")?);
    // Peers here are such as share memory; it is the last device of the Proposal that they take the
    // name of.
    client.env("SHORTWIRE_PREFER", "loopback").args(["talk", &port.to_string(), "300"]);
    let client = c.start("client", &mut client);
    let (mut conn, from) = listener.accept().expect("accept");
    let trap = seqpacket();
    bind(&trap, &address(&name(port, from.port()))).expect("binding the name");
    listen(&trap, 4).expect("listening on it");
    let (mut buffer, mut proposal) = ([0; 2000], Vec::new());
    while proposal.is_empty() {
        let n = conn.read(&mut buffer).expect("a round");
        conn.write_all(&buffer[..n]).expect("echoing");
        if let Ok(channel) = accept(&trap) {
            proposal = hear(&channel);
        }
    }
    drop((conn, client, listener));
    assert!(proposal.len() > 40, "a Proposal of {} bytes", proposal.len());
    let port = Ports::Low.free();
    let mut server = echo_server(c, port)?;
    let mut conn = dial(port);
    echo_rounds(&mut conn, 0, 5);
    let (_, accept, memory) =
        peer::propose(&mut conn, port, &proposal, &Claim::new(1)).expect("an answer");
    assert_eq!((accept[4], memory.len()), (2, 1), "an Accept and memory");
    drop(conn);
    server.stop();
    Ok(RECORDED.get_or_init(|| (proposal, accept)).clone())
}

/// A true Proposal, recorded from a client, then damaged byte by byte and followed by false memory:
/// the server may end that connection, but must live on and serve the next ones.
#[test]
fn a_recorded_handshake_is_replayed() {
    hostile("replay", |c| {
        let (proposal, _) = record(c)?;
        let port = Ports::Low.free();
        let mut server = echo_server(c, port)?;
        let mut random = Random::new(1);
        let mut accepts = 0;
        for i in 0..60 {
            let mut conn = dial(port);
            echo_rounds(&mut conn, 0, 20);
            let Some(channel) = reach(&conn, port) else { continue };
            let mut message = proposal.clone();
            // The first dozen as recorded, so that the server gets as far as its Accept.
            if i >= 12 {
                for _ in 0..1 + random.below(3) {
                    let at = random.below(message.len() as u64) as usize;
                    message[at] ^= 1 << random.below(8);
                }
            }
            say(&channel, &message, &[]);
            let exchange = |conn: &mut TcpStream| {
                conn.write_all(b"x").is_ok() && conn.read(&mut [0; 8]).is_ok()
            };
            // The server looks at its rendezvous when the connection is used, and ever more rarely.
            let mut accept = Vec::new();
            for _ in 0..200 {
                if !exchange(&mut conn) {
                    break;
                }
                let mut buffer = [0; 2000];
                if let Ok((n, _)) = recv(&channel, &mut buffer, RecvFlags::empty()) {
                    accept = buffer[..n].to_vec();
                    break;
                }
            }
            if accept.len() > 40 && accept[4] == 2 {
                accepts += 1;
                let mut confirm = accept;
                confirm[4] = 3;
                let wrong = [memory(1), memory(4096), memory(1 << 18), memory(1 << 30)];
                match i % 5 {
                    4 => say(&channel, &confirm, &[]),
                    k => say(&channel, &confirm, &[wrong[k as usize].as_fd()]),
                }
                let _ = ftruncate(&wrong[2], 0);
            }
            conn.set_read_timeout(Some(millis(100))).expect("a time limit");
            (0..100).take_while(|_| exchange(&mut conn)).for_each(drop);
            assert!(server.running(), "the server died of message {i}: {}", server.stderr());
        }
        assert!(accepts > 0, "the server never accepted the recorded Proposal");
        echo_rounds(&mut dial(port), 0, 100);
        // And true peers are still welcome.
        let watch = c.watch(&[port]);
        let mut honest = c.start(
            "honest",
            Side::Run.command(compile("many")?).args(["idle", &port.to_string(), "3", "50"]),
        );
        honest.wait_line("ready", secs(60));
        watch.wait_smcd(2, secs(60));
        honest.say("\n");
        honest.success(secs(60));
        server.stop();
        Ok(())
    });
}
