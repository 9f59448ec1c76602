//! As much of HTTP as a reader of counters and an API server need: one request for each connection, for a small page, or
//! with a body that is known to be small before it is read.
//!
//! No client can hold up another: each has a thread, there are at most so many, and a request that
//! is not there in time, or a reader that does not read, is given up. Who asks at a loopback address
//! is answered only with an address or `localhost` in the header Host, since a page of the web may
//! lead a name of its own to 127.0.0.1 and read what is there.

mod listen;

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use listen::Client;
pub use listen::{Place, Server};

/// A whole request must have come, and its answer must have been taken, within this.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request that is read, without its body.
const LONGEST: usize = 8192;

pub struct Request {
    pub is_post: bool,
    /// Without what stands behind a question mark.
    pub path: String,
    /// The header Accept.
    pub accept: String,
    /// The header Content-Type.
    pub kind: String,
    pub body: Vec<u8>,
}

pub struct Response {
    pub status: &'static str,
    pub kind: &'static str,
    pub body: String,
}

impl Response {
    pub fn ok(kind: &'static str, body: String) -> Response {
        Response { status: "200 OK", kind, body }
    }

    pub fn refused(status: &'static str, why: &str) -> Response {
        Response { status, kind: "text/plain; charset=utf-8", body: format!("{why}\n") }
    }
}

type Handler = dyn Fn(&Request) -> Response + Send + Sync;

/// Starts to serve pages to readers. Gives where, in words, with the port that the kernel chose if it was 0.
pub fn serve(
    place: &Place,
    handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
) -> io::Result<String> {
    Server::start(place, None, 0, handler).map(|server| server.place)
}

/// Bodies have at most `largest` bytes; with 0 there is no POST.
fn answer(client: &mut dyn Client, largest: usize, handler: &Handler) -> io::Result<()> {
    client.until(Instant::now() + PATIENCE);
    let (head, rest) = head(client)?;
    let mut words = head.split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_post = method == "POST" && largest > 0;
    let response = if head.is_empty() {
        Response::refused("431 Request Header Fields Too Large", "the request is too long")
    } else if !is_post && !matches!(method, "GET" | "HEAD") {
        let and_post = if largest > 0 { ", HEAD and POST" } else { " and HEAD" };
        Response::refused("405 Method Not Allowed", &format!("only GET{and_post}"))
    } else if client.is_at_loopback() && !header(&head, "host").is_none_or(is_here) {
        Response::refused("403 Forbidden", "ask for an address or localhost, not for a name")
    } else {
        match if is_post { body(client, &head, rest, largest)? } else { Ok(Vec::new()) } {
            Err(refused) => refused,
            Ok(body) => {
                let path = target.split('?').next().unwrap_or_default().to_string();
                let field = |name| header(&head, name).unwrap_or_default().to_string();
                let (accept, kind) = (field("accept"), field("content-type"));
                handler(&Request { is_post, path, accept, kind, body })
            }
        }
    };
    client.until(Instant::now() + PATIENCE);
    client.write_all(text(&response, method != "HEAD").as_bytes())?;
    client.end()?;
    // What the client still says is taken, or the kernel answers it with a reset, which would
    // overtake our answer.
    client.until(Instant::now() + Duration::from_millis(500));
    let mut rest = [0; 4096];
    while matches!(client.read(&mut rest), Ok(1..)) {}
    Ok(())
}

/// Everything up to the empty line, and what came with it; nothing if that is too much.
fn head(client: &mut dyn Client) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let got = client.read(&mut piece)?;
        bytes.extend_from_slice(&piece[..got]);
        let after = |end: &[u8]| {
            let at = bytes.windows(end.len()).position(|some| some == end)?;
            Some(at + end.len())
        };
        if let Some(end) = after(b"\r\n\r\n").or_else(|| after(b"\n\n")) {
            let rest = bytes.split_off(end);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes.len() > LONGEST {
            return Ok(Default::default());
        }
    }
}

