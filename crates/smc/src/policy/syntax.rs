//! What a line of a configuration file may say: `NAME = VALUE`, or a rule. doc/policy.md has it in
//! words. Nothing here allocates, and what is read is borrowed from the text.

use core::fmt;

use super::matching::{Direction, Glob, Net, Ports, User};
use crate::setting;

/// Bytes of a file that is read; a longer one is refused.
pub const LONGEST: usize = 64 << 10;

/// A setting: as files and the command line call it, and the variable, without its prefix.
pub struct Setting {
    /// In files.
    pub name: &'static str,
    /// In the environment.
    pub variable: &'static str,
}

/// Whatever else is in the environment is of no use in a file.
pub const SETTINGS: &[Setting] = &[
    Setting { name: "after", variable: "AFTER" },
    Setting { name: "after-bytes", variable: "AFTER_BYTES" },
    Setting { name: "dmb-size", variable: "DMB_SIZE" },
    Setting { name: "max-memory", variable: "MAX_MEMORY" },
    Setting { name: "max-memory-user", variable: "MAX_MEMORY_USER" },
    Setting { name: "spin", variable: "SPIN" },
    Setting { name: "peer-policy", variable: "PEER_POLICY" },
    Setting { name: "prefer", variable: "PREFER" },
    Setting { name: "partition", variable: "PARTITION" },
    Setting { name: "rendezvous", variable: "RENDEZVOUS" },
    Setting { name: "ivshmem", variable: "IVSHMEM" },
    Setting { name: "broker", variable: "BROKER" },
    Setting { name: "ueid", variable: "UEID" },
    Setting { name: "seid", variable: "SEID" },
    Setting { name: "pnetid", variable: "PNETID" },
    Setting { name: "io-uring", variable: "IO_URING" },
    Setting { name: "go", variable: "GO" },
    Setting { name: "raw", variable: "RAW" },
    Setting { name: "copy", variable: "COPY" },
    Setting { name: "integrity", variable: "INTEGRITY" },
    Setting { name: "port-proof", variable: "PORT_PROOF" },
];

/// What becomes of the connections that a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// As without a rule.
    Share,
    /// They stay TCP.
    Tcp,
    /// Memory is shared with processes of the same user only.
    SameUid,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 3] = [Action::Share, Action::Tcp, Action::SameUid];

    /// As in files.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Share => "share",
            Action::Tcp => "tcp",
            Action::SameUid => "same-uid",
        }
    }
}

/// A rule's words behind its action, in the order of the text.
#[derive(Clone, Copy)]
pub struct Words<'a>(&'a [u8]);

/// A key and its value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// What a rule says of programs and connections. A condition that is not there holds.
#[derive(Clone, Copy)]
pub struct Rule<'a> {
    /// First word.
    pub action: Action,
    /// Path or name of the program.
    pub program: Option<Glob<'a>>,
    /// Its arguments.
    pub args: Option<Glob<'a>>,
    /// Its user.
    pub user: Option<User<'a>>,
    /// Of the connection alone.
    pub conn: OnConn,
    words: Words<'a>,
}

/// What a rule says of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OnConn {
    /// Its own end.
    pub local: Option<Net>,
    /// The other end.
    pub peer: Option<Net>,
    /// Port of either end.
    pub port: Option<Ports>,
    /// Who opened it.
    pub direction: Option<Direction>,
}

impl OnConn {
    /// Whether it holds for every connection.
    pub fn is_any(&self) -> bool {
        *self == OnConn::default()
    }
}

