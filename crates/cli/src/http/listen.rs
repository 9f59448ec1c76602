//! Who listens, and the clients that come: over TCP, over TLS or a socket file, each with a seat and a time limit.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::umask;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{Handler, PATIENCE, Request, Response, answer, text};

/// Clients at a time; more are told to come back.
pub(super) const MOST: usize = 32;

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// One that serves.
pub struct Server {
    /// Where, in words.
    pub place: String,
    busy: Arc<AtomicUsize>,
}

impl Server {
    /// Serves over TLS if there is a configuration, and takes bodies of at most `largest` bytes.
    pub fn start(
        place: &Place,
        tls: Option<Arc<ServerConfig>>,
        largest: usize,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let busy = Arc::new(AtomicUsize::new(0));
        let seats = (busy.clone(), Arc::new(handler) as Arc<Handler>);
        let place = match (place, tls) {
            (Place::Tcp(address), tls) => {
                let listener = TcpListener::bind(address)?;
                let bound = listener.local_addr()?;
                let scheme = if tls.is_some() { "https" } else { "http" };
                let accept = move || -> io::Result<Box<dyn Client>> {
                    let client = Timed::new(listener.accept()?.0);
                    Ok(match &tls {
                        None => Box::new(client),
                        Some(tls) => {
                            let connection =
                                ServerConnection::new(tls.clone()).map_err(io::Error::other)?;
                            Box::new(StreamOwned::new(connection, client))
                        }
                    })
                };
                each(accept, largest, seats)?;
                format!("{scheme}://{bound}/")
            }
            (Place::Unix(path), _) => {
                // One that nobody listens on is left from a process that was killed.
                let is_socket = fs::symlink_metadata(path)
                    .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
                let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                if is_socket && UnixStream::connect(path).is_err_and(refused) {
                    fs::remove_file(path)?;
                }
                // For its user and group from the first moment on.
                let before = umask(Mode::from_raw_mode(0o117));
                let listener = UnixListener::bind(path);
                umask(before);
                let listener = listener?;
                let accept = move || -> io::Result<Box<dyn Client>> {
                    Ok(Box::new(Timed::new(listener.accept()?.0)))
                };
                each(accept, largest, seats)?;
                format!("the socket {}", path.display())
            }
        };
        Ok(Server { place, busy })
    }

    /// Clients that are being answered.
    pub fn busy(&self) -> usize {
        self.busy.load(SeqCst)
    }
}

fn each(
    accept: impl Fn() -> io::Result<Box<dyn Client>> + Send + 'static,
    largest: usize,
    (count, handler): (Arc<AtomicUsize>, Arc<Handler>),
) -> io::Result<()> {
    let serve = move || {
        loop {
            let Ok(mut client) = accept() else {
                // Out of descriptors: wait for some to come back.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if count.fetch_add(1, SeqCst) >= MOST {
                count.fetch_sub(1, SeqCst);
                client.turn_away();
                continue;
            }
            let (handler, seat) = (handler.clone(), Seat(count.clone()));
            let answer = move || {
                let _seat = seat;
                // A client that went away is its own business.
                let _ = answer(&mut *client, largest, &*handler);
            };
            let _ = thread::Builder::new().name("http".into()).spawn(answer);
        }
    };
    thread::Builder::new().name("listen".into()).spawn(serve).map(drop)
}

/// Free again when its client is done with, however its thread ended or if there was none.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A client of any kind.
pub(super) trait Client: Read + Write + Send {
    /// From then on its calls fail.
    fn until(&mut self, end: Instant);
    /// Tells it that there is no seat, if that can be said without waiting.
    fn turn_away(&mut self);
    /// Nothing more is said.
    fn end(&mut self) -> io::Result<()>;
    /// Whether it came to a loopback address, past no certificate that vouches for a name.
    fn is_at_loopback(&self) -> bool;
}

/// What sockets of either kind can do.
trait Socket: Read + Write + Send {
    /// No call waits longer.
    fn limit(&self, time: Duration) -> io::Result<()>;
    fn shut(&self) -> io::Result<()>;
    fn is_at_loopback(&self) -> bool;
}

