//! Packets in a stream: before each its length, 32 bits in network order.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};

use crate::apps::peer::{Peer, files};
use crate::arena::MAX_LENGTH;
use crate::batch::Batch;
use crate::packet::Packet;

use super::Counters;

const PREFIX: usize = 4;
const BUFFER: usize = 256 << 10;
/// No sender means more than this: QEMU's limit. Beyond, the stream is out of step.
const LONGEST: usize = 68 << 10;

pub(super) struct Stream {
    socket: Peer,
    /// Received and not yet cut into packets: `received[start..end]`.
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of a packet too long for the engine that are still to come.
    skip: usize,
    /// Cut from packets and not yet taken by the kernel: `out[sent..]`.
    out: Vec<u8>,
    sent: usize,
}

impl Stream {
    pub fn new(socket: Peer) -> Stream {
        let received = vec![0; BUFFER].into_boxed_slice();
        Stream {
            socket,
            received,
            start: 0,
            end: 0,
            skip: 0,
            out: Vec::with_capacity(BUFFER),
            sent: 0,
        }
    }

    /// Adds up to `most` packets. An error is the end of the stream, or `EAGAIN`. It reads once at
    /// most: a peer that writes on and on what makes no packet would keep the engine's thread here.
    pub fn receive(
        &mut self,
        most: usize,
        batch: &mut Batch,
        counters: &mut Counters,
    ) -> Result<(), Errno> {
        let full = batch.len() + most;
        self.cut_all(full, batch, counters)?;
        if batch.len() < full {
            self.fill()?;
            self.cut_all(full, batch, counters)?;
        }
        Ok(())
    }

