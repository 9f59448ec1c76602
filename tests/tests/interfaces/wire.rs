//! Network namespaces, cables in them, and the far ends of the cables.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use system_tests::{Deadline, Skip, millis, need, secs, skip};

/// A network namespace without IPv6, whose packets nobody asked for would be seen by the tests.
pub struct Namespace(String);

impl Namespace {
    pub fn new() -> Result<Namespace, Skip> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return skip("needs root, to make network namespaces");
        }
        need("ip")?;
        let name = format!("swt-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let made = Command::new("ip").args(["netns", "add", &name]).output().expect("ip runs");
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).trim().to_string();
            return skip(format!("no network namespaces here: {why}"));
        }
        let this = Namespace(name);
        this.inside(|| {
            for which in ["all", "default"] {
                // Absent where the kernel has no IPv6, which is as good.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
            }
        });
        Ok(this)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// `ip` within the namespace; it must succeed.
    pub fn ip(&self, arguments: &str) -> String {
        let said = self.try_ip(arguments);
        said.unwrap_or_else(|why| panic!("ip {arguments}: {why}"))
    }

    pub fn try_ip(&self, arguments: &str) -> Result<String, String> {
        let mut command = Command::new("ip");
        let said = command
            .args(["-n", &self.0])
            .args(arguments.split_whitespace())
            .output()
            .expect("ip runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr)) }
    }

    /// A cable between two interfaces, both up.
    pub fn cable(&self, one: &str, other: &str) {
        self.ip(&format!("link add {one} type veth peer name {other}"));
        self.up(one);
        self.up(other);
    }

    pub fn up(&self, interface: &str) {
        self.ip(&format!("link set {interface} up"));
    }

    /// To start a program in the namespace; the program keeps the process id.
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program);
        command
    }

    /// Runs `action` on a thread in the namespace. Sockets that it makes stay there.
    pub fn inside<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let place = fs::File::open(format!("/run/netns/{}", self.0)).expect("the namespace");
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("enter the namespace");
                action()
            });
            thread.join().expect("the thread in the namespace")
        })
    }

    pub fn has_xdp(&self, interface: &str) -> bool {
        self.ip(&format!("-d link show {interface}")).contains("xdp")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// A packet socket on an interface: sends frames and captures those that arrive.
pub struct End(OwnedFd);

/// How long anything may take before a test gives up on it.
const LIMIT: Duration = secs(20);

impl End {
    pub fn of(namespace: &Namespace, interface: &str) -> End {
        End(namespace.inside(|| open(interface)))
    }

    pub fn send(&self, frame: &[u8]) {
        rustix::net::send(&self.0, frame, SendFlags::empty()).expect("send a frame");
    }

    /// The next frame that arrives in `limit`, with its VLAN tag.
    pub fn receive(&self, limit: Duration) -> Option<Vec<u8>> {
        let mut poll = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        let wait = limit.try_into().expect("a short time");
        if rustix::event::poll(&mut poll, Some(&wait)).expect("poll") == 0 {
            return None;
        }
        Some(receive_tagged(&self.0))
    }

    /// Sends marked frames until one arrives at `to`: then whatever lies between works.
    pub fn reach(&self, to: &End, lost: impl Fn() -> String) {
        self.reach_with(to, lost, |number| {
            let mut probe = vec![0xff; 60];
            probe[12..14].copy_from_slice(&[0x88, 0xb5]);
            probe[56..].copy_from_slice(&number.to_ne_bytes());
            [probe.clone(), probe]
        });
    }

    /// The same with frames of choice, by number: as they are sent, and as they arrive. It is the last
    /// one that must arrive: no other is on its way behind it.
    pub fn reach_with(
        &self,
        to: &End,
        lost: impl Fn() -> String,
        probe: impl Fn(u32) -> [Vec<u8>; 2],
    ) {
        let end = Deadline::within(LIMIT);
        let mut patience = millis(20);
        for number in 0.. {
            let [sent, wanted] = probe(number);
            self.send(&sent);
            while let Some(frame) = to.receive(patience) {
                if frame == wanted {
                    return;
                }
                // The way is there, and none of them is lost any more.
                patience = secs(2);
            }
            assert!(!end.is_over(), "nothing arrives: {}", lost());
        }
    }

    /// Sends all frames to `to`, a few at a time so that no queue overflows, and gives what arrived
    /// there.
    pub fn replay(&self, to: &End, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        const WINDOW: usize = 32;
        let mut arrived = Vec::new();
        for window in frames.chunks(WINDOW) {
            window.iter().for_each(|frame| self.send(frame));
            let expected = arrived.len() + window.len();
            while arrived.len() < expected {
                let Some(frame) = to.receive(LIMIT) else { return arrived };
                arrived.push(frame);
            }
        }
        while let Some(extra) = to.receive(millis(100)) {
            arrived.push(extra);
        }
        arrived
    }
}

fn set<T>(socket: &OwnedFd, name: i32, value: T) {
    let length = size_of::<T>() as u32;
    let raw = (&raw const value).cast();
    // SAFETY: the kernel reads `length` bytes of the value.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, name, raw, length) };
    assert_eq!(done, 0, "packet socket option {name}: {}", std::io::Error::last_os_error());
}

fn open(interface: &str) -> OwnedFd {
    let (family, flags) = (AddressFamily::PACKET, SocketFlags::CLOEXEC);
    let socket =
        rustix::net::socket_with(family, SocketType::RAW, flags, None).expect("a packet socket");
    set(&socket, libc::PACKET_AUXDATA, 1i32);
    set(&socket, libc::PACKET_IGNORE_OUTGOING, 1i32);
    // An engine may hand on at once what came while it stood still.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20)
        .expect("a larger receive buffer");
    let plain = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
        .expect("a socket");
    let index = rustix::net::netdevice::name_to_index(&plain, interface).expect("the interface");
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads one `sockaddr_ll`.
    let done = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
    };
    assert_eq!(done, 0, "bind to {interface}: {}", std::io::Error::last_os_error());
    socket
}

/// One frame. The kernel takes the outer VLAN tag out and tells it beside the frame.
fn receive_tagged(socket: &OwnedFd) -> Vec<u8> {
    let mut frame = vec![0u8; 65536];
    let mut control = [0u64; 16];
    let mut vector = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    // SAFETY: pointers and integers; all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    (message.msg_control, message.msg_controllen) =
        (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: the message names two buffers of ours.
    let got = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, RecvFlags::empty().bits() as i32)
    };
    assert!(got >= 0, "receive a frame: {}", std::io::Error::last_os_error());
    frame.truncate(got as usize);
    // SAFETY: the kernel has filled in the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    assert!(!header.is_null(), "no auxiliary data beside the frame");
    // SAFETY: the only option asked for is PACKET_AUXDATA, so that this is it.
    let aux = unsafe { libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
        let tag = [aux.tp_vlan_tpid.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes()].concat();
        frame.splice(12..12, tag);
    }
    frame
}

/// Skips a test on a kernel without AF_XDP.
pub fn need_af_xdp() -> Result<(), Skip> {
    match rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
    {
        Err(rustix::io::Errno::AFNOSUPPORT) => skip("this kernel has no AF_XDP sockets"),
        _ => Ok(()),
    }
}
