//! How a filter is read from the words of a command line.

use std::fs;
use std::net::IpAddr;

use connections::{Connection, Mode};
use smc::reason::Reason;

use terminal::near::nearest;

use super::super::{MODES, mode_name};
use super::{End, Filter, Host, Op, is_like};

/// Beside errors, and in the help.
const FIELDS: &str = "state, sport, dport, src, dst, pid, program, peer, uid, mode, reason, device";

/// The fields of a filter.
pub fn fields() -> impl Iterator<Item = &'static str> {
    FIELDS.split(", ")
}

/// The states of SMC by the names that iproute2 has for those of TCP, and by their own.
const STATES: &[(&str, &[&str])] = &[
    ("established", &["ACTIVE"]),
    ("syn-sent", &["INIT"]),
    ("fin-wait-1", &["PEERCLOSEWAIT1"]),
    ("fin-wait-2", &["PEERCLOSEWAIT2"]),
    ("close-wait", &["APPCLOSEWAIT1", "APPCLOSEWAIT2"]),
    ("last-ack", &["APPFINCLOSEWAIT"]),
    ("closed", &["CLOSED"]),
    ("aborted", &["PROCESSABORT"]),
    ("listening", &["LISTEN"]),
    ("all", ALL),
    ("connected", CONNECTED),
    ("synchronized", SYNCHRONIZED),
];
const ALL: &[&str] = &[
    "ACTIVE",
    "INIT",
    "PEERCLOSEWAIT1",
    "PEERCLOSEWAIT2",
    "APPCLOSEWAIT1",
    "APPCLOSEWAIT2",
    "APPFINCLOSEWAIT",
    "CLOSED",
    "PROCESSABORT",
    "LISTEN",
];
const CONNECTED: &[&str] = &[
    "ACTIVE",
    "INIT",
    "PEERCLOSEWAIT1",
    "PEERCLOSEWAIT2",
    "APPCLOSEWAIT1",
    "APPCLOSEWAIT2",
    "APPFINCLOSEWAIT",
    "PROCESSABORT",
];
const SYNCHRONIZED: &[&str] = &[
    "ACTIVE",
    "PEERCLOSEWAIT1",
    "PEERCLOSEWAIT2",
    "APPCLOSEWAIT1",
    "APPCLOSEWAIT2",
    "APPFINCLOSEWAIT",
    "PROCESSABORT",
];

impl Filter {
    /// From the words of a command line; without any, everything is wanted.
    pub fn parse(words: &[String]) -> Result<Filter, String> {
        let tokens = tokens(&words.join(" "));
        if tokens.is_empty() {
            return Ok(Filter::All(Vec::new()));
        }
        let mut parser = Parser { tokens: &tokens };
        let filter = parser.any()?;
        match parser.tokens.first() {
            None => Ok(filter),
            Some(rest) => Err(format!("the filter is over before `{rest}`")),
        }
    }
}

impl Op {
    fn parse(token: &str) -> Option<Op> {
        Some(match token {
            "=" | "==" | "eq" => Op::Is,
            "!=" | "ne" | "neq" => Op::Not,
            "<" | "lt" => Op::Below,
            ">" | "gt" => Op::Above,
            "<=" | "le" | "leq" => Op::AtMost,
            ">=" | "ge" | "geq" => Op::AtLeast,
            _ => return None,
        })
    }
}

