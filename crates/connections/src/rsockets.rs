//! What processes say of their rsockets: files of `shm::rsockets`, read as the tables of the library
//! are, taken for plain numbers, and only shown.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{
    Ordering::{Acquire, Relaxed},
    fence,
};

use serde::{Deserialize, Serialize};
use shm::rsockets::{Flow, Head, LOOPBACK, MAGIC, ROWS, Row, VERBS};

use super::processes::{Program, inner_pid};
use crate::numbers;

/// The rsockets of a process, and of what it forked.
pub struct Streams {
    pub programs: Vec<Program>,
    /// Names the memory as long as a process holds it.
    pub identity: String,
    /// Who made it, by the kernel's word.
    pub uid: u32,
    pub totals: StreamTotals,
    file: File,
    rows: Vec<Row>,
}

/// What an rsocket says of itself.
#[derive(Clone, Default, Debug, PartialEq, Serialize)]
pub struct Stream {
    /// What carries it: `loopback`, `verbs`; empty before it is connected.
    pub device: &'static str,
    /// Of the process at the other end, 0 where that is another machine.
    pub peer_pid: u32,
    pub rcvbuf: u32,
    pub sndbuf: u32,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_calls: u64,
    pub tx_calls: u64,
    /// Sent by this end.
    pub doorbells: u64,
    /// Sleeps of this end that a doorbell ended.
    pub slept: u64,
}

/// The counters of all rsockets of a family, those that are closed too.
#[derive(Clone, Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamTotals {
    /// Connections that were made, and that failed to be.
    pub streams: u64,
    pub failed: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_calls: u64,
    pub tx_calls: u64,
    pub doorbells: u64,
    pub slept: u64,
}

impl Streams {
    pub fn read(file: File, programs: Vec<Program>) -> io::Result<Streams> {
        let meta = file.metadata()?;
        let identity = format!("{}:{}", meta.dev(), meta.ino());
        let (totals, rows) = look(&file)?;
        Ok(Streams { programs, identity, uid: meta.uid(), totals, file, rows })
    }

    /// Its file, kept open: what was counted can be read behind the end of the last process.
    pub fn hold(&self) -> Option<HeldStreams> {
        self.file.try_clone().ok().map(HeldStreams)
    }

    /// By what each is known: the inode of its TCP socket, or a number where it has none.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &Row)> {
        let rows = self.rows.iter().map(|row| (row.key.load(Relaxed), row));
        rows.filter(|(key, _)| *key != 0)
    }

    /// The process that has a row without a TCP socket.
    pub fn owner(&self, row: &Row) -> Vec<Program> {
        let pid = row.pid.load(Relaxed);
        let own = self.programs.iter().filter(|program| inner_pid(program.pid) == Some(pid));
        let own: Vec<Program> = own.cloned().collect();
        if own.is_empty() { self.programs.clone() } else { own }
    }
}

pub struct HeldStreams(File);

impl HeldStreams {
    /// Everything that was counted. None if it cannot be read.
    pub fn totals(&self) -> Option<StreamTotals> {
        look(&self.0).ok().map(|(totals, _)| totals)
    }
}

fn look(file: &File) -> io::Result<(StreamTotals, Vec<Row>)> {
    let head = numbers::read::<Head>(file, 0, 1)?;
    let head = &head[0];
    if head.magic.load(Relaxed) != MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "of another version of Shortwire"));
    }
    // SYNC: row. The sums in front of the rows: what a row has given to them it does not have any more.
    fence(Acquire);
    let used = head.used.load(Relaxed).min(ROWS as u64) as usize;
    let rows = numbers::read::<Row>(file, size_of::<Head>() as u64, used)?.into_vec();
    let mut totals = StreamTotals {
        streams: head.streams.get(),
        failed: head.failed.get(),
        slept: head.slept.get(),
        ..StreamTotals::default()
    };
    totals.count(&head.ended[0], &head.ended[1]);
    for row in rows.iter().filter(|row| row.key.load(Relaxed) != 0) {
        totals.count(&row.rx, &row.tx);
        totals.slept = totals.slept.saturating_add(row.slept.get());
    }
    Ok((totals, rows))
}

impl StreamTotals {
    fn count(&mut self, rx: &Flow, tx: &Flow) {
        for (sum, counter) in [
            (&mut self.rx_bytes, &rx.bytes),
            (&mut self.tx_bytes, &tx.bytes),
            (&mut self.rx_calls, &rx.calls),
            (&mut self.tx_calls, &tx.calls),
            (&mut self.doorbells, &tx.doorbells),
        ] {
            *sum = sum.saturating_add(counter.get());
        }
    }

