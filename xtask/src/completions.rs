//! Completions for shells: clap's, and beside them programs behind `run --`, units of systemd,
//! processes, and what stands in lists with commas, such as the rows of a bench.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::{Arg, Command};
use clap_complete::{Shell, generate};

const BASH: &str = include_str!("completions/more.bash");
const ZSH: &str = include_str!("completions/more.zsh");
const FISH: &str = include_str!("completions/more.fish");

/// Writes a file for each shell.
pub fn write(out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut command = shortwire_cli::command();
    command.build();
    let lists = lists(&command);
    for (name, text) in [
        ("shortwire.bash", bash(&lists)?),
        ("_shortwire", zsh(&lists)?),
        ("shortwire.fish", fish(&command, &lists)?),
    ] {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn of_clap(shell: Shell) -> Result<String> {
    let mut text = Vec::new();
    generate(shell, &mut shortwire_cli::command(), "shortwire", &mut text);
    Ok(String::from_utf8(text)?)
}

/// An option that takes a list with commas.
struct List {
    /// `bench sockets`.
    command: String,
    option: String,
    /// As the help calls what is in it.
    of: String,
    values: Vec<String>,
}

fn lists(command: &Command) -> Vec<List> {
    fn collect(command: &Command, path: &str, found: &mut Vec<List>) {
        found.extend(command.get_arguments().filter_map(|arg| list(arg, path)));
        for part in command.get_subcommands().filter(|part| part.get_name() != "help") {
            collect(part, format!("{path} {}", part.get_name()).trim(), found);
        }
    }
    let mut found = Vec::new();
    collect(command, "", &mut found);
    found
}

fn list(arg: &Arg, command: &str) -> Option<List> {
    arg.get_value_delimiter().filter(|c| *c == ',')?;
    let values: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect();
    let of = arg.get_value_names()?.first()?.to_string();
    let option = arg.get_long()?.to_string();
    (!values.is_empty()).then(|| List { command: command.into(), option, of, values })
}

fn bash(lists: &[List]) -> Result<String> {
    let mut cases = String::new();
    for list in lists {
        let values = list.values.join(" ");
        writeln!(cases, "    '{} --{}') echo '{values}' ;;", list.command, list.option)?;
    }
    Ok(of_clap(Shell::Bash)? + &BASH.replace("@LISTS@", &cases))
}

/// clap's part has a list's values as those of one word.
fn zsh(lists: &[List]) -> Result<String> {
    let mut text = String::new();
    let of_clap = of_clap(Shell::Zsh)?;
    let mut replaced = 0;
    let mut rest = of_clap.lines().peekable();
    while let Some(line) = rest.next() {
        let list = lists.iter().find(|list| {
            line.contains(&format!("--{}=[", list.option))
                && line.contains(&format!(":{}:(", list.of))
        });
        let Some(list) = list else {
            writeln!(text, "{line}")?;
            continue;
        };
        let (before, after) = line.split_once(&format!(":{}:(", list.of)).context("it has it")?;
        // Values with help have a line each.
        let mut last = after;
        while !last.ends_with("' \\") {
            last = rest.next().context("a list has an end")?;
        }
        let values = list.values.join(" ");
        writeln!(text, "{before}:{}:_sequence compadd - {values}' \\", list.of)?;
        replaced += 1;
    }
    ensure!(replaced >= lists.len(), "{replaced} of {} lists are in zsh's file", lists.len());
    let subjects = text.matches("subject").count();
    ensure!(subjects == 3, "{subjects} of enable, disable and doctor are in zsh's file");
    let lines = text.lines().map(|line| match line.strip_suffix(":_default' \\") {
        Some(start) if line.contains(":subject") => format!("{start}:_shortwire_subjects' \\"),
        Some(start) if line.contains("]:CASE,...") => format!("{start}:_shortwire_cases' \\"),
        _ => line.to_string(),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let (functions, end) = text.rsplit_once("if [ \"$funcstack").context("zsh's last lines")?;
    Ok(format!("{functions}{ZSH}if [ \"$funcstack{end}\n"))
}

fn fish(command: &Command, lists: &[List]) -> Result<String> {
    let takes_value = |arg: &&Arg| arg.get_action().takes_values();
    let mut valued = Vec::new();
    for command in
        ["run", "gain", "trace-clc"].iter().filter_map(|name| command.find_subcommand(name))
    {
        for option in command.get_opts().filter(takes_value) {
            valued.extend(option.get_long().map(|name| format!("--{name}")));
            valued.extend(option.get_short().map(|name| format!("-{name}")));
        }
    }
    let valued = valued.join(" ");
    let mut lines = String::new();
    for list in lists {
        let (outer, inner) = list.command.split_once(' ').unwrap_or((&list.command, ""));
        let seen = if inner.is_empty() {
            String::new()
        } else {
            format!("; and __fish_seen_subcommand_from {inner}")
        };
        writeln!(
            lines,
            "complete -c shortwire -n \"__fish_shortwire_using_subcommand {outer}{seen}\" -l {} -x -a \"(__fish_append , {})\"",
            list.option,
            list.values.join(" ")
        )?;
    }
    Ok(of_clap(Shell::Fish)? + &FISH.replace("@VALUED@", &valued).replace("@LISTS@\n", &lines))
}

#[cfg(test)]
mod tests;
