//! What the target of apps that look into packets does with its input.

use engine::{Config, Engine, Options, Packet, pool};

/// Kinds with their ports and arguments. A corpus file's first byte is a place in this list.
const APPS: [(&str, &[&str], &[&str], &str); 14] = [
    ("Forwarder", &["left", "right"], &["left", "right"], FORWARDER),
    ("Fragmenter", &["input"], &["output"], "mtu = 200"),
    ("Reassembler", &["input"], &["output"], "datagrams = 3"),
    ("Rss", &["input"], &["a", "b", "c"], ""),
    ("Acl", SIDES, SIDES, "connections = 3\nrules = [{ action = 'allow', from = 'inside' }]"),
    ("Nat", SIDES, SIDES, "address = '192.0.2.7'\nports = [1024, 1026]\nmappings = 3"),
    ("Gre", TUNNEL, TUNNEL, ""),
    ("Gre", TUNNEL, TUNNEL, "key = 1\nchecksum = true\nsequence = true\nmode = 'ip'"),
    ("Vxlan", TUNNEL, TUNNEL, "vni = 1"),
    ("L2tpv3", TUNNEL, TUNNEL, "session = 1\npeer_session = 1\ncookie = '01020304'"),
    ("L2tpv3", TUNNEL, TUNNEL, "session = 1\npeer_session = 1\ncarrier = 'udp'\nsublayer = true"),
    ("Esp", TUNNEL, TUNNEL, ESP),
    ("Neighbour", &["south", "north"], &["south", "north"], NEIGHBOUR),
    ("Ipfix", &["input"], &["output", "export"], IPFIX),
];

const SIDES: &[&str] = &["inside", "outside"];
const TUNNEL: &[&str] = &["inner", "outer"];
const FORWARDER: &str = "
ports.left = { mac = '02:00:00:00:00:01', addresses = ['192.0.2.7', 'fd00::1'], mtu = 300 }
ports.right = { mac = '02:00:00:00:00:02', addresses = ['192.0.2.8', 'fd00::2'], mtu = 100 }
routes = [
    { prefix = '0.0.0.0/1', port = 'left', mac = '02:00:00:00:00:03' },
    { prefix = '10.0.0.0/8', port = 'right', mac = '02:00:00:00:00:03' },
    { prefix = '::/1', port = 'right', mac = '02:00:00:00:00:03' },
]";
const ESP: &str = "
send = { spi = 256, key = '000102030405060708090a0b0c0d0e0f00010203' }
receive = { spi = 257, key = '0f0102030405060708090a0b0c0d0e0f00010203' }";
const NEIGHBOUR: &str = "
mac = '02:00:00:00:00:01'
addresses = ['192.0.2.7', 'fd00::1']
neighbours = 3
routes = [{ prefix = '10.0.0.0/8' }, { prefix = '0.0.0.0/0', via = '192.0.2.9' }, { prefix = 'fd00::/64' }]
";
const IPFIX: &str = "
flows = 3
idle = 1e-9
active = 1e-9
templates = 1e-9
[apps.x.collector]
local = '192.0.2.7'
remote = '192.0.2.8'
mac = '02:00:00:00:00:01'
next_hop = '02:00:00:00:00:02'";
const OUTER: &str = "
[apps.x.outer]
local = '192.0.2.7'
remote = '192.0.2.8'
mac = '02:00:00:00:00:01'
next_hop = '02:00:00:00:00:02'";

/// Frames, each with the number of its port and its length before it, go through an app: it makes
/// nothing of more bytes than a packet holds, goes on, and frees what it does not send. Returns how
/// many packets came out.
pub fn frames(input: &[u8]) -> usize {
    let Some((first, mut rest)) = input.split_first() else { return 0 };
    let (kind, inputs, outputs, args) = APPS[usize::from(*first) % APPS.len()];
    let each = |ports: &[&str], line: &dyn Fn(&str) -> String| -> String {
        ports.iter().map(|port| line(port)).collect()
    };
    let links = [
        each(inputs, &|port| format!("'in_{port}.output -> x.{port}',")),
        each(outputs, &|port| format!("'x.{port} -> out_{port}.input',")),
    ]
    .concat();
    let around = [
        each(inputs, &|port| format!("in_{port} = 'Repeater'\n")),
        each(outputs, &|port| format!("out_{port} = {{ kind = 'DelayedStart', delay = 1e9 }}\n")),
    ]
    .concat();
    let outer = if inputs == TUNNEL { OUTER } else { "" };
    let text =
        format!("links = [{links}]\n[apps]\n{around}[apps.x]\nkind = '{kind}'\n{args}{outer}");
    let config = Config::from_toml(&text).expect("a configuration").config;
    let before = pool::stats().live;
    let mut engine = Engine::new(Options::default());
    engine.configure(&config).expect("it starts");
    let mut out = 0;
    while let [port, high, low, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        let (frame, following) = more.split_at(length);
        rest = following;
        let Some(packet) = Packet::from_slice(frame) else { continue };
        let port = inputs[usize::from(*port) % inputs.len()];
        engine.link(&format!("in_{port}.output -> x.{port}")).expect("the link").transmit(packet);
        engine.breathe();
        for port in outputs {
            let link = engine.link(&format!("x.{port} -> out_{port}.input")).expect("the link");
            out += link.discard();
        }
    }
    drop(engine);
    assert_eq!(pool::stats().live, before, "{kind} kept packets");
    out
}
