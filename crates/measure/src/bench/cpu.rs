//! Processor time of a program and all that it started, from /proc: in ticks of 10 ms, and
//! complete, because a parent has the time of the children that it waited for.

use std::collections::BTreeMap;
use std::fs;

struct Process {
    parent: u32,
    ticks: u64,
}

/// In seconds. A zombie counts: look before it is waited for.
pub fn of_tree(root: u32) -> f64 {
    let processes = all();
    let ticks = descendants(root, &processes)
        .iter()
        .filter_map(|pid| Some(processes.get(pid)?.ticks))
        .sum::<u64>();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// A process and all that descend from it.
pub fn tree(root: u32) -> Vec<u32> {
    descendants(root, &all())
}

fn descendants(root: u32, processes: &BTreeMap<u32, Process>) -> Vec<u32> {
    let mut tree = vec![root];
    let mut at = 0;
    while let Some(&pid) = tree.get(at) {
        tree.extend(
            processes.iter().filter(|(_, process)| process.parent == pid).map(|(child, _)| child),
        );
        at += 1;
    }
    tree
}

fn all() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        Some((pid, parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?))
    })
    .collect()
}

/// Behind the name, which may contain anything: state, parent, ..., and from the 12th on utime,
/// stime, cutime, cstime.
fn parse(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some(Process { parent: fields[1].parse().ok()?, ticks })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use super::super::process::Process;
    use super::*;

    #[test]
    fn a_line_of_proc() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 5 6 7";
        let process = parse(line).unwrap();
        assert_eq!((process.parent, process.ticks), (3, 3520));
    }

    #[test]
    fn children_count_while_they_live_and_when_they_have_ended() {
        let directory = tempfile::tempdir().unwrap();
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("sh -c '{work}'; sh -c '{work}; exec sleep 60' & wait");
        let command = ["/bin/sh", "-c", &script].map(OsString::from);
        let process =
            Process::start("shell".into(), &command, None, None, &directory.path().join("shell"))
                .unwrap();
        // However slow the machine, both take some ticks.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while of_tree(process.group()) < 0.04 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(of_tree(process.group()) >= 0.04);
        assert!(tree(process.group()).len() >= 2);
        assert_eq!(of_tree(u32::MAX), 0.0);
    }
}
