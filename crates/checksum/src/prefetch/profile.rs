//! The prefetch settings, and their text form.

use core::fmt;

use crate::cpu::Processor;

/// How far to prefetch.
///
/// The text form (`Display` and [`Profile::parse`]) is a line of format, one line per setting, and
/// a last line that shows that nothing is missing. Empty lines and lines that begin with `#` are
/// skipped.
///
/// ```text
/// shortwire checksum profile 1
/// # 1500 B cold random: 156 ns with, 170 ns without
/// processor = GenuineIntel 6 143
/// in-packet = 0
/// next-packet-lines = 8
/// packets-ahead = 2
/// end
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// Distance within a packet, in bytes ahead of what is being summed; 0: none.
    pub in_packet: u16,
    /// Batches: how many lines of 64 bytes of a following packet to ask for; 0: none.
    pub next_packet_lines: u8,
    /// Batches: how many packets ahead that packet is; 0: none.
    pub packets_ahead: u8,
}

const FIRST_LINE: &str = "shortwire checksum profile 1";

impl Profile {
    /// No prefetch at all.
    pub const NONE: Profile = Profile { in_packet: 0, next_packet_lines: 0, packets_ahead: 0 };

    /// A profile of these settings: `in_packet` in bytes, the others in lines and packets.
    pub const fn new(in_packet: u16, next_packet_lines: u8, packets_ahead: u8) -> Profile {
        Profile { in_packet, next_packet_lines, packets_ahead }
    }

    /// The built-in profile of the processor this runs on.
    pub fn built_in() -> Profile {
        Profile::for_processor(&Processor::current())
    }

    /// The built-in profile of a processor family.
    pub fn for_processor(processor: &Processor) -> Profile {
        let (lines, ahead) = match (processor.vendor(), processor.family, processor.model) {
            // Up to Skylake and its successors with the same core: 10 line fill buffers. Half of
            // them stay for the packet that is being summed.
            ("GenuineIntel", 6, 0..=0x5f | 0x8e | 0x9e | 0xa5 | 0xa6) => (5, 2),
            // Measured on Golden Cove (Xeon of the fourth generation, 16 buffers): best of those
            // tried for cold packets of 1500 bytes and for the Internet mix; in-packet prefetch
            // gains nothing at any distance. The same on Zen 4 (AuthenticAMD 25 17). Other
            // processors get it unmeasured.
            _ => (12, 4),
        };
        Profile::new(0, lines, ahead)
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`ProfileError::Damaged`] if it is not a whole and correct profile,
    /// [`ProfileError::OtherProcessor`] if it is one of another processor family. In both cases the
    /// built-in profile is the one to use.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let (processor, profile) = read(text)?;
        let here = Processor::current();
        if processor != here {
            return Err(ProfileError::OtherProcessor { profile: processor, here });
        }
        Ok(profile)
    }

    /// Never 0: the uppermost bit says that there is a profile.
    pub(super) fn packed(self) -> u64 {
        1 << 63
            | u64::from(self.packets_ahead) << 24
            | u64::from(self.next_packet_lines) << 16
            | u64::from(self.in_packet)
    }

    pub(super) fn unpacked(packed: u64) -> Profile {
        Profile::new(packed as u16, (packed >> 16) as u8, (packed >> 24) as u8)
    }
}

/// For the processor this runs on.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST_LINE}")?;
        writeln!(f, "processor = {}", Processor::current())?;
        writeln!(f, "in-packet = {}", self.in_packet)?;
        writeln!(f, "next-packet-lines = {}", self.next_packet_lines)?;
        writeln!(f, "packets-ahead = {}", self.packets_ahead)?;
        writeln!(f, "end")
    }
}

/// Why a profile cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// Not a whole and correct profile: which line, counted from 1, and what is wrong.
    Damaged {
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// A profile of another processor family.
    OtherProcessor {
        /// The one that the profile was measured on.
        profile: Processor,
        /// The one this runs on.
        here: Processor,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Damaged { line, reason } => {
                write!(
                    f,
                    "damaged checksum profile, line {line}: {reason}; write it anew with `shortwire tune checksum`"
                )
            }
            ProfileError::OtherProcessor { profile, here } => write!(
                f,
                "the checksum profile is of another processor ({profile}; this one is {here}); \
                 write one here with `shortwire tune checksum`"
            ),
        }
    }
}

impl core::error::Error for ProfileError {}

/// One place per setting, to see what is missing and what comes twice.
#[derive(Default)]
struct Fields {
    processor: Option<Processor>,
    in_packet: Option<u16>,
    next_packet_lines: Option<u8>,
    packets_ahead: Option<u8>,
}