    fn cut_all(
        &mut self,
        full: usize,
        batch: &mut Batch,
        counters: &mut Counters,
    ) -> Result<(), Errno> {
        while batch.len() < full {
            let Some(packet) = self.cut(counters)? else { break };
            batch.push(packet);
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Errno> {
        self.received.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == BUFFER {
            // It holds a whole packet, for which there is no memory now.
            return Err(Errno::AGAIN);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(files::MOST))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut part = [IoSliceMut::new(&mut self.received[self.end..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.socket, &mut part, &mut ancillary, flags)?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.socket.leaving().drop(files.collect::<Vec<OwnedFd>>());
            }
        }
        self.end += got;
        if got == 0 { Err(Errno::PIPE) } else { Ok(()) }
    }

    /// The next whole packet. `EPROTO` if the bytes can be none.
    fn cut(&mut self, counters: &mut Counters) -> Result<Option<Packet>, Errno> {
        loop {
            let skipped = self.skip.min(self.end - self.start);
            self.skip -= skipped;
            self.start += skipped;
            let waiting = &self.received[self.start..self.end];
            let Some((prefix, rest)) = waiting.split_first_chunk::<PREFIX>() else {
                return Ok(None);
            };
            let length = u32::from_be_bytes(*prefix) as usize;
            if length > LONGEST {
                return Err(Errno::PROTO);
            }
            if length == 0 || length > MAX_LENGTH {
                counters.rx_empty += u64::from(length == 0);
                counters.rx_oversize += u64::from(length != 0);
                self.start += PREFIX;
                self.skip = length;
                continue;
            }
            let Some(bytes) = rest.get(..length) else { return Ok(None) };
            let Some(packet) = Packet::from_slice(bytes) else { return Ok(None) };
            self.start += PREFIX + length;
            return Ok(Some(packet));
        }
    }

    /// Sends from `packets` and tells how many were taken: all, or none while the kernel has no
    /// room for earlier ones.
    pub fn send(&mut self, packets: &[Packet]) -> Result<usize, Errno> {
        self.flush()?;
        if self.sent < self.out.len() {
            return Ok(0);
        }
        self.out.clear();
        self.sent = 0;
        for packet in packets {
            self.out.extend_from_slice(&(packet.length() as u32).to_be_bytes());
            self.out.extend_from_slice(packet);
        }
        self.flush()?;
        Ok(packets.len())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.out.len() {
            match send(
                &self.socket,
                &self.out[self.sent..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => self.sent += sent,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::peer::Leaving;
    use crate::apps::peer::tests::{hand, lingering};
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    fn pair() -> (Stream, OwnedFd) {
        let (a, b) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)
                .unwrap();
        (Stream::new(Peer::new(a, &Leaving::default(), false)), b)
    }

    proptest! {
        #[test]
        fn packets_survive_any_fragmentation(
            lengths in prop::collection::vec(0usize..2500, 1..40),
            cuts in prop::collection::vec(1usize..3000, 1..60),
        ) {
            let (mut stream, other) = pair();
            let mut bytes = Vec::new();
            for (n, length) in lengths.iter().enumerate() {
                bytes.extend_from_slice(&(*length as u32).to_be_bytes());
                bytes.extend(std::iter::repeat_n(n as u8, *length));
            }
            let (mut got, mut counters) = (Vec::new(), Counters::default());
            let mut cuts = cuts.iter().cycle();
            while !bytes.is_empty() {
                let n = cuts.next().unwrap().min(&bytes.len()).to_owned();
                prop_assert_eq!(send(&other, &bytes[..n], SendFlags::empty()).unwrap(), n);
                bytes.drain(..n);
                let mut batch = Batch::new();
                prop_assert_eq!(stream.receive(100, &mut batch, &mut counters), Ok(()));
                prop_assert_eq!(stream.receive(100, &mut batch, &mut counters), Err(Errno::AGAIN));
                got.extend(batch.iter().map(|packet| (packet.length(), packet.first().copied())));
            }
            let fits = |&(_, &length): &(usize, &usize)| (1..=MAX_LENGTH).contains(&length);
            let expected: Vec<_> = lengths.iter().enumerate().filter(fits)
                .map(|(n, &length)| (length, Some(n as u8))).collect();
            let count = |fits: fn(usize) -> bool| lengths.iter().filter(|length| fits(**length)).count();
            prop_assert_eq!(counters.rx_oversize as usize, count(|length| length > MAX_LENGTH));
            prop_assert_eq!(counters.rx_empty as usize, count(|length| length == 0));
            prop_assert_eq!(got, expected);
        }
    }

    /// That it does not look for more shows that whoever writes on does not hold it.
    #[test]
    fn lengths_of_nothing_are_read_once() {
        let (mut stream, other) = pair();
        let (mut batch, mut counters) = (Batch::new(), Counters::default());
        for round in 1..=3 {
            send(&other, &[0; PREFIX * 100], SendFlags::empty()).unwrap();
            assert_eq!(stream.receive(100, &mut batch, &mut counters), Ok(()));
            assert_eq!((batch.len(), counters.rx_empty), (0, round * 100));
        }
        assert_eq!(stream.receive(100, &mut batch, &mut counters), Err(Errno::AGAIN));
    }

    /// As on a kernel that does not refuse it. If it could hold who reads, this would not end.
    #[test]
    fn a_socket_that_lingers_comes_with_bytes() {
        let (mut stream, other) = pair();
        let (file, _other_end) = lingering();
        hand(&other, &[0, 0, 0, 1, 7], &[file.as_fd()]);
        drop(file);
        let mut batch = Batch::new();
        assert_eq!(stream.receive(9, &mut batch, &mut Counters::default()), Ok(()));
        assert_eq!((batch.len(), stream.socket.leaving().count()), (1, 1));
    }

    #[test]
    fn a_stream_out_of_step_ends() {
        let (mut stream, other) = pair();
        send(&other, &[0xff; 8], SendFlags::empty()).unwrap();
        let receive =
            |stream: &mut Stream| stream.receive(1, &mut Batch::new(), &mut Counters::default());
        assert_eq!(receive(&mut stream), Err(Errno::PROTO));
        let (mut stream, other) = pair();
        drop(other);
        assert_eq!(receive(&mut stream), Err(Errno::PIPE));
    }
}
