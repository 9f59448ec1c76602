//! `--instructions`: a table of instructions per call.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Result, bail};
use comfy_table::Cell;
use serde::Serialize;
use terminal::signals;

use super::event::{Absent, Counted, Event, Role};
use super::program::Program;
use super::tables::{plain, right};

#[derive(Serialize)]
struct Object {
    bench: &'static str,
    kernel: String,
    /// Of the packets, in bytes.
    lengths: Vec<usize>,
    routines: Vec<Counted>,
    absent: Vec<Absent>,
}

pub fn run(kernel: Option<&str>, is_json: bool) -> Result<()> {
    signals::catch_interrupts();
    let mut arguments: Vec<OsString> = vec!["--instructions".into()];
    arguments.extend(kernel.into_iter().flat_map(|name| ["--kernel".into(), name.into()]));
    let Event::Instructions { kernel, lengths, routines, absent } =
        Program::start(&arguments)?.next()?
    else {
        bail!("the measuring program did not print instructions");
    };
    let object = Object { bench: "checksum instructions", kernel, lengths, routines, absent };
    signals::default_sigpipe();
    let mut output = std::io::stdout().lock();
    match is_json {
        true => writeln!(output, "{}", serde_json::to_string_pretty(&object)?)?,
        false => output.write_all(text(&object).as_bytes())?,
    }
    Ok(())
}

fn text(object: &Object) -> String {
    let mut table = plain();
    let header = object.lengths.iter().map(|length| right(&length.to_string()));
    table.set_header([Cell::new("instructions per call")].into_iter().chain(header));
    for routine in &object.routines {
        let label = match routine.role {
            Role::Kernel => format!("  kernel {}", routine.name),
            _ => routine.name.clone(),
        };
        let counts = routine.counts.iter().map(|count| right(&count.to_string()));
        table.add_row([Cell::new(label)].into_iter().chain(counts));
    }
    let ours = object.routines.iter().find(|routine| routine.role == Role::Ours);
    let best = |column: usize| {
        let rivals = object.routines.iter().filter(|routine| routine.role == Role::Rival);
        let count = |routine: &Counted| routine.counts.get(column).copied();
        let best = rivals.min_by_key(|routine| count(routine))?;
        let ratio = count(best)? as f64 / count(ours?)? as f64;
        Some(format!("{ratio:.2} x\n{}", best.name))
    };
    let to_best =
        (0..object.lengths.len()).map(|at| right(&best(at).unwrap_or_else(|| "-".into())));
    table.add_row([Cell::new("to best rival")].into_iter().chain(to_best));
    let mut text = format!(
        "{table}\nFor packets of so many bytes that begin at a multiple of 64; \"to best rival\" is how many times fewer. csum_partial used the \
         kernel {}.\nInstructions are no time: a wide one may take longer, several are done at once.\n",
        object.kernel
    );
    for absent in &object.absent {
        let _ = writeln!(text, "skipped {}: {}", absent.name, absent.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_how_many_fewer() {
        let counted = |name: &str, role, counts: &[u64]| Counted {
            name: name.into(),
            role,
            counts: counts.to_vec(),
        };
        let object = Object {
            bench: "checksum instructions",
            kernel: "neon".into(),
            lengths: vec![20, 1500],
            routines: vec![
                counted("shortwire", Role::Ours, &[20, 100]),
                counted("neon", Role::Kernel, &[18, 98]),
                counted("pnet", Role::Rival, &[30, 900]),
                counted("smoltcp", Role::Rival, &[40, 400]),
            ],
            absent: vec![Absent { name: "dpdk".into(), reason: "no headers".into() }],
        };
        let text = text(&object);
        for part in ["1.50 x", "4.00 x", "kernel neon", "skipped dpdk: no headers", "1500"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
