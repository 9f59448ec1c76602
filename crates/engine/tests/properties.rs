//! Properties of packets, links and whole networks against simple models.

use std::collections::VecDeque;

use engine::arena::{MAX_LENGTH, SLOT};
use engine::link::CAPACITY;
use engine::{BATCH, Batch, Config, Engine, Link, Options, Packet, pool};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Change {
    Append(Vec<u8>),
    Prepend(Vec<u8>),
    Shrink(usize),
    Truncate(usize),
    Resize(usize),
    Duplicate,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..700);
    prop_oneof![
        bytes().prop_map(Change::Append),
        bytes().prop_map(Change::Prepend),
        (0..1200usize).prop_map(Change::Shrink),
        (0..2100usize).prop_map(Change::Truncate),
        (0..2100usize).prop_map(Change::Resize),
        Just(Change::Duplicate),
    ]
}

proptest! {
    #[test]
    fn a_packet_is_a_bounded_vector(changes in prop::collection::vec(change(), 1..60)) {
        let before = pool::stats().live;
        let mut packet = Packet::allocate().unwrap();
        // A neighbour in the arena must never change.
        let other = Packet::from_slice(&[0xAA; 1500]).unwrap();
        let mut model: Vec<u8> = Vec::new();
        for change in changes {
            match change {
                Change::Append(bytes) => {
                    let fits = model.len() + bytes.len() <= MAX_LENGTH;
                    prop_assert_eq!(packet.append(&bytes), fits);
                    if fits { model.extend(&bytes); }
                }
                Change::Prepend(bytes) => {
                    let fits = model.len() + bytes.len() <= MAX_LENGTH;
                    prop_assert_eq!(packet.prepend(&bytes), fits);
                    if fits { model.splice(0..0, bytes); }
                }
                Change::Shrink(count) => {
                    let fits = count <= model.len();
                    prop_assert_eq!(packet.shrink_front(count), fits);
                    if fits { model.drain(..count); }
                }
                Change::Truncate(length) => {
                    packet.truncate(length);
                    model.truncate(length);
                }
                Change::Resize(length) => {
                    let fits = length <= MAX_LENGTH;
                    prop_assert_eq!(packet.resize(length), fits);
                    if fits { model.resize(length, 0); }
                }
                Change::Duplicate => packet = packet.duplicate().unwrap(),
            }
            prop_assert_eq!(&*packet, &*model);
            prop_assert_eq!(packet.headroom() + packet.length() + packet.tailroom(), MAX_LENGTH);
            prop_assert_eq!(packet.as_ptr().addr() / SLOT, (packet.as_ptr().addr() + packet.length().max(1) - 1) / SLOT);
        }
        prop_assert!(other.iter().all(|byte| *byte == 0xAA));
        drop((packet, other));
        prop_assert_eq!(pool::stats().live, before);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Transmit(usize),
    TransmitBatch(usize),
    Copies(usize),
    CopiesOf(usize),
    Receive(usize),
    ReceiveBatch,
    ForwardOut(usize),
    ForwardBack(usize),
    ForwardToItself(usize),
    Discard,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..20usize).prop_map(Step::Transmit),
        (0..=BATCH).prop_map(Step::TransmitBatch),
        (0..400usize).prop_map(Step::Copies),
        (0..=BATCH).prop_map(Step::CopiesOf),
        (0..20usize).prop_map(Step::Receive),
        Just(Step::ReceiveBatch),
        (0..300usize).prop_map(Step::ForwardOut),
        (0..300usize).prop_map(Step::ForwardBack),
        (0..300usize).prop_map(Step::ForwardToItself),
        Just(Step::Discard),
    ]
}

/// A queue with counters, as a link should be.
#[derive(Default)]
struct Model {
    queue: VecDeque<u64>,
    stats: engine::link::LinkStats,
}

fn length(id: u64) -> usize {
    8 + (id % 100) as usize
}

impl Model {
    fn send(&mut self, id: u64) {
        if self.queue.len() == CAPACITY {
            self.stats.txdrop += 1;
            return;
        }
        self.queue.push_back(id);
        self.stats.txpackets += 1;
        self.stats.txbytes += length(id) as u64;
    }

    fn receive(&mut self) -> Option<u64> {
        let id = self.queue.pop_front()?;
        self.stats.rxpackets += 1;
        self.stats.rxbytes += length(id) as u64;
        Some(id)
    }
}

fn packet(id: u64) -> Packet {
    let mut packet = Packet::from_slice(&id.to_le_bytes()).unwrap();
    packet.resize(length(id));
    packet
}

fn id(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet[..8].try_into().unwrap())
}

fn batch(ids: impl Iterator<Item = u64>) -> Batch {
    let mut batch = Batch::new();
    ids.for_each(|id| assert!(batch.push(packet(id)).is_none()));
    batch
}

