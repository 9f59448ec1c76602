//! The words of filters, each with what it wants of a connection, and what is refused.

use super::super::fixtures::{connection, tcp};
use super::*;

fn parse(text: &str) -> Result<Filter, String> {
    Filter::parse(&text.split(' ').map(String::from).collect::<Vec<_>>())
}

fn wants(text: &str) -> bool {
    // 127.0.0.1:6379 to an IPv6 address, port 40000; uid 33; 12 and 13, redis-server; TCP.
    let mut one = connection("ACTIVE", tcp());
    one.peer_programs = vec![connections::Program { pid: 77, name: "wrk".into() }];
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).wants(&one)
}

#[test]
fn tests_of_fields() {
    for yes in [
        "",
        "sport = :6379",
        "sport :6379",
        "sport=6379",
        "sport eq :6379",
        "dport > 1024",
        "dport >= :40000",
        "src 127.0.0.1",
        "src 127.0.0.0/8",
        "src *:6379",
        "src 127.0.0.1:6379",
        "src 0.0.0.0/0",
        "dst [2001:db8::]/32",
        "dst != 10.0.0.1",
        "pid 13",
        "uid 33",
        "uid lt 34",
        "program redis-server",
        "program = redis*",
        "program != nginx",
        "peer wrk",
        "mode tcp",
        "mode != smcd",
        "reason PEER_NO_SMC",
        "reason peer*",
        "reason 0x03010000",
        "state established",
        "state active",
        "state connected",
        "state all",
        "exclude listening",
    ] {
        assert!(wants(yes), "{yes}");
    }
    for no in [
        "sport 80",
        "sport != :6379",
        "dport < 40000",
        "src 128.0.0.0/8",
        "src ::1",
        "dst *:80",
        "pid 14",
        "pid > 13",
        "program redis",
        "peer nginx",
        "mode smcd",
        "reason NOT_YET",
        "state listening",
        "state closed",
        "device loopback",
        "exclude established",
    ] {
        assert!(!wants(no), "{no}");
    }
}

#[test]
fn tests_are_joined_as_in_iproute2() {
    for yes in [
        "( sport = :6379 or dport = :6379 ) and mode tcp",
        "state established ( sport 1 or sport 6379 )",
        "not pid 14",
        "! ( pid 14 or pid 15 )",
        "pid 14 or pid 13 and uid 33",
        "(sport=:6379||dport=:6379)&&!program=wrk",
    ] {
        assert!(wants(yes), "{yes}");
    }
    for no in ["( pid 13 or pid 14 ) uid 34", "pid 14 and pid 13 or uid 34", "not state connected"]
    {
        assert!(!wants(no), "{no}");
    }
    assert!(parse("pid 1 and not state closed").unwrap().names_states());
    assert!(!parse("pid 1").unwrap().names_states());
}

#[test]
fn mistakes_are_named() {
    for (wrong, says) in [
        ("foo", "`foo` is no field of a filter; there are state, sport"),
        ("dprot :80", "`dprot` is no field of a filter (`dport`?)"),
        ("pid x", "`pid` wants a number, not `x`"),
        ("pid", "`pid` wants a value"),
        ("( pid 1", "a `)` is missing"),
        ("pid 1 )", "over before `)`"),
        ("pid 1 or", "ends too early"),
        ("sport nosuchservice", "is no port"),
        ("sport 70000", "is no port"),
        ("src 300.1.1.1", "is no address"),
        ("src 10.0.0.0/33", "is no address"),
        ("state sleeping", "there is no state `sleeping`; there are established"),
        ("mode rdma", "there is no mode `rdma`; there are SMCD"),
        ("reason NOTYET", "no reason is called `NOTYET`"),
        ("program < a", "`program` can only be = or !="),
    ] {
        let said = parse(wrong).expect_err(wrong);
        assert!(said.contains(says), "{wrong}: {said}");
    }
}
