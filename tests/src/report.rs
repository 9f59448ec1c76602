//! What a failure prints: what hung, where, and the state of the connections.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::leak::descendants;
use crate::{plain, ss};

pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(16 << 10)..]).into_owned();
    let all: Vec<String> = text.lines().map(|line| line.chars().take(300).collect()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Where each thread of these processes (all of ours when empty) waits in the kernel.
fn threads(pids: &[i32]) -> String {
    let mut text = String::new();
    let ours = if pids.is_empty() { descendants() } else { pids.to_vec() };
    for pid in ours {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .replace('\0', " ");
        let _ = writeln!(text, "{pid}: {}", command.chars().take(150).collect::<String>());
        for task in
            fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().take(20)
        {
            let read = |name: &str| {
                fs::read_to_string(task.path().join(name)).unwrap_or_default().trim().to_string()
            };
            let state = read("status")
                .lines()
                .find(|l| l.starts_with("State:"))
                .unwrap_or_default()
                .to_string();
            let _ = writeln!(
                text,
                "    {} {state} wchan {} syscall {}",
                task.file_name().display(),
                read("wchan"),
                read("syscall")
            );
        }
    }
    text
}

pub fn everything(pids: &[i32]) -> String {
    let mut text = format!("-- threads\n{}", threads(pids));
    if !plain() {
        let _ = writeln!(text, "-- shortwire ss\n{}", ss::text());
    }
    if let Ok(said) = Command::new("ss").args(["-tnpoi"]).output() {
        let all = String::from_utf8_lossy(&said.stdout).into_owned();
        let _ =
            writeln!(text, "-- kernel\n{}", all.lines().take(60).collect::<Vec<_>>().join("\n"));
    }
    text
}
