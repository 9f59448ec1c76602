//! Configuration files that count for programs which are started from here, and what is wrong with
//! them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::Serialize;
use smc::policy::{
    Action, File, Found, Places, SETTINGS, Statement, User, asks_for_names, parse, passwd,
    setting_named,
};

/// A line, or a whole file, about which there is something to say.
#[derive(Serialize, Debug, PartialEq)]
pub struct Remark {
    pub file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    words: String,
}

impl std::fmt::Display for Remark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.words)
    }
}

/// What is wrong with the files of programs that are started from here, and what is only odd.
#[derive(Default, Serialize)]
pub struct Health {
    pub problems: Vec<Remark>,
    pub remarks: Vec<Remark>,
}

impl Health {
    /// Of the files that count for a program that is started here, with this one named.
    pub fn here(named: Option<&str>) -> Health {
        let mut places = places();
        if let Some(named) = named {
            places.named = named.into();
        }
        health(&Found::read(&places, rustix::process::geteuid().as_raw()))
    }

    /// What keeps programs on TCP, a line for each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.problems.iter().map(Remark::to_string)
    }
}

pub fn health(found: &Found) -> Health {
    let mut health = Health::default();
    for refused in &found.refused {
        let words = refused.why.to_string();
        let words = if refused.harmless { format!("is not read: {words}") } else { words };
        let remark = Remark { file: path(&refused.path), line: None, words };
        if refused.harmless { &mut health.remarks } else { &mut health.problems }.push(remark);
    }
    let passwd = if asks_for_names(&found.files) { passwd() } else { Vec::new() };
    for file in &found.files {
        examine(file, &passwd, &mut health);
    }
    health
}

fn examine(file: &File, passwd: &[u8], health: &mut Health) {
    for (line, statement) in parse(&file.text) {
        let remark = |words| Remark { file: path(&file.path), line: Some(line), words };
        match statement {
            Err(problem) => {
                let near = nearest(&file.text, line).map(|name| format!(" (meant: {name}?)"));
                health.problems.push(remark(format!("{problem}{}", near.unwrap_or_default())));
            }
            Ok(Statement::Rule(rule)) => {
                if let Some(user @ User::Name(name)) = rule.user
                    && user.number(passwd).is_none()
                {
                    let name = String::from_utf8_lossy(name);
                    health.remarks.push(remark(format!(
                        "/etc/passwd has no user {name}, so this rule is for nobody: give a number if a directory service has it"
                    )));
                }
            }
            Ok(Statement::Setting(..)) => {}
        }
    }
}

/// The name that a first word with a slip in it stands for.
fn nearest(text: &[u8], line: u32) -> Option<&'static str> {
    let text = String::from_utf8_lossy(text.split(|&byte| byte == b'\n').nth(line as usize - 1)?);
    let first = text.trim_start().split(|c: char| c == '=' || c.is_whitespace()).next()?;
    if setting_named(first.as_bytes()).is_some() {
        return None;
    }
    let names = SETTINGS.iter().map(|setting| setting.name);
    let actions = Action::ALL.map(Action::name);
    names.chain(actions).find(|name| *name != first && is_near(name, first))
}

/// Whether one letter more, less, other or changed with its neighbour makes one of the other.
fn is_near(name: &str, word: &str) -> bool {
    let (a, b) = (name.as_bytes(), word.as_bytes());
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    let swapped = a.len() >= 2 && b.len() >= 2 && (a[0], a[1]) == (b[1], b[0]);
    same > 0 && (a.get(1..) == Some(b) || b.get(1..) == Some(a) || a.get(1..) == b.get(1..))
        || swapped && a[2..] == b[2..]
}

pub fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Where files are looked for, in words.
pub fn looked_at(places: &Places) -> String {
    let system = path(&places.system);
    let named = (!places.named.is_empty()).then(|| path(&places.named).display().to_string());
    let own = (!places.own.is_empty()).then(|| path(&places.own).display().to_string());
    let folder = format!("{}.d/*.conf", system.display());
    let all = named.into_iter().chain(own).chain([folder, system.display().to_string()]);
    all.collect::<Vec<_>>().join(", ")
}

/// Of programs that are started from here.
pub fn places() -> Places {
    places_with(|name| env::var_os(name))
}

pub fn places_with(variable: impl Fn(&str) -> Option<OsString>) -> Places {
    let variables: Vec<_> = ["SHORTWIRE_CONFIG", "XDG_CONFIG_HOME", "HOME"]
        .into_iter()
        .filter_map(|name| Some((name, variable(name)?)))
        .collect();
    Places::of(|wanted| {
        variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_bytes())
    })
}

/// The text of a line.
pub fn line_of(file: &File, line: u32) -> String {
    let text = file.text.split(|&byte| byte == b'\n').nth(line as usize - 1).unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(text: &str) -> Vec<String> {
        let file = File { path: b"x.conf".to_vec(), text: text.as_bytes().to_vec() };
        let health = health(&Found { files: vec![file], refused: Vec::new() });
        health.problems.iter().chain(&health.remarks).map(Remark::to_string).collect()
    }

    #[test]
    fn problems_name_file_and_line_and_what_to_do() {
        let said = examined("# first\nsipn = 20\nshare port=x\n");
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].starts_with("x.conf:2: \"sipn\" is neither"), "{said:?}");
        assert!(said[0].ends_with("(meant: spin?)"), "{said:?}");
        assert_eq!(
            said[1],
            "x.conf:3: port cannot be \"x\": give a port, or a range such as 8000-8099"
        );
        assert_eq!(examined("spin = 20\ntcp user=0"), [""; 0]);
        let said = examined("tcp user=nobody-has-this-name\n");
        assert!(said[0].starts_with("x.conf:1: /etc/passwd has no user"), "{said:?}");
    }

    #[test]
    fn slips_of_one_letter() {
        for near in ["shar", "sahre", "shares", "shire"] {
            assert!(is_near("share", near), "{near}");
        }
        for far in ["tcp", "shore-x", "xshare", ""] {
            assert!(!is_near("share", far), "{far}");
        }
    }
}
