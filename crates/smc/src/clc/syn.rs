//! The TCP option by which the ends of a connection signal that they speak SMC.
//!
//! No program can send it without privileges, which is why Shortwire meets its peers elsewhere. Who
//! can see a SYN, in a capture or from BPF, can tell by it whether a kernel stack is at work.

use super::header::EYECATCHER_SMCR;

const END: u8 = 0;
const NOP: u8 = 1;
const EXPERIMENTAL: u8 = 254;

/// The option as Linux sends it on SYN and SYN-ACK, padded to eight bytes.
pub const SYN_OPTION: [u8; 8] = [NOP, NOP, EXPERIMENTAL, 6, 0xe2, 0xd4, 0xc3, 0xd9];

/// Whether the options of a SYN, without the fixed TCP header, signal SMC.
pub fn signals_smc(options: &[u8]) -> bool {
    let mut rest = options;
    loop {
        rest = match rest {
            [] | [END, ..] => return false,
            [NOP, rest @ ..] => rest,
            [kind, len, _, ..] => {
                let Some((option, next)) = rest.split_at_checked(usize::from(*len)) else {
                    return false;
                };
                let id = option.get(2..6);
                if *kind == EXPERIMENTAL && len % 2 == 0 && id == Some(&EYECATCHER_SMCR) {
                    return true;
                }
                // An option is no shorter than its kind and length.
                if option.len() < 2 {
                    return false;
                }
                next
            }
            _ => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clc::fixtures::hex;

    /// Example A of the facts.
    #[test]
    fn the_option_of_linux() {
        assert_eq!(hex("0101 fe06 e2d4c3d9"), SYN_OPTION);
        assert!(signals_smc(&SYN_OPTION));
        assert!(signals_smc(&hex("020405b4 0402 fe08 e2d4c3d9 0000")));
    }

    #[test]
    fn other_options() {
        let no =
            ["", "01", "00 fe06 e2d4c3d9", "fe06 e2d4c3c4", "fe07 e2d4c3d9 00", "fd06 e2d4c3d9"];
        let broken =
            ["fe", "fe06", "fe06 e2d4c3", "fe00 e2d4c3d9", "fe01 e2d4c3d9", "0200 fe06 e2d4c3d9"];
        for text in no.iter().chain(&broken) {
            assert!(!signals_smc(&hex(text)), "{text}");
        }
    }
}