impl Host {
    /// `10.0.0.0/8`, `127.0.0.1:80`, `[::1]:80`, `::1`, `*:80`, `:80`.
    fn parse(text: &str) -> Result<Host, String> {
        let hint = || {
            format!(
                "`{text}` is no address: give one such as 10.0.0.0/8, 127.0.0.1:80, [::1]:80 or *:80"
            )
        };
        let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            // The bits may stand within the brackets or behind them.
            Some((host, behind)) => {
                let (bits, port) =
                    behind.split_once(':').map_or((behind, None), |(b, p)| (b, Some(p)));
                (format!("{host}{bits}"), port)
            }
            // Of a bare IPv6 address the colons are its own.
            None if text.matches(':').count() > 1 => (text.to_string(), None),
            None => match text.split_once(':') {
                Some((host, port)) => (host.to_string(), Some(port)),
                None => (text.to_string(), None),
            },
        };
        let port = port.filter(|port| *port != "*").map(parse_port).transpose()?;
        if matches!(host.as_str(), "" | "*") {
            return Ok(Host { network: None, port });
        }
        let (address, bits) = match host.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| hint())?)),
            None => (host.as_str(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| hint())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(hint());
        }
        Ok(Host { network: Some((address, bits)), port })
    }
}

/// A number, or a name of /etc/services; iproute2 wants a colon before it.
fn parse_port(text: &str) -> Result<u16, String> {
    let text = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = text.parse() {
        return Ok(port);
    }
    let services = fs::read_to_string("/etc/services").unwrap_or_default();
    let named = services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (name, port) = (words.next()?, words.next()?.strip_suffix("/tcp")?);
        (name == text || words.any(|alias| alias == text)).then(|| port.parse().ok())?
    });
    named.ok_or_else(|| {
        format!("`{text}` is no port: give a number such as :80, or a name of /etc/services")
    })
}

/// Words, brackets and operators.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    // What the last token is made of; None: it is complete.
    let mut growing = None;
    for c in text.chars() {
        let kind = match c {
            '(' | ')' => None,
            '&' | '|' => Some("joins"),
            '=' | '<' | '>' | '!' => Some("compares"),
            _ if c.is_whitespace() => None,
            _ => Some("word"),
        };
        match tokens.last_mut().filter(|_| kind.is_some() && kind == growing) {
            Some(last) => last.push(c),
            None if !c.is_whitespace() => tokens.push(c.into()),
            None => {}
        }
        growing = kind;
    }
    tokens
}

struct Parser<'a> {
    tokens: &'a [String],
}

impl Parser<'_> {
    fn next(&mut self) -> Option<&str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn take(&mut self, any_of: &[&str]) -> bool {
        let found = self.tokens.first().is_some_and(|token| any_of.contains(&token.as_str()));
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn any(&mut self) -> Result<Filter, String> {
        let mut parts = vec![self.all()?];
        while self.take(&["or", "|", "||"]) {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::Any(parts) })
    }

    fn all(&mut self) -> Result<Filter, String> {
        let mut parts = vec![self.one()?];
        loop {
            let joined = self.take(&["and", "&", "&&"]);
            let ends = |token: &String| [")", "or", "|", "||"].contains(&token.as_str());
            if !joined && self.tokens.first().is_none_or(ends) {
                break;
            }
            parts.push(self.one()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::All(parts) })
    }

    fn one(&mut self) -> Result<Filter, String> {
        if self.take(&["not", "!"]) {
            return Ok(Filter::Not(Box::new(self.one()?)));
        }
        if self.take(&["("]) {
            let inner = self.any()?;
            return if self.take(&[")"]) { Ok(inner) } else { Err("a `)` is missing".into()) };
        }
        self.test()
    }

    fn test(&mut self) -> Result<Filter, String> {
        let Some(field) = self.next().map(str::to_string) else {
            return Err(format!("the filter ends too early; it is made of {FIELDS}"));
        };
        let op = self.tokens.first().and_then(|token| Op::parse(token));
        if op.is_some() {
            self.next();
        }
        let op = op.unwrap_or(Op::Is);
        let known = ["state", "exclude"].contains(&field.as_str()) || fields().any(|f| f == field);
        if !known {
            let meant = nearest(&field, fields());
            let meant = meant.first().map_or_else(String::new, |near| format!(" (`{near}`?)"));
            return Err(format!("`{field}` is no field of a filter{meant}; there are {FIELDS}"));
        }
        let value = self.next().filter(|value| *value != ")").map(str::to_string);
        let value = value.ok_or_else(|| format!("`{field}` wants a value"))?;
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| format!("`{field}` wants a number, not `{text}`"))
        };
        let filter = match field.as_str() {
            "sport" => return Ok(Filter::Number(local_port, op, parse_port(&value)?.into())),
            "dport" => return Ok(Filter::Number(peer_port, op, parse_port(&value)?.into())),
            "pid" => return Ok(Filter::Number(pids, op, number(&value)?)),
            "uid" => return Ok(Filter::Number(|c| vec![c.uid.into()], op, number(&value)?)),
            "state" => Filter::State(states(&value)?),
            "exclude" => Filter::Not(Box::new(Filter::State(states(&value)?))),
            "src" => Filter::Host(End::Local, Host::parse(&value)?),
            "dst" => Filter::Host(End::Peer, Host::parse(&value)?),
            "program" => Filter::Text(|c| names(&c.programs), value),
            "peer" => Filter::Text(|c| names(&c.peer_programs), value),
            "mode" => Filter::Text(|c| vec![mode_name(&c.mode).into()], mode(&value)?),
            "device" => Filter::Text(devices, value),
            _ => Filter::Text(reasons, reason(&value)?),
        };
        match op {
            Op::Is => Ok(filter),
            Op::Not => Ok(Filter::Not(Box::new(filter))),
            _ => Err(format!("`{field}` can only be = or != something")),
        }
    }
}

