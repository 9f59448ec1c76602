//! Connections for tests.

use connections::{Connection, Mode, Program};

pub fn connection(state: &'static str, mode: Mode) -> Connection {
    Connection {
        state,
        uid: 33,
        inode: 4711,
        local: "127.0.0.1:6379".parse().ok(),
        peer: "[2001:db8:1234:5678:9abc:def0:1234:5678]:40000".parse().ok(),
        programs: vec![
            Program { pid: 12, name: "redis-server".into() },
            Program { pid: 13, name: "redis-server".into() },
        ],
        peer_programs: Vec::new(),
        mode,
        tcp: None,
        detail: None,
        stream: None,
    }
}

pub fn tcp() -> Mode {
    Mode::Tcp {
        reason: 0x0301_0000,
        reason_name: "PEER_NO_SMC",
        peer_reason: 0,
        peer_reason_name: "",
        words: "peer did not signal SMC".into(),
        hint: "Start it under `shortwire run` too.".into(),
    }
}
