//! One direction, as fast as it goes. The receiver checks every byte against its position in the
//! stream and at the end reports how much came and where the first wrong byte was, so the sender
//! knows that its figure is of right data.

use std::io::{Read, Write};
use std::time::Instant;

use crate::address::Stream;
use crate::args::{Client, Mode};
use crate::failure::{Doing, Failure, Result};
use crate::figures::Figures;
use crate::pattern::Pattern;
use crate::preamble::{self, Preamble};

const NONE_WRONG: u64 = u64::MAX;
const READ_SIZE: usize = 128 << 10;

pub fn serve(mut stream: Stream) -> Result<()> {
    let mut head = [0; preamble::LENGTH];
    if !stream.read_message(&mut head).doing("cannot read the preamble")? {
        return Ok(());
    }
    Preamble::decode(&head, Mode::Stream)?;
    let pattern = Pattern::request(0);
    let mut buffer = vec![0; READ_SIZE];
    let mut received = 0u64;
    let mut first_wrong = NONE_WRONG;
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).doing("cannot read the stream"),
        };
        if first_wrong == NONE_WRONG
            && let Err(bad) = pattern.check(received, &buffer[..count])
        {
            first_wrong = bad;
        }
        received += count as u64;
    }
    let mut verdict = [0; 16];
    verdict[..8].copy_from_slice(&received.to_be_bytes());
    verdict[8..].copy_from_slice(&first_wrong.to_be_bytes());
    stream.write_all(&verdict).doing("cannot report to the sender")?;
    match first_wrong {
        NONE_WRONG => Ok(()),
        offset => Err(Failure::WrongData { offset, what: "stream" }),
    }
}

pub fn run(args: &Client) -> Result<Figures> {
    let size = args.size();
    let pattern = Pattern::request(size);
    let mut stream = args.connect.connect()?;
    stream
        .write_all(&Preamble { mode: Mode::Stream, size, id: 0, requests: 0 }.encode())
        .doing("cannot send the preamble")?;

    let span = args.start();
    let (mut sent, mut messages) = (0u64, 0u64);
    while messages < args.count && Instant::now() < span.deadline {
        stream.write_all(pattern.slice(sent, size)).doing("cannot send")?;
        sent += size as u64;
        messages += 1;
    }
    stream.finish_writing().doing("cannot end the stream")?;
    let mut verdict = [0; 16];
    if !stream.read_message(&mut verdict).doing("cannot read the receiver's report")? {
        return Err(Failure::Protocol(
            "the receiver closed the connection without its report".into(),
        ));
    }
    // Until the report: what still was in buffers when the last write returned has been received
    // too.
    let seconds = span.began.elapsed().as_secs_f64();
    let (received, first_wrong) = (word(&verdict[..8]), word(&verdict[8..]));
    if first_wrong != NONE_WRONG {
        return Err(Failure::WrongData { offset: first_wrong, what: "stream" });
    }
    if received != sent {
        return Err(Failure::Protocol(format!(
            "WRONG DATA: {sent} bytes were sent but {received} received"
        )));
    }
    Ok(Figures::new("stream", size, 1, seconds, messages, received))
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