fn read(text: &str) -> Result<(Processor, Profile), ProfileError> {
    let mut fields = Fields::default();
    let mut lines = (1..).zip(text.lines().map(str::trim));
    if lines.next().is_none_or(|(_, first)| first != FIRST_LINE) {
        return Err(ProfileError::Damaged {
            line: 1,
            reason: "not a checksum profile of format 1",
        });
    }
    let mut last = 1;
    for (line, content) in &mut lines {
        last = line;
        let damaged = |reason| ProfileError::Damaged { line, reason };
        if content == "end" {
            return match lines.find(|(_, behind)| !behind.is_empty()) {
                Some((line, _)) => {
                    Err(ProfileError::Damaged { line, reason: "something follows the line `end`" })
                }
                None => fields.complete().ok_or(damaged("a setting is missing")),
            };
        }
        if !content.is_empty() && !content.starts_with('#') {
            fields.set(content).map_err(damaged)?;
        }
    }
    Err(ProfileError::Damaged {
        line: last,
        reason: "the line `end` is missing, so the file was cut off",
    })
}

impl Fields {
    fn set(&mut self, content: &str) -> Result<(), &'static str> {
        let (name, value) = content.split_once('=').ok_or("not `name = value`")?;
        let value = value.trim();
        match name.trim() {
            "processor" => put(&mut self.processor, processor(value)),
            "in-packet" => put(&mut self.in_packet, value.parse().ok()),
            "next-packet-lines" => put(&mut self.next_packet_lines, value.parse().ok()),
            "packets-ahead" => put(&mut self.packets_ahead, value.parse().ok()),
            _ => Err("no such setting"),
        }
    }

    fn complete(self) -> Option<(Processor, Profile)> {
        Some((
            self.processor?,
            Profile::new(self.in_packet?, self.next_packet_lines?, self.packets_ahead?),
        ))
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> Result<(), &'static str> {
    let value = value.ok_or("not a value that this setting can have")?;
    if place.replace(value).is_some() { Err("the setting is there twice") } else { Ok(()) }
}

/// `vendor family model`.
fn processor(text: &str) -> Option<Processor> {
    let mut words = text.split_whitespace();
    let processor =
        Processor::new(words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?)?;
    words.next().is_none().then_some(processor)
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn what_is_printed_parses() {
        for profile in
            [Profile::NONE, Profile::built_in(), Profile::new(u16::MAX, u8::MAX, u8::MAX)]
        {
            assert_eq!(Profile::parse(&profile.to_string()), Ok(profile));
            assert_eq!(Profile::unpacked(profile.packed()), profile);
        }
    }

    #[test]
    fn comments_and_spaces_are_skipped() {
        let text =
            Profile::new(320, 8, 2).to_string().replace("end", "\n# measured today\n  end \n\n");
        assert_eq!(Profile::parse(&text), Ok(Profile::new(320, 8, 2)));
    }

    #[test]
    fn cut_off_anywhere_is_damaged() {
        let text = Profile::new(1024, 16, 2).to_string();
        for length in 0..text.trim_end().len() {
            assert!(
                matches!(Profile::parse(&text[..length]), Err(ProfileError::Damaged { .. })),
                "{length}"
            );
        }
    }

    #[test]
    fn each_damage_names_its_line() {
        let text = Profile::new(1024, 16, 2).to_string();
        let cases = [
            ("profile 1", "profile 2", 1),
            ("in-packet = 1024", "in-packet = 65536", 3),
            ("in-packet = 1024", "in-packet = -1", 3),
            ("in-packet = 1024", "in-packet 1024", 3),
            ("next-packet-lines = 16", "next-packet-lines = 256", 4),
            ("next-packet-lines = 16", "in-packet = 16", 4),
            ("packets-ahead = 2", "packets-behind = 2", 5),
            ("packets-ahead = 2\n", "", 5),
            ("end\n", "end\nend\n", 7),
            ("processor = ", "processor = far too long ", 2),
        ];
        for (from, to, line) in cases {
            match Profile::parse(&text.replace(from, to)) {
                Err(ProfileError::Damaged { line: told, .. }) => assert_eq!(told, line, "{to}"),
                other => panic!("{to}: {other:?}"),
            }
        }
    }

    #[test]
    fn another_processor_is_told() {
        let here = Processor::current();
        // Whatever this processor is, that one is another.
        let other = Processor::new(here.vendor(), here.family, here.model ^ 1).unwrap();
        let text = Profile::NONE.to_string().replace(&here.to_string(), &other.to_string());
        assert_eq!(
            Profile::parse(&text),
            Err(ProfileError::OtherProcessor { profile: other, here })
        );
        let error = Profile::parse(&text).unwrap_err();
        assert!(error.to_string().contains(&format!("({other}; this one is {here})")), "{error}");
    }

    #[test]
    fn processors_with_fewer_buffers_get_fewer_lines() {
        let of = |vendor, family, model| {
            Profile::for_processor(&Processor::new(vendor, family, model).unwrap())
        };
        assert_eq!(of("GenuineIntel", 6, 0x55).next_packet_lines, 5);
        assert_eq!(of("GenuineIntel", 6, 0x8f).next_packet_lines, 12);
        assert_eq!(of("AuthenticAMD", 25, 1).next_packet_lines, 12);
    }
}
