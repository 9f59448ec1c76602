//! Short connections: connect, one request (or a few), as many responses, end. The server closes
//! first, as HTTP/1.0 servers do, so that the client's ports do not wait in TIME_WAIT and run out.

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
    let (mut request, mut response) = (Vec::new(), vec![0; size]);
    let mut histogram = Histogram::new();
    let span = args.start();
    let mut began = span.began;
    for counter in 0..args.count {
        let id = counter as u32;
        let mut stream = args.connect.connect()?;
        stream.set_nodelay().doing("cannot set TCP_NODELAY")?;
        for nth in 0..args.requests {
            let at = message_start(id, nth.into(), size);
            request.clear();
            if nth == 0 {
                request.extend(
                    Preamble { mode: Mode::Short, size, id, requests: args.requests }.encode(),
                );
            }
            request.extend_from_slice(requests.slice(at, size));
            stream.write_all(&request).doing("cannot send the request")?;
            stream.read_exact(&mut response).doing("cannot read the response")?;
            responses
                .check(at, &response)
                .map_err(|bad| Failure::WrongData { offset: bad - at, what: "response" })?;
        }
        let more = stream.read(&mut response).doing("cannot read the end")?;
        if more != 0 {
            return Err(Failure::Protocol(format!(
                "WRONG DATA: {more} bytes behind the last response"
            )));
        }
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
    let bytes = messages * u64::from(args.requests) * size as u64 * 2;
    Ok(Figures::new("short", size, 1, seconds, messages, bytes).with_latency(&histogram))
}
