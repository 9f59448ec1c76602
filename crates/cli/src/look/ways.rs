//! `shortwire trace-packets`: the way of a few packets through the apps.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::engine::look::{Entry, Filter, Kind, Look};
use anyhow::{Result, bail};
use serde::Serialize;
use terminal::signals;
use terminal::units::parse_seconds;

use super::changes::{changes, hex};
use super::find;

/// Between two looks when nothing comes.
const NAP: Duration = Duration::from_millis(1);
/// What has ended in an app may yet go on: so long is waited.
const SETTLE: Duration = Duration::from_millis(300);
/// Packets that are followed for one that matches a filter, at most.
const TRIES: u32 = 1_000_000;

#[derive(clap::Args)]
#[command(about = "Follow packets through the apps of a running engine")]
#[command(
    long_about = "Picks packets as they come into a running engine (`shortwire engine`, `snsh`) and shows the way of each: the links that it passes, what \
each app changed in it, copies, and where it ends, with what that app counted in this turn. FILTER is an expression as for tcpdump, for packets as they come in.

An app that waits with packets shows as the end of their way, until they go on. A copy is known by its bytes: one that was changed in the \
same turn is not. Ways end at the border of a thread, where another one begins."
)]
#[command(after_help = "Examples:
  shortwire trace-packets 1234
  shortwire trace-packets 1234 -c 1 --json udp port 53

Exit status: 0 if packets were seen; 1 if not.")]
pub struct TracePackets {
    /// The engine's process
    #[arg(value_name = "PID")]
    pub pid: u32,
    /// Only packets that match when they come in
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    pub filter: Vec<String>,
    /// So many packets
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
    /// Wait so long for them
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_seconds)]
    pub duration: f64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Way {
    number: u32,
    /// The packet that it is a copy of.
    copy_of: Option<u32>,
    thread: usize,
    bytes: u32,
    /// As it came in.
    packet: String,
    steps: Vec<Step>,
    #[serde(skip)]
    last: Vec<u8>,
    /// When it came in, or what it is a copy of.
    #[serde(skip)]
    began: u64,
}

#[derive(Serialize)]
struct Step {
    /// Since it came in.
    ns: u64,
    /// `enters`, `moves`, `copied` or `ends`.
    what: &'static str,
    /// The link that it is on, or the app in which it ends.
    place: String,
    changes: Vec<String>,
}

#[derive(Serialize)]
struct Object<'a> {
    process: u32,
    packets: &'a [Way],
    /// Steps that came faster than they were read.
    missed: u64,
}

pub fn run(args: &TracePackets) -> Result<ExitCode> {
    let process = find(args.pid)?;
    let text = args.filter.join(" ");
    let filter = (!text.is_empty()).then(|| Filter::new(&text)).transpose()?;
    signals::catch_interrupts();
    let wanted = if filter.is_some() { TRIES } else { args.count };
    let mut looks = Look::trace(&process, wanted)?;
    let mut ways =
        Ways { filter, most: args.count as usize, all: Vec::new(), places: HashMap::new() };
    let end = Instant::now() + Duration::from_secs_f64(args.duration);
    let mut last = Instant::now();
    while !signals::interrupted() && Instant::now() < end {
        let mut idle = true;
        for (thread, look) in looks.iter_mut().enumerate() {
            // A batch at a time, so that one thread does not keep the others waiting.
            for _ in 0..1024 {
                let Some(entry) = look.next_entry() else { break };
                idle = false;
                if ways.add(thread, &entry) {
                    last = Instant::now();
                }
            }
        }
        if ways.are_whole() && last.elapsed() >= SETTLE {
            break;
        }
        if idle {
            if looks.iter().all(Look::is_over) {
                break;
            }
            std::thread::sleep(NAP);
        }
    }
    let missed = looks.iter().map(Look::missed).sum();
    drop(looks);
    let object = Object { process: args.pid, packets: &ways.all, missed };
    if args.json {
        crate::json::print(&object)?;
    } else {
        terminal::out!("{}", print(&object))?;
    }
    if ways.all.is_empty() {
        bail!("no packet that was asked for has come into process {}", args.pid);
    }
    Ok(ExitCode::SUCCESS)
}

struct Ways {
    filter: Option<Filter>,
    most: usize,
    all: Vec<Way>,
    /// By thread and the engine's number.
    places: HashMap<(usize, u32), usize>,
}

impl Ways {
    /// True if the entry belongs to a packet that is shown.
    fn add(&mut self, thread: usize, entry: &Entry) -> bool {
        let key = (thread, entry.number);
        let what = match entry.kind {
            Kind::Captured => return false,
            Kind::Entered => {
                let wanted =
                    self.filter.as_ref().is_none_or(|filter| filter.matches(entry.packet()));
                let originals = self.all.iter().filter(|way| way.copy_of.is_none()).count();
                if !wanted || originals >= self.most {
                    return false;
                }
                self.begin(key, None, entry.time, entry);
                "enters"
            }
            Kind::Copied => {
                let Some(&parent) = self.places.get(&(thread, entry.parent)) else { return false };
                let original = &self.all[parent];
                self.begin(key, Some(original.number), original.began, entry);
                "copied"
            }
            Kind::Moved => "moves",
            Kind::Ended => "ends",
        };
        let Some(way) = self.places.get(&key).and_then(|&place| self.all.get_mut(place)) else {
            return false;
        };
        let changes =
            if entry.kind == Kind::Moved { changes(&way.last, entry.packet()) } else { Vec::new() };
        if entry.kind == Kind::Moved {
            way.last = entry.packet().to_vec();
            // It had only waited.
            if way.steps.last().is_some_and(|step| step.what == "ends")
                && let Some(step) = way.steps.last_mut()
            {
                step.what = "waits";
            }
        }
        let ns = entry.time.saturating_sub(way.began);
        way.steps.push(Step { ns, what, place: entry.label(), changes });
        true
    }

    fn begin(&mut self, key: (usize, u32), copy_of: Option<u32>, began: u64, entry: &Entry) {
        let number = self.all.len() as u32 + 1;
        self.places.insert(key, self.all.len());
        self.all.push(Way {
            number,
            copy_of,
            thread: key.0,
            bytes: entry.length,
            packet: hex(&entry.packet()[..entry.packet().len().min(16)]),
            steps: Vec::new(),
            last: entry.packet().to_vec(),
            began,
        });
    }

    /// As many as were asked for, and each has ended.
    fn are_whole(&self) -> bool {
        let originals = self.all.iter().filter(|way| way.copy_of.is_none()).count();
        let ended = |way: &Way| way.steps.last().is_some_and(|step| step.what == "ends");
        originals >= self.most && self.all.iter().all(ended)
    }
}

fn print(object: &Object) -> String {
    let mut text = String::new();
    for way in object.packets {
        let copy = way.copy_of.map_or_else(String::new, |of| format!(", a copy of {of}"));
        text += &format!("packet {}{copy}: {} bytes, {}\n", way.number, way.bytes, way.packet);
        for step in &way.steps {
            let us = step.ns as f64 / 1e3;
            text += &format!("  {us:>9.3} us  {:7} {}\n", step.what, step.place);
            for change in &step.changes {
                text += &format!("{:24}{change}\n", "");
            }
        }
    }
    if object.missed > 0 {
        text += &format!("{} steps came faster than they were read\n", object.missed);
    }
    text
}
