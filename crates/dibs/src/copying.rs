//! A device for tests that cannot share memory: data is copied into buffers that the sender never sees.
//! What runs on it runs on ISM, where hypervisor firmware does the copy.
#![allow(unsafe_code)]

use crate::{AttachError, Device, Dmb, Gid, Lent, MoveError, Peer, Reach, RegisterError, Told, is_dmb_len};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use rustix::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// CHID of the device, one of those for emulated devices.
pub const COPYING_CHID: u16 = 0xFF10;

/// Called with the token of a buffer, on the thread of the sender.
pub type OnSignal = Box<dyn Fn(u64) + Send + Sync>;

/// One end of a fabric that two instances share.
pub struct CopyingDevice {
    gid: Gid,
    max_dmbs: AtomicU32,
    fabric: Arc<Mutex<Fabric>>,
    on_signal: Arc<Mutex<Option<OnSignal>>>,
}

#[derive(Default)]
struct Fabric {
    next_token: u64,
    members: Vec<(Gid, Arc<Mutex<Option<OnSignal>>>)>,
    buffers: Vec<Buffer>,
}

struct Buffer {
    token: u64,
    index: u32,
    owner: Gid,
    writer: Gid,
    group: u32,
    /// Attachments by the writer.
    attached: u32,
    memory: Memory,
    signals: u32,
}

/// Zeroed pages, written through raw pointers by both the fabric and the owner.
struct Memory {
    base: *mut u64,
    len: u32,
}

// SAFETY: plain memory, reached by pointer only.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: u32) -> Self {
        let words = vec![0u64; len as usize / 8].into_boxed_slice();
        Self { base: Box::into_raw(words).cast(), len }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = core::ptr::slice_from_raw_parts_mut(self.base, self.len as usize / 8);
        // SAFETY: the box of `new`, given back once.
        drop(unsafe { Box::from_raw(words) });
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CopyingDevice {
    /// Two devices that reach each other, with up to `max_dmbs` buffers each.
    pub fn pair(max_dmbs: u32) -> (Self, Self) {
        let fabric = Arc::new(Mutex::new(Fabric { next_token: 1, ..Fabric::default() }));
        let join = |lo| {
            let gid = Gid::new(0x434f_5059, lo);
            let on_signal = Arc::new(Mutex::new(None));
            locked(&fabric).members.push((gid, on_signal.clone()));
            Self { gid, max_dmbs: AtomicU32::new(max_dmbs), fabric: fabric.clone(), on_signal }
        };
        (join(1), join(2))
    }

    /// What to do when a peer signals one of our buffers. Must not call the device's `on_signal`.
    pub fn on_signal(&self, call: OnSignal) {
        *locked(&self.on_signal) = Some(call);
    }

    fn writable<'a>(&self, fabric: &'a mut Fabric, token: u64) -> Option<&'a mut Buffer> {
        fabric.buffers.iter_mut().find(|b| b.token == token && b.writer == self.gid && b.attached > 0)
    }
}

