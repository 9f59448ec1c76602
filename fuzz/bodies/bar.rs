//! What the bar target does with its input: another guest that writes anything into the tables of a
//! bar, at any time, and names any extent, while two processes of ours work with it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use dibs::ivshmem::{Bar, BarError, GUESTS, MEMBERS, Member};
use dibs::{Device, Dmb, Gid, Ivshmem};

const PAGE: usize = 4096;
const MEMBERS_AT: usize = PAGE + GUESTS as usize * 64;
const BLOCKS_AT: usize = MEMBERS_AT + MEMBERS as usize * 32;
const TABLE: usize = BLOCKS_AT + 4096 * 16;
const SIZE: u64 = 2 << 20;
const BLOCKS: usize = (SIZE as usize - TABLE.next_multiple_of(16 << 10)) / (16 << 10);
const LEFT: u64 = 1 << 63;

/// Two processes of ours, whose addresses are kept when groups end, and a bar as it is when they
/// have joined.
struct World {
    devices: [Ivshmem; 2],
    file: OwnedFd,
    intact: Vec<u8>,
}

fn file(len: u64) -> OwnedFd {
    // SAFETY: a literal name; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"bar".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0 && libc::fchmod(fd, 0o600) == 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn write(file: &OwnedFd, at: usize, bytes: &[u8]) {
    // SAFETY: `bytes` has so many.
    let n =
        unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at as i64) };
    assert_eq!(n, bytes.len() as isize);
}

fn read(file: &OwnedFd, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `bytes` has room for so many.
    let n = unsafe { libc::pread(file.as_raw_fd(), bytes.as_mut_ptr().cast(), len, at as i64) };
    assert_eq!(n, len as isize);
    bytes
}

fn word(file: &OwnedFd, at: usize) -> u64 {
    u64::from_ne_bytes(read(file, at, 8).try_into().expect("eight bytes"))
}

impl World {
    fn new() -> World {
        let file = file(SIZE);
        let devices = [3, 1000].map(|slots| {
            let bar = Bar::open(file.as_raw_fd(), true).expect("a bar");
            let guest = bar.enter_guest(7).expect("a place");
            let member = bar.join(guest, |_, _| true).expect("a place");
            let device = Ivshmem::with_limits(slots, 64);
            assert!(device.open(bar, member));
            device
        });
        let intact = read(&file, 0, TABLE);
        World { devices, file, intact }
    }

    /// A place in the table that matters, and not the magic, which is looked at once.
    fn place(&self, which: u8, index: u16) -> usize {
        let index = usize::from(index);
        match which % 8 {
            0 => index % (TABLE / 8) * 8,
            1 => PAGE + index % 8 * 64 + index / 8 % 3 * 8,
            2 => MEMBERS_AT + index % 8 * 32 + index / 8 % 2 * 8,
            3 => BLOCKS_AT + index % BLOCKS * 16 + 8,
            _ => BLOCKS_AT + index % BLOCKS * 16,
        }
    }

