//! The environment variables that count, for man pages: those of options as the command line
//! defines them, and those that no option stands for.

use clap::{Arg, Command, CommandFactory};
use smc::policy::SETTINGS;

use crate::run::{LIBRARY_VARIABLES, Run};

/// A variable and what it is for.
pub struct Variable {
    /// As in the environment.
    pub name: String,
    /// What may stand there, in the words of the help; None: 1, yes and so on.
    pub value: Option<String>,
    /// Whole sentences.
    pub help: String,
}

/// What is read from the environment alone.
const OTHERS: &[(&str, &str, &str)] = &[
    (
        LIBRARY_VARIABLES[0],
        "PATH",
        "The library, if it is neither beside the command nor in ../lib/shortwire.",
    ),
    (
        LIBRARY_VARIABLES[1],
        "PATH",
        "The same of the rsockets library, for `shortwire run --rsocket`.",
    ),
    (
        LIBRARY_VARIABLES[2],
        "PATH",
        "The same of the library that makes TCP sockets rsockets, for the same.",
    ),
    (
        "SHORTWIRE_RUN_DIR",
        "DIR",
        "Where the processes of a user find what they have in common: accounts of --max-memory-user, counters of `shortwire stats --keep` \
and of packet engines, the switch of `shortwire off`. Without it /dev/shm; of engines /run/shortwire or $XDG_RUNTIME_DIR/shortwire.",
    ),
];

/// What the library reads beside settings.
const OF_LIBRARY: &[(&str, &str, &str)] = &[(
    "SHORTWIRE_TRACE_CLC",
    "FILE",
    "File to which each handshake is written as it happens; `shortwire trace-clc` makes the file and sets this.",
)];

/// The options of a command that have a variable: their names and that.
pub fn of(command: &Command) -> Vec<(String, Variable)> {
    command
        .get_arguments()
        .filter_map(|arg| Some((arg.get_long()?.into(), variable(arg)?)))
        .collect()
}

fn variable(arg: &Arg) -> Option<Variable> {
    let help = arg.get_long_help().or(arg.get_help())?.to_string();
    let takes = arg.get_action().takes_values();
    Some(Variable {
        name: arg.get_env()?.to_str()?.into(),
        value: arg.get_value_names().filter(|_| takes).map(|names| names.join(" ")),
        help: if help.ends_with('.') { help } else { format!("{help}.") },
    })
}

fn owned(list: &[(&str, &str, &str)]) -> Vec<Variable> {
    let one = |&(name, value, help): &(&str, &str, &str)| Variable {
        name: name.into(),
        value: Some(value.into()),
        help: help.into(),
    };
    list.iter().map(one).collect()
}

/// Those that no option stands for.
pub fn others() -> Vec<Variable> {
    owned(OTHERS)
}

/// All that the library reads: each option of `shortwire run`, and what has none.
pub fn of_library() -> Vec<Variable> {
    let options = of(&Run::command()).into_iter().map(|(_, variable)| variable);
    options.chain(owned(OF_LIBRARY)).chain(others().into_iter().skip(2)).collect()
}

/// The settings of configuration files, by their names there.
pub fn in_files() -> Vec<(&'static str, Variable)> {
    let mut variables: Vec<Variable> =
        of(&Run::command()).into_iter().map(|(_, variable)| variable).collect();
    let named = |variable: &Variable, name: &str| variable.name == format!("SHORTWIRE_{name}");
    SETTINGS
        .iter()
        .filter_map(|setting| {
            let at = variables.iter().position(|one| named(one, setting.variable))?;
            Some((setting.name, variables.swap_remove(at)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn those_without_an_option_are_in_the_document() {
        let document = include_str!("../../../doc/options.md");
        for (name, ..) in OTHERS.iter().chain(OF_LIBRARY) {
            assert!(document.contains(&format!("| | `{name}` |")), "doc/options.md lacks {name}");
        }
    }

    #[test]
    fn each_setting_of_files_is_an_option() {
        assert_eq!(in_files().len(), SETTINGS.len());
        for (name, variable) in in_files() {
            assert!(variable.help.len() > 20 && variable.help.ends_with('.'), "{name}");
        }
    }

    /// Names of variables that stand in these sources as words of their own.
    fn quoted(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                quoted(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                let words = text.split('"');
                let is_name = |word: &&str| {
                    let rest = word.strip_prefix("SHORTWIRE_");
                    rest.is_some_and(|rest| {
                        !rest.is_empty()
                            && rest.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
                    })
                };
                found.extend(words.filter(is_name).map(String::from));
            }
        }
    }

    #[test]
    fn each_variable_that_is_read_is_explained() {
        let mut known: BTreeSet<String> =
            of_library().into_iter().chain(others()).map(|variable| variable.name).collect();
        let root = crate::args::command();
        for path in [&["engine"][..], &["snsh"], &["bench", "engine"]] {
            let command = path.iter().try_fold(&root, |at, name| at.find_subcommand(name));
            known.extend(command.into_iter().flat_map(of).map(|(_, variable)| variable.name));
        }
        // The command's own business: which build it is, and a trial of `info` with a child.
        known.extend(["SHORTWIRE_BUILD", "SHORTWIRE_LOADING_TRIAL"].map(String::from));
        let mut found = BTreeSet::new();
        for name in
            ["cli", "connections", "engine", "measure", "preload", "rsocket", "smc", "socket"]
        {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates").join(name);
            quoted(&folder.join("src"), &mut found);
        }
        let found: Vec<_> = found.difference(&known).collect();
        assert!(found.is_empty(), "no man page has {found:?}");
        assert!(known.contains("SHORTWIRE_AFTER") && known.contains("SHORTWIRE_LIB"));
    }
}
