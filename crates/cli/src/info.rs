//! `shortwire info`: what this installation is and what this machine lets it do.

mod probes;

use std::env;
use std::fmt::Write as _;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;
use serde::Serialize;
use smc::clc::Eid;
use smc::clc::negotiate::RELEASE;
use smc::release::Releases;

use crate::run::{build_of, find_library};
use crate::{eids, off};

const GID_FORM: &str = "128 bit, random for each process (loopback device, CHID ffff)";
/// Set in the process that this command starts to see whether the library really gets loaded.
const LOADING_TRIAL: &str = "SHORTWIRE_LOADING_TRIAL";

#[derive(Serialize)]
struct Report {
    /// By which rules this object is to be read: `version` is that of the program.
    schema: u32,
    version: &'static str,
    /// What the command was built from.
    build: &'static str,
    smc_version: String,
    hostname: String,
    seid: String,
    seid_enabled: bool,
    ueids: Vec<String>,
    gid_form: &'static str,
    /// Who has switched it off, in words.
    switched_off: Option<String>,
    library: Library,
    kernel: String,
    features: Vec<probes::Feature>,
}

#[derive(Serialize)]
struct Library {
    path: Option<String>,
    build: Option<String>,
    /// The oldest and the newest release by which it shares memory.
    releases: Option<[u8; 2]>,
    loads: bool,
    problem: Option<String>,
}

#[derive(clap::Args)]
#[command(about = "Show what this installation and this machine can do")]
#[command(
    after_help = "Each kernel feature is tried, not guessed from a version number. What is missing costs speed, never correctness."
)]
pub struct Info {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Info) -> Result<ExitCode> {
    if env::var_os(LOADING_TRIAL).is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    let eids = eids::of_new_programs()?;
    let report = Report {
        schema: crate::json::VERSION,
        version: env!("CARGO_PKG_VERSION"),
        build: env!("SHORTWIRE_BUILD"),
        smc_version: format!("2.{RELEASE}"),
        hostname: kernel_text("hostname"),
        seid: Eid::LOOPBACK_SEID.to_string(),
        seid_enabled: eids.seid,
        ueids: eids.ueids,
        gid_form: GID_FORM,
        switched_off: off::state_for(rustix::process::geteuid().as_raw()),
        library: library(),
        kernel: kernel_text("osrelease"),
        features: features(),
    };
    if args.json {
        terminal::outln!("{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        terminal::out!("{}", text(&report))?;
    }
    Ok(if report.library.loads { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Kernel features, tried now.
pub fn features() -> Vec<probes::Feature> {
    probes::all()
}

fn kernel_text(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/kernel/{name}"))
        .map_or_else(|_| "unknown".into(), |text| text.trim().into())
}

fn library() -> Library {
    let found = match find_library() {
        Ok(found) => found,
        Err(error) => {
            let problem = Some(format!("{error:#}"));
            return Library { path: None, build: None, releases: None, loads: false, problem };
        }
    };
    let file = std::fs::read(&found.path).unwrap_or_default();
    let problem = loading_problem(&found.path);
    Library {
        path: Some(found.path.display().to_string()),
        build: build_of(&file),
        releases: Releases::of_file(&file).map(|spoken| [spoken.oldest, spoken.newest]),
        loads: problem.is_none(),
        problem,
    }
}

/// Starts this program once more with the library in it: only the dynamic loader knows what it will
/// accept.
fn loading_problem(library: &std::path::Path) -> Option<String> {
    let trial = env::current_exe().and_then(|own| {
        Command::new(own)
            .arg("info")
            .env("LD_PRELOAD", library)
            .env("SHORTWIRE_DISABLE", "1")
            .env(LOADING_TRIAL, "1")
            .stdin(Stdio::null())
            .output()
    });
    match trial {
        Err(error) => Some(format!("cannot try to load it: {error}")),
        Ok(output) if !output.status.success() => {
            Some(format!("a program with it ends with {}", output.status))
        }
        Ok(output) => {
            let complaints = String::from_utf8_lossy(&output.stderr);
            complaints.lines().find(|line| line.contains("LD_PRELOAD")).map(str::to_string)
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<18}{value}");
    };
    line("Version:", &format!("{} (build {})", report.version, report.build));
    line("SMC Version:", &report.smc_version);
    line("SMC Hostname:", &report.hostname);
    line(
        "SEID:",
        &format!("{} [{}]", report.seid, if report.seid_enabled { "enabled" } else { "disabled" }),
    );
    line(
        "UEIDs:",
        &if report.ueids.is_empty() { "n/a".to_string() } else { report.ueids.join(" ") },
    );
    line("GID:", report.gid_form);
    match (&report.library.path, &report.library.problem) {
        (Some(path), None) => line("Library:", &format!("{path} (loads)")),
        (Some(path), Some(problem)) => {
            line("Library:", &format!("{path}\n{:18}does NOT load: {problem}", ""))
        }
        (None, problem) => line("Library:", problem.as_deref().unwrap_or("not found")),
    }
    match (&report.library.build, report.library.releases) {
        (Some(build), Some([oldest, newest])) => {
            let differs = match build == report.build {
                true => "",
                false => ": another than the command's, which cannot show what its programs do",
            };
            let spoken = Releases { oldest, newest };
            line("", &format!("{spoken}, build {build}{differs}"));
        }
        (None, _) | (_, None) if report.library.path.is_some() => {
            line("", "of a version that does not say what it was built from")
        }
        _ => {}
    }
    line("State:", report.switched_off.as_deref().unwrap_or("on"));
    line("Kernel:", &report.kernel);
    text.push_str("Kernel features\n");
    for feature in &report.features {
        let state = if feature.works { "yes" } else { "NO" };
        let _ = writeln!(text, "  {:<38}{state}", feature.name);
        if let Some(problem) = &feature.problem {
            let _ = writeln!(text, "  {:<38}{problem}; {}", "", feature.without);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            schema: 1,
            version: "1",
            build: "0123456789ab",
            smc_version: format!("2.{RELEASE}"),
            hostname: "host".into(),
            seid: Eid::LOOPBACK_SEID.to_string(),
            seid_enabled: true,
            ueids: vec![],
            gid_form: GID_FORM,
            switched_off: None,
            library: Library {
                path: Some("/lib.so".into()),
                build: Some("ba9876543210".into()),
                releases: Some([1, 2]),
                loads: false,
                problem: Some("wrong ELF class".into()),
            },
            kernel: "6.18".into(),
            features: vec![probes::Feature {
                name: "flying",
                works: false,
                problem: Some("no wings".into()),
                without: "stays on the ground",
            }],
        }
    }

    #[test]
    fn problems_are_told_with_their_consequence() {
        let text = text(&report());
        assert!(text.contains("does NOT load: wrong ELF class"), "{text}");
        assert!(text.contains("no wings; stays on the ground"), "{text}");
    }

    #[test]
    fn a_library_of_another_build_is_told() {
        let text = text(&report());
        assert!(text.contains("releases 1 to 2, build ba9876543210: another than"), "{text}");
        assert_eq!(build_of(b"...shortwire build: 0123456789ab...").unwrap(), "0123456789ab");
        assert_eq!(build_of(b"shortwire build: 0123"), None);
    }

    #[test]
    fn json_has_the_names_that_scripts_use() {
        let value = serde_json::to_value(report()).unwrap();
        for key in
            ["schema", "version", "smc_version", "hostname", "seid", "ueids", "library", "kernel"]
        {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!(value["library"]["loads"], false);
    }
}
