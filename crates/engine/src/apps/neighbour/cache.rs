//! Which MAC address each neighbour has: the states of RFC 4861, 7.3.2, for IPv4 as well, as Linux
//! has it.
//!
//! A neighbour is asked for by everybody's address until it answers, is believed for a while, is
//! asked by itself when it is still used after that, and is forgotten when it stays silent. Packets
//! wait meanwhile, a few for each. Each state is an age of the table, whose oldest neighbour is the
//! next that is due.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use crate::apps::headers::Mac;
use crate::flow_table::{FlowTable, Key};
use crate::packet::Packet;

/// Asked for, and not known.
const INCOMPLETE: usize = 0;
/// It has answered lately.
const REACHABLE: usize = 1;
/// Its answer is old, and nothing was sent to it since.
const STALE: usize = 2;
/// As the former, and something was sent to it.
const DELAY: usize = 3;
/// It is asked whether it is still there.
const PROBE: usize = 4;
const STATES: usize = 5;
const NAMES: [&str; STATES] = ["incomplete", "reachable", "stale", "delay", "probe"];

/// How long a state lasts, in nanoseconds: RFC 4861, 10.
const LASTS: [u64; STATES] = [SECOND, 30 * SECOND, u64::MAX, 5 * SECOND, SECOND];
const SECOND: u64 = 1_000_000_000;
/// Questions before silence is an answer.
const QUESTIONS: u8 = 3;
/// Packets that wait for one neighbour; one more takes the place of the first.
const WAITING: usize = 16;

#[derive(Default)]
struct Neighbour {
    mac: Mac,
    questions: u8,
    waiting: VecDeque<Packet>,
}

/// The neighbours of an interface.
pub(super) struct Cache {
    table: FlowTable<Neighbour, STATES>,
    incomplete: usize,
}

/// What became of a packet that was to wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It waits, and its neighbour is to be asked for.
    Ask,
    /// It waits for an answer that others wait for, too.
    Waits,
    /// It waits; an older packet was freed for it.
    Displaced,
    /// It was freed: there is no place for another neighbour.
    Full,
}

/// How an address was heard of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heard {
    /// In an answer to us: the neighbour hears us.
    pub solicited: bool,
    /// Even if another address was known.
    pub overrides: bool,
    /// Even if the neighbour was not known: it begins to talk to us.
    pub creates: bool,
}

/// What hearing of a neighbour changed.
#[derive(Default)]
pub(super) struct Learned {
    /// It had been asked and had not answered yet.
    pub asked: bool,
    /// Packets that can go now.
    pub waited: VecDeque<Packet>,
}

/// What time has come for.
pub(super) enum Due {
    /// Ask for the neighbour: this one, or with None all.
    Ask(IpAddr, Option<Mac>),
    /// It does not answer, and these packets cannot go.
    Silent(VecDeque<Packet>),
}

impl Cache {
    /// For so many neighbours.
    pub fn new(capacity: usize) -> Self {
        Self { table: FlowTable::new(capacity), incomplete: 0 }
    }

