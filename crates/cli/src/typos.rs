//! What was meant by a word of the command line that is none of ours.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use terminal::near::nearest;

use crate::ss;

/// What other tools call what a command of ours does.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("ss", &["status", "list", "ls", "show", "connections", "netstat", "smcss"]),
    ("top", &["watch", "monitor", "htop", "live"]),
    ("stats", &["counters", "statistics", "smcd"]),
    ("doctor", &["check", "why", "diagnose", "explain", "debug"]),
    ("run", &["exec", "start", "preload", "launch", "smc_run"]),
    ("off", &["stop", "kill"]),
    ("trace-clc", &["trace", "record"]),
    ("metrics", &["prometheus", "exporter", "serve"]),
    ("bench", &["measure", "perf"]),
    ("engine", &["snabb"]),
    ("snsh", &["lua", "script"]),
    ("webhook", &["kubernetes", "k8s", "inject", "admission"]),
];

/// Puts what was meant into clap's message, where clap has nothing, or something that only sounds
/// alike. `words` are those of the command line behind the command's own name.
pub fn explain(error: &mut clap::Error, command: &clap::Command, words: &[String]) {
    match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(wrong))) => {
            let wrong = wrong.clone();
            subcommand(error, command, words, &wrong);
        }
        (ErrorKind::UnknownArgument, _) => {
            filter_field(error, words);
            letter_of_ss(error, words);
        }
        _ => {}
    }
}

fn subcommand(error: &mut clap::Error, command: &clap::Command, words: &[String], wrong: &str) {
    if wrong == "version" {
        error.remove(ContextKind::SuggestedSubcommand);
        return tip(error, "`shortwire --version` prints the version".into());
    }
    let inner = words.iter().map_while(|word| (word != wrong).then_some(word));
    let command = inner.fold(command, |at, word| at.find_subcommand(word).unwrap_or(at));
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let elsewhere = ELSEWHERE.iter().filter(|(_, others)| others.contains(&wrong));
    let mut meant: Vec<&str> = elsewhere.map(|(name, _)| *name).collect();
    meant.retain(|name| names.contains(name));
    meant.extend(nearest(wrong, names));
    error.remove(ContextKind::SuggestedSubcommand);
    if !meant.is_empty() {
        let meant = meant.into_iter().map(String::from).collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
    }
}

/// `ss --pid 3`: fields of a filter have no dashes.
fn filter_field(error: &mut clap::Error, words: &[String]) {
    let (Some(name @ ("ss" | "top")), Some(ContextValue::String(wrong))) =
        (words.first().map(String::as_str), error.get(ContextKind::InvalidArg))
    else {
        return;
    };
    let word = wrong.trim_start_matches('-').to_string();
    let Some(field) = ss::filter_fields().find(|field| *field == word) else { return };
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::Usage);
    tip(error, format!("what is shown is chosen without dashes: `shortwire {name} {field} ...`"));
}

/// `ss -u`, `ss -i`: clap would have the letter passed as a value, which is no filter either.
fn letter_of_ss(error: &mut clap::Error, words: &[String]) {
    let (Some("ss"), Some(ContextValue::String(wrong))) =
        (words.first().map(String::as_str), error.get(ContextKind::InvalidArg))
    else {
        return;
    };
    let text = match wrong.strip_prefix('-') {
        Some("u" | "w" | "x" | "S" | "0") => {
            "here is only TCP: leave the letter out, and ask iproute2's `ss` for other sockets"
        }
        Some("i" | "m") => {
            "`shortwire ss -d` shows buffers, cursors and flags of connections through shared memory"
        }
        Some(letter) if letter.chars().count() == 1 => {
            "`shortwire help ss` has what is known here; iproute2's `ss` shows the kernel's side"
        }
        _ => return,
    };
    tip(error, text.into());
}

fn tip(error: &mut clap::Error, text: String) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(text)]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        let parsed = args::command().try_get_matches_from(
            ["shortwire"].into_iter().chain(words.iter().map(String::as_str)),
        );
        let mut error = parsed.expect_err(line);
        explain(&mut error, &args::command(), &words);
        error.to_string()
    }

    #[test]
    fn what_was_meant_is_suggested() {
        for (line, meant) in [
            ("rnu", "'run'"),
            ("statsu", "'stats'"),
            ("docter nginx", "'doctor'"),
            ("doc", "'doctor'"),
            ("status", "'ss'"),
            ("monitor", "'top'"),
            ("smc_run", "'run'"),
            ("bench sokcets", "'sockets'"),
            ("version", "`shortwire --version`"),
            ("ss --pid 3", "`shortwire ss pid ...`"),
            ("ss -tulpn", "only TCP"),
            ("ss -ti", "`shortwire ss -d`"),
            ("ss -K", "`shortwire help ss`"),
            ("top --program nginx", "`shortwire top program ...`"),
            ("run --afetr 3 -- ls", "'--after'"),
            ("run --peer-policy verifeid -- ls", "'verified'"),
            ("bench sockets --only pingpng", "'pingpong'"),
        ] {
            let said = said(line);
            assert!(said.contains(meant), "{line}: {said}");
        }
        for (line, not) in [
            ("monitor", "'on'"),
            ("ss --pid 3", "--wide"),
            ("ss -tulpn", "as a value"),
            ("frobnicate", "tip"),
        ] {
            let said = said(line);
            assert!(!said.contains(not), "{line}: {said}");
        }
    }

    #[test]
    fn what_is_called_otherwise_elsewhere_is_a_command_here() {
        let command = args::command();
        let mut all: Vec<&str> =
            ELSEWHERE.iter().flat_map(|(_, others)| *others).copied().collect();
        for (name, others) in ELSEWHERE {
            let known = command.find_subcommand(name).is_some() || cfg!(not(feature = "lua"));
            assert!(known, "{name}");
            for other in *others {
                assert!(command.find_subcommand(other).is_none(), "{other} is a command");
            }
        }
        let words = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), words, "a word stands twice");
    }
}