/// A line that says something.
pub enum Statement<'a> {
    /// `NAME = VALUE`.
    Setting(&'static Setting, &'a [u8]),
    /// A rule.
    Rule(Rule<'a>),
}

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem<'a> {
    /// Neither an action nor a setting.
    Unknown(&'a [u8]),
    /// Not `KEY=VALUE`, in a rule.
    NoPair(&'a [u8]),
    /// Neither a condition nor a setting, in a rule.
    UnknownKey(&'a [u8]),
    /// The same key twice, in a rule.
    Twice(&'a [u8]),
    /// A value that its name cannot have, and what it may be.
    Value(&'a [u8], &'a [u8], &'static str),
    /// A quote without an end.
    OpenQuote,
    /// A setting in a rule for some connections of a program.
    WholeProgram(&'a [u8]),
    /// What a rule's first word says.
    ByAction(&'a [u8]),
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| Text(bytes);
        match *self {
            Problem::Unknown(word) => write!(
                f,
                "\"{}\" is neither a rule nor a setting: begin a rule with share, tcp or same-uid, \
or write NAME = VALUE",
                text(word)
            ),
            Problem::NoPair(word) => {
                write!(f, "\"{}\" is not KEY=VALUE, without blanks around the =", text(word))
            }
            Problem::UnknownKey(key) => write!(
                f,
                "a rule has no \"{}\": it may have program, args, user, local, peer, port, \
direction, and settings",
                text(key)
            ),
            Problem::Twice(key) => {
                write!(f, "\"{}\" stands twice in this rule: write two rules", text(key))
            }
            Problem::Value(name, value, expected) => {
                write!(f, "{} cannot be \"{}\": give {expected}", text(name), text(value))
            }
            Problem::OpenQuote => f.write_str("a quote has no end in this line"),
            Problem::WholeProgram(name) => write!(
                f,
                "{} is set for whole programs: put it into a rule without local, peer, port and \
direction",
                text(name)
            ),
            Problem::ByAction(name) => write!(
                f,
                "{} is what the first word of a rule says: share, tcp or same-uid",
                text(name)
            ),
        }
    }
}

/// Bytes of a file as they can be shown.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?
                } else {
                    write!(f, "{c}")?
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// A statement, or what is wrong with it.
pub type Outcome<'a> = Result<Statement<'a>, Problem<'a>>;

/// The lines that say something, by number from 1 on.
pub fn parse(text: &[u8]) -> impl Iterator<Item = (u32, Outcome<'_>)> {
    let lines = text.split(|&byte| byte == b'\n').zip(1..);
    lines.filter_map(|(line, number)| Some((number, statement(line).transpose()?)))
}

/// What a line says, None if nothing.
fn statement(line: &[u8]) -> Result<Option<Statement<'_>>, Problem<'_>> {
    let mut words = Words(line);
    let Some(first) = words.word()? else { return Ok(None) };
    let name = first.split(|&byte| byte == b'=').next().unwrap_or(first);
    if let Some(action) = Action::ALL.into_iter().find(|action| action.name().as_bytes() == first) {
        return rule(action, words).map(|rule| Some(Statement::Rule(rule)));
    }
    let rest = line.trim_ascii_start().get(name.len()..).unwrap_or_default().trim_ascii_start();
    let (Some(setting), Some(value)) = (setting_named(name), rest.strip_prefix(b"=")) else {
        return Err(Problem::Unknown(first));
    };
    let value = whole_value(value)?;
    check(name, setting, value)?;
    Ok(Some(Statement::Setting(setting, value)))
}

/// A setting by its name in files.
pub fn setting_named(name: &[u8]) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name.as_bytes() == name)
}

fn check<'a>(
    name: &'a [u8],
    setting: &'static Setting,
    value: &'a [u8],
) -> Result<(), Problem<'a>> {
    if value.is_empty() {
        return Err(Problem::Value(name, value, "a value, or leave the line out"));
    }
    setting::check(setting.variable.as_bytes(), value)
        .map_err(|expected| Problem::Value(name, value, expected))
}

/// What stands behind the `=` of a setting, without blanks, comment and quotes.
fn whole_value(text: &[u8]) -> Result<&[u8], Problem<'_>> {
    let text = text.trim_ascii();
    if let Some(quoted) = text.strip_prefix(b"\"") {
        let end = quoted.iter().position(|&byte| byte == b'"').ok_or(Problem::OpenQuote)?;
        let behind = quoted[end + 1..].trim_ascii_start();
        return match behind.first() {
            None | Some(b'#') => Ok(&quoted[..end]),
            Some(_) => Err(Problem::NoPair(behind)),
        };
    }
    let is_comment =
        |at: &usize| text[*at] == b'#' && (*at == 0 || text[*at - 1].is_ascii_whitespace());
    let end = (0..text.len()).find(is_comment).unwrap_or(text.len());
    Ok(text[..end].trim_ascii_end())
}

