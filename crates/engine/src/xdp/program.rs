//! XDP programs, assembled here: no compiler, no object file, no BTF.
//!
//! Register use follows the eBPF calling convention: r1..r5 arguments, r0 result, r6..r9 kept over
//! calls.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::bpf::Instruction;

/// `enum xdp_action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Action {
    Drop = 1,
    Pass = 2,
}

/// Which packets an interface gives to the engine. All others stay with the kernel.
///
/// The default is all packets. With ports, those IPv4 and IPv6 packets whose UDP or TCP destination
/// port is listed; with a protocol, only those of that IP protocol. Fragments after the first and
/// IPv6 extension headers never match ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// IP protocol number, for example 17 for UDP.
    pub protocol: Option<u8>,
    /// UDP or TCP destination ports.
    pub ports: Vec<u16>,
}

impl Filter {
    /// The verifier's limit on jump offsets is far above; this keeps the program's cost per packet
    /// in sight.
    pub const MAX_PORTS: usize = 64;

    fn is_all(&self) -> bool {
        self.protocol.is_none() && self.ports.is_empty()
    }
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;

const REDIRECT: i32 = 23;
const REDIRECT_MAP: i32 = 51;
/// `BPF_PSEUDO_MAP_FD`: the immediate of this load is a map's descriptor.
const MAP_DESCRIPTOR: u8 = 1;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const ETHER_TYPE: i16 = 12;
const IP: i16 = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: i32 = 6;
const UDP: i32 = 17;

/// Widths of a load: `BPF_B`, `BPF_H`, `BPF_W`.
const BYTE: u8 = 0x10;
const HALF: u8 = 0x08;
const WORD: u8 = 0x00;

/// A place to jump to that is not known yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Match,
    Pass,
    Ports,
    Version6,
    HasPorts,
}

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn emit(&mut self, code: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: dst | src << 4, offset, immediate });
    }

    fn load(&mut self, width: u8, dst: u8, src: u8, offset: i16) {
        self.emit(0x61 | width, dst, src, offset, 0);
    }

    fn set(&mut self, dst: u8, immediate: i32) {
        self.emit(0xb7, dst, 0, 0, immediate);
    }

    fn copy(&mut self, dst: u8, src: u8) {
        self.emit(0xbf, dst, src, 0, 0);
    }

    fn add(&mut self, dst: u8, immediate: i32) {
        self.emit(0x07, dst, 0, 0, immediate);
    }

    fn add_register(&mut self, dst: u8, src: u8) {
        self.emit(0x0f, dst, src, 0, 0);
    }

    fn and(&mut self, dst: u8, immediate: i32) {
        self.emit(0x57, dst, 0, 0, immediate);
    }

    fn shift_left(&mut self, dst: u8, immediate: i32) {
        self.emit(0x67, dst, 0, 0, immediate);
    }

    fn jump_if_equal(&mut self, register: u8, immediate: i32, to: Label) {
        self.jump(0x15, register, 0, immediate, to);
    }

    fn jump_if_not_equal(&mut self, register: u8, immediate: i32, to: Label) {
        self.jump(0x55, register, 0, immediate, to);
    }

    fn jump_to(&mut self, to: Label) {
        self.jump(0x05, 0, 0, 0, to);
    }

    fn jump(&mut self, code: u8, dst: u8, src: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.emit(code, dst, src, 0, immediate);
    }

    fn call(&mut self, helper: i32) {
        self.emit(0x85, 0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.emit(0x95, 0, 0, 0, 0);
    }

    /// Resolves the jumps to `label` made so far.
    fn place(&mut self, label: Label) {
        let here = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|&(at, to)| {
            if to == label {
                code[at].offset = (here - at - 1) as i16;
            }
            to != label
        });
    }

    /// Jumps to pass unless `register + length` is within the packet; r3 is its end. The verifier
    /// asks for it.
    fn require(&mut self, register: u8, length: i32) {
        self.copy(R4, register);
        self.add(R4, length);
        self.jump(0x2d, R4, R3, 0, Label::Pass);
    }

    /// `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_PASS)`: a queue without socket keeps
    /// its packets.
    fn redirect_map(&mut self, context: u8, map: BorrowedFd) {
        self.load(WORD, R2, context, RX_QUEUE_INDEX);
        self.emit(0x18, R1, MAP_DESCRIPTOR, 0, map.as_raw_fd());
        self.emit(0, 0, 0, 0, 0);
        self.set(R3, Action::Pass as i32);
        self.call(REDIRECT_MAP);
        self.exit();
    }

    fn finish(self) -> Vec<Instruction> {
        debug_assert!(self.jumps.is_empty());
        self.code
    }
}

