//! Classic BPF as machine code for x86-64.
//!
//! A program only jumps forwards, so it is translated in one pass, and what is known of a packet's
//! length at an instruction, from its start and from `X` on, is the least that is known where control may
//! come from: a load asks only for what none before it has asked for. The code uses nothing but registers that a call may change and
//! the 128 bytes below the stack, and is never writable and executable at once.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::{A, ALU, Instruction, JMP, LD, LDX, MEMORY, MISC, RET, ST, STX, X};

/// `A` is eax, `X` ecx with zeros above, the packet is at rdi and has rsi bytes. Memory is below the
/// stack.
type Entry = unsafe extern "sysv64" fn(*const u8, usize) -> u32;

/// Longest packet that the code is for: places in it are signed numbers of 32 bits.
pub const LONGEST: usize = i32::MAX as usize;

/// A program's code.
#[derive(Debug)]
pub struct Code {
    place: NonNull<u8>,
    size: usize,
}

// SAFETY: nobody writes to it, and it has no state.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// None where the system does not let code be made at run time.
    ///
    /// The program was [checked](super::Program::new).
    pub fn new(program: &[Instruction]) -> Option<Self> {
        let text = translate(program);
        let size = text.len();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, where the kernel finds room.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
        if place == libc::MAP_FAILED {
            return None;
        }
        let code = Self { place: NonNull::new(place.cast())?, size };
        // SAFETY: `size` bytes of the mapping, which nobody else knows.
        unsafe { code.place.as_ptr().copy_from_nonoverlapping(text.as_ptr(), size) };
        let access = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the mapping just made.
        let allowed = unsafe { libc::mprotect(place, size, access) } == 0;
        allowed.then_some(code)
    }

    /// How many bytes of the packet the filter wants.
    ///
    /// # Panics
    /// For a packet of more than [`LONGEST`] bytes.
    #[inline]
    pub fn run(&self, packet: &[u8]) -> u32 {
        assert!(packet.len() <= LONGEST);
        // SAFETY: `new` has put a function of this type there.
        let entry = unsafe { std::mem::transmute::<*mut u8, Entry>(self.place.as_ptr()) };
        // SAFETY: the code loads nothing before it has compared with the length.
        unsafe { entry(packet.as_ptr(), packet.len()) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; nobody runs it, or has its address.
        unsafe { libc::munmap(self.place.as_ptr().cast(), self.size) };
    }
}

/// Distance of a word of memory from the stack, as one signed byte.
fn slot(k: u32) -> u8 {
    (4 * (k as usize % MEMORY)) as u8 ^ 0xc0
}

/// Conditions of jumps, as in the opcodes of x86; the lowest bit turns one into its opposite.
const BELOW: u8 = 0x2;
const EQUAL: u8 = 0x4;
const ABOVE: u8 = 0x7;
const NOT: u8 = 1;

/// Bytes that a packet has for sure.
#[derive(Clone, Copy)]
struct Known {
    all: u64,
    /// From `X` on; none are known while this is 0.
    behind_x: u64,
}

impl Known {
    const NOTHING: Self = Self { all: 0, behind_x: 0 };
    /// Where nothing has come from yet.
    const UNREACHED: Self = Self { all: u64::MAX, behind_x: u64::MAX };

    fn meets(&mut self, other: Self) {
        self.all = self.all.min(other.all);
        self.behind_x = self.behind_x.min(other.behind_x);
    }
}

/// Where a jump leads.
#[derive(Clone, Copy)]
enum Target {
    Instruction(usize),
    /// The end that rejects the packet.
    Reject,
}

#[derive(Default)]
struct Assembler {
    text: Vec<u8>,
    /// Places of 32-bit distances, and where they lead.
    jumps: Vec<(usize, Target)>,
}

