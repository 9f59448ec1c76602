//! The AF_XDP layer on veth pairs, without engine: each test has a network namespace of its own, on
//! its own thread.
#![allow(unsafe_code)]

use std::io::Write;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::netdev::Netdev;
use engine::xdp::live_frames::{Source, drop_all, forward_all};
use engine::xdp::{Attachment, Copying, Filter, Frame, Mode, OpenError, Options, Socket, Umem};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const CHUNK: usize = 2048;
const CHUNKS: usize = 512;
const RING: u32 = 64;

/// Two cables in a fresh namespace that this thread enters; None, said on the real standard error,
/// where that cannot be.
fn namespace(test: &str) -> Option<()> {
    let skipped = |why: &str| {
        let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
        None
    };
    // SAFETY: the descriptors of this thread stay as they are; only its network namespace changes.
    if unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.is_err() {
        return skipped("needs root, to make network namespaces");
    }
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    for (one, other) in [("a0", "a1"), ("b0", "b1")] {
        for line in
            [format!("link add {one} type veth peer name {other}"), format!("link set {one} up")]
        {
            ip(&line);
        }
        ip(&format!("link set {other} up"));
    }
    let options =
        Options { ifindex: index("a0"), queue: 0, ring_size: RING, copying: Copying::Auto };
    match Socket::open(&Memory::new().umem, &options) {
        Err(OpenError::NotInKernel) => skipped("this kernel has no AF_XDP sockets"),
        _ => Some(()),
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().expect("ip runs");
    assert!(status.success(), "ip {arguments}");
}

fn index(name: &str) -> u32 {
    Netdev::find(name).expect("an interface of ours").index()
}

/// Memory for packets, never unmapped.
struct Memory {
    base: *mut u8,
    umem: Arc<Umem>,
    free: Vec<u64>,
}

impl Memory {
    fn new() -> Memory {
        let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, CHUNK * CHUNKS);
        // SAFETY: a new mapping.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
        let base = base.expect("memory").cast::<u8>();
        // SAFETY: mapped as long as the process lives.
        let umem = Arc::new(unsafe { Umem::new(base, length, CHUNK as u32, 0) });
        Memory { base, umem, free: (0..CHUNKS as u64).map(|chunk| chunk * CHUNK as u64).collect() }
    }

    fn bytes(&self, frame: &Frame) -> Vec<u8> {
        let at = self.base.wrapping_add(frame.chunk as usize + frame.data as usize);
        // SAFETY: the kernel gave the frame to us.
        unsafe { std::slice::from_raw_parts(at, frame.length as usize) }.to_vec()
    }
}

/// A socket on an interface, with its program if it is to receive.
struct Port {
    socket: Socket,
    attachment: Option<Arc<Attachment>>,
}

impl Port {
    fn open(memory: &mut Memory, name: &str, filter: Option<&Filter>) -> Port {
        let options =
            Options { ifindex: index(name), queue: 0, ring_size: RING, copying: Copying::Auto };
        let mut socket = Socket::open(&memory.umem, &options).expect("a socket");
        let attachment = filter.map(|filter| {
            let attachment = Attachment::open(index(name), None, filter).expect("a program");
            for _ in 0..socket.fill_room(RING) {
                let chunk = memory.free.pop().expect("a free chunk");
                // SAFETY: a chunk of the memory that nobody else has.
                unsafe { socket.fill(chunk) };
            }
            socket.flush_fill();
            attachment.direct(0, socket.as_fd()).expect("an entry");
            attachment
        });
        Port { socket, attachment }
    }

    fn send(&mut self, memory: &mut Memory, bytes: &[u8]) {
        assert!(self.socket.send_room(1) > 0);
        let chunk = memory.free.pop().expect("a free chunk");
        let at = memory.base.wrapping_add(chunk as usize + 256);
        // SAFETY: within a chunk of ours.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: the chunk is nobody else's.
        unsafe { self.socket.send(chunk + 256, bytes.len() as u32) };
        self.socket.flush_send().expect("sent");
    }

