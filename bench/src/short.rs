//! Short connections: connect, one request, one response, end. The server closes first, as HTTP/1.0 servers do, so that
//! the client's ports do not wait in TIME_WAIT and run out.

use std::io::{Read, Write};
use std::time::Instant;

use crate::args::{Client, Mode};
use crate::failure::{Doing, Failure, Result};
use crate::figures::Figures;
use crate::histogram::Histogram;
use crate::pattern::{Pattern, message_start};
use crate::preamble::Preamble;

pub fn run(args: &Client) -> Result<Figures> {
    let size = args.size();
    let (requests, responses) = (Pattern::request(size), Pattern::response(size));
    let mut buffer = Vec::with_capacity(size + 1);
    let mut histogram = Histogram::new();
    let span = args.start();
    let mut began = span.began;
    for counter in 0..args.count {
        let id = counter as u32;
        let at = message_start(id, 0, size);
        let mut stream = args.connect.connect()?;
        stream.set_nodelay().doing("cannot set TCP_NODELAY")?;
        let mut request = Preamble { mode: Mode::Short, size, id }.encode().to_vec();
        request.extend_from_slice(requests.slice(at, size));
        stream.write_all(&request).doing("cannot send the request")?;
        buffer.clear();
        stream.read_to_end(&mut buffer).doing("cannot read the response")?;
        if buffer.len() != size {
            return Err(Failure::Protocol(format!(
                "WRONG DATA: the response has {} bytes instead of {size}",
                buffer.len()
            )));
        }
        responses.check(at, &buffer).map_err(|bad| Failure::WrongData { offset: bad - at, what: "response" })?;
        drop(stream);
        let now = Instant::now();
        histogram.record((now - began).as_nanos() as u64);
        began = now;
        if now >= span.deadline {
            break;
        }
    }
    let messages = histogram.count();
    let seconds = (began - span.began).as_secs_f64();
    Ok(Figures::new("short", size, 1, seconds, messages, messages * size as u64 * 2).with_latency(&histogram))
}
