//! What stands in the place of a PCI address: `model:0`, with what is at the other end of its wire.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A model, as a configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Tells models of this process apart.
    pub number: u32,
    /// The model at the other end of the cable.
    pub cable: Option<u32>,
    /// What it receives. None: what the other end of the cable sends, or nothing.
    pub feed: Option<Source>,
    /// Begin again at the end of the file.
    pub repeat: bool,
    /// A thread of its own.
    pub thread: bool,
}

/// What a model without a cable receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The frames of a capture file.
    Pcap(PathBuf),
    /// UDP packets of this many bytes.
    Packets(usize),
}

/// Why a text names no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" names no model: {problem}; a model is named as model:0, then maybe ,cable=1 or ,packets=64 or ,pcap=FILE (with ,once) and ,thread"
)]
pub struct SpecError {
    text: String,
    problem: String,
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = |problem: String| SpecError { text: text.to_string(), problem };
        let rest = text
            .strip_prefix("model:")
            .ok_or_else(|| wrong("it does not begin with model:".into()))?;
        let mut parts = rest.split(',');
        let number = |text: &str| {
            text.parse::<u32>().map_err(|_| wrong(format!("\"{text}\" is not a number")))
        };
        let mut spec = Self {
            number: number(parts.next().unwrap_or_default())?,
            cable: None,
            feed: None,
            repeat: true,
            thread: false,
        };
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("cable", other) => spec.cable = Some(number(other)?),
                ("pcap", file) if !file.is_empty() => spec.feed = Some(Source::Pcap(file.into())),
                ("packets", size) => {
                    let size = number(size)? as usize;
                    if !(60..=super::super::LONGEST - 4).contains(&size) {
                        return Err(wrong(format!(
                            "packets have 60 to {} bytes",
                            super::super::LONGEST - 4
                        )));
                    }
                    spec.feed = Some(Source::Packets(size));
                }
                ("once", "") => spec.repeat = false,
                ("thread", "") => spec.thread = true,
                _ => return Err(wrong(format!("\"{part}\" is unknown"))),
            }
        }
        match spec {
            Self { cable: Some(_), feed: Some(_), .. } => {
                Err(wrong("it has either a cable or a feed".into()))
            }
            Self { number, cable: Some(other), .. } if number == other => {
                Err(wrong("a cable has two ends: name another model".into()))
            }
            spec => Ok(spec),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model:{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let plain = Spec { number: 3, cable: None, feed: None, repeat: true, thread: false };
        assert_eq!("model:3".parse(), Ok(plain.clone()));
        assert_eq!(
            "model:3,cable=4,thread".parse(),
            Ok(Spec { cable: Some(4), thread: true, ..plain.clone() })
        );
        let pcap = Some(Source::Pcap("a.pcap".into()));
        assert_eq!(
            "model:3,pcap=a.pcap,once".parse(),
            Ok(Spec { feed: pcap, repeat: false, ..plain })
        );
        for wrong in [
            "model:",
            "model:x",
            "model",
            "model:1,cable=1",
            "model:1,cable=2,packets=64",
            "model:1,x",
            "model:1,packets=9",
        ] {
            let error = wrong.parse::<Spec>().unwrap_err().to_string();
            assert!(error.contains("a model is named as model:0"), "{error}");
        }
    }
}
