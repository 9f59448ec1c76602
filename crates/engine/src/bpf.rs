//! Classic BPF, the language of packet filters: a checked program, run as machine code on x86-64, and
//! else by an interpreter.
//!
//! Semantics: McCanne and Jacobson, "The BSD Packet Filter"; opcodes as in `linux/filter.h`. Loads
//! beyond the end of the packet reject it. The check at the start makes every run end and stay
//! inside of the program and its memory.

mod compile;
mod graph;
mod language;
#[cfg(target_arch = "x86_64")]
mod machine;

pub use compile::compile;

/// One instruction, with the layout of `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A program that was checked, and its machine code where there can be some.
#[derive(Debug)]
pub struct Program {
    instructions: Box<[Instruction]>,
    #[cfg(target_arch = "x86_64")]
    code: Option<machine::Code>,
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.instructions == other.instructions
    }
}

/// Why a program is refused, with the number of the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a program has 1 to 4096 instructions")]
    Length,
    #[error("instruction {0} is not known")]
    Unknown(usize),
    #[error("instruction {0} jumps out of the program")]
    Jump(usize),
    #[error("instruction {0} divides by zero")]
    Division(usize),
    #[error("instruction {0} shifts by more than 31")]
    Shift(usize),
    #[error("instruction {0} uses memory that is not there")]
    Memory(usize),
    #[error("the last instruction is not a return")]
    NoReturn,
}

const MEMORY: usize = 16;

// Classes.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;
/// Operand of arithmetic, jumps and returns: the register X, or A for a return, instead of the
/// constant.
const X: u16 = 8;
const A: u16 = 0x10;

impl Program {
    /// Checks a program.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, Refused> {
        if !(1..=4096).contains(&instructions.len()) {
            return Err(Refused::Length);
        }
        for (at, instruction) in instructions.iter().enumerate() {
            check(at, instruction, instructions.len())?;
        }
        if instructions.last().is_none_or(|last| last.code & 7 != RET) {
            return Err(Refused::NoReturn);
        }
        Ok(Self {
            #[cfg(target_arch = "x86_64")]
            code: machine::Code::new(&instructions),
            instructions: instructions.into(),
        })
    }

    /// How many bytes of the packet the filter wants; 0 rejects it.
    #[inline(always)]
    pub fn run(&self, packet: &[u8]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(code) = &self.code
            && packet.len() <= machine::LONGEST
        {
            return code.run(packet);
        }
        self.interpret(packet).unwrap_or(0)
    }

    /// None for a load beyond the end of the packet, and for a division by a register of zero.
    #[inline(never)]
    fn interpret(&self, packet: &[u8]) -> Option<u32> {
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; MEMORY], 0usize);
        loop {
            let Instruction { code, jt, jf, k } = *self.instructions.get(at)?;
            at += 1;
            match code & 7 {
                LD => a = load(code, k, x, packet, &memory)?,
                LDX if code & 0xe0 == 0xa0 => x = u32::from(*packet.get(k as usize)? & 15) * 4,
                LDX => x = load(code, k, x, packet, &memory)?,
                ST => memory[k as usize % MEMORY] = a,
                STX => memory[k as usize % MEMORY] = x,
                ALU => a = arithmetic(code & 0xf0, a, if code & X != 0 { x } else { k })?,
                JMP if code & 0xf0 == 0 => at = at.checked_add(k as usize)?,
                JMP => {
                    at += usize::from(if holds(code & 0xf0, a, if code & X != 0 { x } else { k }) {
                        jt
                    } else {
                        jf
                    })
                }
                RET => return Some(if code & A != 0 { a } else { k }),
                _ if code & 0x80 != 0 => a = x,
                _ => x = a,
            }
        }
    }
}

fn check(at: usize, instruction: &Instruction, length: usize) -> Result<(), Refused> {
    let Instruction { code, jt, jf, k } = *instruction;
    let left = length - at - 1;
    let operation = code & 0xf0;
    let known = match code & 7 {
        // Constant, memory, length, or a word, half or byte at a place or relative to X.
        LD => {
            matches!(code, 0x00 | 0x60 | 0x80)
                || matches!(code & 0xe0, 0x20 | 0x40) && matches!(code & 0x18, 0 | 8 | 0x10)
        }
        LDX => matches!(code, 0x01 | 0x61 | 0x81 | 0xb1),
        ST | STX => code & !7 == 0,
        ALU => operation <= 0xa0 && (code & X == 0 || operation != 0x80),
        JMP => operation <= 0x40 && (code & X == 0 || operation != 0),
        RET => matches!(code, 0x06 | 0x16),
        MISC => matches!(code, 0x07 | 0x87),
        _ => false,
    };
    if !known || code > 0xff {
        return Err(Refused::Unknown(at));
    }
    match code & 7 {
        LD | LDX if code & 0xe0 == 0x60 && k as usize >= MEMORY => Err(Refused::Memory(at)),
        ST | STX if k as usize >= MEMORY => Err(Refused::Memory(at)),
        ALU if matches!(operation, 0x30 | 0x90) && code & X == 0 && k == 0 => {
            Err(Refused::Division(at))
        }
        ALU if matches!(operation, 0x60 | 0x70) && code & X == 0 && k > 31 => {
            Err(Refused::Shift(at))
        }
        JMP if operation == 0 && k as usize >= left => Err(Refused::Jump(at)),
        JMP if operation != 0 && usize::from(jt.max(jf)) >= left => Err(Refused::Jump(at)),
        _ => Ok(()),
    }
}

