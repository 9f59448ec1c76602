//! Man pages: those of commands from the definition of the command line, shortwire.conf(5) and
//! libshortwire(7) from `doc/man`, with the lists that the parser itself uses.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use shortwire_cli::{GROUPS, find, variables};

use crate::roff::{self, escape};

/// Beside the pages of commands.
const MORE: [&str; 2] = ["shortwire.conf.5", "libshortwire.7"];

/// Writes all pages into `out`, which is `man` below a directory of the root.
pub fn write(root: &Path, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut command = shortwire_cli::command();
    command.build();
    pages(&command, &command, out)?;
    for name in MORE {
        let template = root.join("doc/man").join(format!("{name}.in"));
        let text = fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?;
        put(out, name, &filled(&text))?;
    }
    Ok(())
}

fn put(out: &Path, name: &str, text: &str) -> Result<()> {
    let path = out.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn pages(root: &Command, command: &Command, out: &Path) -> Result<()> {
    put(out, &format!("{}.1", name(command)), &page(root, command)?)?;
    parts(command).try_for_each(|part| pages(root, part, out))
}

/// `shortwire-bench-sockets`.
fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-")
}

/// The commands of a command. The help of the help command is in every page already.
fn parts(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|part| part.get_name() != "help" && !part.is_hide_set())
}

/// What templates say for themselves, and the lists of the code.
fn filled(template: &str) -> String {
    let mut settings = String::new();
    for (setting, variable) in variables::in_files() {
        let value = variable.value.as_deref().unwrap_or("yes|no");
        settings += &roff::tagged(
            &format!("\\fB{}\\fR = \\fI{}\\fR", escape(setting), escape(value)),
            &variable.help,
        );
    }
    let mut environment = String::new();
    for variable in variables::of_library() {
        environment += &listed(&variable);
    }
    template.replace("@SETTINGS@\n", &settings).replace("@ENVIRONMENT@\n", &environment)
}

fn listed(variable: &variables::Variable) -> String {
    let value = variable.value.as_deref().unwrap_or("1");
    let tag = format!("\\fB{}\\fR=\\fI{}\\fR", escape(&variable.name), escape(value));
    roff::tagged(&tag, &variable.help)
}

fn page(root: &Command, command: &Command) -> Result<String> {
    let (name, is_root) = (name(command), command.get_bin_name() == root.get_bin_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let long = command.get_long_about().map_or_else(|| format!("{about}."), ToString::to_string);
    let after = command.get_after_long_help().or(command.get_after_help());
    let after = roff::Sections::of(&after.map(ToString::to_string).unwrap_or_default());
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        ".TH {} 1 \"\" \"shortwire {version}\" \"Shortwire\"\n.SH NAME\n{} \\- {}\n",
        escape(&name.to_uppercase()),
        escape(&name),
        escape(&about)
    );
    text += &synopsis(command);
    text += &format!(".SH DESCRIPTION\n{}{}", roff::prose(&long), roff::prose(&after.prose));
    if is_root {
        text += &groups(root);
    }
    text += &options(command)?;
    if !is_root && parts(command).next().is_some() {
        text += ".SH COMMANDS\n";
        for part in parts(command) {
            text += &listed_command(part);
        }
    }
    if !after.exit_status.is_empty() {
        text += &format!(".SH \"EXIT STATUS\"\n{}", roff::prose(&after.exit_status));
    }
    text += &environment(command, is_root);
    if is_root {
        text += ".SH FILES\n";
        for (file, what) in FILES {
            text += &roff::tagged(&format!("\\fI{}\\fR", escape(file)), what);
        }
    }
    if !after.examples.is_empty() {
        text += &format!(".SH EXAMPLES\n{}", roff::verbatim(&after.examples));
    }
    Ok(text + &see_also(root, command))
}

