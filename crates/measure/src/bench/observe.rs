//! Looks at the connections of a program while it runs: how many go through shared memory, and why
//! the others do not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use connections::{Mode, modes};

#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Seen {
    pub smcd: usize,
    pub tcp: usize,
    /// In words, with how many connections each.
    pub reasons: BTreeMap<String, usize>,
}

impl Seen {
    /// Counts the connections of the processes in `group`, which is that of the client.
    pub fn of(group: u32) -> Seen {
        let mut seen = Seen::default();
        for mode in modes(|pid| group_of(pid) == Some(group)) {
            match mode {
                Mode::Smcd | Mode::Reset { .. } => seen.smcd += 1,
                Mode::Tcp { words, .. } => {
                    seen.tcp += 1;
                    *seen.reasons.entry(words.to_string()).or_default() += 1;
                }
                Mode::Listener | Mode::Rsocket | Mode::KernelSmc { .. } => {}
            }
        }
        seen
    }

    /// Keeps the one with more upgraded connections, then with more connections.
    pub fn keep_fuller(&mut self, other: Seen) {
        if (other.smcd, other.total()) > (self.smcd, self.total()) {
            *self = other;
        }
    }

    pub fn total(&self) -> usize {
        self.smcd + self.tcp
    }
}

/// The process group, behind the name, which may contain anything.
fn group_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_a_process() {
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        let mut leader =
            Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().expect("cat");
        assert_eq!(group_of(leader.id()), Some(leader.id()));
        drop(leader.stdin.take());
        leader.wait().expect("it ends with its input");
        assert_eq!(group_of(u32::MAX), None);
    }

    #[test]
    fn the_fuller_look_is_kept() {
        let mut seen = Seen { smcd: 1, tcp: 5, ..Seen::default() };
        seen.keep_fuller(Seen { smcd: 4, tcp: 0, ..Seen::default() });
        seen.keep_fuller(Seen { smcd: 0, tcp: 50, ..Seen::default() });
        assert_eq!((seen.smcd, seen.tcp), (4, 0));
    }
}
