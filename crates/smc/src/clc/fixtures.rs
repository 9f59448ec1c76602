//! Messages as hex text, for the tests of all modules.

use super::{Accept, Confirm, Device, Gid, Message, Proposal};

/// The device of the examples.
pub(super) const LOOPBACK: Device = Device {
    gid: Gid { hi: 0x0123_4567_89ab_cdef, lo: 0xfedc_ba98_7654_3210 },
    chid: Device::LOOPBACK_CHID,
};

pub(super) const PROPOSAL_V2: &str = "
    e2d4c3d9 0100e026 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 00000000 00000000 00000000 0000001c 00000000 00000000 00000000
    00000000 00000000 00000000 00000000 01020010 00000040 00000000 00000000
    00000000 00000000 00000001 00000000 00000000 00000000 44454d4f 2d554549
    442d3120 20202020 20202020 20202020 20202020 20202020 00000000 00000000
    00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 00000000 01234567 89abcdef fffffedc ba987654 3210ffff e2d4c3d9";

pub(super) const ACCEPT_FIRST: &str = "
    e2d4c3c4 02008229 01234567 89abcdef 11111111 11111111 00200000 00010000
    ffff4445 4d4f2d55 4549442d 31202020 20202020 20202020 20202020 20202020
    2020fedc ba987654 32100021 0000686f 73746120 20202020 20202020 20202020
    20202020 20202020 20202020 20200000 00010000 00000000 00000000 0000e2d4
    c3c4";

pub(super) const ACCEPT_REUSE: &str = "
    e2d4c3c4 02004e21 01234567 89abcdef 33333333 33333333 00600000 00010000
    ffff4445 4d4f2d55 4549442d 31202020 20202020 20202020 20202020 20202020
    2020fedc ba987654 3210e2d4 c3c4";

pub(super) const DECLINE_V2: &str = "
    e2d4c3d9 04002c20 00000000 00000000 03030007 20000000 00000000 00000000
    00000000 00000000 e2d4c3d9";

pub(super) const DECLINE_V1: &str =
    "e2d4c3d9 04001c18 00000000 00000000 04000000 00000000 e2d4c3d9";

pub(super) const PROPOSAL_V1: &str = "
    e2d4c3d9 01005c11 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 00000028 11223344 55667788 07c10000 00000000 00000000 00000000
    00000000 00000000 00000000 00000000 0a010200 18000000 e2d4c3d9";

pub(super) const ACCEPT_V1: &str = "
    e2d4c3c4 02003019 11223344 55667788 00c0ffee 00000001 00200000 00010000
    00000000 00000000 00000000 e2d4c3c4";

/// What two ends of AF_SMC said over the kernel's own loopback device: Linux 7.3 in a guest, with the
/// EID SHORTWIRE.
pub(super) const KERNEL_PROPOSAL: &str = "
    e2d4c3d9 0100e026 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 00000000 00000000 00000000 0000001c 00000000 00000000 00000000
    00000000 00000000 00000000 00000000 01020010 00000040 00000000 00000000
    00000000 00000000 00000001 00000000 00000000 00000000 53484f52 54574952
    45202020 20202020 20202020 20202020 20202020 20202020 00000000 00000000
    00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 00000000 0a099265 c06646da ffff8777 70556730 18f8ffff e2d4c3d9";

pub(super) const KERNEL_ACCEPT: &str = "
    e2d4c3c4 02008229 0a099265 c06646da 70206029 f247a158 00200000 00010000
    ffff5348 4f525457 49524520 20202020 20202020 20202020 20202020 20202020
    20208777 70556730 18f80021 0000286e 6f6e6529 20202020 20202020 20202020
    20202020 20202020 20202020 20200000 00010000 00000000 00000000 0000e2d4
    c3c4";

pub(super) const KERNEL_CONFIRM: &str = "
    e2d4c3c4 03008229 0a099265 c06646da 767d1adc 0a250680 00200000 00020000
    ffff5348 4f525457 49524520 20202020 20202020 20202020 20202020 20202020
    20208777 70556730 18f80021 0000286e 6f6e6529 20202020 20202020 20202020
    20202020 20202020 20202020 20200000 00010000 00000000 00000000 0000e2d4
    c3c4";

const SMCR_BODY: &str = "
    a1000000 00000002 b1000000 00000000 00000000 00000003 c1000000 0004
    0a0b0c 12345678 01 00000099 25 00 ffff800000001000 00 070809";

/// The Confirm that answers [`ACCEPT_FIRST`].
pub(super) fn confirm_first() -> String {
    ACCEPT_FIRST
        .replace("02008229", "03008229")
        .replace("11111111", "22222222")
        .replace("00010000\n", "00020000\n")
}

/// An Accept for SMC-R, version 1 and first contact.
pub(super) fn smcr_accept_v1() -> String {
    format!("e2d4c3d9 02004418 {SMCR_BODY} e2d4c3d9")
}

/// An Accept for SMC-R, version 2 without first contact.
pub(super) fn smcr_accept() -> String {
    let (eid, reserved) = ("44".repeat(32), "00".repeat(8));
    format!("e2d4c3d9 02006c20 {SMCR_BODY} {eid} {reserved} e2d4c3d9")
}

/// Every fixture.
pub(super) fn all() -> Vec<Vec<u8>> {
    let texts = [
        PROPOSAL_V2,
        ACCEPT_FIRST,
        ACCEPT_REUSE,
        DECLINE_V2,
        DECLINE_V1,
        PROPOSAL_V1,
        ACCEPT_V1,
        KERNEL_PROPOSAL,
        KERNEL_ACCEPT,
        KERNEL_CONFIRM,
    ];
    let made = [confirm_first(), smcr_accept_v1(), smcr_accept()];
    texts.into_iter().chain(made.iter().map(String::as_str)).map(hex).collect()
}

/// The bytes of a hex text; blanks don't count.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| u8::try_from(c.to_digit(16).expect("a hex digit")).expect("four bits"))
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The entries of a GID/CHID list, also for lists that [`super::Devices`] would not make.
pub(super) fn entries(devices: &[Device]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for device in devices {
        for half in [device.gid.hi, device.gid.lo].iter().take(device.entries()) {
            bytes.extend(half.to_be_bytes());
            bytes.extend(device.chid.to_be_bytes());
        }
    }
    bytes
}

pub(super) fn proposal(text: &str) -> Proposal {
    match Message::decode(&hex(text)) {
        Ok(Message::Proposal(proposal)) => proposal,
        other => panic!("{other:?}"),
    }
}

pub(super) fn accept(text: &str) -> Accept {
    match Message::decode(&hex(text)) {
        Ok(Message::Accept(accept)) => accept,
        other => panic!("{other:?}"),
    }
}

pub(super) fn confirm(text: &str) -> Confirm {
    match Message::decode(&hex(text)) {
        Ok(Message::Confirm(confirm)) => confirm,
        other => panic!("{other:?}"),
    }
}
