//! What is put into a window of arm64, and what that leads to.
//!
//! Stubs lie in an *area* within 128 MiB of the code, behind a head that all share: the address of the entry, the
//! table of wanted numbers, and a jump to the entry. A stub comes there with x16 holding the address of a `svc`, or of a
//! branch to it; x17 is free, and all else, also the flags, is as the program had it. The entry jumps to what x16 holds to have the
//! call made, or four bytes behind it with its result in x0. Nobody writes to the program's stack, but where a
//! program sets its thread pointer, which only libraries of C do.

use super::{CALL, Kind, NUMBERS, Plain, READ, Stub, Wanted, Window, word};

/// Where in the head the table is, and where the jump.
const TABLE: usize = 16;
const ENTER: usize = TABLE + NUMBERS;
/// How long the head of an area is; stubs come behind it.
pub const AREA_HEAD: usize = ENTER + 16;
/// No stub is longer.
pub const LONGEST_STUB: usize = 40;
/// Where in what the thread pointer leads to the program's own is kept.
pub const POINTER: usize = 8;

/// The head of an area, whose stubs jump to `entry`.
pub fn area_head(entry: u64, wanted: &Wanted) -> [u8; AREA_HEAD] {
    let mut head = [0; AREA_HEAD];
    head[..8].copy_from_slice(&entry.to_le_bytes());
    for (byte, wanted) in head[TABLE..].iter_mut().zip(wanted) {
        *byte = u8::from(*wanted);
    }
    // ldr x17, entry; br x17
    let back = (-(ENTER as i32) / 4).cast_unsigned() & 0x7_ffff;
    head[ENTER..][..4].copy_from_slice(&(0x5800_0011 | back << 5).to_le_bytes());
    head[ENTER + 4..][..4].copy_from_slice(&0xd61f_0220u32.to_le_bytes());
    head
}

/// Words that are put one behind another at an address.
struct Writer<'a> {
    out: &'a mut [u8; LONGEST_STUB],
    len: usize,
    address: u64,
}

impl Writer<'_> {
    fn put(&mut self, word: u32) -> Option<()> {
        self.out.get_mut(self.len..self.len + 4)?.copy_from_slice(&word.to_le_bytes());
        self.len += 4;
        Some(())
    }

    fn here(&self) -> u64 {
        self.address + self.len as u64
    }

    /// b
    fn branch(&mut self, to: u64) -> Option<()> {
        self.put(branch(self.here(), to)?)
    }

    /// adr
    fn address_to(&mut self, register: u32, to: u64) -> Option<()> {
        let distance = i32::try_from(to.wrapping_sub(self.here()).cast_signed()).ok()?;
        let reaches = (-(1 << 20)..1 << 20).contains(&distance);
        let distance = reaches.then_some(distance.cast_unsigned())?;
        let (low, high) = (distance & 3, distance >> 2 & 0x7_ffff);
        self.put(0x1000_0000 | low << 29 | high << 5 | register)
    }
}

fn branch(from: u64, to: u64) -> Option<u32> {
    let distance = i32::try_from(to.wrapping_sub(from).cast_signed()).ok()?;
    let reaches = (-(1 << 27)..1 << 27).contains(&distance) && distance % 4 == 0;
    reaches.then_some(0x1400_0000 | (distance >> 2).cast_unsigned() & 0x3ff_ffff)
}

/// The stub of a window in `code`, which runs at address `base`, for the place `address` in the area
/// at `area`. None if it cannot be reached from there. A call that is not moved is made in place, whatever `made`
/// says.
pub fn stub(
    code: &[u8],
    base: u64,
    window: &Window,
    area: u64,
    address: u64,
    _made: Plain,
    out: &mut [u8; LONGEST_STUB],
) -> Option<Stub> {
    const SCALED: u32 = (POINTER as u32 / 8) << 10;
    let mut to = Writer { out, len: 0, address };
    let end = base + window.end as u64;
    // Of a window that makes no call nobody asks for it.
    let mut plain = base + window.at as u64;
    match window.kind {
        Kind::Read(register) => {
            to.put(READ | register)?;
            to.put(0xf940_0000 | SCALED | register << 5 | register)?; // ldr xR, [xR, #POINTER]
        }
        Kind::Write(register) => {
            let other = if register == 16 { 17 } else { 16 };
            to.put(0xf81f_0fe0 | other)?; // str xO, [sp, #-16]!
            to.put(READ | other)?;
            to.put(0xf900_0000 | SCALED | other << 5 | register)?; // str xR, [xO, #POINTER]
            to.put(0xf841_07e0 | other)?; // ldr xO, [sp], #16
        }
        Kind::Call(number) => {
            let stays = window.start < window.at;
            if stays {
                to.put(word(code, window.start)?)?;
            }
            // How far it is to where the call is made.
            let behind = to.len + 4 * if number.is_none() { 7 } else { 2 };
            if number.is_none() {
                // Flags stay as they are.
                const { assert!(NUMBERS == 1 << 9) };
                let ahead = |to: &Writer<'_>| (((behind - to.len) / 4) as u32) << 5;
                to.put(0x5309_7d11)?; // lsr w17, w8, #9
                to.put(0x3500_0011 | ahead(&to))?; // cbnz w17, plain
                to.address_to(16, area + TABLE as u64)?; // adr x16, table
                to.put(0x3868_4a11)?; // ldrb w17, [x16, w8, uxtw]
                to.put(0x3400_0011 | ahead(&to))?; // cbz w17, plain
            }
            plain = address + behind as u64;
            to.address_to(16, plain)?;
            to.branch(area + ENTER as u64)?;
            // plain: in place by a branch from here. The entry jumps by a register, which code in pages
            // that are guarded (BTI) allows to marked places only.
            if stays {
                to.branch(base + window.at as u64)?;
            } else {
                to.put(CALL)?;
            }
        }
    }
    to.branch(end)?;
    Some(Stub { len: to.len, plain })
}

/// What a window's bytes ([`Window::replaced`], as many as `out`) become: a branch to a stub at
/// `address`, in code that runs at address `base`. None if it does not reach.
pub fn jump(base: u64, window: &Window, address: u64, out: &mut [u8]) -> Option<()> {
    let word = branch(base + window.start as u64, address)?;
    out.get_mut(..4)?.copy_from_slice(&word.to_le_bytes());
    Some(())
}
