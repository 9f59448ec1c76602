//! Connections that had something to say and then stay open in silence.

use std::io::Write;

use crate::args::Idle;
use crate::failure::{Doing, Result};
use crate::rr::Dialogue;

/// Prints one line when all are at rest, then waits to be ended.
pub fn run(args: &Idle) -> Result<()> {
    let dialogue = Dialogue::new(args.protocol, args.size as usize);
    dialogue.prepare(&args.connect)?;
    let mut buffer = Vec::new();
    let mut streams = Vec::new();
    for id in 0..args.connections {
        let mut stream = args.connect.connect()?;
        stream.set_nodelay().doing("cannot set TCP_NODELAY")?;
        let opening = dialogue.opening(id);
        stream.write_all(&opening).doing("cannot send the preamble")?;
        for counter in 0..args.messages {
            dialogue.exchange(&mut stream, id, counter, &mut buffer)?;
        }
        streams.push(stream);
    }
    println!("{} connections at rest", streams.len());
    loop {
        std::thread::park();
    }
}
