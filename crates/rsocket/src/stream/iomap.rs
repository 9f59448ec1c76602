//! Buffers of the application that the peer writes to directly: riomap, riounmap, riowrite.
#![allow(unsafe_code)]

use super::send::Source;
use super::{Config, Stream, lock, state};
use crate::provider::{Endpoint, Region, Remote};
use crate::wire::{Iomap, Message, Sge};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shm::{Errno, FastLock};

/// Buffers that can be mapped at a time. A table of fixed size, because a stream is shared over
/// fork and so must not point into the heap.
const MAPS: usize = 128;
/// Operation code of direct writes, which is not transmitted: only an id for their completion.
const DIRECT: u32 = 2 << 29;
/// Direct writes until the kernel is asked whether the peer still lives: they use nothing that would
/// run out without it.
const PROBE: u32 = 256;
/// Largest single direct write.
const LARGEST: u64 = 1 << 28;

pub struct Maps {
    pub(super) lock: FastLock<true>,
    /// In the stream's private memory: in the stream itself it would pass over the stack of whoever
    /// connects.
    table: *mut [Option<Map>; MAPS],
    /// The peer has not been told of all.
    pending: AtomicBool,
    /// Calls for direct writes.
    writes: AtomicU32,
}

#[derive(Clone, Copy)]
struct Map {
    offset: u64,
    region: Region,
    /// Entry of the peer's target iomap; None for a buffer that only we use.
    index: Option<u16>,
    told: bool,
}

impl Maps {
    pub(super) const LEN: usize = size_of::<[Option<Map>; MAPS]>().next_multiple_of(8);

    /// None yet, in memory of [`Self::LEN`] bytes at `table`, aligned to 8.
    pub(super) fn new(table: *mut u8) -> Self {
        const { assert!(align_of::<Option<Map>>() <= 8) };
        let table = table.cast::<[Option<Map>; MAPS]>();
        for place in 0..MAPS {
            // SAFETY: within the table, which is ours.
            unsafe { table.cast::<Option<Map>>().wrapping_add(place).write(None) };
        }
        Self {
            lock: FastLock::new(),
            table,
            pending: AtomicBool::new(false),
            writes: AtomicU32::new(0),
        }
    }

    /// # Safety
    /// Under `lock`, and not kept longer.
    #[expect(clippy::mut_from_ref, reason = "the lock is the exclusive reference")]
    unsafe fn table(&self) -> &mut [Option<Map>; MAPS] {
        // SAFETY: written by `new`; the memory lives as long as the stream.
        unsafe { &mut *self.table }
    }
}

impl<E: Endpoint> Stream<E> {
    /// Opens `buf` to the peer's [`Self::write_mapped`], at `offset` or else at its own address,
    /// which is returned. The peer learns of it with the next send.
    pub fn map(
        &self,
        buf: *mut u8,
        len: usize,
        writable: bool,
        offset: Option<u64>,
    ) -> Result<u64, Errno> {
        let length = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let offset = offset.unwrap_or(buf as u64);
        offset
            .checked_add(length.into())
            .filter(|end| *end <= i64::MAX as u64)
            .ok_or(Errno::INVAL)?;
        let _held = lock(&self.maps.lock)?;
        // SAFETY: under its lock.
        let table = unsafe { self.maps.table() };
        let taken = |i: u16| table.iter().flatten().any(|map| map.index == Some(i));
        let index = match writable {
            true => {
                Some((0..self.peer.iomap.length as u16).find(|i| !taken(*i)).ok_or(Errno::NOMEM)?)
            }
            false => None,
        };
        let free = table.iter_mut().find(|map| map.is_none()).ok_or(Errno::NOMEM)?;
        let region = self.endpoint.expose(buf, len)?;
        *free = Some(Map { offset, region, index, told: index.is_none() });
        if writable {
            self.maps.pending.store(true, Ordering::Release);
        }
        Ok(offset)
    }

    /// Ends a [`Self::map`] of the same buffer and length.
    pub fn unmap(&self, buf: *mut u8, len: usize) -> Result<(), Errno> {
        self.unmap_if(|region| (region.ptr, region.len) == (buf, len), 1)
    }

    /// Ends all of them.
    pub fn unmap_all(&self) {
        let _ = self.unmap_if(|_| true, MAPS);
    }