    fn combine(&mut self, other: &StreamTotals, apply: fn(u64, u64) -> u64) {
        for (mine, theirs) in [
            (&mut self.streams, other.streams),
            (&mut self.failed, other.failed),
            (&mut self.rx_bytes, other.rx_bytes),
            (&mut self.tx_bytes, other.tx_bytes),
            (&mut self.rx_calls, other.rx_calls),
            (&mut self.tx_calls, other.tx_calls),
            (&mut self.doorbells, other.doorbells),
            (&mut self.slept, other.slept),
        ] {
            *mine = apply(*mine, theirs);
        }
    }

    pub fn add(&mut self, other: &StreamTotals) {
        self.combine(other, u64::saturating_add);
    }

    /// A look at the moment in which a socket is closed may find less than one before.
    pub fn at_least(&mut self, earlier: &StreamTotals) {
        self.combine(earlier, u64::max);
    }

    pub fn since(&mut self, earlier: &StreamTotals) {
        self.combine(earlier, u64::saturating_sub);
    }
}

impl Stream {
    pub fn of(row: &Row) -> Stream {
        Stream {
            device: match row.device.load(Relaxed) {
                LOOPBACK => "loopback",
                VERBS => "verbs",
                _ => "",
            },
            peer_pid: row.peer_pid.load(Relaxed),
            rcvbuf: row.rcvbuf.load(Relaxed),
            sndbuf: row.sndbuf.load(Relaxed),
            rx_bytes: row.rx.bytes.get(),
            tx_bytes: row.tx.bytes.get(),
            rx_calls: row.rx.calls.get(),
            tx_calls: row.tx.calls.get(),
            doorbells: row.tx.doorbells.get(),
            slept: row.slept.get(),
        }
    }
}

/// Own name of a row without a TCP socket, or that of its peer.
pub fn name(row: &Row, peer: bool) -> Option<SocketAddr> {
    let [head, low, high] = [0, 1, 2].map(|at| row.names[usize::from(peer)][at].load(Relaxed));
    let mut ip = [0; 16];
    ip[..8].copy_from_slice(&low.to_ne_bytes());
    ip[8..].copy_from_slice(&high.to_ne_bytes());
    let ip = match (head >> 32) as i32 {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*ip.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, head as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(used: u64, rows: &[Row]) -> File {
        let mut file = tempfile();
        let mut bytes = vec![0u8; size_of::<Head>() + size_of_val(rows)];
        let put = |bytes: &mut Vec<u8>, at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        };
        put(&mut bytes, std::mem::offset_of!(Head, magic), MAGIC);
        put(&mut bytes, std::mem::offset_of!(Head, used), used);
        put(&mut bytes, std::mem::offset_of!(Head, streams), 3);
        put(&mut bytes, std::mem::offset_of!(Head, ended), 1000);
        for (number, row) in rows.iter().enumerate() {
            let at = size_of::<Head>() + number * size_of::<Row>();
            put(&mut bytes, at + std::mem::offset_of!(Row, key), row.key.load(Relaxed));
            put(&mut bytes, at + std::mem::offset_of!(Row, rx), row.rx.bytes.get());
            put(&mut bytes, at + std::mem::offset_of!(Row, names), row.names[0][0].load(Relaxed));
            put(
                &mut bytes,
                at + std::mem::offset_of!(Row, names) + 8,
                row.names[0][1].load(Relaxed),
            );
        }
        file.write_all(&bytes).unwrap();
        file
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!(
            "shortwire-rows-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let options = &mut File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn sums_are_of_open_and_closed_sockets() {
        let row = Row::default();
        row.key.store(77, Relaxed);
        row.rx.bytes.set(24);
        row.names[0][0].store((libc::AF_INET as u64) << 32 | 80, Relaxed);
        let ip = u64::from_ne_bytes([127, 0, 0, 1, 0, 0, 0, 0]);
        row.names[0][1].store(ip, Relaxed);
        let streams = Streams::read(file(2, &[Row::default(), row]), Vec::new()).unwrap();
        assert_eq!((streams.totals.streams, streams.totals.rx_bytes), (3, 1024));
        let rows: Vec<_> = streams.rows().collect();
        assert_eq!((rows.len(), rows[0].0), (1, 77));
        assert_eq!(name(rows[0].1, false), "127.0.0.1:80".parse().ok());
        assert_eq!(name(rows[0].1, true), None);
        assert_eq!(streams.hold().and_then(|held| held.totals()), Some(streams.totals));
    }

    #[test]
    fn a_file_that_lies_is_read_as_far_as_it_goes() {
        let streams = Streams::read(file(u64::MAX, &[]), Vec::new()).unwrap();
        assert_eq!(streams.rows().count(), 0);
        assert!(Streams::read(tempfile(), Vec::new()).is_err(), "no magic");
    }
}
