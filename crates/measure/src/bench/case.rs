//! What a row is: which programs, which paths, which figures, which bars.

use std::borrow::Cow;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::outcome::Outcome;
use super::session::Session;
use super::tools;

/// What the bytes go over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    Tcp,
    Shortwire,
    /// Shortwire with a device whose memory cannot be attached: `run --copy`.
    #[serde(rename = "shortwire-copy")]
    Copy,
    Unix,
    BareRing,
}

impl Path {
    pub const ALL: [Path; 5] = [Path::Tcp, Path::Unix, Path::Copy, Path::Shortwire, Path::BareRing];

    /// As in the JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Path::Tcp => "tcp",
            Path::Shortwire => "shortwire",
            Path::Copy => "shortwire-copy",
            Path::Unix => "unix",
            Path::BareRing => "bare-ring",
        }
    }

    /// As people call it.
    pub fn title(self) -> &'static str {
        match self {
            Path::Tcp => "TCP",
            Path::Shortwire => "Shortwire",
            Path::Copy => "Shortwire, copy",
            Path::Unix => "Unix socket",
            Path::BareRing => "bare ring (limit)",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Higher,
    Lower,
}

/// What the project promises.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// The ratio to TCP.
    Ratio(f64),
    /// The ratio to TCP of the copying device.
    Copy(f64),
    /// The ratio to TCP, in the worst round too.
    Worst(f64),
    /// The value itself, at least.
    Value(f64),
}

impl Bar {
    /// What is drawn among ratios, if it is one.
    pub fn as_ratio(self) -> Option<f64> {
        match self {
            Bar::Ratio(bar) | Bar::Copy(bar) | Bar::Worst(bar) => Some(bar),
            Bar::Value(_) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    pub name: Cow<'static, str>,
    pub unit: Cow<'static, str>,
    pub better: Better,
    pub bar: Option<Bar>,
}

/// One pair of programs. A run over one path gives one value for each of `measures`.
#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub group: &'static str,
    pub what: &'static str,
    /// TCP and Shortwire first, side by side, so that a disturbance meets both.
    pub paths: &'static [Path],
    pub measures: Vec<Measure>,
    pub needs: &'static [&'static str],
    /// Left out of `--quick`.
    pub long_only: bool,
    /// Whether its programs run wherever the kernel puts them.
    pub free: bool,
    /// Whether the system calls of its server are counted, in runs of their own.
    pub counts_calls: bool,
    pub run: fn(&Session, Path) -> Result<Outcome>,
}

impl Case {
    pub fn is_called(&self, name: &str) -> bool {
        name == self.name || name == self.group
    }

    pub fn missing(&self) -> Option<String> {
        let missing: Vec<&str> =
            self.needs.iter().copied().filter(|program| tools::locate(program).is_none()).collect();
        (!missing.is_empty()).then(|| format!("{} not installed", missing.join(" and ")))
    }

    pub fn needing(self, needs: &'static [&'static str]) -> Case {
        Case { needs, ..self }
    }

    pub fn long_only(self) -> Case {
        Case { long_only: true, ..self }
    }

    pub fn counting_calls(self) -> Case {
        Case { counts_calls: true, ..self }
    }
}
