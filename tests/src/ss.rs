//! What `shortwire ss` says, sampled while programs run.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use serde_json::Value;

use crate::deadline::Deadline;
use crate::skip::Outcome;
use crate::{millis, plain, report, shortwire};

/// How often a run is repeated that was not looked at often enough.
const TURNS: u32 = 5;

#[derive(Clone)]
pub struct Connection {
    pub pid: i64,
    pub local: String,
    pub peer: String,
    /// Mode SMCD, and at least one direction already in shared memory.
    pub smcd: bool,
    /// Of an upgraded connection: its device.
    pub device: String,
    /// State and, of a TCP connection, why it is one.
    pub state: String,
}

fn port(address: &str) -> Option<u16> {
    address.rsplit(':').next()?.parse().ok()
}

impl Connection {
    pub fn concerns(&self, ports: &[u16]) -> bool {
        [&self.local, &self.peer].iter().any(|a| port(a).is_some_and(|p| ports.contains(&p)))
    }

    fn read(object: &Value) -> Connection {
        let text = |name: &str| match object.get(name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(other) => other.to_string(),
        };
        let detail =
            |name: &str| object.get("detail").and_then(|d| d.get(name)).and_then(Value::as_bool);
        let (sends, receives) = (detail("sends_through_ring"), detail("receives_through_ring"));
        let switched = sends.is_none() || sends == Some(true) || receives == Some(true);
        Connection {
            pid: object.pointer("/programs/0/pid").and_then(Value::as_i64).unwrap_or(0),
            local: text("local"),
            peer: text("peer"),
            smcd: text("mode") == "SMCD" && switched,
            device: object
                .pointer("/detail/device")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_string(),
            state: format!("{} {}", text("state"), text("words")),
        }
    }
}

fn parse(json: &[u8]) -> Option<Vec<Connection>> {
    let value: Value = serde_json::from_slice(json).ok()?;
    Some(value.get("connections")?.as_array()?.iter().map(Connection::read).collect())
}

fn ask(args: &[&str]) -> Result<Vec<u8>, String> {
    let child = Command::new(shortwire())
        .arg("ss")
        .args(args)
        .stdin(Stdio::null())
        .env_remove("LD_PRELOAD")
        .output();
    let said = child.map_err(|e| e.to_string())?;
    match said.status.success() {
        true => Ok(said.stdout),
        false => {
            Err(format!("shortwire ss: {}: {}", said.status, String::from_utf8_lossy(&said.stderr)))
        }
    }
}

/// The connections on these ports, now.
pub fn connections(ports: &[u16]) -> Vec<Connection> {
    let json = ask(&["--json"]).unwrap_or_else(|e| panic!("{e}"));
    let all = parse(&json).expect("what `shortwire ss --json` says can be read");
    all.into_iter().filter(|c| c.concerns(ports) && !c.state.starts_with("LISTEN")).collect()
}

/// Connections that were upgraded at their client's end, in all programs together.
pub fn upgraded() -> u64 {
    let said = Command::new(shortwire()).args(["stats", "-a", "--json"]).output();
    let said = said.expect("shortwire");
    let all: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    all["SMCD"]["client"].as_u64().unwrap_or_else(|| panic!("no count of clients in {all:#}"))
}

pub(crate) fn text() -> String {
    ask(&[]).map_or_else(|e| e, |text| String::from_utf8_lossy(&text).into_owned())
}

#[derive(Default)]
struct Seen {
    /// By process and addresses: the best state it was ever in.
    connections: BTreeMap<(i64, String, String), Connection>,
    /// Looks that found one.
    looks: u32,
    error: Option<String>,
}