impl Device for CopyingDevice {
    fn name(&self) -> &'static str {
        "copying"
    }

    fn chid(&self) -> u16 {
        COPYING_CHID
    }

    fn gid(&self) -> Gid {
        self.gid
    }

    fn max_dmbs(&self) -> u32 {
        self.max_dmbs.load(Relaxed)
    }

    fn set_max_dmbs(&self, max_dmbs: u32) {
        self.max_dmbs.store(max_dmbs, Relaxed);
    }

    fn memory(&self) -> u64 {
        let fabric = locked(&self.fabric);
        fabric.buffers.iter().filter(|b| b.owner == self.gid).map(|b| u64::from(b.memory.len)).sum()
    }

    /// Members stand in the fabric.
    fn admit(&self, _: Gid) {}

    fn query_remote_gid(&self, gid: Gid) -> bool {
        locked(&self.fabric).members.iter().any(|(g, _)| *g == gid)
    }

    fn register_dmb(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError> {
        if !is_dmb_len(len) {
            return Err(RegisterError::Os(shm::Errno::INVAL));
        }
        let mut fabric = locked(&self.fabric);
        let taken = |i| fabric.buffers.iter().any(|b| b.owner == self.gid && b.index == i);
        let index = (0..self.max_dmbs()).find(|i| !taken(*i)).ok_or(RegisterError::NoSpace)?;
        let token = fabric.next_token;
        // Far apart, so that a token mixed up with another never names a buffer by chance.
        fabric.next_token = token.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let memory = Memory::new(len);
        let addr = memory.base.cast();
        fabric.buffers.push(Buffer {
            token,
            index,
            owner: self.gid,
            writer: peer,
            group,
            attached: 0,
            memory,
            signals: 0,
        });
        Ok(Dmb { token, index, addr, len })
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        let mut fabric = locked(&self.fabric);
        let found = fabric.buffers.iter().position(|b| b.token == token && b.owner == self.gid);
        found.map(|i| fabric.buffers.swap_remove(i)).is_some()
    }

    /// The token says it all.
    fn describe_dmb(&self, _token: u64, _first: bool) -> Lent {
        Lent::default()
    }

    /// It was free as soon as its owner was done with it.
    fn release_dmb(&self, _token: u64, _used: u32) -> bool {
        false
    }

    fn attach_dmb(&self, peer: Peer, token: u64, len: u32, _: &Told, _: Option<RawFd>) -> Result<Reach, AttachError> {
        let mut fabric = locked(&self.fabric);
        let found = fabric.buffers.iter_mut().find(|b| b.token == token && b.writer == self.gid);
        let buffer = found.ok_or(AttachError::UnknownToken)?;
        if (buffer.owner, buffer.group, buffer.memory.len) != (peer.gid, peer.group, len) {
            return Err(AttachError::BadShare);
        }
        buffer.attached += 1;
        Ok(Reach::Moved)
    }

    fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        let mut fabric = locked(&self.fabric);
        let buffer = self.writable(&mut fabric, token).filter(|b| b.owner == owner);
        buffer.map(|b| b.attached -= 1).is_some()
    }

    #[expect(clippy::not_unsafe_ptr_arg_deref, reason = "the trait states the obligation")]
    fn move_data(&self, token: u64, offset: u32, data: *const u8, len: u32, signal: bool) -> Result<(), MoveError> {
        {
            let mut fabric = locked(&self.fabric);
            let buffer = self.writable(&mut fabric, token).ok_or(MoveError::UnknownToken)?;
            if u64::from(offset) + u64::from(len) > u64::from(buffer.memory.len) {
                return Err(MoveError::OutOfBounds);
            }
            let to = buffer.memory.base.cast::<u8>().wrapping_add(offset as usize);
            // SAFETY: within the buffer, which lives as long as the fabric is locked; `data` is readable
            // for `len` bytes by the contract of the trait.
            unsafe { core::ptr::copy(data, to, len as usize) };
        }
        if signal {
            self.signal_event(token);
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        let call = {
            let mut fabric = locked(&self.fabric);
            let Some(buffer) = self.writable(&mut fabric, token) else {
                return;
            };
            buffer.signals += 1;
            let owner = buffer.owner;
            fabric.members.iter().find(|(g, _)| *g == owner).map(|(_, call)| call.clone())
        };
        // Outside of the fabric's lock, because the owner will answer through it.
        if let Some(call) = call
            && let Some(call) = &*locked(&call)
        {
            call(token);
        }
    }

    fn signals(&self, token: u64) -> Option<u32> {
        locked(&self.fabric).buffers.iter().find(|b| b.token == token).map(|b| b.signals)
    }

    fn drop_group(&self, group: u32) {
        locked(&self.fabric).buffers.retain(|b| b.owner != self.gid || b.group != group);
    }

    /// What a child would inherit is a copy of the fabric, not the fabric.
    fn after_fork_child(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Pair, run};
    use core::sync::atomic::AtomicU64;

    #[test]
    fn conforms() {
        let (a, b) = CopyingDevice::pair(40);
        run(Pair { a: &a, b: &b });
        run(Pair { a: &b, b: &a });
    }

    #[test]
    fn conforms_with_faults() {
        let (a, b) = CopyingDevice::pair(40);
        crate::faults::run(Pair { a: &a, b: &b });
        crate::faults::run(Pair { a: &b, b: &a });
    }

    #[test]
    fn calls_the_owner() {
        let (a, b) = CopyingDevice::pair(2);
        let seen = Arc::new(AtomicU64::new(0));
        let heard = seen.clone();
        a.on_signal(Box::new(move |token| heard.store(token, Relaxed)));
        let dmb = a.register_dmb(0, b.gid(), 1 << 14).unwrap();
        let owner = Peer { group: 0, gid: a.gid(), pid: 0, first: true, has_attached: false };
        b.attach_dmb(owner, dmb.token, 1 << 14, &Told::default(), None).unwrap();
        b.move_data(dmb.token, 0, [1].as_ptr(), 1, false).unwrap();
        assert_eq!(seen.load(Relaxed), 0);
        b.move_data(dmb.token, 1, [2].as_ptr(), 1, true).unwrap();
        assert_eq!(seen.load(Relaxed), dmb.token);
    }
}