impl Assembler {
    fn code(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    /// An instruction with a number of 32 bits at its end.
    fn with(&mut self, bytes: &[u8], number: u32) {
        self.code(bytes);
        self.code(&number.to_le_bytes());
    }

    fn jump(&mut self, target: Target) {
        self.code(&[0xe9]);
        self.distance(target);
    }

    fn jump_if(&mut self, condition: u8, target: Target) {
        self.code(&[0x0f, 0x80 | condition]);
        self.distance(target);
    }

    fn distance(&mut self, target: Target) {
        self.jumps.push((self.text.len(), target));
        self.code(&[0; 4]);
    }

    /// Rejects packets of fewer bytes. False if that is every packet.
    fn require(&mut self, bytes: u64, known: &mut Known) -> bool {
        if bytes > LONGEST as u64 {
            self.jump(Target::Reject);
            return false;
        }
        if bytes > known.all {
            // cmp rsi, bytes
            self.with(&[0x48, 0x81, 0xfe], bytes as u32);
            self.jump_if(BELOW, Target::Reject);
            known.all = bytes;
        }
        true
    }

    /// Loads into `A` from a place in the packet, or that far behind `X`.
    fn load(&mut self, code: u16, k: u32, known: &mut Known) {
        let size = match code & 0x18 {
            0 => 4,
            8 => 2,
            _ => 1,
        };
        let end = u64::from(k) + size;
        let behind_x = code & 0xe0 == 0x40;
        if behind_x {
            if end > LONGEST as u64 {
                return self.jump(Target::Reject);
            }
            if end > known.behind_x {
                // lea r10, [rcx + end]; cmp r10, rsi
                self.with(&[0x4c, 0x8d, 0x91], end as u32);
                self.code(&[0x49, 0x39, 0xf2]);
                self.jump_if(ABOVE, Target::Reject);
                known.behind_x = end;
            }
        } else if !self.require(end, known) {
            return;
        }
        let operation: &[u8] = match size {
            4 => &[0x8b],       // mov eax, dword
            2 => &[0x0f, 0xb7], // movzx eax, word
            _ => &[0x0f, 0xb6], // movzx eax, byte
        };
        self.code(operation);
        // [rdi + rcx + k] or [rdi + k]
        self.with(if behind_x { &[0x84, 0x0f] } else { &[0x87] }, k);
        match size {
            4 => self.code(&[0x0f, 0xc8]),             // bswap eax
            2 => self.code(&[0x66, 0xc1, 0xc0, 0x08]), // rol ax, 8
            _ => {}
        }
    }

    fn arithmetic(&mut self, code: u16, k: u32) {
        let with_x = code & X != 0;
        match (code & 0xf0, with_x) {
            (0x00, false) => self.with(&[0x05], k),         // add eax, k
            (0x00, true) => self.code(&[0x01, 0xc8]),       // add eax, ecx
            (0x10, false) => self.with(&[0x2d], k),         // sub eax, k
            (0x10, true) => self.code(&[0x29, 0xc8]),       // sub eax, ecx
            (0x20, false) => self.with(&[0x69, 0xc0], k),   // imul eax, eax, k
            (0x20, true) => self.code(&[0x0f, 0xaf, 0xc1]), // imul eax, ecx
            (0x40, false) => self.with(&[0x0d], k),         // or eax, k
            (0x40, true) => self.code(&[0x09, 0xc8]),       // or eax, ecx
            (0x50, false) => self.with(&[0x25], k),         // and eax, k
            (0x50, true) => self.code(&[0x21, 0xc8]),       // and eax, ecx
            (0x60, false) => self.code(&[0xc1, 0xe0, k as u8]), // shl eax, k
            (0x70, false) => self.code(&[0xc1, 0xe8, k as u8]), // shr eax, k
            (0x60 | 0x70, true) => {
                // shl or shr eax, cl, and zero if ecx is 32 or more: cmp ecx, 32; sbb edx, edx; and
                // eax, edx
                self.code(&[0xd3, if code & 0xf0 == 0x60 { 0xe0 } else { 0xe8 }]);
                self.code(&[0x83, 0xf9, 32, 0x19, 0xd2, 0x21, 0xd0]);
            }
            (0x80, _) => self.code(&[0xf7, 0xd8]), // neg eax
            (operation @ (0x30 | 0x90), _) => {
                if with_x {
                    // mov r9d, ecx; test ecx, ecx
                    self.code(&[0x41, 0x89, 0xc9, 0x85, 0xc9]);
                    self.jump_if(EQUAL, Target::Reject);
                } else {
                    self.with(&[0x41, 0xb9], k); // mov r9d, k
                }
                // xor edx, edx; div r9d
                self.code(&[0x31, 0xd2, 0x41, 0xf7, 0xf1]);
                if operation == 0x90 {
                    self.code(&[0x89, 0xd0]); // mov eax, edx
                }
            }
            (_, false) => self.with(&[0x35], k),   // xor eax, k
            (_, true) => self.code(&[0x31, 0xc8]), // xor eax, ecx
        }
    }

    /// A jump at instruction `at`.
    fn branch(&mut self, at: usize, instruction: &Instruction) {
        let Instruction { code, jt, jf, k } = *instruction;
        let (yes, no) = (at + 1 + usize::from(jt), at + 1 + usize::from(jf));
        if yes == no {
            if jt != 0 {
                self.jump(Target::Instruction(yes));
            }
            return;
        }
        let (tests_bits, condition) = match code & 0xf0 {
            0x10 => (false, EQUAL),
            0x20 => (false, ABOVE),
            0x30 => (false, BELOW | NOT),
            _ => (true, EQUAL | NOT),
        };
        match (tests_bits, code & X != 0) {
            (false, false) => self.with(&[0x3d], k),   // cmp eax, k
            (false, true) => self.code(&[0x39, 0xc8]), // cmp eax, ecx
            (true, false) => self.with(&[0xa9], k),    // test eax, k
            (true, true) => self.code(&[0x85, 0xc8]),  // test eax, ecx
        }
        if jt == 0 {
            return self.jump_if(condition ^ NOT, Target::Instruction(no));
        }
        self.jump_if(condition, Target::Instruction(yes));
        if jf != 0 {
            self.jump(Target::Instruction(no));
        }
    }
}

fn translate(program: &[Instruction]) -> Vec<u8> {
    let mut assembler = Assembler::default();
    // xor eax, eax; xor ecx, ecx
    assembler.code(&[0x31, 0xc0, 0x31, 0xc9]);
    for k in 0..MEMORY as u32 {
        let reads = |i: &Instruction| matches!(i.code, 0x60 | 0x61) && i.k == k;
        if program.iter().any(reads) {
            assembler.with(&[0xc7, 0x44, 0x24, slot(k)], 0); // mov dword [rsp + slot], 0
        }
    }
    let mut places = Vec::new();
    // Of every packet that comes to an instruction.
    let mut known = vec![Known::UNREACHED; program.len() + 1];
    known[0] = Known::NOTHING;
    for (at, instruction) in program.iter().enumerate() {
        places.push(assembler.text.len());
        let Instruction { code, jt, jf, k } = *instruction;
        let mut here = known[at];
        let a = &mut assembler;
        let mut next = vec![at + 1];
        match code & 7 {
            LD => match code & 0xe0 {
                0x00 => a.with(&[0xb8], k),                   // mov eax, k
                0x60 => a.code(&[0x8b, 0x44, 0x24, slot(k)]), // mov eax, [rsp + slot]
                0x80 => a.code(&[0x89, 0xf0]),                // mov eax, esi
                _ => a.load(code, k, &mut here),
            },
            LDX => match code & 0xe0 {
                0x00 => a.with(&[0xb9], k),                   // mov ecx, k
                0x60 => a.code(&[0x8b, 0x4c, 0x24, slot(k)]), // mov ecx, [rsp + slot]
                0x80 => a.code(&[0x89, 0xf1]),                // mov ecx, esi
                _ => {
                    if a.require(u64::from(k) + 1, &mut here) {
                        // movzx ecx, byte [rdi + k]; and ecx, 15; shl ecx, 2
                        a.with(&[0x0f, 0xb6, 0x8f], k);
                        a.code(&[0x83, 0xe1, 0x0f, 0xc1, 0xe1, 0x02]);
                    }
                }
            },
            ST => a.code(&[0x89, 0x44, 0x24, slot(k)]), // mov [rsp + slot], eax
            STX => a.code(&[0x89, 0x4c, 0x24, slot(k)]), // mov [rsp + slot], ecx
            ALU => a.arithmetic(code, k),
            JMP if code & 0xf0 == 0 => {
                next = vec![at + 1 + k as usize];
                if k != 0 {
                    a.jump(Target::Instruction(next[0]));
                }
            }
            JMP => {
                next = vec![at + 1 + usize::from(jt), at + 1 + usize::from(jf)];
                a.branch(at, instruction);
            }
            RET => {
                next.clear();
                if code & A == 0 {
                    a.with(&[0xb8], k); // mov eax, k
                }
                a.code(&[0xc3]);
            }
            MISC if code & 0x80 != 0 => a.code(&[0x89, 0xc8]), // mov eax, ecx
            _ => a.code(&[0x89, 0xc1]),                        // mov ecx, eax
        }
        let changes_x = code & 7 == LDX || code & 7 == MISC && code & 0x80 == 0;
        if changes_x {
            here.behind_x = 0;
        }
        for target in next {
            known[target].meets(here);
        }
    }
    let reject = assembler.text.len();
    assembler.code(&[0x31, 0xc0, 0xc3]); // xor eax, eax; ret
    for (place, target) in std::mem::take(&mut assembler.jumps) {
        let target = match target {
            Target::Instruction(number) => places[number],
            Target::Reject => reject,
        };
        let distance = (target as i32).wrapping_sub(place as i32 + 4);
        assembler.text[place..place + 4].copy_from_slice(&distance.to_le_bytes());
    }
    assembler.text
}