pub struct Watch {
    ports: Vec<u16>,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(ports: &[u16]) -> Watch {
        let (stop, seen) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
        let thread = (!plain()).then(|| {
            let (ports, stop, seen) = (ports.to_vec(), stop.clone(), seen.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    look(&ports, &seen);
                    sleep(millis(40));
                }
            })
        });
        Watch { ports: ports.to_vec(), stop, seen, thread }
    }

    /// Runs what makes connections and ends, and is told which turn it is: again where fewer looks than
    /// these found connections meanwhile, for a busy machine gives a run its time and the looks none.
    pub fn during(&self, looks: u32, mut run: impl FnMut(u32) -> Outcome) -> Outcome {
        let now = || self.seen.lock().unwrap_or_else(|e| e.into_inner()).looks;
        for turn in 0..TURNS {
            let before = now();
            run(turn)?;
            if plain() || now() - before >= looks {
                break;
            }
        }
        Ok(())
    }

    fn seen(&self) -> (usize, String) {
        let seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        let smcd = seen.connections.values().filter(|c| c.smcd).count();
        let line = |c: &Connection| {
            format!("pid {} {} -> {} SMCD: {} {}", c.pid, c.local, c.peer, c.smcd, c.state)
        };
        let all: Vec<String> = seen.connections.values().take(20).map(line).collect();
        (
            smcd,
            format!(
                "{}{}",
                all.join("\n"),
                seen.error.as_ref().map_or(String::new(), |e| format!("\nlast error: {e}"))
            ),
        )
    }

    /// Waits until so many ends of connections are in mode SMCD.
    pub fn wait_smcd(&self, count: usize, limit: Duration) {
        let end = Deadline::within(limit);
        while !plain() && self.seen().0 < count {
            assert!(
                !end.is_over(),
                "only {} of {count} ends on ports {:?} went to SMCD within {limit:?}; seen:\n{}\n{}",
                self.seen().0,
                self.ports,
                self.seen().1,
                report::everything(&[])
            );
            sleep(millis(10));
        }
    }

    /// Whether so many ends of connections have been seen in mode SMCD by now.
    pub fn has_smcd(&self, count: usize) -> bool {
        plain() || self.seen().0 >= count
    }

    /// Ends the watch: whether so many ends of connections have been seen in mode SMCD.
    pub fn saw_smcd(mut self, count: usize) -> bool {
        self.end();
        plain() || self.seen().0 >= count
    }

    /// Ends the watch: so many ends of connections must have been seen in mode SMCD.
    pub fn expect_smcd(mut self, count: usize) {
        self.end();
        let (smcd, all) = self.seen();
        assert!(
            plain() || smcd >= count,
            "{smcd} ends on ports {:?} were in mode SMCD, not {count}; seen:\n{all}",
            self.ports
        );
    }

    /// `expect_smcd`, and all of those went through this device.
    pub fn expect_device(self, device: &str, count: usize) {
        let seen = self.seen.clone();
        self.expect_smcd(count);
        let seen = seen.lock().unwrap_or_else(|e| e.into_inner());
        let others: Vec<_> =
            seen.connections.values().filter(|c| c.smcd && c.device != device).collect();
        let names: Vec<_> = others.iter().map(|c| (c.pid, &c.local, &c.device)).collect();
        assert!(plain() || names.is_empty(), "not through {device}: {names:?}");
    }

    /// Ends the watch: none may have been.
    pub fn expect_tcp(mut self) {
        self.end();
        let (smcd, all) = self.seen();
        assert_eq!(smcd, 0, "ends on ports {:?} were in mode SMCD:\n{all}", self.ports);
    }

    fn end(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn look(ports: &[u16], seen: &Mutex<Seen>) {
    let found =
        ask(&["--json"]).and_then(|json| parse(&json).ok_or_else(|| "unreadable json".to_string()));
    let mut seen = seen.lock().unwrap_or_else(|e| e.into_inner());
    match found {
        Err(error) => seen.error = Some(error),
        Ok(all) => {
            let mut found = false;
            for c in all.into_iter().filter(|c| c.concerns(ports)) {
                found |= !c.state.starts_with("LISTEN");
                let entry = seen
                    .connections
                    .entry((c.pid, c.local.clone(), c.peer.clone()))
                    .or_insert_with(|| c.clone());
                if c.smcd || !entry.smcd {
                    *entry = c;
                }
            }
            seen.looks += u32::from(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_read() {
        let list = parse(
            br#"{"connections": [
                {"state": "ACTIVE", "local": "127.0.0.1:80", "peer": "[::1]:4000", "programs": [{"pid": 7, "name": "x"}], "mode": "SMCD",
                 "detail": {"sends_through_ring": false, "receives_through_ring": true}},
                {"local": "127.0.0.1:80", "peer": null, "programs": [], "mode": "LISTEN"},
                {"local": "a:1", "peer": "b:2", "mode": "TCP", "reason": 50528256, "words": "no peer", "detail": null},
                {"local": "a:1", "peer": "b:2", "mode": "SMCD", "detail": {"sends_through_ring": false, "receives_through_ring": false}}]}"#,
        );
        let list = list.unwrap();
        assert_eq!(list.iter().map(|c| c.smcd).collect::<Vec<_>>(), [true, false, false, false]);
        assert!(
            list[0].pid == 7
                && list[0].concerns(&[80])
                && list[0].concerns(&[4000])
                && !list[0].concerns(&[8])
        );
        assert!(list[2].state.contains("no peer"));
    }
}
