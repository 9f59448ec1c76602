//! What the attach target does with its input: a peer that names buffers and passes memory as it
//! likes.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use dibs::{Device, Dmb, Gid, Loopback};

const PAGE: u64 = 4096;

/// Its addresses are kept when groups end, as those of every device are.
static DEVICE: Loopback = Loopback::with_limits(4, 8);

/// Steps of 8 bytes on a device: whatever is attached can be touched from end to end, and is never
/// a buffer that was registered here for another.
pub fn attach(bytes: &[u8]) {
    let device = &DEVICE;
    let peers = [Gid::new(1, 1), Gid::new(2, 2), device.gid()];
    let mut own: Vec<(Dmb, Gid, u32)> = Vec::new();
    for step in bytes.chunks_exact(8).take(64) {
        let &[op, who, shape, slot, a, b, c, d] = step.first_chunk::<8>().expect("eight bytes");
        let (owner, group) = (peers[usize::from(who % 3)], u32::from(who / 3 % 3));
        let len = 1u32 << (14 + shape % 5);
        let extra = u32::from_le_bytes([a, b, c, d]);
        let known = own.get(usize::from(slot) % own.len().max(1)).map(|(dmb, ..)| dmb.token);
        let token = match extra % 3 {
            0 => known.unwrap_or(0) ^ u64::from(extra >> 24),
            1 => u64::from(extra >> 8 & 3) << 24 | u64::from(slot),
            _ => u64::from(extra) << 24 | u64::from(slot),
        };
        match op % 9 {
            0 => {
                if let Ok(dmb) = device.register_dmb(group, owner, len) {
                    touch(dmb.addr, dmb.len);
                    own.push((dmb, owner, group));
                }
            }
            1..=3 => {
                let memory = memory(shape, len, slot, extra);
                let share = memory.as_ref().map(|fd| fd.as_raw_fd());
                if let Ok(attached) = device.map_dmb(group, owner, token, len, share) {
                    touch(attached, len);
                    let (from, to) = (attached as usize, attached as usize + len as usize);
                    let overlaps = |dmb: &Dmb| {
                        from < dmb.addr as usize + dmb.len as usize && (dmb.addr as usize) < to
                    };
                    assert!(owner == device.gid() || !own.iter().any(|(dmb, ..)| overlaps(dmb)));
                }
            }
            4 => _ = device.detach_dmb(owner, token),
            5 => {
                device.drop_group(group);
                own.retain(|(_, _, of)| *of != group);
            }
            6 => {
                device.unregister_dmb(token);
                if device.release_dmb(token, extra) {
                    own.retain(|(dmb, ..)| dmb.token != token);
                }
            }
            7 => {
                let data = [0xa5u8; 4096];
                let _ = device.move_data(
                    token,
                    extra,
                    data.as_ptr(),
                    u32::from(slot) * 16,
                    slot & 1 != 0,
                );
            }
            _ => {
                let pages = [device.control_page(token), device.peer_control_page(owner, token)];
                pages
                    .into_iter()
                    .filter(|page| !page.is_null())
                    .for_each(|page| touch(page, PAGE as u32));
                device.signal_event(token);
                let _ = (device.lend(token), device.signals(token), device.has_arena(owner, token));
            }
        }
    }
    (0..3).for_each(|group| device.drop_group(group));
}

/// The first and the last byte can be written.
fn touch(addr: *mut u8, len: u32) {
    for at in [0, len as usize - 1] {
        // SAFETY: what the device gave out, or else the run ends here.
        unsafe { addr.add(at).write_volatile(1) };
    }
}

/// What a peer might pass: an arena of its own, or something that looks like one.
fn memory(shape: u8, len: u32, slots: u8, extra: u32) -> Option<OwnedFd> {
    let size = match shape >> 5 {
        0 => return None,
        1 => u64::from(extra) % (1 << 22),
        2 => 11 * PAGE + u64::from(slots % 8) * u64::from(len) + PAGE,
        _ => 11 * PAGE + u64::from(slots % 8) * u64::from(len),
    };
    let seals =
        if shape >> 5 == 3 { extra as i32 & 0x1f } else { libc::F_SEAL_SHRINK | libc::F_SEAL_GROW };
    // SAFETY: a literal name; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"peer".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, size as i64) == 0);
        libc::fcntl(fd, libc::F_ADD_SEALS, seals);
        Some(OwnedFd::from_raw_fd(fd))
    }
}