proptest! {
    #[test]
    fn a_link_is_a_bounded_queue(steps in prop::collection::vec(step(), 1..120)) {
        let before = pool::stats().live;
        {
            let (link, other) = (Link::new(), Link::new());
            let (mut model, mut far) = (Model::default(), Model::default());
            let mut next = 0u64..;
            for step in steps {
                match step {
                    Step::Transmit(count) => next.by_ref().take(count).for_each(|id| {
                        link.transmit(packet(id));
                        model.send(id);
                    }),
                    Step::TransmitBatch(count) => {
                        let ids: Vec<u64> = next.by_ref().take(count).collect();
                        link.transmit_batch(&mut batch(ids.iter().copied()));
                        ids.into_iter().for_each(|id| model.send(id));
                    }
                    Step::Copies(count) => {
                        let id = next.next().unwrap();
                        let fitting = count.min(CAPACITY - model.queue.len());
                        prop_assert_eq!(link.transmit_copies(&packet(id), count), fitting);
                        (0..fitting).for_each(|_| model.send(id));
                    }
                    Step::CopiesOf(count) => {
                        let ids: Vec<u64> = next.by_ref().take(count).collect();
                        link.transmit_copies_of(&batch(ids.iter().copied()));
                        ids.into_iter().for_each(|id| model.send(id));
                    }
                    Step::Receive(count) => for _ in 0..count {
                        prop_assert_eq!(link.receive().map(|packet| id(&packet)), model.receive());
                    },
                    Step::ReceiveBatch => {
                        let mut batch = Batch::new();
                        let count = link.receive_batch(&mut batch);
                        prop_assert_eq!(count, model.queue.len().min(BATCH));
                        for packet in batch.drain() {
                            prop_assert_eq!(Some(id(&packet)), model.receive());
                        }
                    }
                    Step::ForwardOut(most) => {
                        prop_assert_eq!(link.forward(&other, most), most.min(model.queue.len()));
                        for _ in 0..most {
                            if let Some(id) = model.receive() { far.send(id); }
                        }
                    }
                    Step::ForwardBack(most) => {
                        other.forward(&link, most);
                        for _ in 0..most {
                            if let Some(id) = far.receive() { model.send(id); }
                        }
                    }
                    Step::ForwardToItself(most) => {
                        for _ in 0..link.forward(&link, most) {
                            let id = model.receive().unwrap();
                            model.send(id);
                        }
                    }
                    Step::Discard => {
                        link.discard();
                        while model.receive().is_some() {}
                    }
                }
                for (link, model) in [(&link, &model), (&other, &far)] {
                    prop_assert_eq!(link.length(), model.queue.len());
                    prop_assert_eq!(link.stats(), model.stats);
                }
            }
        }
        prop_assert_eq!(pool::stats().live, before);
    }
}

const KINDS: [&str; 4] = ["Join", "Split", "Tee", "Sink"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any graph, with cycles: each link's packets are counted, and what left an app came in at it.
    #[test]
    fn networks_keep_account(
        kinds in prop::collection::vec(0..KINDS.len(), 1..8),
        links in prop::collection::vec((0usize..10, 0usize..8), 1..20),
        breaths in 1usize..30,
    ) {
        let before = pool::stats().live;
        {
            let mut config = Config::new();
            for (number, kind) in kinds.iter().enumerate() {
                config.app(&format!("app{number}"), KINDS[*kind], ()).unwrap();
            }
            for source in 0..2 {
                config.app(&format!("src{source}"), "Source", ()).unwrap();
            }
            let mut joined = std::collections::HashSet::new();
            for (number, (from, to)) in links.iter().enumerate() {
                let to = to % kinds.len();
                let (from, port) = match from.checked_sub(2) {
                    None => (format!("src{from}"), format!("out{number}")),
                    Some(from) => {
                        let from = from % kinds.len();
                        match KINDS[kinds[from]] {
                            "Sink" => continue,
                            "Join" if !joined.insert(from) => continue,
                            "Join" => (format!("app{from}"), "output".to_string()),
                            _ => (format!("app{from}"), format!("out{number}")),
                        }
                    }
                };
                config.link(&format!("{from}.{port} -> app{to}.in{number}")).unwrap();
            }
            let mut engine = Engine::new(Options::default());
            engine.configure(&config).unwrap();
            for _ in 0..breaths {
                engine.breathe();
            }
            let mut waiting = 0;
            for (spec, stats) in engine.links() {
                let link = engine.link(&spec.to_string()).unwrap();
                prop_assert_eq!(stats.txpackets - stats.rxpackets, link.length() as u64);
                prop_assert_eq!((stats.txbytes, stats.rxbytes), (stats.txpackets * 60, stats.rxpackets * 60));
                waiting += link.length() as i64;
            }
            for (number, kind) in kinds.iter().enumerate() {
                let name = format!("app{number}");
                let came: u64 = engine.links().filter(|(l, _)| l.to.app == name).map(|(_, s)| s.rxpackets).sum();
                let outputs: Vec<u64> = engine
                    .links()
                    .filter(|(link, _)| link.from.app == name)
                    .map(|(_, stats)| stats.txpackets + stats.txdrop)
                    .collect();
                match KINDS[*kind] {
                    "Tee" => prop_assert!(outputs.iter().all(|sent| *sent == came)),
                    _ if outputs.is_empty() => {}
                    _ => prop_assert_eq!(outputs.iter().sum::<u64>(), came),
                }
            }
            // Beside what waits there are only the two sources' templates.
            prop_assert_eq!(pool::stats().live - before, waiting + 2);
        }
        prop_assert_eq!(pool::stats().live, before);
    }
}