    fn receive(&mut self) -> Option<Frame> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let mut got = None;
            if self.socket.receive(1, |frame| got = Some(frame)) > 0 {
                return got;
            }
        }
        None
    }

    fn close(self, memory: &mut Memory) {
        drop(self.attachment);
        assert_eq!(self.socket.close(|chunk| memory.free.push(chunk)), 0);
    }
}

fn ethernet(number: u8) -> Vec<u8> {
    let mut frame = vec![number; 60 + usize::from(number) * 5];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

#[test]
fn forwarding_over_a_shared_umem_does_not_copy() {
    let Some(()) = namespace("forwarding_over_a_shared_umem_does_not_copy") else { return };
    let (mut ours, mut far) = (Memory::new(), Memory::new());
    let all = Filter::default();
    let (mut a1, mut b1) =
        (Port::open(&mut ours, "a1", Some(&all)), Port::open(&mut ours, "b1", None));
    let (mut a0, mut b0) =
        (Port::open(&mut far, "a0", None), Port::open(&mut far, "b0", Some(&all)));
    assert!(!a1.socket.shares_umem() && b1.socket.shares_umem(), "one registration for both ports");
    for number in 0..RING as u8 {
        let sent = ethernet(number);
        a0.send(&mut far, &sent);
        let frame = a1.receive().expect("a frame at a1");
        assert_eq!(ours.bytes(&frame), sent);
        // The very address, without a look at the bytes.
        // SAFETY: received just now.
        unsafe { b1.socket.send(frame.chunk + u64::from(frame.data), frame.length) };
        b1.socket.flush_send().expect("sent");
        let arrived = b0.receive().expect("a frame at b0");
        assert_eq!(far.bytes(&arrived), sent);
        let mut completed = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        while completed.is_empty() && Instant::now() < end {
            b1.socket.complete(RING, |chunk| completed.push(chunk));
        }
        assert_eq!(completed, [frame.chunk]);
        ours.free.push(frame.chunk);
        far.free.push(arrived.chunk);
        a0.socket.complete(RING, |chunk| far.free.push(chunk));
    }
    [a1, b1].into_iter().for_each(|port| port.close(&mut ours));
    [a0, b0].into_iter().for_each(|port| port.close(&mut far));
    for memory in [&mut ours, &mut far] {
        memory.free.sort();
        assert_eq!(
            memory.free,
            (0..CHUNKS as u64).map(|chunk| chunk * CHUNK as u64).collect::<Vec<_>>()
        );
    }
}

/// UDP or TCP over IPv4 (with `options` words of them) or IPv6, to `port`.
fn to_port(version: u8, protocol: u8, options: u8, port: u16, fragment: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let mut header = match version {
        4 => {
            frame.extend([8, 0]);
            vec![0; 20 + 4 * usize::from(options)]
        }
        _ => {
            frame.extend([0x86, 0xdd]);
            vec![0; 40]
        }
    };
    if version == 4 {
        (header[0], header[7], header[9]) = (0x45 + options, fragment, protocol);
    } else {
        (header[0], header[6]) = (0x60, protocol);
    }
    frame.extend(header);
    frame.extend([0, 1]);
    frame.extend(port.to_be_bytes());
    frame.resize(frame.len().max(56) + 8, 0);
    frame
}

#[test]
fn filters_take_what_they_name_and_leave_the_rest() {
    let Some(()) = namespace("filters_take_what_they_name_and_leave_the_rest") else { return };
    let mut memory = Memory::new();
    let arp = ethernet(0);
    let frames = [
        (to_port(4, 17, 0, 9, 0), [true, true, true]),
        (to_port(4, 6, 0, 9, 0), [true, false, false]),
        (to_port(4, 17, 0, 10, 0), [false, true, false]),
        (to_port(4, 17, 5, 7777, 0), [true, true, true]),
        (to_port(4, 17, 0, 9, 1), [false, true, false]),
        (to_port(6, 17, 0, 9, 0), [true, true, true]),
        (to_port(6, 6, 0, 7777, 0), [true, false, false]),
        (to_port(6, 58, 0, 9, 0), [false, false, false]),
        (arp, [false, false, false]),
    ];
    let filters = [
        Filter { protocol: None, ports: vec![9, 7777] },
        Filter { protocol: Some(17), ports: vec![] },
        Filter { protocol: Some(17), ports: vec![9, 7777] },
    ];
    for (which, filter) in filters.iter().enumerate() {
        let mut a1 = Port::open(&mut memory, "a1", Some(filter));
        let mut a0 = Port::open(&mut memory, "a0", None);
        // Known to match: what comes before it and is not there was left to the kernel.
        let last = to_port(4, 17, 0, 9, 0);
        for (number, (frame, takes)) in frames.iter().enumerate() {
            a0.send(&mut memory, frame);
            a0.send(&mut memory, &last);
            for expected in [Some(frame), Some(&last)].into_iter().skip(usize::from(!takes[which]))
            {
                let got = a1.receive().expect("a frame at a1");
                assert_eq!(Some(&memory.bytes(&got)), expected, "filter {which}, frame {number}");
                memory.free.push(got.chunk);
            }
        }
        a0.close(&mut memory);
        a1.close(&mut memory);
    }
}

#[test]
fn a_queue_can_be_taken_again_at_once_and_not_twice() {
    let Some(()) = namespace("a_queue_can_be_taken_again_at_once_and_not_twice") else { return };
    let mut memory = Memory::new();
    for _ in 0..5 {
        let port = Port::open(&mut memory, "a1", Some(&Filter::default()));
        let options =
            Options { ifindex: index("a1"), queue: 0, ring_size: RING, copying: Copying::Auto };
        assert_eq!(Socket::open(&memory.umem, &options).err(), Some(OpenError::QueueTaken(0)));
        port.close(&mut memory);
        assert_eq!(memory.free.len(), CHUNKS);
    }
    let zero_copy =
        Options { ifindex: index("a1"), queue: 0, ring_size: RING, copying: Copying::ZeroCopy };
    assert_eq!(
        Socket::open(&memory.umem, &zero_copy).err(),
        Some(OpenError::NoZeroCopy(0)),
        "veth has none"
    );
}

#[test]
fn one_program_serves_all_queues_and_goes_with_the_last() {
    let Some(()) = namespace("one_program_serves_all_queues_and_goes_with_the_last") else {
        return;
    };
    let (all, some) = (Filter::default(), Filter { protocol: Some(6), ports: vec![] });
    let first = Attachment::open(index("a1"), None, &all).expect("a program");
    assert_eq!(first.mode(), Mode::Native);
    let second = Attachment::open(index("a1"), Some(Mode::Native), &all).expect("the same");
    assert!(Arc::ptr_eq(&first, &second));
    assert!(Attachment::open(index("a1"), None, &some).is_err(), "another filter");
    drop(first);
    assert!(Attachment::open(index("a1"), None, &some).is_err(), "the program is still there");
    drop(second);
    let generic =
        Attachment::open(index("a1"), Some(Mode::Generic), &some).expect("a program again");
    assert_eq!(generic.mode(), Mode::Generic);
}

#[test]
fn the_kernels_generator_sends_and_forwards() {
    let Some(()) = namespace("the_kernels_generator_sends_and_forwards") else { return };
    let (_sink, _forward) =
        (drop_all(index("b0")).unwrap(), forward_all(index("a1"), index("b1")).unwrap());
    let source = Source::new(index("a0"), &ethernet(0)).unwrap();
    const COUNT: u32 = 10_000;
    source.send(COUNT).unwrap();
    let table = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let received = |name: &str| -> u64 {
        let table = table();
        let line =
            table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    // They may still be on their way where the kernel's own threads wait for a processor.
    let end = Instant::now() + Duration::from_secs(60);
    while received("b0") == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A queue of a veth holds 256 frames and loses what comes too fast.
    let (last, first) = (received("b0"), received("a1"));
    assert!((1..=first).contains(&last) && first <= u64::from(COUNT), "{}", table());
}