fn local_port(connection: &Connection) -> Vec<u64> {
    connection.local.iter().map(|address| address.port().into()).collect()
}

fn peer_port(connection: &Connection) -> Vec<u64> {
    connection.peer.iter().map(|address| address.port().into()).collect()
}

fn pids(connection: &Connection) -> Vec<u64> {
    connection.programs.iter().map(|program| program.pid.into()).collect()
}

fn names(programs: &[connections::Program]) -> Vec<String> {
    programs.iter().map(|program| program.name.clone()).collect()
}

fn devices(connection: &Connection) -> Vec<String> {
    let upgraded = connection.detail.iter().map(|detail| detail.device);
    let streams = connection.stream.iter().map(|stream| stream.device);
    upgraded.chain(streams).map(String::from).collect()
}

/// Own reason and the peer's, each by its name and its code.
fn reasons(connection: &Connection) -> Vec<String> {
    let codes = match connection.mode {
        Mode::Tcp { reason, peer_reason, .. } => [reason, peer_reason],
        Mode::Reset { reason, .. } => [reason, 0],
        _ => return Vec::new(),
    };
    let codes = codes.into_iter().filter(|code| *code != 0);
    codes.flat_map(|code| [Reason(code).name().into(), format!("0x{code:08x}")]).collect()
}

fn states(name: &str) -> Result<&'static [&'static str], String> {
    let name = name.to_lowercase();
    let own = || {
        let at = ALL.iter().position(|state| state.to_lowercase() == name)?;
        Some(&ALL[at..=at])
    };
    let known = STATES.iter().find(|(known, _)| *known == name).map(|(_, states)| *states);
    let alias = if name == "listen" { Some(&["LISTEN"][..]) } else { None };
    known.or(alias).or_else(own).ok_or_else(|| {
        let names: Vec<&str> = STATES.iter().map(|(name, _)| *name).collect();
        format!(
            "there is no state `{name}`; there are {}, and those that the table shows",
            names.join(", ")
        )
    })
}

fn mode(text: &str) -> Result<String, String> {
    match MODES.iter().any(|mode| is_like(mode, text)) {
        true => Ok(text.into()),
        false => Err(format!("there is no mode `{text}`; there are {}", MODES.join(", "))),
    }
}

/// A name that no reason has is a typing error.
fn reason(text: &str) -> Result<String, String> {
    let is_code = text.starts_with("0x");
    if is_code || Reason::all().any(|reason| is_like(reason.name(), text)) {
        return Ok(text.into());
    }
    Err(format!(
        "no reason is called `{text}`; they are in doc/smc.md, such as NOT_YET, PEER_NO_SMC"
    ))
}
