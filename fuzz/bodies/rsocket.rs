//! What the rsocket targets do with their input: a peer that says and writes what it likes.
#![allow(unsafe_code)]

use rustix::fd::RawFd;
use shortwire_rsocket::Errno;
use shortwire_rsocket::provider::{Completion, Endpoint, Lane, PostError, Region, Remote};
use shortwire_rsocket::shared::Layout;
use shortwire_rsocket::stream::{Config, RecvOptions, Stream, conn_data};
use shortwire_rsocket::wire::{ConnData, Iomap, Message, Sge};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

/// Connection data, immediates, entries and sizes: what decodes, encodes, and decodes to the same.
pub fn wire(bytes: &[u8]) {
    if let Some(Ok(data)) = bytes.first_chunk().map(ConnData::decode) {
        assert_eq!(ConnData::decode(&data.encode()), Ok(data));
        assert!(data.target_sgl.length != 0 && data.target_sgl.length <= ConnData::MAX_SGL);
    }
    for word in bytes.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())) {
        let message = Message::decode(word);
        assert_eq!(Message::decode(message.encode()), message);
    }
    if let Some(entry) = bytes.first_chunk().map(Iomap::decode) {
        assert_eq!(Iomap::decode(&entry.encode(false)), entry);
        assert_eq!(Sge::decode(&entry.sge.encode(false)), entry.sge);
    }
    for sizes in bytes.chunks_exact(12) {
        let [slots, memory, dmb] =
            [0, 4, 8].map(|at| u32::from_be_bytes(sizes[at..at + 4].try_into().unwrap()));
        if let Some(layout) = Layout::of_peer(slots, memory, dmb) {
            assert!(layout.memory_at() + memory as usize <= dmb as usize, "within the buffer");
        }
    }
}

/// A provider whose peer is the input.
struct Script {
    memory: RefCell<Vec<u64>>,
    len: usize,
    told: RefCell<VecDeque<u32>>,
    sent: Cell<usize>,
    gone: Cell<bool>,
}

impl Endpoint for Script {
    fn inline_limit(&self) -> usize {
        usize::MAX
    }

    fn synchronous(&self) -> bool {
        true
    }

    fn memory(&self) -> Region {
        Region { ptr: self.memory.borrow_mut().as_mut_ptr().cast(), len: self.len, addr: 0, key: 1 }
    }

    fn post_recv(&self, _count: u32) {}

    unsafe fn post_write(
        &self,
        _lane: Lane,
        pieces: &[(*const u8, usize)],
        to: Remote,
        _imm: Option<u32>,
        _id: u32,
    ) -> Result<(), PostError> {
        for (ptr, len) in pieces {
            // SAFETY: readable, or else the sanitizer tells.
            self.sent
                .set(self.sent.get() + unsafe { core::slice::from_raw_parts(*ptr, *len) }.len());
        }
        if to.key % 7 == 3 { Err(PostError::Access) } else { Ok(()) }
    }

    fn poll_cq(&self, out: &mut [Completion]) -> usize {
        let mut told = self.told.borrow_mut();
        let n = out.len().min(told.len());
        out.iter_mut().zip(told.drain(..n)).for_each(|(to, word)| *to = Completion::Recv(word));
        n
    }

    fn request_event(&self) {}

    fn await_event(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn take_event(&self) {}

    fn event_fd(&self) -> RawFd {
        -1
    }

    fn is_gone(&self) -> bool {
        self.gone.get()
    }

    fn probe(&self) {}

    fn expose(&self, ptr: *mut u8, len: usize) -> Result<Region, Errno> {
        Ok(Region { ptr, len, addr: ptr as u64, key: 2 })
    }

    fn conceal(&self, _region: Region) {}

    fn disconnect(&self) {
        self.gone.set(true);
    }
}

/// The steps of the input against a stream: nothing is read that was not granted, and nothing
/// outside of memory.
pub fn stream(bytes: &[u8]) {
    let (&[queue, half, ref peer @ ..], steps) =
        bytes.split_first_chunk::<42>().map_or((&[0; 42], bytes), |all| all);
    let Ok(peer) = ConnData::decode(peer) else { return };
    let config = Config {
        sq: 16,
        rq: 16 + u16::from(queue % 32),
        sbuf: 4096,
        rbuf: 2 * (1 + u32::from(half)),
        usual_half: 1 + u32::from(half) / (1 + u32::from(queue / 32)),
        away: Duration::ZERO,
        iomaps: 2,
    };
    let end = Script {
        memory: RefCell::new(vec![0; config.memory() / 8 + 1]),
        len: config.memory(),
        told: RefCell::default(),
        sent: Cell::new(0),
        gone: Cell::new(false),
    };
    assert_eq!(conn_data(&config, &end.memory()).data_buf.length, config.usual_half);
    let mut private = vec![0u64; config.private() / 8 + 1];
    let stream = Stream::new(end, config, &peer, private.as_mut_ptr().cast(), Duration::ZERO);
    let mut buffer = [0u8; 600];
    let (mut told, mut read) = (0u64, 0u64);
    for step in steps.chunks_exact(6) {
        let word = u32::from_be_bytes(step[1..5].try_into().unwrap());
        let n = usize::from(step[5]) * 2;
        match step[0] % 6 {
            0 => {
                if let Message::Data(n) = Message::decode(word) {
                    told += u64::from(n);
                }
                stream.endpoint.told.borrow_mut().push_back(word);
            }
            1 => {
                let at = word as usize % (2 * Sge::LEN + 2 * Iomap::LEN - 5);
                let memory = stream.endpoint.memory().ptr;
                // SAFETY: within the tables that a peer may write.
                unsafe { memory.add(at).copy_from_nonoverlapping(step.as_ptr(), 6) };
            }
            2 => {
                let bufs = [(buffer.as_mut_ptr(), n)];
                let options = RecvOptions { block: false, peek: step[5] & 1 != 0, wait_all: false };
                // SAFETY: an array.
                if let Ok(got) = unsafe { stream.recv(&bufs, options) } {
                    read += if options.peek { 0 } else { got as u64 };
                    assert!(got <= n && read <= told, "no more than was told");
                }
            }
            // SAFETY: an array.
            3 => drop(unsafe { stream.send(&[(buffer.as_ptr(), n)], false) }),
            // SAFETY: an array.
            4 => drop(unsafe { stream.write_mapped(buffer.as_ptr(), n, word.into(), false) }),
            _ => drop(stream.poll(libc::POLLIN | libc::POLLOUT)),
        }
    }
}
