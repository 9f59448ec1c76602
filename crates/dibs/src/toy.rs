//! The smallest device, as CONTRIBUTING's "A new device" has it made: what a device must do,
//! without what makes one fast. Bytes are copied within one process, by a fabric that both devices
//! hold; a sender never sees the buffer.
#![allow(unsafe_code)]

use crate::{
    AttachError, Device, Dmb, Errno, Gid, MoveError, Peer, Reach, RegisterError, Told, is_dmb_len,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use rustix::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

/// One of the two devices at a fabric.
struct Toy {
    gid: Gid,
    max_dmbs: AtomicU32,
    fabric: Arc<Mutex<Vec<Buffer>>>,
}

struct Buffer {
    token: u64,
    index: u32,
    group: u32,
    owner: Gid,
    /// The one device that may attach it, and how often it has.
    writer: Gid,
    attached: u32,
    signals: u32,
    len: u32,
    memory: Arc<[AtomicU64]>,
}

const GIDS: [Gid; 2] = [Gid::new(0x544f59, 1), Gid::new(0x544f59, 2)];

impl Toy {
    fn fabric(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.fabric.lock().expect("nobody panics inside")
    }

    /// Runs `f` on a buffer that was attached here, as its sender.
    fn as_writer<R>(&self, token: u64, f: impl FnOnce(&mut Buffer) -> R) -> Option<R> {
        self.fabric()
            .iter_mut()
            .find(|b| b.token == token && b.writer == self.gid && b.attached > 0)
            .map(f)
    }
}

impl Device for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn chid(&self) -> u16 {
        0xFF10
    }

    fn gid(&self) -> Gid {
        self.gid
    }

    fn query_remote_gid(&self, gid: Gid) -> bool {
        GIDS.contains(&gid)
    }

    fn max_dmbs(&self) -> u32 {
        self.max_dmbs.load(Relaxed)
    }

    fn set_max_dmbs(&self, max_dmbs: u32) {
        self.max_dmbs.store(max_dmbs, Relaxed);
    }

    fn memory(&self) -> u64 {
        self.fabric().iter().filter(|b| b.owner == self.gid).map(|b| u64::from(b.len)).sum()
    }

    fn register_dmb(&self, group: u32, writer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        if !is_dmb_len(len) {
            return Err(RegisterError::Os(Errno::INVAL));
        }
        let mut fabric = self.fabric();
        let taken = |index| fabric.iter().any(|b| b.owner == self.gid && b.index == index);
        let index =
            (0..self.max_dmbs()).find(|index| !taken(*index)).ok_or(RegisterError::NoSpace)?;
        let memory: Arc<[AtomicU64]> = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
        let (token, addr) = (memory.as_ptr().addr() as u64, memory.as_ptr().cast_mut().cast());
        fabric.push(Buffer {
            token,
            index,
            group,
            owner: self.gid,
            writer,
            attached: 0,
            signals: 0,
            len,
            memory,
        });
        Ok(Dmb { token, index, addr, len })
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        let mut fabric = self.fabric();
        let found = fabric.iter().position(|b| b.token == token && b.owner == self.gid);
        found.map(|at| fabric.swap_remove(at)).is_some()
    }

    /// A buffer ends when its owner is done with it: whoever writes to it goes by its token.
    fn release_dmb(&self, _token: u64, _used: u32) -> bool {
        false
    }

    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        _: &Told,
        _: Option<RawFd>,
    ) -> Result<Reach, AttachError> {
        let mut fabric = self.fabric();
        let found = fabric.iter_mut().find(|b| b.token == token && b.writer == self.gid);
        let b = found.ok_or(AttachError::UnknownToken)?;
        if (b.owner, b.group, b.len) != (peer.gid, peer.group, len) {
            return Err(AttachError::BadShare);
        }
        b.attached += 1;
        Ok(Reach::Moved)
    }

    fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        self.as_writer(token, |b| (b.owner == owner).then(|| b.attached -= 1)).flatten().is_some()
    }

    fn move_data(
        &self,
        token: u64,
        offset: u32,
        data: *const u8,
        len: u32,
        signal: bool,
    ) -> Result<(), MoveError> {
        let put = |b: &mut Buffer| {
            if u64::from(offset) + u64::from(len) > u64::from(b.len) {
                return Err(MoveError::OutOfBounds);
            }
            let to = b.memory.as_ptr().cast_mut().cast::<u8>().wrapping_add(offset as usize);
            // SAFETY: within the buffer; `data` has `len` bytes, by the contract of the trait.
            unsafe { core::ptr::copy(data, to, len as usize) };
            b.signals += u32::from(signal);
            Ok(())
        };
        self.as_writer(token, put).unwrap_or(Err(MoveError::UnknownToken))
    }

    fn signal_event(&self, token: u64) {
        self.as_writer(token, |b| b.signals += 1);
    }

    fn signals(&self, token: u64) -> Option<u32> {
        self.fabric().iter().find(|b| b.token == token && b.owner == self.gid).map(|b| b.signals)
    }

    fn drop_group(&self, group: u32) {
        self.fabric().retain(|b| b.owner != self.gid || b.group != group);
    }

    /// A child has a copy of the fabric, at which nobody else is.
    fn after_fork_child(&self) {}
}

#[test]
fn the_smallest_device_passes_the_suites() {
    let fabric = Arc::<Mutex<Vec<Buffer>>>::default();
    let [a, b] = GIDS.map(|gid| Toy { gid, max_dmbs: AtomicU32::new(40), fabric: fabric.clone() });
    for pair in
        [crate::conformance::Pair { a: &a, b: &b }, crate::conformance::Pair { a: &b, b: &a }]
    {
        crate::conformance::run(pair);
        crate::faults::run(pair);
    }
}
