//! `shortwire tune checksum`: measures prefetch settings on packets that no cache holds, and writes
//! a profile if one is clearly better than the built-in one.

mod decide;
mod report;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use checksum::prefetch::{Processor, Profile};
use clap::Subcommand;
use decide::{Choice, decide};

use crate::bench::checksum::event::Case;
use crate::bench::checksum::figures::Figures;
use crate::bench::checksum::measure;
use crate::pending::Pending;
use crate::profile;

/// The built-in profile stays.
const NOT_WRITTEN: u8 = 3;

#[derive(clap::Args)]
#[command(about = "Measure settings for this machine, and write them down")]
pub struct Tune {
    #[command(subcommand)]
    pub command: TuneCommand,
}

#[derive(Subcommand)]
pub enum TuneCommand {
    Checksum(TuneChecksum),
}

#[derive(clap::Args)]
#[command(about = "Find out how far the checksum should prefetch on this processor")]
#[command(
    long_about = "Measures prefetch distances within a packet and settings for the next packets of a batch, on packets that no cache holds, \
against the built-in profile of this processor. One half of the rounds chooses a setting, the other half judges it. The profile is written \
only if the gain is larger than the spread, which is how far the gain differs from block to block of the judging rounds.

Nothing is measured at start-up: commands that compute checksums (engine, snsh, bench checksum) read the file, the user's ($XDG_CONFIG_HOME/shortwire/checksum.profile, usually \
below ~/.config) before the system's (/etc/shortwire/checksum.profile). A file that is damaged or of another processor is ignored with a warning, \
and the built-in profile is used."
)]
#[command(after_help = "Examples:
  shortwire tune checksum --dry-run           measure and print, write nothing
  shortwire tune checksum                     write the profile of this user
  sudo shortwire tune checksum --system       write the profile of all users
  shortwire tune checksum --output FILE       write it elsewhere

Exit status: 0 if a profile was written (or with --dry-run would have been), 3 if the built-in profile stays, 1 on failure.")]
pub struct TuneChecksum {
    /// Write the profile to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Write the profile of all users
    #[arg(long, conflicts_with = "output")]
    pub system: bool,
    /// Write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Rounds of each case; each measures every setting once
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(40..=100_000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What was found out.
struct Findings {
    in_packet: Choice,
    next_packet: Choice,
    profile: Profile,
}

pub fn run(args: &Tune) -> Result<ExitCode> {
    let TuneCommand::Checksum(args) = &args.command;
    let path = place(args)?;
    // Refused here, before the measuring.
    let pending = if args.dry_run { None } else { Some(Pending::create_all(&path)?) };
    let rounds = args.repeat.to_string();
    let figures =
        measure(&["--only", "tune", "--rounds", &rounds, "--limit", "60"].map(Into::into))?;
    if let Some((case, reason)) = figures.skipped.first() {
        bail!("cannot measure {case}: {reason}");
    }
    let findings = findings(&figures)?;
    let better = findings.profile != Profile::built_in();
    let written =
        pending.filter(|_| better).map(|pending| pending.commit(text(&findings).as_bytes()));
    let written = written.transpose()?.map(|()| path.as_path());
    let mut output = std::io::stdout().lock();
    if args.json {
        let object = report::json(&figures, &findings, written);
        writeln!(output, "{}", serde_json::to_string_pretty(&object)?)?;
    } else {
        output.write_all(report::text(&figures, &findings, written).as_bytes())?;
    }
    Ok(if better { ExitCode::SUCCESS } else { NOT_WRITTEN.into() })
}

fn place(args: &TuneChecksum) -> Result<PathBuf> {
    match &args.output {
        Some(path) => Ok(path.clone()),
        None if args.system => Ok(profile::SYSTEM.into()),
        None => profile::of_user(),
    }
}

fn findings(figures: &Figures) -> Result<Findings> {
    let built_in = Profile::built_in();
    let cases = |prefix: &str| -> Vec<&Case> {
        figures.cases.iter().filter(|case| case.case.starts_with(prefix)).collect()
    };
    let in_packet = decide(&cases("tune-in-packet"), &built_in.in_packet.to_string())?;
    let next = format!("{} {}", built_in.next_packet_lines, built_in.packets_ahead);
    let next_packet = decide(&cases("tune-next-packet"), &next)?;
    let distance = in_packet.kept().parse().context("a distance was to be a number")?;
    let (lines, ahead) =
        next_packet.kept().split_once(' ').context("a setting was to be two numbers")?;
    let profile = Profile::new(distance, lines.parse()?, ahead.parse()?);
    Ok(Findings { in_packet, next_packet, profile })
}

/// The profile, with what speaks for it in comments.
fn text(findings: &Findings) -> String {
    let profile = findings.profile.to_string();
    let (first, rest) = profile.split_once('\n').unwrap_or((&profile, ""));
    let (in_packet, next_packet) = (findings.in_packet.words(), findings.next_packet.words());
    format!("{first}\n# in-packet {in_packet}\n# next-packet {next_packet}\n{rest}")
}

fn processor() -> String {
    Processor::current().to_string()
}

#[cfg(test)]
mod tests {
    use super::decide::Verdict;
    use super::*;

    fn choice(best: &str, verdict: Verdict) -> Choice {
        Choice { built_in: "0".into(), best: best.into(), gain: 0.09, spread: 0.02, verdict }
    }

    #[test]
    fn the_file_says_why_and_parses() {
        let findings = Findings {
            in_packet: choice("0", Verdict::SameAsBuiltIn),
            next_packet: choice("12 2", Verdict::Better),
            profile: Profile::new(0, 12, 2),
        };
        let text = text(&findings);
        assert!(text.contains("# next-packet 12 2: 9.0 % faster"), "{text}");
        assert_eq!(Profile::parse(&text), Ok(findings.profile));
    }
}