    /// What an honest member might have written, or something near it.
    fn value(&self, which: u8, index: u16, rest: u32) -> u64 {
        let member =
            self.devices[usize::from(index & 1)].with_bar(|_, member| member).expect("open");
        let near = word(&self.file, self.place(index as u8, rest as u16));
        match which % 8 {
            0 => 0,
            1 => near,
            2 => near ^ LEFT,
            3 => member.id | u64::from(rest) << 40 & !LEFT,
            4 => member.id,
            5 => near ^ 1 << (rest % 64),
            6 => member.gid,
            _ => u64::from(rest).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// What a device gave out can be touched from end to end, and the table is not in it.
    fn touch(&self, addr: *mut u8, len: u32) {
        let before = read(&self.file, 0, TABLE);
        for at in [0, len as usize / 2, len as usize - 1] {
            // SAFETY: what the device gave out, or else the run ends here.
            unsafe { addr.add(at).write_volatile(0x5a) };
        }
        assert!(before == read(&self.file, 0, TABLE), "a buffer lies in the table");
    }
}

/// Steps of 8 bytes; those before the first with a high bit in front damage a bar that is then
/// opened.
pub fn bar(bytes: &[u8]) {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let world =
        WORLD.get_or_init(|| Mutex::new(World::new())).lock().unwrap_or_else(|e| e.into_inner());
    write(&world.file, 0, &world.intact);
    let steps = bytes.chunks_exact(8).map(|step| *step.first_chunk::<8>().expect("eight bytes"));
    open_damaged(&world, steps.clone().take_while(|step| step[0] < 128).take(32));
    let mut known: Vec<(usize, Dmb)> = Vec::new();
    for step in steps.skip_while(|step| step[0] < 128).take(96) {
        work(&world, &mut known, step);
    }
    for device in &world.devices {
        (0..4).for_each(|group| device.drop_group(group));
        assert_eq!((device.is_used(), device.memory()), (false, 0));
    }
}

fn open_damaged(world: &World, steps: impl Iterator<Item = [u8; 8]>) {
    let mut opened = None;
    for [op, which, a, b, rest @ ..] in steps {
        let (index, rest) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(rest));
        let file = opened.get_or_insert_with(|| {
            let sizes =
                [1 << 20, SIZE, 0, PAGE as u64, (1 << 20) + PAGE as u64, 1 << 28, 1 << 41, 1 << 40];
            let file = file(sizes[usize::from(op >> 2 & 7)]);
            let _ = (op & 32 != 0).then(|| drop(Bar::open(file.as_raw_fd(), true)));
            file
        });
        let at = if op & 3 == 0 { world.place(which, index) } else { usize::from(index) % 8 * 8 };
        if at + 8 <= TABLE {
            write(file, at, &world.value(which >> 3, index, rest).to_ne_bytes());
        }
    }
    let Some(file) = opened else { return };
    for format in [false, true, false] {
        match Bar::open(file.as_raw_fd(), format) {
            Ok(bar) => {
                assert!(
                    bar.id() != 0 && !bar.secret().contains(&0) && bar.size().is_power_of_two()
                );
                sweep(&bar, 1, 1);
            }
            Err(BarError::New) => assert!(!format),
            Err(_) => {}
        }
    }
}

/// All that a broker does.
fn sweep(bar: &Bar, dead: u64, guest: u32) {
    bar.reclaim(|id| id & dead == 0);
    let _ = (
        bar.find_guest(guest.into()),
        bar.enter_guest(guest.into()),
        bar.beat(guest),
        bar.pulse(guest),
    );
    bar.rest(guest);
    for (id, guest) in bar.members() {
        let _ = (bar.guest_of(id), bar.knows(id), bar.pulse(guest), Member::index(id));
    }
    bar.leave_guest(guest, guest.into());
    if let Some(member) = bar.join(guest, |at, _| at % 2 == 0) {
        assert!(member.gid != 0 && Member::index(member.id) < MEMBERS);
    }
    let _ = (bar.free_blocks(), bar.is_short());
}

fn work(world: &World, known: &mut Vec<(usize, Dmb)>, step: [u8; 8]) {
    let [op, which, a, b, rest @ ..] = step;
    let (index, rest) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(rest));
    let own = usize::from(which & 1);
    let (device, other) = (&world.devices[own], &world.devices[1 - own]);
    let (group, len) = (u32::from(which >> 1 & 3), 1u32 << (14 + which % 6));
    let peer = if which & 8 == 0 { other.gid() } else { Gid::new(device.gid().hi, index.into()) };
    let token = match known.get(usize::from(index) % known.len().max(1)) {
        Some((_, dmb)) if which & 128 == 0 => dmb.token ^ u64::from(rest & 1) << (rest >> 1 & 63),
        // As if it were named by who owns the words of some block.
        _ => {
            let block = usize::from(index) % BLOCKS;
            let serial = word(&world.file, BLOCKS_AT + block * 16) >> 40 & ((1 << 23) - 1);
            (((block as u64) << 23 | serial) << 24) + u64::from(rest & 3)
        }
    };
    match op % 16 {
        0..=4 => {
            let at = world.place(which, index);
            write(&world.file, at, &world.value(which >> 3, index, rest).to_ne_bytes());
        }
        5 | 6 => {
            if let Ok(dmb) = device.register_dmb(group, peer, len) {
                assert!(dmb.len <= len);
                world.touch(dmb.addr, dmb.len);
                known.push((own, dmb));
            }
        }
        7..=9 => {
            let len =
                if which & 128 == 0 { known.first().map_or(len, |(_, dmb)| dmb.len) } else { len };
            if let Ok(attached) = device.map_dmb(group, peer, token, len) {
                world.touch(attached, len);
            }
        }
        10 => {
            device.drop_group(group);
            let _ = device.is_over(group);
        }
        11 => {
            device
                .with_bar(|bar, member| bar.reclaim(|id| id != member.id && rest & 1 == 0))
                .expect("open");
        }
        12 => {
            device.with_bar(|bar, _| sweep(bar, rest.into(), index.into())).expect("open");
        }
        13 => {
            device.unregister_dmb(token);
            device.release_dmb(token, len);
            let _ = device.detach_dmb(peer, token);
        }
        14 => {
            let data = [0xa5u8; PAGE];
            let _ =
                device.move_data(token, rest % (len + 1), data.as_ptr(), rest % PAGE as u32, true);
            device.signal_event(token);
            let _ = (device.signals(token), device.query_remote_gid(peer));
        }
        _ => {
            let pages = [device.control_page(token), device.peer_control_page(peer, token)];
            pages
                .into_iter()
                .filter(|page| !page.is_null())
                .for_each(|page| world.touch(page, PAGE as u32));
            let _ = (device.is_over(group), device.largest(), device.memory());
        }
    }
}
