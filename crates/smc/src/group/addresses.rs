//! Where connections to a peer were opened to, and whether the next one there is worth an offer
//! (`lanes.rs`).

use crate::inet::Addr;

/// Addresses of a peer that are remembered, the latest first.
const MOST: usize = 4;
/// So many connections to an address that end too soon, one behind the other, and none is offered
/// there any more.
const TRUST: u8 = 3;

#[derive(Clone, Copy)]
struct Address {
    to: Addr,
    trust: u8,
}

pub(super) struct Addresses([Option<Address>; MOST]);

impl Addresses {
    pub const NONE: Self = Self([None; MOST]);

    /// Whether a connection to it would lead to the peer, and is likely to last.
    pub fn are_worth(&self, to: &Addr) -> bool {
        self.0.iter().flatten().any(|known| known.trust > 0 && known.to.key() == to.key())
    }

    /// A connection to it led to the peer, and lasted until it was upgraded as any other is. Where
    /// the peer opened it, it is an address that comes once: a new one takes the last place alone,
    /// and moves up when it comes again.
    pub fn note(&mut self, to: Addr) {
        let at =
            self.0.iter().position(|known| known.is_some_and(|known| known.to.key() == to.key()));
        let place = match at {
            Some(at) => {
                self.0[..=at].rotate_right(1);
                0
            }
            None => self.0.iter().position(Option::is_none).unwrap_or(MOST - 1),
        };
        self.0[place] = Some(Address { to, trust: TRUST });
    }

    /// One that was offered ends, and was worth it or not.
    pub fn learn(&mut self, to: &Addr, was_worth: bool) {
        let is_it = |known: &Option<Address>| known.is_some_and(|known| known.to.key() == to.key());
        let Some(at) = self.0.iter().position(is_it) else { return };
        // Those that are opened to stay, whoever comes from where.
        self.0[..=at].rotate_right(1);
        if let Some(known) = &mut self.0[0] {
            known.trust = if was_worth { TRUST } else { known.trust.saturating_sub(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Addr {
        let mut ip = [0; 16];
        ip[..4].copy_from_slice(&[127, 0, 0, 1]);
        Addr { family: libc::AF_INET as u16, port, ip }
    }

    #[test]
    fn the_latest_are_remembered() {
        let mut known = Addresses::NONE;
        assert!(!known.are_worth(&at(1)));
        (1..=4).for_each(|port| known.note(at(port)));
        known.note(at(4));
        (5..=40).for_each(|port| known.note(at(port)));
        let worth: Vec<u16> = (1..=40).filter(|port| known.are_worth(&at(*port))).collect();
        assert_eq!(worth, [1, 2, 4, 40], "those that come once take one place");
    }

    #[test]
    fn trust_ends_and_comes_back() {
        let mut known = Addresses::NONE;
        known.note(at(1));
        known.note(at(2));
        known.learn(&at(1), false);
        known.learn(&at(1), true);
        (0..TRUST).for_each(|_| {
            assert!(known.are_worth(&at(1)));
            known.learn(&at(1), false);
        });
        assert!(!known.are_worth(&at(1)) && known.are_worth(&at(2)));
        known.note(at(1));
        assert!(known.are_worth(&at(1)));
    }
}
