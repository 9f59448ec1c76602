//! Filters that know connections.

use engine::apps::pcap::PcapFilterArgs;
use etherparse::PacketBuilder;

mod rig;

use rig::Rig;

fn filter(expression: &str, table: &str) -> Rig {
    let args = PcapFilterArgs { filter: expression.into(), state_table: Some(table.into()) };
    Rig::new("PcapFilter", args, &["input"], &["output"])
}

fn passes(rig: &mut Rig, frame: &[u8]) -> bool {
    rig.send("input", frame).count(&["output"]) == [1]
}

type Address = ([u8; 4], u16);

const HERE: Address = ([10, 0, 0, 5], 5000);
const THERE: Address = ([192, 0, 2, 9], 80);
const STRANGER: Address = ([192, 0, 2, 66], 80);

fn tcp(from: Address, to: Address, syn: bool) -> Vec<u8> {
    let mut builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4(from.0, to.0, 64)
        .tcp(from.1, to.1, 1000, 2000);
    builder = if syn { builder.syn() } else { builder.ack(7) };
    let mut frame = Vec::new();
    builder.write(&mut frame, b"some data").unwrap();
    frame
}

#[test]
fn answers_pass_through_another_filter_of_the_same_table() {
    let mut out = filter("src host 10.0.0.5 and tcp dst port 80", "both");
    let mut inwards = filter("arp", "both");
    let mut other = filter("arp", "another");
    let answer = tcp(THERE, HERE, false);
    assert!(!passes(&mut inwards, &answer), "nothing has begun yet");
    assert!(passes(&mut out, &tcp(HERE, THERE, true)));
    assert!(passes(&mut inwards, &answer));
    assert!(passes(&mut inwards, &tcp(HERE, THERE, false)), "either direction");
    assert!(!passes(&mut other, &answer), "another table knows nothing of it");
    assert!(!passes(&mut inwards, &tcp(STRANGER, HERE, false)));
    assert!(!passes(&mut inwards, &tcp((THERE.0, 81), HERE, false)), "another port");
    assert!(passes(&mut out, &tcp((HERE.0, 22), THERE, true)));
    assert!(passes(&mut inwards, &tcp(THERE, (HERE.0, 22), false)), "a second one");
    let counters =
        ["accepted", "rejected", "known"].map(|name| inwards.counter("PcapFilter", name));
    assert_eq!(counters, [0, 3, 3]);
    assert_eq!(out.counter("PcapFilter", "connections"), 2);
}

#[test]
fn a_table_goes_with_its_last_filter() {
    let mut first = filter("tcp", "short");
    assert!(passes(&mut first, &tcp(HERE, THERE, true)));
    let mut second = filter("arp", "short");
    drop(first);
    assert!(passes(&mut second, &tcp(THERE, HERE, false)), "the second one has it");
    drop(second);
    let mut third = filter("arp", "short");
    assert!(!passes(&mut third, &tcp(THERE, HERE, false)));
}

#[test]
fn packets_of_no_connection_are_judged_by_the_filter_alone() {
    let mut rig = filter("ether proto 0x88cc or ip[6:2] & 0x1fff != 0", "some");
    let lldp = [&[2u8; 12][..], &[0x88, 0xcc], &[0; 46]].concat();
    assert!(passes(&mut rig, &lldp) && passes(&mut rig, &lldp));
    let mut fragment = tcp(HERE, THERE, true);
    fragment[21] = 9;
    assert!(passes(&mut rig, &fragment));
    assert!(!passes(&mut rig, &tcp(HERE, THERE, true)), "a fragment begins no connection");
    assert!(!passes(&mut rig, &lldp[..13]));
    assert_eq!(rig.counter("PcapFilter", "connections"), 0);
}
