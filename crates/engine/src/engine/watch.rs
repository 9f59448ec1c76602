//! What others look at in this thread of an engine, see [`crate::look`].
//!
//! A packet is seen where it lies in a link, after the app that put it there has returned: links
//! themselves, which scripts write to as well, know nothing of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use super::{Engine, Node};
use crate::config::LinkSpec;
use crate::link::Link;
use crate::look::{Head, Kind, Listener, Peer, Request, Writer, is_room};

mod follow;

use follow::Follow;

/// Requests that are answered at one look: who asks without end does not keep the engine.
const PER_LOOK: usize = 4;
/// Nanoseconds between looks for who wants to see something, and whether they still do.
const PERIOD: u64 = 30_000_000;

/// All lookers of a thread.
#[derive(Default)]
pub(super) struct Watch {
    listener: Option<Listener>,
    next: u64,
    captures: Vec<Capture>,
    follows: Vec<(Peer, Follow)>,
}

/// One link, as one looker sees it.
struct Capture {
    peer: Peer,
    ring: Writer,
    spec: LinkSpec,
    link: Rc<Link>,
    /// Place of the app that sends into it.
    from: usize,
    /// Packets that had been sent at the last look.
    seen: u64,
}

impl Watch {
    /// Nobody looks: the breath takes its usual way.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.captures.is_empty() && self.follows.is_empty()
    }

    /// From now on lookers can come. Failing that, nobody can look in, which they will be told.
    pub fn listen(&mut self, folder: &Path) {
        if self.listener.is_none() {
            self.listener = Listener::open(folder).ok();
        }
    }

    /// An app has taken its turn.
    pub fn after(&mut self, place: usize, node: &Node, now: u64) {
        for capture in self.captures.iter_mut().filter(|capture| capture.from == place) {
            capture.take(now);
        }
        for (_, follow) in &mut self.follows {
            follow.after(place, node, now);
        }
    }

    /// An app is about to take what waits.
    pub fn before(&mut self, place: usize, node: &Node) {
        for (_, follow) in &mut self.follows {
            follow.before(place, node);
        }
    }

    /// Packets have come from another thread.
    pub fn crossed(&mut self, link: &Rc<Link>, now: u64) {
        for (_, follow) in &mut self.follows {
            follow.crossed(link, now);
        }
    }

    /// After a new configuration: what is not there any more cannot be looked at. The looker sees
    /// its socket closed.
    pub fn renew(
        &mut self,
        links: &BTreeMap<LinkSpec, Rc<Link>>,
        place: impl Fn(&str) -> Option<usize>,
    ) {
        self.captures.retain_mut(|capture| {
            let same = links.get(&capture.spec).is_some_and(|link| Rc::ptr_eq(link, &capture.link));
            match place(&capture.spec.from.app) {
                Some(from) if same => {
                    capture.from = from;
                    true
                }
                _ => false,
            }
        });
        for (_, follow) in &mut self.follows {
            follow.renew(links);
        }
    }
}

impl Capture {
    fn take(&mut self, now: u64) {
        let sent = self.link.sent();
        let new = usize::try_from(sent - self.seen).unwrap_or(usize::MAX);
        self.seen = sent;
        // An app that is linked to itself may have taken some again.
        let ring = &mut self.ring;
        self.link.each_of_last(new, |packet| {
            let head = Head { kind: Kind::Captured, time: now, number: 0, parent: 0, label: "" };
            ring.write(&head, packet);
        });
    }
}

impl Engine {
    /// At a tick: lookers come and go.
    pub(super) fn look_for_lookers(&mut self, now: u64) {
        if self.watch.listener.is_none() || now < self.watch.next {
            return;
        }
        self.watch.next = now + PERIOD;
        self.watch.captures.retain(|capture| !capture.peer.is_gone());
        self.watch.follows.retain(|(peer, _)| !peer.is_gone());
        for _ in 0..PER_LOOK {
            let listener = self.watch.listener.as_mut();
            let Some((peer, request)) = listener.and_then(|listener| listener.poll(now)) else {
                return;
            };
            if is_room(self.watch.captures.len() + self.watch.follows.len()) {
                self.serve(peer, &request);
            } else {
                peer.refuse("as many look at this engine already as it serves");
            }
        }
    }

    fn serve(&mut self, peer: Peer, request: &Request) {
        // Memory is made for what is there.
        let memory = |peer: Peer| match Writer::create() {
            Ok(ring) => Some((peer, ring)),
            Err(_) => {
                peer.refuse("the engine has no memory for this");
                None
            }
        };
        match request {
            Request::Capture(name) => {
                let spec = name.parse::<LinkSpec>().ok();
                let link = spec.as_ref().and_then(|spec| self.links.get(spec).cloned());
                let from = spec.as_ref().and_then(|spec| self.place(&spec.from.app));
                let (Some(spec), Some(link), Some(from)) = (spec, link, from) else {
                    return peer.refuse(&format!("no such link: {name}"));
                };
                let Some((peer, mut ring)) = memory(peer) else { return };
                if peer.grant(&mut ring).is_ok() {
                    let seen = link.sent();
                    self.watch.captures.push(Capture { peer, ring, spec, link, from, seen });
                }
            }
            Request::Trace(count) => {
                let Some((peer, mut ring)) = memory(peer) else { return };
                if peer.grant(&mut ring).is_ok() {
                    let follow = Follow::new(ring, *count, &self.links);
                    self.watch.follows.push((peer, follow));
                }
            }
        }
    }

    fn place(&self, app: &str) -> Option<usize> {
        self.nodes.binary_search_by(|node| node.name.as_str().cmp(app)).ok()
    }

    /// After a new configuration.
    pub(super) fn renew_watch(&mut self) {
        let nodes = &self.nodes;
        let place = |app: &str| nodes.binary_search_by(|node| node.name.as_str().cmp(app)).ok();
        self.watch.renew(&self.links, place);
    }
}
