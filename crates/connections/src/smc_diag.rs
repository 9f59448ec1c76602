//! Sockets of the kernel's own SMC (AF_SMC, IPPROTO_SMC), from its list of them (smc_diag), as
//! `linux/smc_diag.h` lays it out. Beneath each lies a TCP socket of the kernel's that no program
//! holds; the list names the socket that one does.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::netlink::{self, attributes, word};

/// `struct smc_diag_req` and `struct smc_diag_msg`.
const REQUEST: usize = 52;
const MESSAGE: usize = 64;
const AF_SMC: u8 = 43;
/// Extensions, which are the types of attributes too.
const LGRINFO: u16 = 2;
const DMBINFO: u16 = 4;
const FALLBACK: u16 = 5;
/// In `struct smc_diag_linkinfo`: name of the RDMA device, `IB_DEVICE_NAME_MAX` bytes.
const IBNAME: core::ops::Range<usize> = 1..65;

/// What carries a socket of the kernel's SMC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// RDMA.
    Smcr,
    /// A shared memory device.
    Smcd,
    /// TCP: the kernel's reason, and the diagnosis of the peer's Decline, or 0.
    Tcp { reason: u32, peer: u32 },
}

/// A socket of the kernel's SMC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Socket {
    /// As smcss calls it.
    pub state: &'static str,
    pub carrier: Carrier,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub uid: u32,
    /// Of the socket that a program holds.
    pub inode: u64,
    /// Of RDMA its name, of shared memory its GID; empty if the kernel does not say.
    pub device: String,
}

impl Socket {
    pub fn is_listener(&self) -> bool {
        self.state == "LISTEN"
    }

    /// Whether the kernel has given it back to TCP.
    pub fn is_tcp(&self) -> bool {
        matches!(self.carrier, Carrier::Tcp { .. })
    }
}

/// Those of the network namespace of `pid`. None where the kernel has no SMC; it is not asked
/// then, because that would load it.
pub fn sockets(pid: u32) -> Vec<Socket> {
    let protocols = fs::read_to_string(format!("/proc/{pid}/net/protocols")).unwrap_or_default();
    if !protocols.lines().any(|line| line.starts_with("SMC")) {
        return Vec::new();
    }
    netlink::in_namespace_of(pid, here).unwrap_or_default()
}

fn here() -> Vec<Socket> {
    let mut request = [0u8; REQUEST];
    request[0] = AF_SMC;
    request[3] = [LGRINFO, DMBINFO, FALLBACK].iter().fold(0, |bits, kind| bits | 1 << (kind - 1));
    let mut all = Vec::new();
    // What was heard until something went wrong is true.
    let _ = netlink::dump(&request, |message| all.extend(decode(message)));
    all
}

/// All sockets of an answer, with its headers. For tests of the decoder.
pub fn decode_answer(bytes: &[u8]) -> Vec<Socket> {
    let mut all = Vec::new();
    netlink::messages(bytes, &mut |message| all.extend(decode(message)));
    all
}

/// One message: `struct smc_diag_msg` and its attributes. None if it is not whole, or says of no
/// carrier that is known.
pub fn decode(message: &[u8]) -> Option<Socket> {
    let base: &[u8; MESSAGE] = message.first_chunk()?;
    let (mut tcp, mut device) = ((0, 0), String::new());
    for (kind, content) in attributes(&message[MESSAGE..]) {
        match kind {
            FALLBACK => {
                tcp = (word(content, 0).unwrap_or(0), word(content, 4).unwrap_or(0));
            }
            LGRINFO => device = content.get(IBNAME).map(name).unwrap_or_default(),
            DMBINFO => device = content.get(16..24).map(gid).unwrap_or_default(),
            _ => {}
        }
    }
    let carrier = match base[2] {
        0 => Carrier::Smcr,
        1 => Carrier::Tcp { reason: tcp.0, peer: tcp.1 },
        2 => Carrier::Smcd,
        _ => return None,
    };
    // `struct inet_diag_sockid` begins with the two ports; then come the addresses, whose family is
    // not said.
    let port = |at: usize| u16::from_be_bytes([base[at], base[at + 1]]);
    let is_v4 = [8, 24].iter().all(|at| base[at + 4..at + 16] == [0; 12]);
    let address = |at: usize, port| SocketAddr::new(ip(&base[at..at + 16], is_v4), port);
    let number: [u8; 8] = base[56..64].try_into().ok()?;
    Some(Socket {
        state: state(base[1]),
        carrier,
        local: address(8, port(4)),
        peer: address(24, port(6)),
        uid: word(base, 52)?,
        inode: u64::from_ne_bytes(number),
        device: if matches!(carrier, Carrier::Tcp { .. }) { String::new() } else { device },
    })
}