    fn unmap_if(&self, which: impl Fn(&Region) -> bool, most: usize) -> Result<(), Errno> {
        let _held = lock(&self.maps.lock)?;
        // SAFETY: under its lock.
        let table = unsafe { self.maps.table() };
        let found =
            table.iter_mut().filter_map(|entry| entry.take_if(|map| which(&map.region))).take(most);
        let count = found.map(|map| self.endpoint.conceal(map.region)).count();
        if count == 0 { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Under `slock`: tells the peer of new maps, each of which costs a credit.
    #[inline]
    pub(super) fn send_iomaps(&self, block: bool) -> Result<(), Errno> {
        if self.has_new_iomaps() { self.send_pending(block) } else { Ok(()) }
    }

    /// Whether the peer has not been told of all maps.
    #[inline]
    pub(super) fn has_new_iomaps(&self) -> bool {
        self.maps.pending.load(Ordering::Acquire)
    }

    #[cold]
    fn send_pending(&self, block: bool) -> Result<(), Errno> {
        loop {
            self.await_send(block)?;
            // For one entry only, and never while waiting, so that a map can be ended meanwhile.
            let _held = lock(&self.maps.lock)?;
            // SAFETY: under its lock.
            let table = unsafe { self.maps.table() };
            let Some(map) = table.iter_mut().flatten().find(|map| !map.told) else {
                self.maps.pending.store(false, Ordering::Release);
                return Ok(());
            };
            let index = map.index.unwrap_or(0);
            let sge =
                Sge { addr: map.region.addr, key: map.region.key, length: map.region.len as u32 };
            let bytes = Iomap { offset: map.offset, sge }.encode(self.peer.swap);
            let at = u64::from(index) * Iomap::LEN as u64;
            let to =
                Remote { addr: self.peer.iomap.addr.wrapping_add(at), key: self.peer.iomap.key };
            let word = Message::Iomap(index).encode();
            let bufs = [(bytes.as_ptr(), bytes.len())];
            self.write(&mut Source::new(&bufs), bytes.len(), to, |_| (Some(word), word), false)?;
            self.spend_credit();
            map.told = true;
        }
    }

    /// Writes to what the peer has mapped from `offset` on; less than all if the map ends before.
    ///
    /// # Safety
    /// `buf` is readable for `len` bytes.
    pub unsafe fn write_mapped(
        &self,
        buf: *const u8,
        len: usize,
        offset: u64,
        block: bool,
    ) -> Result<usize, Errno> {
        let _held = lock(&self.send.lock)?;
        let bufs = [(buf, len)];
        let mut source = Source::new(&bufs);
        let mut result = self.send_iomaps(block);
        if self.maps.writes.fetch_add(1, Ordering::Relaxed) % PROBE == PROBE - 1 {
            self.endpoint.probe();
            let _ = self.progress.with(|| self.process());
        }
        while source.left != 0 && result.is_ok() {
            let at = offset.wrapping_add((len - source.left) as u64);
            let Some(map) = self.find_map(at) else { break };
            result = self
                .await_space(block)
                .and_then(|()| self.write_direct(&mut source, &map, at, block));
        }
        match (len - source.left, result) {
            (0, Err(e)) => Err(e),
            (n, _) => {
                self.row.tx.count(n);
                Ok(n)
            }
        }
    }

    /// The entry of our target iomap in which `offset` lies.
    fn find_map(&self, offset: u64) -> Option<Iomap> {
        (0..usize::from(self.config.iomaps)).find_map(|i| {
            let entry = self.memory.wrapping_add(Config::iomap_at() + i * Iomap::LEN);
            // SAFETY: an entry of the target iomap in our memory, which the peer writes. Copied
            // once; the provider checks what it says when it is used.
            let map = Iomap::decode(&unsafe { entry.cast::<[u8; Iomap::LEN]>().read_volatile() });
            let within = offset >= map.offset && offset - map.offset < map.sge.length.into();
            within.then_some(map)
        })
    }

    fn await_space(&self, block: bool) -> Result<(), Errno> {
        let ready = || self.has_send_space() || !self.is(state::WRITABLE);
        if !ready() {
            self.complete(block, ready)?;
        }
        if self.is(state::WRITABLE) { Ok(()) } else { Err(Errno::CONNRESET) }
    }

    fn write_direct(
        &self,
        source: &mut Source<'_>,
        map: &Iomap,
        offset: u64,
        block: bool,
    ) -> Result<(), Errno> {
        let into = offset - map.offset;
        let n = (u64::from(map.sge.length) - into).min(source.left as u64).min(LARGEST) as usize;
        let to = Remote { addr: map.sge.addr.wrapping_add(into), key: map.sge.key };
        self.write(source, n, to, |n| (None, DIRECT | n), block).map(drop)
    }
}