impl<'a> Words<'a> {
    /// The next word, as it stands there; a quote keeps blanks in it.
    fn word(&mut self) -> Result<Option<&'a [u8]>, Problem<'a>> {
        let text = self.0.trim_ascii_start();
        if text.is_empty() || text[0] == b'#' {
            self.0 = &[];
            return Ok(None);
        }
        let mut quoted = false;
        let ends = |byte: &u8| {
            quoted ^= *byte == b'"';
            !quoted && byte.is_ascii_whitespace()
        };
        let end = text.iter().position(ends).unwrap_or(text.len());
        if quoted {
            return Err(Problem::OpenQuote);
        }
        self.0 = &text[end..];
        Ok(Some(&text[..end]))
    }

    /// The next key and its value.
    fn pair(&mut self) -> Result<Option<Pair<'a>>, Problem<'a>> {
        let Some(word) = self.word()? else { return Ok(None) };
        let at = word.iter().position(|&byte| byte == b'=').ok_or(Problem::NoPair(word))?;
        let (key, value) = (&word[..at], &word[at + 1..]);
        let bare = match value {
            [b'"', inner @ .., b'"'] => inner,
            other => other,
        };
        if key.is_empty() || bare.contains(&b'"') {
            return Err(Problem::NoPair(word));
        }
        Ok(Some((key, bare)))
    }
}

/// Takes a value into its place, once.
fn once<'a, T>(place: &mut Option<T>, key: &'a [u8], value: T) -> Result<(), Problem<'a>> {
    if place.replace(value).is_some() { Err(Problem::Twice(key)) } else { Ok(()) }
}

fn rule(action: Action, words: Words<'_>) -> Result<Rule<'_>, Problem<'_>> {
    let conn = OnConn::default();
    let mut rule = Rule { action, program: None, args: None, user: None, conn, words };
    let (mut rest, mut seen) = (words, 0u32);
    let mut last_setting = None;
    while let Some((key, value)) = rest.pair()? {
        let or = |expected| Problem::Value(key, value, expected);
        match key {
            b"program" => once(
                &mut rule.program,
                key,
                Glob::program(value)
                    .ok_or(or("the path of a program, or its name, with * and ?"))?,
            )?,
            b"args" => once(&mut rule.args, key, Glob(value))?,
            b"user" => once(
                &mut rule.user,
                key,
                User::parse(value).ok_or(or("the name of a user, or its number"))?,
            )?,
            b"local" | b"peer" => {
                let net = Net::parse(value).ok_or(or(
                    "an address such as 127.0.0.1, 10.0.0.0/8 or [::1], perhaps with :PORT, or :PORT",
                ))?;
                let place =
                    if key == b"local" { &mut rule.conn.local } else { &mut rule.conn.peer };
                once(place, key, net)?;
            }
            b"port" => {
                let ports =
                    Ports::parse(value).ok_or(or("a port, or a range such as 8000-8099"))?;
                once(&mut rule.conn.port, key, ports)?;
            }
            b"direction" => {
                let direction = Direction::parse(value).ok_or(or("in or out"))?;
                once(&mut rule.conn.direction, key, direction)?;
            }
            b"peer-policy" => return Err(Problem::ByAction(key)),
            _ => {
                let at = SETTINGS.iter().position(|setting| setting.name.as_bytes() == key);
                let at = at.ok_or(Problem::UnknownKey(key))?;
                if seen & 1 << at != 0 {
                    return Err(Problem::Twice(key));
                }
                seen |= 1 << at;
                check(key, &SETTINGS[at], value)?;
                last_setting = Some(key);
            }
        }
    }
    match last_setting {
        Some(key) if !rule.conn.is_any() => Err(Problem::WholeProgram(key)),
        _ => Ok(rule),
    }
}

impl<'a> Rule<'a> {
    /// What it sets.
    pub fn settings(&self) -> impl Iterator<Item = (&'static Setting, &'a [u8])> + use<'a> {
        let mut words = self.words;
        let pairs = core::iter::from_fn(move || words.pair().ok().flatten());
        pairs.filter_map(|(key, value)| Some((setting_named(key)?, value)))
    }
}