fn ip(bytes: &[u8], is_v4: bool) -> IpAddr {
    let mut all = [0u8; 16];
    all.copy_from_slice(bytes);
    match is_v4 {
        true => IpAddr::V4(Ipv4Addr::new(all[0], all[1], all[2], all[3])),
        false => IpAddr::V6(Ipv6Addr::from(all)).to_canonical(),
    }
}

/// Printable letters up to the first NUL.
fn name(bytes: &[u8]) -> String {
    let letters = bytes.iter().take_while(|byte| **byte != 0);
    letters.map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' }).collect()
}

/// `my_gid` of `struct smcd_diag_dmbinfo`.
fn gid(bytes: &[u8]) -> String {
    bytes
        .try_into()
        .map_or_else(|_| String::new(), |gid| format!("{:016x}", u64::from_ne_bytes(gid)))
}

/// `enum smc_state`.
fn state(number: u8) -> &'static str {
    match number {
        1 => "ACTIVE",
        7 => "CLOSED",
        10 => "LISTEN",
        20 => "PEERCLOSEWAIT1",
        21 => "PEERCLOSEWAIT2",
        22 => "APPCLOSEWAIT1",
        23 => "APPCLOSEWAIT2",
        24 => "APPFINCLOSEWAIT",
        25 => "PEERFINCLOSEWAIT",
        26 => "PEERABORTWAIT",
        27 => "PROCESSABORT",
        _ => "INIT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of port 80 at `local` to port 50000 at `peer`.
    fn message(state: u8, mode: u8, local: IpAddr, peer: IpAddr) -> Vec<u8> {
        let mut bytes = vec![AF_SMC, state, mode, 0];
        bytes.extend(80u16.to_be_bytes());
        bytes.extend(50000u16.to_be_bytes());
        for address in [local, peer] {
            let mut field = match address {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            field.resize(16, 0);
            bytes.extend(field);
        }
        bytes.extend([0; 12]);
        bytes.extend(1000u32.to_ne_bytes());
        bytes.extend(4711u64.to_ne_bytes());
        assert_eq!(bytes.len(), MESSAGE);
        bytes
    }

    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + content.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    const V4: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))];

    #[test]
    fn a_fallback_says_why() {
        let mut bytes = message(1, 1, V4[0], V4[1]);
        let reasons = [0x0301_0000u32.to_ne_bytes(), 0x0305_0000u32.to_ne_bytes()].concat();
        // The kernel puts the shutdown flags in front of it.
        bytes.extend(attribute(3, &[0]));
        bytes.extend(attribute(FALLBACK, &reasons));
        let found = decode(&bytes).unwrap();
        assert_eq!(found.carrier, Carrier::Tcp { reason: 0x0301_0000, peer: 0x0305_0000 });
        assert_eq!((found.state, found.uid, found.inode), ("ACTIVE", 1000, 4711));
        assert_eq!(found.local, "127.0.0.1:80".parse().unwrap());
        assert_eq!(found.peer, "10.1.2.3:50000".parse().unwrap());
        assert!(!found.is_listener() && found.device.is_empty());
    }

    #[test]
    fn devices_of_both_kinds() {
        let v6: [IpAddr; 2] = ["::1".parse().unwrap(), "::ffff:1.2.3.4".parse().unwrap()];
        let mut bytes = message(20, 0, v6[0], v6[1]);
        let mut link = vec![3u8];
        link.extend(b"rxe0");
        link.resize(146, 0);
        bytes.extend(attribute(LGRINFO, &link));
        let found = decode(&bytes).unwrap();
        assert_eq!((found.carrier, &*found.device), (Carrier::Smcr, "rxe0"));
        assert_eq!(found.local, "[::1]:80".parse().unwrap());
        assert_eq!(found.peer, "1.2.3.4:50000".parse().unwrap());
        assert_eq!(found.state, "PEERCLOSEWAIT1");
        let mut bytes = message(10, 2, V4[0], V4[1]);
        let words = [7u64, 2, 0x0a0b, 4, 5].map(u64::to_ne_bytes).concat();
        bytes.extend(attribute(DMBINFO, &words));
        let found = decode(&bytes).unwrap();
        assert_eq!((found.carrier, &*found.device), (Carrier::Smcd, "0000000000000a0b"));
        assert!(found.is_listener());
    }

    #[test]
    fn what_is_not_whole_is_left_out() {
        let whole = message(1, 0, V4[0], V4[1]);
        assert!((0..MESSAGE).all(|length| decode(&whole[..length]).is_none()));
        assert_eq!(decode(&message(1, 3, V4[0], V4[1])), None);
        let mut bytes = whole;
        bytes.extend(attribute(LGRINFO, b"\x01short"));
        bytes.extend([0xff; 3]);
        assert_eq!(decode(&bytes).unwrap().device, "");
        assert_eq!(name(b"a\x1b[2J\0b"), "a?[2J");
        assert!(sockets(u32::MAX).is_empty());
    }

    #[test]
    fn an_answer_of_two() {
        let mut answer = Vec::new();
        for mode in [0, 2] {
            let body = message(1, mode, V4[0], V4[1]);
            answer.extend((16 + body.len() as u32).to_ne_bytes());
            answer.extend(20u16.to_ne_bytes());
            answer.extend([0; 10]);
            answer.extend(body);
        }
        let carriers: Vec<_> = decode_answer(&answer).iter().map(|one| one.carrier).collect();
        assert_eq!(carriers, [Carrier::Smcr, Carrier::Smcd]);
    }

    /// The places at which this file looks are those of the kernel's own header.
    #[test]
    fn places_are_those_of_the_header() {
        let expected = [
            ("sizeof(struct smc_diag_req)", REQUEST),
            ("offsetof(struct smc_diag_req, diag_ext)", 3),
            ("sizeof(struct smc_diag_msg)", MESSAGE),
            ("offsetof(struct smc_diag_msg, diag_state)", 1),
            ("offsetof(struct smc_diag_msg, diag_mode)", 2),
            ("offsetof(struct smc_diag_msg, id.idiag_sport)", 4),
            ("offsetof(struct smc_diag_msg, id.idiag_dport)", 6),
            ("offsetof(struct smc_diag_msg, id.idiag_src)", 8),
            ("offsetof(struct smc_diag_msg, id.idiag_dst)", 24),
            ("offsetof(struct smc_diag_msg, diag_uid)", 52),
            ("offsetof(struct smc_diag_msg, diag_inode)", 56),
            ("offsetof(struct smc_diag_linkinfo, ibname)", IBNAME.start),
            ("offsetof(struct smc_diag_linkinfo, ibport)", IBNAME.end),
            ("offsetof(struct smcd_diag_dmbinfo, my_gid)", 16),
            ("offsetof(struct smc_diag_fallback, peer_diagnosis)", 4),
            ("SMC_DIAG_LGRINFO", LGRINFO.into()),
            ("SMC_DIAG_DMBINFO", DMBINFO.into()),
            ("SMC_DIAG_FALLBACK", FALLBACK.into()),
            ("SMC_DIAG_MODE_SMCR", 0),
            ("SMC_DIAG_MODE_FALLBACK_TCP", 1),
            ("SMC_DIAG_MODE_SMCD", 2),
        ];
        let checks: String = expected
            .iter()
            .map(|(what, ours)| format!("_Static_assert({what} == {ours}, \"{what}\");\n"))
            .collect();
        let text = format!("#include <stddef.h>\n#include <linux/smc_diag.h>\n{checks}");
        let directory = std::env::temp_dir().join(format!("shortwire-diag-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let source = directory.join("diag.c");
        fs::write(&source, text).unwrap();
        let mut cc = std::process::Command::new("cc");
        let built = cc.arg("-fsyntax-only").arg(&source).output();
        fs::remove_dir_all(&directory).unwrap();
        let problem = match built {
            Ok(built) if built.status.success() => return,
            Ok(built) => String::from_utf8_lossy(&built.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        assert!(!problem.contains("static assertion"), "{problem}");
        println!("skipped: places_are_those_of_the_header: no compiler, or no header ({problem})");
    }
}