/// Answers every packet with the same action.
pub fn constant(action: Action) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.set(R0, action as i32);
    asm.exit();
    asm.finish()
}

/// Sends every frame out of an interface, for the generator of [`super::live_frames`].
pub fn redirect_to_interface(ifindex: u32) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.set(R1, ifindex as i32);
    asm.set(R2, 0);
    asm.call(REDIRECT);
    asm.exit();
    asm.finish()
}

/// Gives packets that match to the AF_XDP socket of their queue.
pub fn redirect_to_sockets(map: BorrowedFd, filter: &Filter) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    if filter.is_all() {
        asm.redirect_map(R1, map);
        return asm.finish();
    }
    asm.copy(R6, R1);
    asm.load(WORD, R2, R1, DATA);
    asm.load(WORD, R3, R1, DATA_END);
    asm.require(R2, i32::from(IP) + 20);
    // Fields are loaded as they stand in the packet, so that constants are compared in network
    // order.
    asm.load(HALF, R5, R2, ETHER_TYPE);
    asm.jump_if_equal(R5, i32::from(IPV6.to_be()), Label::Version6);
    asm.jump_if_not_equal(R5, i32::from(IPV4.to_be()), Label::Pass);
    ipv4(&mut asm, filter);
    asm.place(Label::Version6);
    ipv6(&mut asm, filter);
    asm.place(Label::Ports);
    ports(&mut asm, &filter.ports);
    asm.place(Label::Match);
    asm.redirect_map(R6, map);
    asm.place(Label::Pass);
    asm.set(R0, Action::Pass as i32);
    asm.exit();
    asm.finish()
}

/// Goes on with r2 at the transport header and r5 its protocol. RFC 791 section 3.1.
fn ipv4(asm: &mut Assembler, filter: &Filter) {
    asm.load(BYTE, R5, R2, IP + 9);
    if decided_by_protocol(asm, filter) {
        return;
    }
    // Fragment offset: only the first fragment has ports.
    asm.load(HALF, R1, R2, IP + 6);
    asm.and(R1, i32::from(0x1fff_u16.to_be()));
    asm.jump_if_not_equal(R1, 0, Label::Pass);
    asm.load(BYTE, R1, R2, IP);
    asm.and(R1, 0x0f);
    asm.shift_left(R1, 2);
    asm.add_register(R2, R1);
    asm.add(R2, i32::from(IP));
    asm.jump_to(Label::Ports);
}

/// As [`ipv4`], for a fixed header without extensions. RFC 8200 section 3.
fn ipv6(asm: &mut Assembler, filter: &Filter) {
    asm.require(R2, i32::from(IP) + 40);
    asm.load(BYTE, R5, R2, IP + 6);
    if !decided_by_protocol(asm, filter) {
        asm.add(R2, i32::from(IP) + 40);
    }
}

/// Whether no ports are asked for. The verifier refuses instructions that are never reached, so
/// none may follow then.
fn decided_by_protocol(asm: &mut Assembler, filter: &Filter) -> bool {
    if let Some(protocol) = filter.protocol {
        asm.jump_if_not_equal(R5, i32::from(protocol), Label::Pass);
    }
    if filter.ports.is_empty() {
        asm.jump_to(Label::Match);
    }
    filter.ports.is_empty()
}

/// r2 is at a header of protocol r5. UDP and TCP have the destination port at the same place.
fn ports(asm: &mut Assembler, ports: &[u16]) {
    if ports.is_empty() {
        return;
    }
    asm.jump_if_equal(R5, UDP, Label::HasPorts);
    asm.jump_if_not_equal(R5, TCP, Label::Pass);
    asm.place(Label::HasPorts);
    asm.require(R2, 4);
    asm.load(HALF, R5, R2, 2);
    for port in ports {
        asm.jump_if_equal(R5, i32::from(port.to_be()), Label::Match);
    }
    asm.jump_to(Label::Pass);
}
