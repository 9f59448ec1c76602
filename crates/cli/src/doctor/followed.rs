//! Why a program at either end of a connection is not followed: in the words that `run` and `doctor`
//! have for it.

use std::collections::HashMap;

use connections::{Connection, Mode};
use smc::reason::{self, Reason};

use super::process::unfollowed;
use crate::finding::Finding;

/// Says of connections on TCP which of their two programs is not followed, and why.
pub fn explain(connections: &mut [Connection]) {
    explain_by(connections, unfollowed);
}

fn explain_by(connections: &mut [Connection], look: impl Fn(u32) -> Option<Finding>) {
    let mut known = HashMap::new();
    for connection in connections {
        let Mode::Tcp { reason, reason_name, words, hint, .. } = &mut connection.mode else {
            continue;
        };
        let (own, peer) = (&connection.programs, &connection.peer_programs);
        let (is_own, programs) = match Reason(*reason) {
            // The library is in a Go program of which it cannot follow the calls: it waits for the first.
            reason::NOT_YET if connection.detail.is_none() => (true, own),
            reason::NOT_FOLLOWED => (true, own),
            reason::PEER_NO_SMC => (false, peer),
            _ => continue,
        };
        let Some(program) = programs.first() else { continue };
        let found: &Option<Finding> = known.entry(program.pid).or_insert_with(|| look(program.pid));
        let Some(Finding { words: why, advice, .. }) = found else { continue };
        if is_own {
            (*reason, *reason_name) = (reason::NOT_FOLLOWED.code(), reason::NOT_FOLLOWED.name());
            *words = format!("{} {why}", program.name).into();
        } else {
            *words = format!("{words}; {} at the other end {why}", program.name).into();
        }
        if let Some(advice) = advice {
            *hint = advice.clone().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::fixtures::{connection, tcp};
    use connections::Program;

    fn with(code: Reason) -> Mode {
        let mut mode = tcp();
        if let Mode::Tcp { reason, reason_name, .. } = &mut mode {
            (*reason, *reason_name) = (code.code(), code.name());
        }
        mode
    }

    #[test]
    fn each_end_that_is_not_followed_is_named() {
        let of = |mode, peer| {
            let mut one = connection("ACTIVE", mode);
            one.peer_programs = vec![Program { pid: peer, name: "other".into() }];
            one
        };
        let mut all = [
            of(with(reason::NOT_FOLLOWED), 1),
            of(tcp(), 12),
            // Nothing is the matter with that one.
            of(tcp(), 1),
            of(with(reason::SANDBOX), 12),
            of(with(reason::NOT_YET), 1),
        ];
        explain_by(&mut all, |pid| {
            (pid == 12).then(|| Finding::obstacle("is static", "Build it."))
        });
        let said = all.map(|one| match one.mode {
            Mode::Tcp { reason_name, words, hint, .. } => format!("{reason_name}: {words}. {hint}"),
            _ => unreachable!("all are on TCP"),
        });
        let usual = "peer did not signal SMC. Start it under `shortwire run` too.";
        assert_eq!(said[0], "NOT_FOLLOWED: redis-server is static. Build it.");
        let peer =
            "PEER_NO_SMC: peer did not signal SMC; other at the other end is static. Build it.";
        assert_eq!(said[1], peer);
        assert_eq!(said[2], format!("PEER_NO_SMC: {usual}"));
        assert_eq!(said[3], format!("SANDBOX: {usual}"));
        assert_eq!(said[4], "NOT_FOLLOWED: redis-server is static. Build it.");
    }
}
