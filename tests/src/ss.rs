//! What `shortwire ss` says, sampled while programs run.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{millis, plain, report, shortwire};

#[derive(Clone, Debug)]
pub struct Connection {
    pub pid: i64,
    pub local: String,
    pub peer: String,
    pub smcd: bool,
    pub state: String,
    pub reason: String,
}

fn port(address: &str) -> Option<u16> {
    address.rsplit(':').next()?.parse().ok()
}

impl Connection {
    pub fn concerns(&self, ports: &[u16]) -> bool {
        [&self.local, &self.peer].iter().any(|a| port(a).is_some_and(|p| ports.contains(&p)))
    }

    fn read(object: &Value) -> Option<Connection> {
        let text = |names: &[&str]| {
            let value = names.iter().find_map(|name| object.get(name)).unwrap_or(&Value::Null);
            match value {
                Value::String(text) => text.clone(),
                Value::Null => String::new(),
                other => other.to_string(),
            }
        };
        let pid = match object.get("pid").or_else(|| object.get("pids"))? {
            Value::Array(all) => all.first().and_then(Value::as_i64).unwrap_or(0),
            one => one.as_i64().unwrap_or(0),
        };
        Some(Connection {
            pid,
            local: text(&["local", "local_address"]),
            peer: text(&["peer", "remote", "peer_address"]),
            smcd: text(&["mode"]).to_ascii_uppercase().replace('-', "") == "SMCD",
            state: text(&["state"]),
            reason: format!("{} {}", text(&["reason"]), text(&["reason_words", "reason_text"])),
        })
    }
}

/// An array, or an object that holds one.
fn parse(json: &[u8]) -> Option<Vec<Connection>> {
    let value: Value = serde_json::from_slice(json).ok()?;
    let list = match &value {
        Value::Array(list) => list,
        Value::Object(fields) => fields.values().find_map(Value::as_array)?,
        _ => return None,
    };
    Some(list.iter().filter_map(Connection::read).collect())
}

fn ask(args: &[&str]) -> Result<Vec<u8>, String> {
    let child = Command::new(shortwire()).arg("ss").args(args).stdin(Stdio::null()).env_remove("LD_PRELOAD").output();
    let said = child.map_err(|e| e.to_string())?;
    match said.status.success() {
        true => Ok(said.stdout),
        false => Err(format!("shortwire ss: {}: {}", said.status, String::from_utf8_lossy(&said.stderr))),
    }
}

pub(crate) fn text() -> String {
    ask(&[]).map_or_else(|e| e, |text| String::from_utf8_lossy(&text).into_owned())
}

/// All connections that concern these ports now; none when running plain.
pub fn connections(ports: &[u16]) -> Vec<Connection> {
    if plain() {
        return Vec::new();
    }
    let said = ask(&["--json"]).unwrap_or_else(|e| panic!("{e}"));
    let all = parse(&said).unwrap_or_else(|| panic!("unreadable answer of shortwire ss --json: {}", String::from_utf8_lossy(&said)));
    all.into_iter().filter(|c| c.concerns(ports)).collect()
}

#[derive(Default)]
struct Seen {
    /// By process and addresses: the best state it was ever in.
    connections: BTreeMap<(i64, String, String), Connection>,
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
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Seen::default())));
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

    fn seen(&self) -> (usize, String) {
        let seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        let smcd = seen.connections.values().filter(|c| c.smcd).count();
        let all: Vec<String> = seen.connections.values().take(20).map(|c| format!("{c:?}")).collect();
        (smcd, format!("{}{}", all.join("\n"), seen.error.as_ref().map_or(String::new(), |e| format!("\nlast error: {e}"))))
    }

    /// Waits until so many ends of connections are in mode SMCD.
    pub fn wait_smcd(&self, count: usize, limit: Duration) {
        let end = Instant::now() + limit;
        while !plain() && self.seen().0 < count {
            assert!(
                Instant::now() < end,
                "only {} of {count} ends on ports {:?} went to SMCD within {limit:?}; seen:\n{}\n{}",
                self.seen().0,
                self.ports,
                self.seen().1,
                report::everything(&[])
            );
            sleep(millis(10));
        }
    }

    /// Ends the watch: so many ends of connections must have been seen in mode SMCD.
    pub fn expect_smcd(mut self, count: usize) {
        self.end();
        let (smcd, all) = self.seen();
        assert!(plain() || smcd >= count, "{smcd} ends on ports {:?} were in mode SMCD, not {count}; seen:\n{all}", self.ports);
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
    let found = ask(&["--json"]).and_then(|json| parse(&json).ok_or_else(|| "unreadable json".to_string()));
    let mut seen = seen.lock().unwrap_or_else(|e| e.into_inner());
    match found {
        Err(error) => seen.error = Some(error),
        Ok(all) => {
            for c in all.into_iter().filter(|c| c.concerns(ports)) {
                let entry = seen.connections.entry((c.pid, c.local.clone(), c.peer.clone())).or_insert_with(|| c.clone());
                if c.smcd || !entry.smcd {
                    *entry = c;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_of_the_answer_are_read() {
        let one = r#"{"pid": 7, "local": "127.0.0.1:80", "peer": "[::1]:4000", "mode": "SMCD", "state": "ACTIVE", "reason": 0}"#;
        for json in [format!("[{one}]"), format!(r#"{{"connections": [{one}]}}"#)] {
            let list = parse(json.as_bytes()).unwrap();
            assert!(list.len() == 1 && list[0].smcd && list[0].pid == 7, "{list:?}");
            assert!(list[0].concerns(&[80]) && list[0].concerns(&[4000]) && !list[0].concerns(&[8]));
        }
    }

    #[test]
    fn tcp_is_not_smcd() {
        let list = parse(br#"[{"pids": [1, 2], "local": "a:1", "peer": "b:2", "mode": "TCP", "reason": "0x03030000"}]"#).unwrap();
        assert!(!list[0].smcd && list[0].reason.contains("0x0303"));
    }
}