impl Socket for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn shut(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn is_at_loopback(&self) -> bool {
        self.local_addr().is_ok_and(|own| own.ip().to_canonical().is_loopback())
    }
}

impl Socket for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn shut(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn is_at_loopback(&self) -> bool {
        false
    }
}

/// A socket whose calls all end at one time, however often the peer keeps one of them alive: TLS
/// reads until it has a whole record.
struct Timed<S> {
    socket: S,
    end: Instant,
}

impl<S: Socket> Timed<S> {
    fn new(socket: S) -> Timed<S> {
        Timed { socket, end: Instant::now() + PATIENCE }
    }

    fn call(&mut self, mut call: impl FnMut(&mut S) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.limit(left)?;
            match call(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

impl<S: Socket> Read for Timed<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.call(|socket| socket.read(into))
    }
}

impl<S: Socket> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl<S: Socket> Client for Timed<S> {
    fn until(&mut self, end: Instant) {
        self.end = end;
    }

    fn turn_away(&mut self) {
        // A write of few bytes into an empty buffer does not wait.
        self.until(Instant::now() + Duration::from_millis(10));
        let busy = Response::refused("503 Service Unavailable", "too many clients");
        let _ = self.write_all(text(&busy, true).as_bytes());
    }

    fn end(&mut self) -> io::Result<()> {
        self.socket.shut()
    }

    fn is_at_loopback(&self) -> bool {
        self.socket.is_at_loopback()
    }
}

impl Client for StreamOwned<ServerConnection, Timed<TcpStream>> {
    fn until(&mut self, end: Instant) {
        self.sock.end = end;
    }

    /// A write would begin a handshake, for which others that come would wait.
    fn turn_away(&mut self) {}

    fn end(&mut self) -> io::Result<()> {
        self.conn.send_close_notify();
        self.flush()?;
        self.sock.socket.shut()
    }

    fn is_at_loopback(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;

    use super::super::serve;
    use super::*;

    #[derive(Debug)]
    struct NoKey;

    impl ResolvesServerCert for NoKey {
        fn resolve(&self, _: ClientHello) -> Option<Arc<CertifiedKey>> {
            None
        }
    }

    #[test]
    fn with_one_that_has_no_seat_no_handshake_begins() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoKey));
        let any = Place::Tcp((Ipv4Addr::LOCALHOST, 0).into());
        let page = |_: &Request| Response::ok("text/plain", "x".into());
        let server = Server::start(&any, Some(Arc::new(tls)), 0, page).unwrap();
        let at: SocketAddr =
            server.place.trim_start_matches("https://").trim_end_matches('/').parse().unwrap();
        // What is no hello is answered with an alert by whoever looks at it.
        let told = || {
            let mut told = Vec::new();
            let mut client = TcpStream::connect(at).unwrap();
            let _ = client.write_all(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00");
            let _ = client.read_to_end(&mut told);
            told
        };
        assert!(!told().is_empty());
        for _ in 0..20 {
            let silent: Vec<TcpStream> =
                (0..MOST).map(|_| TcpStream::connect(at).unwrap()).collect();
            let end = Instant::now() + PATIENCE / 2;
            while server.busy() < MOST && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
            let told = told();
            // A seat may have become free in between, on a busy machine.
            if server.busy() >= MOST {
                assert!(told.is_empty(), "{told:?}");
                return;
            }
            drop(silent);
        }
        panic!("the seats are never all taken");
    }

    #[test]
    fn a_socket_file_is_for_its_user_and_group_and_is_taken_over() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        drop(UnixListener::bind(&path).unwrap());
        serve(&Place::Unix(path.clone()), |_| Response::ok("text/plain", "x".into())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: any\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200 OK") && answer.ends_with('x'), "{answer}");
        let again = serve(&Place::Unix(path), |_| Response::ok("text/plain", "x".into()));
        assert!(again.is_err(), "one that somebody listens on stays his");
    }
}