/// As long as the client says that it is; who does not say it, or says too much, is told so before anything of it is read.
fn body(
    client: &mut dyn Client,
    head: &str,
    mut body: Vec<u8>,
    largest: usize,
) -> io::Result<Result<Vec<u8>, Response>> {
    let Some(length) = header(head, "content-length").and_then(|text| text.parse::<usize>().ok())
    else {
        let why = "say in Content-Length how long the body is";
        return Ok(Err(Response::refused("411 Length Required", why)));
    };
    if length > largest {
        let why = format!("at most {largest} bytes");
        return Ok(Err(Response::refused("413 Content Too Large", &why)));
    }
    if header(head, "expect").is_some_and(|what| what.eq_ignore_ascii_case("100-continue")) {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut piece = [0; 16384];
    while body.len() < length {
        match client.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => body.extend_from_slice(&piece[..got]),
        }
    }
    body.truncate(length);
    Ok(Ok(body))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

/// Whether a header Host names an address or localhost.
fn is_here(host: &str) -> bool {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    [host, name].iter().any(|text| {
        is_address(text.trim_matches(['[', ']'])) || text.eq_ignore_ascii_case("localhost")
    })
}

fn text(response: &Response, with_body: bool) -> String {
    let Response { status, kind, body } = response;
    let length = body.len();
    let body = if with_body { body.as_str() } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use super::*;

    fn place() -> SocketAddr {
        // Also reached at loopback, where it is as careful as one that listens only there.
        let any = Place::Tcp("0.0.0.0:0".parse().unwrap());
        let page = |request: &Request| Response::ok("text/plain", format!("{} here", request.path));
        let said = serve(&any, page).unwrap();
        let at: SocketAddr =
            said.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        SocketAddr::from(([127, 0, 0, 1], at.port()))
    }

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_given_and_all_else_is_refused() {
        let at = place();
        let port = at.port();
        for (request, says) in [
            ("GET /x?y HTTP/1.1\r\n\r\n".to_string(), "200 OK"),
            (format!("GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"), "200 OK"),
            (format!("GET / HTTP/1.1\r\nhost: localhost:{port}\r\n\r\n"), "200 OK"),
            ("GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n".into(), "200 OK"),
            (format!("GET / HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n"), "403 Forbidden"),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".into(), "405 Method"),
            ("\u{fe}\u{ff}\n\n".into(), "405 Method"),
            (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000)), "431 Request"),
        ] {
            let answer = ask(at, &request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {says}")), "{request:.40}: {answer}");
        }
        assert!(ask(at, "GET /x?y HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n/x here"));
        let head = ask(at, "HEAD / HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 6\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn bodies_are_taken_up_to_what_was_agreed() {
        let any = Place::Tcp("127.0.0.1:0".parse().unwrap());
        let echo = |request: &Request| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            Response::ok("text/plain", format!("{} {} {body}", request.is_post, request.kind))
        };
        let server = Server::start(&any, None, 100, echo).unwrap();
        let at = server.place.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        let post =
            |fields: &str, body: &str| ask(at, &format!("POST / HTTP/1.1\r\n{fields}\r\n{body}"));
        let said = post("Content-Type: text/x\r\nContent-Length: 3\r\n", "abcdef");
        assert!(said.ends_with("\r\n\r\ntrue text/x abc"), "{said}");
        let said = post("Expect: 100-continue\r\nContent-Length: 100\r\n", &"x".repeat(100));
        assert!(said.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), "{said}");
        for (fields, status) in [
            ("Content-Length: 101\r\n", "413"),
            ("Content-Length: 99999999999999999999999\r\n", "411"),
            ("Content-Length: -1\r\n", "411"),
            ("Transfer-Encoding: chunked\r\n", "411"),
            ("", "411"),
        ] {
            let said = post(fields, &"x".repeat(200_000));
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {said}");
        }
        assert!(ask(at, "GET / HTTP/1.1\r\n\r\n").ends_with("false  "));
        assert!(ask(at, "PUT / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn clients_that_say_nothing_do_not_hold_up_others() {
        let at = place();
        let silent: Vec<TcpStream> =
            (0..listen::MOST - 1).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(ask(at, "GET / HTTP/1.1\r\n\r\n").contains("200 OK"));
        drop(silent);
        // More than there are seats: one of them is told so, mostly the last, if no seat of those before
        // became free just then. When all have gone it is served.
        let silent: Vec<TcpStream> =
            (0..2 * listen::MOST).map(|_| TcpStream::connect(at).unwrap()).collect();
        let is_told = |mut client: &TcpStream| {
            let mut told = String::new();
            client.read_to_string(&mut told).is_ok() && told.starts_with("HTTP/1.1 503")
        };
        assert!(silent.iter().rev().any(is_told), "all have a seat");
        drop(silent);
        let end = Instant::now() + Duration::from_secs(20);
        while !ask_again(at).contains("200 OK") {
            assert!(Instant::now() < end, "the seats of clients that have gone are not free");
        }
    }

    /// As `ask`, of a server that may be full.
    fn ask_again(at: SocketAddr) -> String {
        let mut answer = String::new();
        if let Ok(mut client) = TcpStream::connect(at) {
            let _ = client.write_all(b"GET / HTTP/1.1\r\n\r\n");
            let _ = client.read_to_string(&mut answer);
        }
        answer
    }
}
