//! Configuration files: settings, and rules for programs and connections (doc/policy.md).
//!
//! The library reads them once, when a program starts. What concerns the program is decided there;
//! what is left are rules for its connections, which are asked once for each of them, before its
//! upgrade begins. The command reads them by the same code. A file that cannot be used keeps
//! programs on TCP: it may be there to keep them apart.
#![allow(unsafe_code)]

mod files;
mod matching;
mod syntax;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering::*};

pub use files::{File, Found, Places, Refused, SYSTEM, Unread, passwd};
pub use matching::{Direction, Program, User};
pub use syntax::{
    Action, OnConn, Problem, Rule, SETTINGS, Setting, Statement, parse, setting_named,
};

use crate::config::{CONFIG, PeerPolicy};
use crate::inet::Addr;
use crate::{setting, sys};

/// Where something is said: a file of `Found`, and its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// Which of the files.
    pub file: usize,
    /// From 1 on.
    pub line: u32,
}

/// A setting of a program.
pub struct Said<'a> {
    /// Which one.
    pub setting: &'static Setting,
    /// What it is.
    pub value: &'a [u8],
    /// Where that is said.
    pub at: At,
}

/// A rule for connections of a program.
#[derive(Clone, Copy, Debug)]
pub struct ConnRule {
    /// What it says.
    pub action: Action,
    /// Of which.
    pub conn: OnConn,
    /// Where.
    pub at: At,
}

/// What the files say of a program.
#[derive(Default)]
pub struct Verdict<'a> {
    /// Each at most once.
    pub settings: Vec<Said<'a>>,
    /// In the order in which they are asked.
    pub rules: Vec<ConnRule>,
    /// Of connections that no rule is for, if there is a rule for the program.
    pub otherwise: Option<(Action, At)>,
    /// Lines that say nothing.
    pub problems: Vec<(At, Problem<'a>)>,
}

/// What these files say of a program. The first line counts that says something: of rules, that is
/// for the program; behind one that is for all of its connections no further rule does, and its
/// settings go before those that stand alone.
pub fn judge<'a>(files: &'a [File], program: &Program<'_>) -> Verdict<'a> {
    let mut verdict = Verdict::default();
    let mut alone = Vec::new();
    for (file, text) in files.iter().enumerate() {
        for (line, statement) in parse(&text.text) {
            let at = At { file, line };
            match statement {
                Err(problem) => verdict.problems.push((at, problem)),
                Ok(Statement::Setting(setting, value)) => alone.push(Said { setting, value, at }),
                Ok(Statement::Rule(rule)) => {
                    if verdict.otherwise.is_none() && program.meets(&rule) {
                        verdict.follow(&rule, at);
                    }
                }
            }
        }
    }
    for said in alone {
        let is_same = |known: &Said<'_>| known.setting.name == said.setting.name;
        if !verdict.settings.iter().any(is_same) {
            verdict.settings.push(said);
        }
    }
    verdict
}

impl<'a> Verdict<'a> {
    /// Of a rule for the program.
    fn follow(&mut self, rule: &Rule<'a>, at: At) {
        let (action, conn) = (rule.action, rule.conn);
        if conn.is_any() {
            self.otherwise = Some((action, at));
            self.settings.extend(rule.settings().map(|(setting, value)| Said {
                setting,
                value,
                at,
            }));
        } else {
            self.rules.push(ConnRule { action, conn, at });
        }
    }
}

/// Whether any rule asks for a user by name.
pub fn asks_for_names(files: &[File]) -> bool {
    let by_name = |statement| match statement {
        Ok(Statement::Rule(rule)) => matches!(rule.user, Some(User::Name(_))),
        _ => false,
    };
    files.iter().any(|file| parse(&file.text).any(|(_, statement)| by_name(statement)))
}

/// What a program is started with.
pub struct Start<'a> {
    /// Where its files are.
    pub places: Places,
    /// A link to its file.
    pub link: &'a CStr,
    /// How it was started.
    pub started: &'a [u8],
    /// Its arguments behind the first, with a blank between each two.
    pub args: &'a dyn Fn() -> Vec<u8>,
    /// Whether its environment says with whom memory is shared: then no rule does.
    pub is_told: bool,
}

struct Rules(UnsafeCell<(Vec<ConnRule>, Option<Action>)>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Rules {}
static RULES: Rules = Rules(UnsafeCell::new((Vec::new(), None)));

/// Applies the files to this process, while the library is loaded and before what its environment
/// says is applied. False if one of them cannot be used.
pub fn start(start: &Start<'_>) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let found = Found::read(&start.places, user);
    if found.is_broken() {
        return false;
    }
    if found.files.is_empty() {
        return true;
    }
    let mut place = [0; 4096];
    let file = sys::readlink(start.link, &mut place).unwrap_or_default();
    if file.is_empty() {
        // Without /proc nobody knows which program this is, which rules may keep on TCP.
        return false;
    }
    let passwd = if asks_for_names(&found.files) { passwd() } else { Vec::new() };
    let (started, args) = (start.started, (start.args)());
    let program = Program { file, started, args: &args, user, passwd: &passwd };
    let verdict = judge(&found.files, &program);
    if !verdict.problems.is_empty() {
        return false;
    }
    for said in &verdict.settings {
        setting::set(said.setting.variable.as_bytes(), said.value);
    }
    let otherwise = verdict.otherwise.map(|(action, _)| action);
    if !start.is_told {
        if verdict.rules.is_empty() {
            CONFIG.set_policy(policy_of(otherwise));
        }
        // SAFETY: see `Rules`.
        unsafe { *RULES.0.get() = (verdict.rules, otherwise) };
    }
    true
}

/// With whom memory is shared by a rule, or without one.
fn policy_of(action: Option<Action>) -> PeerPolicy {
    match (action, CONFIG.policy()) {
        (Some(Action::Tcp), _) | (_, PeerPolicy::Off) => PeerPolicy::Off,
        (Some(Action::SameUid), _) => PeerPolicy::SameUid,
        (Some(Action::Share) | None, policy) => policy,
    }
}

/// With whom memory is shared on a connection of which that was `decided`.
pub fn of(decided: &AtomicU32) -> PeerPolicy {
    match decided.load(Relaxed) {
        1 => PeerPolicy::Off,
        2 => PeerPolicy::SameUid,
        _ => CONFIG.policy(),
    }
}

/// Asks the rules, unless it was `decided` (not 0) before: of a connection between these ends. Who
/// `opened` it is asked only if a rule does. None: that cannot be told yet.
pub fn decide(
    decided: &AtomicU32,
    names: &[Addr; 2],
    opened: impl Fn() -> Option<bool>,
) -> Option<PeerPolicy> {
    // SAFETY: see `Rules`.
    let (rules, otherwise) = unsafe { &*RULES.0.get() };
    if rules.is_empty() || decided.load(Relaxed) != 0 {
        return Some(of(decided));
    }
    let direction = || opened().map(|opened| if opened { Direction::Out } else { Direction::In });
    let mut action = *otherwise;
    for rule in rules {
        if rule.conn.holds(names, direction)? {
            action = Some(rule.action);
            break;
        }
    }
    let code = match policy_of(action) {
        PeerPolicy::Off => 1,
        PeerPolicy::SameUid => 2,
        PeerPolicy::Verified => 3,
    };
    decided.store(code, Relaxed);
    Some(of(decided))
}
