//! What is put into a window, and what that leads to.
//!
//! Stubs lie in an *area* within 2 GiB of the code, behind a head that all share: the address of the
//! entry, and the table of wanted numbers. A stub comes to the entry with rcx holding the address of
//! a `syscall`, and everything else but r11 and the flags as the program had it. The
//! entry jumps to what rcx holds to have the call made, or two bytes behind it with its result in rax.
//! Nobody writes to the program's stack.

use super::window::JUMP;
use super::{Flow, Kind, NUMBERS, Plain, Stub, Wanted, Window, decode};

/// How long the head of an area is; stubs come behind it.
pub const AREA_HEAD: usize = 16 + NUMBERS;
/// No stub is longer.
pub const LONGEST_STUB: usize = 128;
/// Where in the head the table is.
const TABLE: usize = 16;

/// The head of an area, whose stubs jump to `entry`.
pub fn area_head(entry: u64, wanted: &Wanted) -> [u8; AREA_HEAD] {
    let mut head = [0; AREA_HEAD];
    head[..8].copy_from_slice(&entry.to_le_bytes());
    for (byte, wanted) in head[TABLE..].iter_mut().zip(wanted) {
        *byte = u8::from(*wanted);
    }
    head
}

/// Bytes that are put one behind another at an address.
struct Writer<'a> {
    out: &'a mut [u8; LONGEST_STUB],
    len: usize,
    address: u64,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.out.get_mut(self.len..self.len + bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    fn here(&self) -> u64 {
        self.address + self.len as u64
    }

    /// An opcode, and behind it the distance to `to`.
    fn relative(&mut self, opcode: &[u8], to: u64) -> Option<()> {
        let from = self.here() + opcode.len() as u64 + 4;
        let distance = i32::try_from(to.wrapping_sub(from).cast_signed()).ok()?;
        self.put(opcode)?;
        self.put(&distance.to_le_bytes())
    }
}

/// The stub of a window in `code`, which runs at address `base`, for the place `address` in the area
/// at `area`. None if it cannot be reached from there.
pub fn stub(
    code: &[u8],
    base: u64,
    window: &Window,
    area: u64,
    address: u64,
    made: Plain,
    out: &mut [u8; LONGEST_STUB],
) -> Option<Stub> {
    let mut to = Writer { out, len: 0, address };
    let at = |offset: usize| base + offset as u64;
    let is_in_place = made == Plain::InPlace && window.kind != Kind::Around;
    // lea plain(%rip), %rcx; jmp *entry(%rip)
    let enter = |to: &mut Writer<'_>| {
        let behind = to.here() + 7 + 6;
        to.relative(&[0x48, 0x8d, 0x0d], if is_in_place { at(window.at) } else { behind })?;
        to.relative(&[0xff, 0x25], area)
    };
    match window.kind {
        Kind::Number(number) => {
            to.put(&[0xb8])?; // mov $number, %eax
            to.put(&number.to_le_bytes())?;
            enter(&mut to)?;
        }
        Kind::Before | Kind::Around => {
            to.put(&code[window.start..window.at])?;
            to.put(&[0x89, 0xc1])?; // mov %eax, %ecx
            to.put(&[0x81, 0xf9])?; // cmp $NUMBERS, %ecx
            to.put(&(NUMBERS as u32).to_le_bytes())?;
            to.put(&[0x73, 7 + 5 + 2 + 7 + 6])?; // jae plain
            to.relative(&[0x4c, 0x8d, 0x1d], area + TABLE as u64)?; // lea table(%rip), %r11
            to.put(&[0x41, 0x80, 0x3c, 0x0b, 0])?; // cmpb $0, (%r11,%rcx)
            to.put(&[0x74, 7 + 6])?; // je plain
            enter(&mut to)?;
        }
    }
    // plain:
    if is_in_place {
        to.relative(&[0xe9], at(window.at))?;
        return Some(Stub { len: to.len, plain: at(window.at) });
    }
    let plain = to.here();
    to.put(&[0x0f, 0x05])?;
    let mut next = window.at + 2;
    while next < window.end {
        let inst = decode(&code[next..])?;
        let behind = next + inst.len;
        let target = |distance: i32| at(behind).wrapping_add_signed(i64::from(distance));
        match inst.flow {
            Flow::If(condition, distance) => {
                to.relative(&[0x0f, 0x80 | condition], target(distance))?;
            }
            Flow::Jump(distance) => {
                to.relative(&[0xe9], target(distance))?;
                return Some(Stub { len: to.len, plain });
            }
            Flow::Away => {
                to.put(&code[next..behind])?;
                return Some(Stub { len: to.len, plain });
            }
            Flow::Next => to.put(&code[next..behind])?,
        }
        next = behind;
    }
    to.relative(&[0xe9], at(window.end))?;
    Some(Stub { len: to.len, plain })
}

/// What a window's bytes ([`Window::replaced`], as many as `out`) become: a jump to a stub at
/// `address`, in code that runs at address `base`. None if it does not reach.
pub fn jump(base: u64, window: &Window, address: u64, out: &mut [u8]) -> Option<()> {
    let from = base + (window.start + JUMP) as u64;
    let distance = i32::try_from(address.wrapping_sub(from).cast_signed()).ok()?;
    // What is left of instructions that were moved traps.
    out.fill(0xcc);
    let (opcode, rest) = out.split_first_mut()?;
    *opcode = 0xe9;
    rest.get_mut(..4)?.copy_from_slice(&distance.to_le_bytes());
    Some(())
}