    pub fn capacity(&self) -> usize {
        self.table.capacity()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The MAC address of a neighbour that something is sent to, if it is known.
    #[inline]
    pub fn mac(&mut self, address: IpAddr, now: u64) -> Option<Mac> {
        let at = self.table.find(&key(address))?;
        match self.table.age(at) {
            INCOMPLETE => return None,
            STALE => self.table.touch(at, DELAY, now),
            _ => {}
        }
        Some(self.table.value(at).mac)
    }

    /// Keeps a packet for a neighbour whose MAC address is not known.
    pub fn wait(&mut self, address: IpAddr, packet: Packet, now: u64) -> Kept {
        let key = key(address);
        let (at, kept) = match self.table.find(&key) {
            Some(at) => (at, Kept::Waits),
            None => match self.begin(key, INCOMPLETE, now) {
                Some(at) => (at, Kept::Ask),
                None => return Kept::Full,
            },
        };
        let neighbour = self.table.value_mut(at);
        neighbour.waiting.push_back(packet);
        if neighbour.waiting.len() > WAITING {
            neighbour.waiting.pop_front();
            return Kept::Displaced;
        }
        kept
    }

    /// A neighbour that was not known. One that was not sent to for longest goes for it; those that
    /// do not answer never take more than half of the table, so that whoever looks for hosts that do
    /// not exist leaves room for others.
    fn begin(&mut self, key: Key, state: usize, now: u64) -> Option<u32> {
        if state == INCOMPLETE && self.incomplete >= self.table.capacity().div_ceil(2) {
            return None;
        }
        if self.table.is_full() {
            let (oldest, _) = self.table.oldest(STALE)?;
            self.table.remove(oldest);
        }
        self.incomplete += usize::from(state == INCOMPLETE);
        let neighbour = Neighbour { questions: 1, ..Neighbour::default() };
        self.table.insert(key, neighbour, state, now)
    }

    /// A neighbour tells its MAC address, or with None only that it is there: RFC 4861, 7.2.3 and
    /// 7.2.5.
    pub fn learn(&mut self, address: IpAddr, mac: Option<Mac>, how: Heard, now: u64) -> Learned {
        let key = key(address);
        let known = self.table.find(&key);
        let created = known.is_none();
        if created && !(how.creates && mac.is_some()) {
            return Learned::default();
        }
        let Some(at) = known.or_else(|| self.begin(key, STALE, now)) else {
            return Learned::default();
        };
        let state = self.table.age(at);
        let asked = matches!(state, INCOMPLETE | PROBE);
        if state == INCOMPLETE && mac.is_none() {
            return Learned::default();
        }
        let neighbour = self.table.value_mut(at);
        let new = mac.filter(|mac| created || state == INCOMPLETE || *mac != neighbour.mac);
        let waited = std::mem::take(&mut neighbour.waiting);
        let next = match new {
            Some(mac) if created || state == INCOMPLETE || how.overrides => {
                neighbour.mac = mac;
                Some(if how.solicited { REACHABLE } else { STALE })
            }
            // Somebody else answers for it: it will be asked itself.
            Some(_) => (state == REACHABLE).then_some(STALE),
            None => how.solicited.then_some(REACHABLE),
        };
        if let Some(next) = next {
            self.incomplete -= usize::from(state == INCOMPLETE);
            self.table.touch(at, next, now);
        }
        Learned { asked, waited }
    }

    /// The next thing that is due; to be called until there is none.
    pub fn due(&mut self, now: u64) -> Option<Due> {
        for (state, lasts) in LASTS.iter().enumerate() {
            while let Some((at, since)) = self.table.oldest(state)
                && now.saturating_sub(since) >= *lasts
            {
                if state == REACHABLE {
                    self.table.touch(at, STALE, now);
                    continue;
                }
                let address = address(self.table.key(at));
                let neighbour = self.table.value_mut(at);
                if state == DELAY {
                    neighbour.questions = 0;
                }
                if neighbour.questions == QUESTIONS {
                    self.incomplete -= usize::from(state == INCOMPLETE);
                    return Some(Due::Silent(self.table.remove(at).waiting));
                }
                neighbour.questions += 1;
                let mac = (state != INCOMPLETE).then_some(neighbour.mac);
                self.table.touch(at, if state == DELAY { PROBE } else { state }, now);
                return Some(Due::Ask(address, mac));
            }
        }
        None
    }

    /// All neighbours with their MAC addresses, if known, and states.
    pub fn each(&self) -> impl Iterator<Item = (IpAddr, Option<Mac>, &'static str)> {
        NAMES.into_iter().enumerate().flat_map(move |(state, name)| {
            self.table.of_age(state).map(move |at| {
                let mac = (state != INCOMPLETE).then_some(self.table.value(at).mac);
                (address(self.table.key(at)), mac, name)
            })
        })
    }
}

fn key(address: IpAddr) -> Key {
    let mut key = [0; 40];
    match address {
        IpAddr::V4(address) => key[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => {
            key[..16].copy_from_slice(&address.octets());
            key[16] = 6;
        }
    }
    key
}

fn address(key: &Key) -> IpAddr {
    let [a, b, c, d, ..] = *key;
    match key.first_chunk::<16>() {
        Some(octets) if key[16] == 6 => Ipv6Addr::from(*octets).into(),
        _ => [a, b, c, d].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Heard = Heard { solicited: true, overrides: true, creates: false };
    const QUESTION: Heard = Heard { solicited: false, overrides: true, creates: true };
    const PROXY: Heard = Heard { solicited: true, overrides: false, creates: false };

    fn host(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    fn packet() -> Packet {
        Packet::from_slice(&[0; 60]).unwrap()
    }

    fn state(cache: &Cache, address: IpAddr) -> Option<&'static str> {
        cache.each().find(|(known, ..)| *known == address).map(|(.., state)| state)
    }

    /// What is due, in words: whom to ask and how, how many packets cannot go.
    fn due(cache: &mut Cache, now: u64) -> Vec<String> {
        std::iter::from_fn(|| cache.due(now))
            .map(|due| match due {
                Due::Ask(address, None) => format!("who has {address}"),
                Due::Ask(address, Some(mac)) => format!("{mac}: {address}"),
                Due::Silent(waited) => format!("{} lost", waited.len()),
            })
            .collect()
    }

    #[test]
    fn a_neighbour_goes_through_all_states() {
        let mut cache = Cache::new(4);
        let (one, second) = (host(1), SECOND);
        assert_eq!(cache.mac(one, 0), None);
        assert_eq!(cache.wait(one, packet(), 0), Kept::Ask);
        assert_eq!(cache.wait(one, packet(), 0), Kept::Waits);
        assert_eq!(cache.mac(one, 0), None, "others wait, too");
        assert_eq!(due(&mut cache, second - 1), [""; 0]);
        assert_eq!(due(&mut cache, second), ["who has 10.0.0.1"]);
        let learned = cache.learn(one, Some(mac(1)), ANSWER, 2 * second);
        assert_eq!((learned.asked, learned.waited.len()), (true, 2));
        assert_eq!(cache.mac(one, 2 * second), Some(mac(1)));
        assert_eq!(due(&mut cache, 31 * second), [""; 0]);
        assert_eq!(state(&cache, one), Some("reachable"));
        assert_eq!(due(&mut cache, 32 * second), [""; 0]);
        assert_eq!(state(&cache, one), Some("stale"));
        // Nobody is asked about a neighbour that nothing is sent to.
        assert_eq!(due(&mut cache, 1000 * second), [""; 0]);
        assert_eq!(cache.mac(one, 1000 * second), Some(mac(1)));
        assert_eq!(state(&cache, one), Some("delay"));
        assert_eq!(due(&mut cache, 1005 * second), ["02:00:00:00:00:01: 10.0.0.1"]);
        assert!(cache.learn(one, Some(mac(1)), ANSWER, 1005 * second).asked);
        assert_eq!(state(&cache, one), Some("reachable"));
        // Now it is silent.
        assert_eq!(due(&mut cache, 1035 * second), [""; 0]);
        assert_eq!(cache.mac(one, 1035 * second), Some(mac(1)));
        for at in 1040..1043 {
            assert_eq!(due(&mut cache, at * second), ["02:00:00:00:00:01: 10.0.0.1"]);
            assert_eq!(cache.mac(one, at * second), Some(mac(1)), "used until it is given up");
        }
        assert_eq!(due(&mut cache, 1043 * second), ["0 lost"]);
        assert_eq!((cache.mac(one, 1043 * second), cache.len()), (None, 0));
    }

    #[test]
    fn three_questions_without_an_answer_are_one() {
        let mut cache = Cache::new(4);
        for _ in 0..WAITING {
            assert!(matches!(cache.wait(host(1), packet(), 0), Kept::Ask | Kept::Waits));
        }
        assert_eq!(cache.wait(host(1), packet(), 0), Kept::Displaced);
        assert_eq!(due(&mut cache, SECOND), ["who has 10.0.0.1"]);
        assert_eq!(due(&mut cache, 2 * SECOND), ["who has 10.0.0.1"]);
        assert_eq!(due(&mut cache, 3 * SECOND), [format!("{WAITING} lost")]);
        assert_eq!(cache.wait(host(1), packet(), 3 * SECOND), Kept::Ask, "it is asked again");
    }

    #[test]
    fn who_is_heard_of_is_known() {
        let mut cache = Cache::new(4);
        // Nobody asked.
        assert!(!cache.learn(host(1), Some(mac(1)), ANSWER, 0).asked);
        assert_eq!(cache.mac(host(1), 0), None);
        cache.learn(host(1), Some(mac(1)), QUESTION, 0);
        assert_eq!(state(&cache, host(1)), Some("stale"));
        assert_eq!(cache.mac(host(1), 0), Some(mac(1)));
        // Confirmed, then moved to another card.
        cache.learn(host(1), None, ANSWER, 0);
        assert_eq!(state(&cache, host(1)), Some("reachable"));
        cache.learn(host(1), Some(mac(1)), QUESTION, 0);
        assert_eq!(state(&cache, host(1)), Some("reachable"), "nothing new");
        cache.learn(host(1), Some(mac(2)), QUESTION, 0);
        assert_eq!(state(&cache, host(1)), Some("stale"));
        assert_eq!(cache.mac(host(1), 0), Some(mac(2)));
        // Another answers in its place, and does not insist.
        cache.learn(host(1), None, ANSWER, 0);
        cache.learn(host(1), Some(mac(3)), PROXY, 0);
        assert_eq!(state(&cache, host(1)), Some("stale"));
        assert_eq!(cache.mac(host(1), 0), Some(mac(2)));
        // An answer that does not say where.
        cache.wait(host(2), packet(), 0);
        assert!(cache.learn(host(2), None, ANSWER, 0).waited.is_empty());
        assert_eq!(state(&cache, host(2)), Some("incomplete"));
        assert_eq!(cache.learn(host(2), Some(mac(4)), PROXY, 0).waited.len(), 1);
    }

    #[test]
    fn hosts_that_do_not_exist_leave_room() {
        let mut cache = Cache::new(4);
        for last in 1..=2 {
            assert_eq!(cache.wait(host(last), packet(), 0), Kept::Ask);
        }
        assert_eq!(cache.wait(host(3), packet(), 0), Kept::Full);
        for last in 4..=6 {
            cache.learn(host(last), Some(mac(last)), QUESTION, u64::from(last));
        }
        // The one that was not used for longest went.
        let stale: Vec<_> = cache.each().filter(|(.., state)| *state == "stale").collect();
        assert_eq!(
            stale.iter().map(|(address, ..)| *address).collect::<Vec<_>>(),
            [host(5), host(6)]
        );
        assert_eq!(due(&mut cache, SECOND).len(), 2);
        assert_eq!(due(&mut cache, 2 * SECOND).len(), 2);
        assert_eq!(due(&mut cache, 3 * SECOND), ["1 lost", "1 lost"]);
        assert_eq!(cache.wait(host(3), packet(), 0), Kept::Ask);
    }

    #[test]
    fn versions_are_told_apart() {
        let (four, six) =
            (IpAddr::from([1, 2, 3, 4]), IpAddr::from([0x102, 0x304, 0, 0, 0, 0, 0, 0]));
        assert_ne!(key(four), key(six));
        assert_eq!((address(&key(four)), address(&key(six))), (four, six));
    }
}