const FILES: [(&str, &str); 3] = [
    ("/etc/shortwire.conf", "Settings and rules: shortwire.conf(5) has this and its other places."),
    ("/usr/lib/shortwire/libshortwire.so", "What is loaded into programs: libshortwire(7)."),
    ("/usr/share/doc/shortwire", "More to read: what is followed, limits, security, operation."),
];

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(str::trim);
    let mut text = ".SH SYNOPSIS\n".to_string();
    for (number, line) in lines.filter(|line| !line.is_empty()).enumerate() {
        let bin = command.get_bin_name().unwrap_or(command.get_name());
        let rest = line.strip_prefix(bin).unwrap_or(line);
        text += if number > 0 { ".br\n" } else { "" };
        text += &format!("\\fB{}\\fR{}\n", escape(bin), escape(rest));
    }
    text
}

fn groups(root: &Command) -> String {
    let mut text = ".SH COMMANDS\n".to_string();
    for (group, names) in GROUPS {
        text += &format!(".SS {}\n", escape(group));
        names.iter().filter_map(|name| find(root, name)).for_each(|part| {
            text += &listed_command(part);
        });
    }
    text
}

fn listed_command(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    roff::tagged(&format!("\\fB{}\\fR(1)", escape(&name(command))), &format!("{about}."))
}

fn options(command: &Command) -> Result<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render_options_section(&mut text)?;
    Ok(String::from_utf8(text)?)
}

fn environment(command: &Command, is_root: bool) -> String {
    let mut list = String::new();
    for (option, variable) in variables::of(command) {
        let what = format!("What --{option} says, where that is not given.");
        list += &listed(&variables::Variable { help: what, ..variable });
    }
    if is_root {
        variables::others().iter().for_each(|variable| list += &listed(variable));
        list += ".PP\nSettings are in variables too, one for each option of\n.BR shortwire\\-run (1):\n\
                 .BR libshortwire (7)\nlists them.\n";
    }
    if list.is_empty() { list } else { format!(".SH ENVIRONMENT\n{list}") }
}

/// Pages of the same group, of the parts, and of what the text names.
fn see_also(root: &Command, command: &Command) -> String {
    let own = name(command);
    let mut pages: Vec<String> = parts(command).map(name).collect();
    let words: Vec<&str> = command.get_bin_name().unwrap_or_default().split(' ').skip(1).collect();
    if let Some((_, outer)) = words.split_last() {
        let outer = if outer.is_empty() { Some(root) } else { find(root, &outer.join(" ")) };
        pages.extend(outer.map(name));
    }
    let top = words.first().copied().unwrap_or_default();
    let mates = GROUPS.iter().filter(|(_, names)| names.contains(&top));
    pages.extend(
        mates.flat_map(|(_, names)| *names).filter_map(|other| Some(name(find(root, other)?))),
    );
    let said = [command.get_long_about(), command.get_after_help()];
    let said: String = said.into_iter().flatten().map(ToString::to_string).collect();
    for rest in said.split("`shortwire ").skip(1) {
        let words = rest.split('`').next().unwrap_or_default().trim_start_matches("help ");
        let first = words.split(' ').next().unwrap_or_default();
        pages.extend(find(root, first).map(name));
    }
    pages.retain(|page| *page != own);
    pages.sort();
    pages.dedup();
    let mut pages: Vec<(String, &str)> = pages.into_iter().map(|page| (page, "1")).collect();
    if ["", "run", "config", "enable", "disable", "off", "on", "gain"].contains(&top) {
        pages.extend([("shortwire.conf".into(), "5"), ("libshortwire".into(), "7")]);
    }
    if ["", "rstream"].contains(&top) {
        pages.push(("shortwire-rsocket".into(), "7"));
    }
    let last = pages.len() - 1;
    let lines = pages.iter().enumerate().map(|(at, (page, section))| {
        format!(".BR {} ({section}){}\n", escape(page), if at == last { "" } else { "," })
    });
    format!(".SH \"SEE ALSO\"\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests;
