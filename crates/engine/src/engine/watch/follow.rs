//! The ways of a few packets through the apps of a thread.
//!
//! A packet is known by its slot. An app that passes it on keeps the slot; one that makes a copy has
//! another slot with the same bytes at the end of its turn, or with changed ones, which then cannot
//! be told from a new packet. What an app has taken and not passed on has ended there, or waits in
//! it and goes on later; a slot that another app uses next has ended for sure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use super::Node;
use crate::config::LinkSpec;
use crate::counters;
use crate::link::Link;
use crate::look::{Head, Kind, Writer};
use crate::packet::Packet;

/// Packets that are picked from what comes in at once: one burst is not the traffic.
const AT_ONCE: u32 = 2;

/// Packets that are followed at once, of which each has a copy here.
const MOST: usize = 1000;

/// Where a packet is.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Link(*const Link),
    /// Taken by the app at this place.
    App(usize),
}

struct Alive {
    number: u32,
    at: At,
    /// As it was when it was last seen.
    bytes: Vec<u8>,
    /// Links on which a copy was seen in this turn: of packets that are all alike, one is enough.
    copied_to: Vec<*const Link>,
}

struct Known {
    name: String,
    /// Packets sent into it at the last look.
    seen: u64,
    dropped: u64,
    /// For the address in `links`, which stays its own as long.
    link: Rc<Link>,
}

pub(super) struct Follow {
    ring: Writer,
    /// Packets yet to be picked.
    left: u32,
    next: u32,
    links: HashMap<*const Link, Known>,
    alive: HashMap<usize, Alive>,
    /// Packets that the app whose turn it is found waiting, and its counters then.
    waiting: Vec<usize>,
    /// All slots that waited beside them: these are no copies, even where packets are all alike.
    present: HashSet<usize>,
    counters: [u64; counters::MOST],
}

/// The slot is the 2048 bytes at a multiple of 2048 around the data.
fn slot(packet: &Packet) -> usize {
    packet.as_ptr().addr() / crate::arena::SLOT
}

impl Follow {
    pub fn new(ring: Writer, packets: u32, links: &BTreeMap<LinkSpec, Rc<Link>>) -> Self {
        let mut follow = Self {
            ring,
            left: packets,
            next: 1,
            links: HashMap::new(),
            alive: HashMap::new(),
            waiting: Vec::new(),
            present: HashSet::new(),
            counters: [0; counters::MOST],
        };
        follow.renew(links);
        follow
    }

    /// Ways through an earlier configuration are not followed on.
    pub fn renew(&mut self, links: &BTreeMap<LinkSpec, Rc<Link>>) {
        self.alive.clear();
        self.links = links
            .iter()
            .map(|(spec, link)| {
                let known = Known {
                    name: spec.to_string(),
                    seen: link.sent(),
                    dropped: link.dropped(),
                    link: Rc::clone(link),
                };
                (Rc::as_ptr(link), known)
            })
            .collect();
    }

    fn say(
        &mut self,
        kind: Kind,
        time: u64,
        (number, parent): (u32, u32),
        label: &str,
        packet: &[u8],
    ) {
        self.ring.write(&Head { kind, time, number, parent, label }, packet);
    }

    pub fn before(&mut self, place: usize, node: &Node) {
        self.waiting.clear();
        self.present.clear();
        let inputs = || node.io.inputs.iter().flatten();
        for (slot, alive) in &mut self.alive {
            alive.copied_to.clear();
            if inputs().any(|link| alive.at == At::Link(Rc::as_ptr(link))) {
                self.waiting.push(*slot);
            }
        }
        if !self.waiting.is_empty() {
            self.counters = node.own_counters();
            for link in inputs() {
                link.each_of_last(usize::MAX, |packet| {
                    self.present.insert(slot(packet));
                });
            }
        }
        debug_assert!(self.waiting.iter().all(|slot| self.alive[slot].at != At::App(place)));
    }

    /// New packets on a link, each with its slot.
    fn arrived(&mut self, link: &Rc<Link>) -> Vec<(usize, Vec<u8>)> {
        let Some(known) = self.links.get_mut(&Rc::as_ptr(link)) else { return Vec::new() };
        let sent = known.link.sent();
        let new = usize::try_from(sent - known.seen).unwrap_or(usize::MAX);
        known.seen = sent;
        let mut all = Vec::new();
        // Only what may be of interest is copied: nothing to be picked and nothing alive is most
        // of the time.
        if self.left > 0 || !self.alive.is_empty() {
            known.link.each_of_last(new, |packet| all.push((slot(packet), packet.to_vec())));
        }
        all
    }

    fn name(&self, link: &Rc<Link>) -> String {
        self.links.get(&Rc::as_ptr(link)).map(|known| known.name.clone()).unwrap_or_default()
    }

    pub fn crossed(&mut self, link: &Rc<Link>, now: u64) {
        for (slot, bytes) in self.arrived(link).into_iter().take(AT_ONCE as usize) {
            self.pick(link, slot, bytes, now);
        }
    }

    fn pick(&mut self, link: &Rc<Link>, slot: usize, bytes: Vec<u8>, now: u64) {
        if self.left == 0 || !self.is_room() {
            return;
        }
        self.left -= 1;
        let number = self.number();
        let name = self.name(link);
        self.say(Kind::Entered, now, (number, 0), &name, &bytes);
        let at = At::Link(Rc::as_ptr(link));
        self.alive.insert(slot, Alive { number, at, bytes, copied_to: Vec::new() });
    }

