//! What the engine cuts the kernel puts together, and the other way round.

use super::mirror::Mirror;
use super::*;

/// What comes from the kernel goes through `app` and back to it: `bounce` is the other host, which
/// answers datagrams.
fn network(there: &str, back: &str) -> String {
    format!(
        "links = [
    'tap.tx -> neighbour.south', 'neighbour.south -> tap.rx',
    'neighbour.north -> there.input', 'there.output -> other.tx', 'other.rx -> back.input',
    'back.output -> neighbour.north',
]
[apps]
tap = {{ kind = 'Tap', interface = 'tap0', mtu = 1500 }}
neighbour = {{ kind = 'Neighbour', mac = '02:00:00:00:00:10', addresses = ['10.9.0.1', 'fd09::1'] }}
there = {{ {there} }}
back = {{ {back} }}
"
    )
}

/// Sends datagrams of many lengths to the mirror and expects them back.
fn goes_round(there: &str, back: &str, mtu: u32) -> Option<Engine> {
    if !namespace("fragments") {
        return None;
    }
    let text = format!("{}other = 'Mirror'\n", network(there, back));
    let mut registry = Registry::standard().clone();
    registry.register::<Mirror>();
    let file = Config::from_toml_checked(&text, &registry).expect("it is right");
    let mut engine = Engine::with_registry(Options::default(), registry);
    engine.configure(&file.config).expect("it starts");
    ip("address add 10.9.0.2/24 dev tap0");
    ip("address add fd09::2/64 dev tap0 nodad");
    // What the kernel sends is cut for this; it takes longer packets all the same.
    ip(&format!("link set tap0 mtu {mtu}"));
    for (ours, theirs) in [("10.9.0.2", "10.9.0.1"), ("fd09::2", "fd09::1")] {
        let socket = socket(ours);
        socket.connect((theirs, 9)).expect("connect");
        if ours.contains('.') {
            // Its packets may be cut; the mirror leaves them the bit that says so.
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT);
        }
        for length in [0usize, 1, 500, 1231, 1232, 1233, 1300, 1452, 1500, 1600, 1700, 1800] {
            let data: Vec<u8> = (0..length).map(|byte| (byte * 31 + length) as u8).collect();
            let mut buffer = [0; 4000];
            until(&mut engine, "it comes back", || {
                // Again where neighbours were still looked for.
                let _ = socket.send(&data);
                for _ in 0..20 {
                    match socket.recv(&mut buffer) {
                        Ok(got) if buffer[..got] == data => return Some(()),
                        _ => std::thread::yield_now(),
                    }
                }
                None
            });
        }
    }
    Some(engine)
}

#[test]
fn the_engine_joins_what_the_kernel_cuts() {
    let joins = "kind = 'Reassembler'";
    let cuts = "kind = 'Fragmenter', mtu = 1500";
    if let Some(engine) = goes_round(joins, cuts, 1280) {
        assert!(counter(&engine, "there", "Reassembler", "reassembled") >= 14);
        for bad in ["malformed", "overlaps", "too_long"] {
            assert_eq!(counter(&engine, "there", "Reassembler", bad), 0, "{bad}");
        }
    }
}

#[test]
fn the_kernel_joins_what_the_engine_cuts() {
    let joins = "kind = 'Reassembler'";
    let cuts = "kind = 'Fragmenter', mtu = 600";
    if let Some(engine) = goes_round(joins, cuts, 1500) {
        assert!(counter(&engine, "back", "Fragmenter", "fragmented") >= 20);
        assert_eq!(counter(&engine, "back", "Fragmenter", "refused"), 0);
    }
}
