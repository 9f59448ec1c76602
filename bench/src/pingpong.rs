//! One connection, one message back and forth; both ends check every byte.

use std::io::Write;
use std::time::Instant;

use crate::address::Stream;
use crate::args::{Client, Mode};
use crate::failure::{Doing, Failure, Result};
use crate::figures::Figures;
use crate::histogram::Histogram;
use crate::pattern::{Pattern, message_start};
use crate::preamble::{self, Preamble};

pub fn serve(mut stream: Stream) -> Result<()> {
    stream.set_nodelay().doing("cannot set TCP_NODELAY")?;
    let mut head = [0; preamble::LENGTH];
    if !stream.read_message(&mut head).doing("cannot read the preamble")? {
        return Ok(());
    }
    let Preamble { size, id, .. } = Preamble::decode(&head, Mode::Pingpong)?;
    let (requests, responses) = (Pattern::request(size), Pattern::response(size));
    let mut buffer = vec![0; size];
    for counter in 0.. {
        if !stream.read_message(&mut buffer).doing("cannot read a message")? {
            break;
        }
        let at = message_start(id, counter, size);
        requests.check(at, &buffer).map_err(|bad| wrong(counter, size, bad - at, "request"))?;
        stream.write_all(responses.slice(at, size)).doing("cannot send the answer")?;
    }
    Ok(())
}

pub fn run(args: &Client) -> Result<Figures> {
    let size = args.size();
    let (requests, responses) = (Pattern::request(size), Pattern::response(size));
    let mut stream = args.connect.connect()?;
    stream.set_nodelay().doing("cannot set TCP_NODELAY")?;
    stream
        .write_all(&Preamble { mode: Mode::Pingpong, size, id: 0, requests: 0 }.encode())
        .doing("cannot send the preamble")?;

    let mut buffer = vec![0; size];
    let mut histogram = Histogram::new();
    let span = args.start();
    let mut sent_at = span.began;
    for counter in 0..args.count {
        let at = message_start(0, counter, size);
        stream.write_all(requests.slice(at, size)).doing("cannot send a message")?;
        if !stream.read_message(&mut buffer).doing("cannot read the answer")? {
            return Err(Failure::Protocol(
                "the server closed the connection instead of answering".into(),
            ));
        }
        responses.check(at, &buffer).map_err(|bad| wrong(counter, size, bad - at, "response"))?;
        let now = Instant::now();
        histogram.record((now - sent_at).as_nanos() as u64);
        sent_at = now;
        if now >= span.deadline {
            break;
        }
    }
    let messages = histogram.count();
    let seconds = (sent_at - span.began).as_secs_f64();
    Ok(Figures::new("pingpong", size, 1, seconds, messages, messages * size as u64 * 2)
        .with_latency(&histogram))
}

fn wrong(counter: u64, size: usize, within: u64, what: &'static str) -> Failure {
    Failure::WrongData { offset: counter * size as u64 + within, what }
}
