//! Apps against Linux's own implementation: a TAP interface in a namespace of its own joins the
//! kernel's stack and an engine, which run on one thread, in turns.
#![allow(unsafe_code)]

use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use engine::{Config, Engine, Options, Registry};

mod connections;
mod fragments;
mod icmp;
mod mirror;
mod nat;
mod neighbours;
mod tunnels;

/// How long anything may take before a test gives up on it.
const LIMIT: Duration = Duration::from_secs(240);

/// A fresh namespace that this thread enters, with nothing in it; false, said on the real standard
/// error, where that cannot be.
fn namespace(test: &str) -> bool {
    // SAFETY: the descriptors of this thread stay as they are; only its network namespace changes.
    let entered = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    let tun = std::path::Path::new("/dev/net/tun").exists();
    if entered.is_err() || !tun {
        let why = if tun { "root, to make network namespaces" } else { "/dev/net/tun" };
        let _ = writeln!(std::io::stderr(), "skipped: {test}: needs {why}");
        return false;
    }
    // Duplicate address detection would hold addresses back for seconds.
    for name in ["accept_dad", "autoconf", "accept_ra"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/default/{name}"), "0");
    }
    true
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().expect("ip runs");
    assert!(status.success(), "ip {arguments}");
}

/// Another host: a thread in a namespace of its own, which does one thing after the other.
struct Host {
    thread: i32,
    tasks: Sender<Box<dyn FnOnce() + Send>>,
}

impl Host {
    fn new() -> Host {
        let (tell, told) = channel();
        let (tasks, todo) = channel::<Box<dyn FnOnce() + Send>>();
        thread::spawn(move || {
            assert!(namespace("another host"));
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("it is waited for");
            todo.into_iter().for_each(|task| task());
        });
        Host { thread: told.recv().expect("the other namespace"), tasks }
    }

    /// An interface of this namespace is the host's from now on.
    fn take(&self, interface: &str) {
        ip(&format!("link set {interface} netns {}", self.thread));
    }

    fn begin<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let (tell, told) = channel();
        let task = Box::new(move || drop(tell.send(task())));
        self.tasks.send(task).expect("the host is there");
        Task(told)
    }

    /// Does something that needs no engine.
    fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        self.begin(task).0.recv().expect("the host's task ends")
    }

    fn ip(&self, lines: &'static [&'static str]) {
        self.run(|| lines.iter().for_each(|line| ip(line)));
    }
}

/// What a host does while the engine runs.
struct Task<T>(Receiver<T>);

impl<T> Task<T> {
    /// Its result, if there is one.
    fn ended(&self) -> Option<T> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("what a host did has failed"),
        }
    }
}

/// An engine with this configuration, as a file would have it.
fn engine(text: &str) -> Engine {
    let file = Config::from_toml_checked(text, Registry::standard()).expect("it is right");
    let mut engine = Engine::new(Options::default());
    engine.configure(&file.config).expect("it starts");
    assert_eq!(engine.failed().collect::<Vec<_>>(), Vec::<&str>::new(), "apps that did not start");
    engine
}

/// Lets the engine breathe until something is there.
fn until<T>(engine: &mut Engine, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        engine.breathe();
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "{what}: nothing after {LIMIT:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The value of a counter of an app of this kind.
fn counter(engine: &Engine, app: &str, kind: &str, name: &str) -> u64 {
    let (_, instance) = engine.apps().find(|(name, _)| *name == app).expect("the app");
    let counters = Registry::standard().get(kind).expect("the kind").counters;
    let place = counters.iter().position(|counter| *counter == name).expect("the counter");
    let mut values = vec![0; counters.len()];
    instance.counters(&mut values);
    values[place]
}

/// A datagram socket that never waits and is told of every error that the network reports.
fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).expect("a socket");
    socket.set_nonblocking(true).expect("set_nonblocking");
    let v6 = address.contains(':');
    let (level, name) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    set(&socket, level, name, 1);
    socket
}

fn set(socket: &impl AsRawFd, level: i32, name: i32, value: i32) {
    // SAFETY: the kernel reads four bytes of the value.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    assert_eq!(done, 0, "option {level} {name}: {}", std::io::Error::last_os_error());
}

fn get(socket: &impl AsRawFd, level: i32, name: i32) -> i32 {
    let (mut value, mut length) = (0i32, 4u32);
    // SAFETY: the kernel writes four bytes into the value.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    assert_eq!(done, 0, "option {level} {name}: {}", std::io::Error::last_os_error());
    value
}