#[inline(always)]
fn load(code: u16, k: u32, x: u32, packet: &[u8], memory: &[u32; MEMORY]) -> Option<u32> {
    let place = match code & 0xe0 {
        0x00 => return Some(k),
        0x60 => return Some(memory[k as usize % MEMORY]),
        0x80 => return Some(packet.len() as u32),
        0x40 => (k as usize).checked_add(x as usize)?,
        _ => k as usize,
    };
    let rest = packet.get(place..)?;
    Some(match code & 0x18 {
        0 => u32::from_be_bytes(*rest.first_chunk()?),
        8 => u16::from_be_bytes(*rest.first_chunk()?).into(),
        _ => (*rest.first()?).into(),
    })
}

#[inline(always)]
fn arithmetic(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b).unwrap_or(0),
        0x70 => a.checked_shr(b).unwrap_or(0),
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(b)?,
        _ => a ^ b,
    })
}

#[inline(always)]
fn holds(condition: u16, a: u32, b: u32) -> bool {
    match condition {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        _ => a & b != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    #[test]
    fn the_textbook_filter() {
        // "ip", as tcpdump -d prints it.
        let program =
            vec![op(0x28, 0, 0, 12), op(0x15, 0, 1, 0x800), op(6, 0, 0, 262_144), op(6, 0, 0, 0)];
        let program = Program::new(program).unwrap();
        let mut frame = [0; 60];
        assert_eq!(program.run(&frame), 0);
        frame[12] = 8;
        assert_eq!(program.run(&frame), 262_144);
        assert_eq!(program.run(&frame[..13]), 0);
    }

    #[test]
    fn bad_programs_are_refused() {
        let accept = op(6, 0, 0, 1);
        for (program, why) in [
            (vec![], Refused::Length),
            (vec![op(0x18, 0, 0, 0), accept], Refused::Unknown(0)),
            (vec![op(0x105, 0, 0, 0), accept], Refused::Unknown(0)),
            (vec![op(5, 0, 0, 1), accept], Refused::Jump(0)),
            (vec![op(0x15, 0, 1, 0), accept], Refused::Jump(0)),
            (vec![op(0x34, 0, 0, 0), accept], Refused::Division(0)),
            (vec![op(0x64, 0, 0, 32), accept], Refused::Shift(0)),
            (vec![op(2, 0, 0, 16), accept], Refused::Memory(0)),
            (vec![accept, op(0, 0, 0, 0)], Refused::NoReturn),
        ] {
            assert_eq!(Program::new(program), Err(why));
        }
    }

    #[test]
    fn machine_code_is_made_here() {
        let program = Program::new(vec![op(6, 0, 0, 1)]).unwrap();
        #[cfg(target_arch = "x86_64")]
        assert!(program.code.is_some(), "this system does not let code be made at run time");
        assert_eq!(program.run(&[]), 1);
    }

    /// Instructions that a program may have, most of them well formed. Jumps and places are small, so
    /// that many programs are accepted and many loads succeed.
    fn instruction() -> impl Strategy<Value = Instruction> {
        const CODES: &[u16] = &[
            0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02,
            0x03, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64,
            0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35,
            0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07, 0x87,
        ];
        let number = prop_oneof![
            8 => 0u32..16,
            4 => 16u32..90,
            1 => any::<u32>(),
            1 => prop::sample::select(vec![i32::MAX as u32 - 4, i32::MAX as u32, u32::MAX - 3, u32::MAX]),
        ];
        let code = prop_oneof![400 => prop::sample::select(CODES), 1 => 0u16..0x100];
        (code, 0u8..4, 0u8..4, number).prop_map(|(code, jt, jf, k)| op(code, jt, jf, k))
    }

    /// A program that was made to be accepted: what a check would refuse is brought into line.
    fn program() -> impl Strategy<Value = Vec<Instruction>> {
        prop::collection::vec(instruction(), 1..40).prop_map(|mut all| {
            let length = all.len();
            for (at, i) in all.iter_mut().enumerate() {
                let left = (length - at - 1) as u32;
                match i.code {
                    0x02 | 0x03 | 0x60 | 0x61 => i.k %= 16,
                    0x64 | 0x74 => i.k %= 32,
                    0x34 | 0x94 => i.k |= 1,
                    0x05 if left > 0 => i.k %= left,
                    code if code & 7 == 5 && left > 0 => {
                        i.jt = (u32::from(i.jt) % left) as u8;
                        i.jf = (u32::from(i.jf) % left) as u8;
                    }
                    _ => {}
                }
            }
            all[length - 1] = op([0x06, 0x16][length % 2], 0, 0, 7);
            all
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 4096,
            max_global_rejects: 65536,
            ..ProptestConfig::default()
        })]

        #[test]
        fn machine_code_and_interpreter_agree(
            program in program(),
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..8),
        ) {
            let refused = Program::new(program);
            prop_assume!(refused.is_ok());
            let program = refused.unwrap();
            for packet in packets {
                prop_assert_eq!(program.run(&packet), program.interpret(&packet).unwrap_or(0));
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_ends(
            codes in prop::collection::vec((0u16..0xc0, 0u8..8, 0u8..8, prop_oneof![0u32..40, any::<u32>()]), 1..40),
            packet in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let program = codes.into_iter().map(|(code, jt, jf, k)| op(code, jt, jf, k)).collect();
            if let Ok(program) = Program::new(program) {
                program.run(&packet);
            }
        }
    }
}