    /// Those that have ended are forgotten when there are too many: one that an app still holds is
    /// not seen again then.
    fn is_room(&mut self) -> bool {
        if self.alive.len() >= MOST {
            self.alive.retain(|_, alive| matches!(alive.at, At::Link(_)));
        }
        self.alive.len() < MOST
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    pub fn after(&mut self, place: usize, node: &Node, now: u64) {
        let mut picked = 0;
        for link in node.io.outputs.iter().flatten() {
            for (slot, bytes) in self.arrived(link) {
                self.sent(place, link, slot, bytes, now, node.info.pulls, &mut picked);
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        let gone: Vec<usize> =
            waiting.into_iter().filter(|slot| self.is_taken(*slot, node)).collect();
        if gone.is_empty() {
            return;
        }
        let label = self.account(node);
        for slot in gone {
            let Some(alive) = self.alive.get_mut(&slot) else { continue };
            alive.at = At::App(place);
            let number = alive.number;
            self.say(Kind::Ended, now, (number, 0), &label, &[]);
        }
    }

    /// One packet that this app has put on a link.
    #[expect(clippy::too_many_arguments, reason = "what is known of one packet")]
    fn sent(
        &mut self,
        place: usize,
        link: &Rc<Link>,
        slot: usize,
        bytes: Vec<u8>,
        now: u64,
        pulls: bool,
        picked: &mut u32,
    ) {
        let on = At::Link(Rc::as_ptr(link));
        let name = self.name(link);
        // What an interface took has left the engine, and the slot is the first to be used for what
        // comes from there; an app that also pulls and held it back has not changed it.
        let goes_on =
            |alive: &Alive| alive.at == At::App(place) && (!pulls || alive.bytes == bytes);
        let through = self.waiting.contains(&slot) || self.alive.get(&slot).is_some_and(goes_on);
        if through && let Some(alive) = self.alive.get_mut(&slot) {
            (alive.at, alive.bytes) = (on, bytes.clone());
            let number = alive.number;
            self.say(Kind::Moved, now, (number, 0), &name, &bytes);
            return;
        }
        // The slot of one that has ended elsewhere.
        self.alive.remove(&slot);
        let known = self.present.contains(&slot);
        let original = self.waiting.iter().copied().filter(|_| !known).find(|waiting| {
            self.alive.get(waiting).is_some_and(|alive| {
                alive.bytes == bytes && !alive.copied_to.contains(&Rc::as_ptr(link))
            })
        });
        let original = original.filter(|_| self.is_room());
        if let Some(alive) = original.and_then(|original| self.alive.get_mut(&original)) {
            alive.copied_to.push(Rc::as_ptr(link));
            let parent = alive.number;
            let number = self.number();
            self.say(Kind::Copied, now, (number, parent), &name, &bytes);
            self.alive.insert(slot, Alive { number, at: on, bytes, copied_to: Vec::new() });
        } else if pulls && *picked < AT_ONCE && self.waiting.is_empty() {
            *picked += 1;
            self.pick(link, slot, bytes, now);
        }
    }

    /// It was waiting for this app, is on none of its outputs, and does not wait any more.
    fn is_taken(&self, slot: usize, node: &Node) -> bool {
        let Some(alive) = self.alive.get(&slot) else { return false };
        let input =
            node.io.inputs.iter().flatten().find(|link| alive.at == At::Link(Rc::as_ptr(link)));
        let Some(input) = input else { return false };
        let mut waits = false;
        input.each_of_last(usize::MAX, |packet| waits |= self::slot(packet) == slot);
        !waits
    }

    /// The app, what it counted in this turn, and which of its outputs were full.
    fn account(&mut self, node: &Node) -> String {
        let mut label = format!("{} ({})", node.name, node.info.name);
        let now = node.own_counters();
        for ((name, before), after) in node.info.counters.iter().zip(self.counters).zip(now) {
            if after > before {
                label += &format!("; {name} +{}", after - before);
            }
        }
        for link in node.io.outputs.iter().flatten() {
            if let Some(known) = self.links.get_mut(&Rc::as_ptr(link)) {
                let dropped = known.link.dropped();
                if dropped > known.dropped {
                    label += &format!("; {} full, {} dropped", known.name, dropped - known.dropped);
                }
                known.dropped = dropped;
            }
        }
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that never end, and then such as an app has taken for good.
    #[test]
    fn what_is_followed_at_once_is_bounded() {
        let spec: LinkSpec = "a.x -> b.y".parse().unwrap();
        let link = Rc::new(Link::new());
        let links = BTreeMap::from([(spec, Rc::clone(&link))]);
        let mut follow = Follow::new(Writer::create().unwrap(), 1_000_000, &links);
        let mut kept = Vec::new();
        let mut come = |follow: &mut Follow| {
            for _ in 0..2 * MOST {
                link.transmit(Packet::from_slice(&[1; 60]).unwrap());
                follow.crossed(&link, 0);
                kept.extend(link.receive());
            }
        };
        come(&mut follow);
        assert_eq!((follow.alive.len(), follow.next as usize), (MOST, MOST + 1));
        for alive in follow.alive.values_mut() {
            alive.at = At::App(3);
        }
        come(&mut follow);
        assert_eq!((follow.alive.len(), follow.next as usize), (MOST, 2 * MOST + 1));
    }
}
