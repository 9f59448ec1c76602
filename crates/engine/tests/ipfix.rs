//! Flow export, read by a decoder that knows nothing but RFC 7011.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

mod rig;

use rig::Rig;

fn rig(args: &str) -> Rig {
    let text = format!(
        "{args}\n[collector]\nlocal = '10.9.0.1'\nremote = '10.9.0.2'\n\
         mac = '02:00:00:00:00:01'\nnext_hop = '02:00:00:00:00:02'"
    );
    let args = toml::from_str::<toml::Table>(&text).unwrap();
    Rig::new("Ipfix", args, &["input"], &["output", "export"])
}

/// Values of a record by the numbers of their elements.
type Record = HashMap<u16, Vec<u8>>;

/// What a collector keeps.
#[derive(Default)]
struct Collector {
    templates: HashMap<u16, Vec<(u16, usize)>>,
    sequence: u32,
    records: Vec<Record>,
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Collector {
    fn read(&mut self, frame: &[u8]) {
        let packet = etherparse::PacketHeaders::from_ethernet_slice(frame).unwrap();
        checksum::packet::verify(&frame[14..]).unwrap();
        let Some(etherparse::TransportHeader::Udp(udp)) = packet.transport else { panic!("UDP") };
        assert_eq!(udp.destination_port, 4739);
        let message = packet.payload.slice();
        assert_eq!((be(&message[..2]), be(&message[2..4])), (10, message.len() as u64));
        assert_eq!(be(&message[8..12]), u64::from(self.sequence), "records before");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(be(&message[4..8]).abs_diff(now.as_secs()) < 60, "the time");
        let mut sets = &message[16..];
        while !sets.is_empty() {
            let (number, length) = (be(&sets[..2]) as u16, be(&sets[2..4]) as usize);
            let (mut set, rest) = (&sets[4..length], &sets[length..]);
            sets = rest;
            if number == 2 {
                while !set.is_empty() {
                    let fields = be(&set[2..4]) as usize;
                    let each = set[4..4 + fields * 4].chunks(4);
                    let fields = each.map(|f| (be(&f[..2]) as u16, be(&f[2..]) as usize)).collect();
                    set = &set[4 + set[4..].len().min(be(&set[2..4]) as usize * 4)..];
                    self.templates.insert(number + self.templates.len() as u16 + 254, fields);
                }
                continue;
            }
            let fields = self.templates.get(&number).expect("the template came before");
            let size: usize = fields.iter().map(|(_, length)| length).sum();
            assert_eq!(set.len() % size, 0, "whole records");
            for mut bytes in set.chunks(size) {
                let mut record = Record::new();
                for (element, length) in fields {
                    let (value, rest) = bytes.split_at(*length);
                    record.insert(*element, value.to_vec());
                    bytes = rest;
                }
                self.records.push(record);
                self.sequence += 1;
            }
        }
    }

    /// Reads what was exported until there are so many records.
    fn until(&mut self, rig: &mut Rig, records: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.records.len() < records {
            assert!(Instant::now() < end, "{} records of {records}", self.records.len());
            rig.0.breathe();
            std::thread::sleep(Duration::from_millis(1));
            for frame in rig.take("export") {
                self.read(&frame);
            }
        }
    }
}

fn frame(flow: u8, v6: bool, length: usize, last: bool) -> Vec<u8> {
    let mut frame = Vec::new();
    let ethernet = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = if v6 {
        ethernet.ipv6([0xfd; 16], [flow; 16], 9)
    } else {
        ethernet.ipv4([10, 0, 0, 1], [10, 0, 1, flow], 9)
    };
    let tcp = ip.tcp(1000 + u16::from(flow), 80, 1, 1).ack(1);
    let tcp = if last { tcp.fin() } else { tcp };
    tcp.write(&mut frame, &vec![0; length]).unwrap();
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Packets and bytes of each flow add up, whatever makes it be told.
    #[test]
    fn nothing_is_lost(packets in prop::collection::vec((0u8..8, any::<bool>(), 0usize..100, 0u8..10), 1..80), flows in 1usize..12) {
        let mut rig = rig(&format!("flows = {flows}\nidle = 0.02\nactive = 0.03"));
        let mut expected: HashMap<(u8, bool), (u64, u64)> = HashMap::new();
        for (flow, v6, length, last) in packets {
            let frame = frame(flow, v6, length, last == 0);
            let entry = expected.entry((flow, v6)).or_default();
            entry.0 += 1;
            entry.1 += frame.len() as u64 - 14;
            prop_assert_eq!(rig.send("input", &frame).one("output"), frame);
        }
        let mut collector = Collector::default();
        let sum = |collector: &Collector| {
            let mut sums: HashMap<(u8, bool), (u64, u64)> = HashMap::new();
            for record in &collector.records {
                let (address, v6) = match record.get(&12) {
                    Some(address) => (address, false),
                    None => (&record[&28], true),
                };
                let entry = sums.entry((*address.last().unwrap(), v6)).or_default();
                entry.0 += be(&record[&2]);
                entry.1 += be(&record[&1]);
                assert!(be(&record[&152]) <= be(&record[&153]), "it begins before it ends");
                assert_eq!((be(&record[&4]), be(&record[&11])), (6, 80));
            }
            sums
        };
        let mut wanted = 1;
        while sum(&collector) != expected {
            collector.until(&mut rig, wanted);
            wanted = collector.records.len() + 1;
            prop_assert!(wanted < 400);
        }
    }
}

#[test]
fn reasons_and_flags_are_told() {
    // Once more where this machine was busy: no flow may have been idle before the next packet came.
    let sent = (0..20).find_map(|_| {
        let (mut sent, begun) = (rig("flows = 1\nidle = 0.3"), Instant::now());
        sent.send("input", &frame(1, false, 0, false)).send("input", &frame(1, false, 0, true));
        sent.send("input", &frame(2, false, 0, false)).send("input", &frame(3, false, 0, false));
        (begun.elapsed() < Duration::from_millis(200)).then_some(sent)
    });
    let mut rig = sent.expect("four packets in 200 ms");
    let mut collector = Collector::default();
    collector.until(&mut rig, 3);
    let told: Vec<_> = collector
        .records
        .iter()
        .map(|record| (record[&12][3], be(&record[&136]), be(&record[&6])))
        .collect();
    // The end of the stream, no room, no packets.
    assert_eq!(told, [(1, 3, 0x11), (2, 5, 0x10), (3, 1, 0x10)]);
    rig.send("input", &[0xff; 60]).send("input", &frame(1, false, 0, false)[..30]);
    assert_eq!(rig.counter("Ipfix", "not_flows"), 2);
    assert_eq!(rig.count(&["output"]), [6], "all pass");
}

#[test]
fn many_flows_fill_messages() {
    let mut rig = rig("idle = 1.0");
    for flow in 0..100 {
        rig.send("input", &frame(flow, flow % 2 == 0, 0, false));
    }
    // All of them are idle with the next breath: those that were one after the other, as they were
    // sent on a slow machine, would each have a message of its own.
    std::thread::sleep(Duration::from_millis(1100));
    let mut collector = Collector::default();
    collector.until(&mut rig, 100);
    assert!(rig.counter("Ipfix", "messages") < 40);
}
