use anyhow::Result;

use super::{located, words};
use crate::bench::case::Path;
use crate::bench::outcome::Outcome;
use crate::bench::peers;
use crate::bench::session::{Launch, Session, free_port, is_listening};

/// Bytes of the value that is asked for.
const VALUE: u32 = 100;

/// GET requests per second over 50 connections.
pub fn run(session: &Session, path: Path) -> Result<Outcome> {
    let port_number = free_port()?;
    let (port, socket) = (port_number.to_string(), session.fresh_path("memcached.sock"));
    let socket_text = socket.display().to_string();
    let unix = path == Path::Unix;
    let mut arguments = if unix {
        words(["-s", &socket_text, "-t", "1"])
    } else {
        words(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "1"])
    };
    if rustix::process::getuid().is_root() {
        arguments.extend(words(["-u", "root"]));
    }
    let launch =
        Launch::new("memcached", located("memcached")?, arguments, path).on(session.server_cpu());
    let mut server = session.serve(launch)?;
    server.wait_until(|_| {
        Ok(if unix { socket.exists() } else { is_listening(port_number)? }.then_some(()))
    })?;
    let address = if unix { format!("unix:{socket_text}") } else { format!("127.0.0.1:{port}") };
    let outcome =
        peers::ask(session, path, &server, &address, "memcached", VALUE, 50, session.seconds)?;
    Ok(Outcome { values: vec![outcome.values[0]], ..outcome })
}
