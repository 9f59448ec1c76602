use std::process::{Command as Program, Stdio};

use super::*;

fn pages_in(folder: &Path) -> Vec<(String, String)> {
    write(crate::root(), folder).unwrap();
    let mut pages: Vec<_> =
        fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
    pages.sort();
    let read = |path: &std::path::PathBuf| fs::read_to_string(path).unwrap();
    pages
        .iter()
        .map(|path| (path.file_name().unwrap().to_string_lossy().into(), read(path)))
        .collect()
}

/// Each command of the command line and its bin name, the root with it.
fn commands() -> Vec<Command> {
    fn collect(command: &Command, found: &mut Vec<Command>) {
        found.push(command.clone());
        parts(command).for_each(|part| collect(part, found));
    }
    let mut command = shortwire_cli::command();
    command.build();
    let mut found = Vec::new();
    collect(&command, &mut found);
    found
}

#[test]
fn each_command_has_a_page_and_each_page_that_is_named_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let pages = pages_in(folder.path());
    for command in commands() {
        let file = format!("{}.1", name(&command));
        let (_, page) = pages.iter().find(|(name, _)| *name == file).expect(&file);
        for heading in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH \"SEE ALSO\""] {
            assert!(page.contains(heading), "{file} lacks {heading}");
        }
        let shown = command.get_arguments().filter(|option| !option.is_hide_set());
        for option in shown.filter_map(clap::Arg::get_long) {
            assert!(
                page.contains(&format!("\\-\\-{}", option.replace('-', "\\-"))),
                "{file}: {option}"
            );
        }
    }
    assert!(
        !pages.iter().any(|(name, _)| name.contains("-help.")),
        "the help command has no pages"
    );
    let (_, last) = &pages[0];
    assert!(last.matches(".BR ").count() > 1, "pages are named by .BR");
    let rsocket = crate::root().join("crates/rsocket/man/shortwire-rsocket.7");
    let mut there: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
    there.extend(rsocket.exists().then_some("shortwire-rsocket.7"));
    for (file, page) in &pages {
        for line in page.lines().filter_map(|line| line.strip_prefix(".BR ")) {
            let line = line.replace('\\', "");
            let Some((name, section)) = line.split_once(" (") else { continue };
            let named = format!("{name}.{}", &section[..1]);
            assert!(there.contains(&named.as_str()), "{file} names {named}");
        }
    }
}

/// A line of an example is a line of the page, also on a terminal of 80 columns.
#[test]
fn examples_are_unbroken() {
    let folder = tempfile::tempdir().unwrap();
    pages_in(folder.path());
    let groff = Program::new("groff").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !groff {
        println!("skipped: examples_are_unbroken: groff not installed");
        return;
    }
    let mut seen = 0;
    for command in commands() {
        let file = folder.path().join(format!("{}.1", name(&command)));
        let mut groff = Program::new("groff");
        groff.args(["-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=78n"]).arg(&file);
        let output = groff.output().unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaints.is_empty(), "{file:?}: {complaints}");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown: Vec<&str> = shown.lines().map(str::trim_end).collect();
        let help = command.get_after_long_help().or(command.get_after_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            let there = shown.iter().find(|shown| shown.trim() == line.trim());
            let there = there.unwrap_or_else(|| panic!("{file:?} breaks {line:?}"));
            assert!(there.chars().count() <= 80, "{file:?}: a terminal breaks {there:?}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} lines");
}

#[test]
fn variables_and_settings_are_those_of_the_parser() {
    let folder = tempfile::tempdir().unwrap();
    let pages = pages_in(folder.path());
    let page = |name: &str| &pages.iter().find(|(page, _)| page == name).unwrap().1;
    for (name, _) in variables::in_files() {
        let name = name.replace('-', "\\-");
        assert!(page("shortwire.conf.5").contains(&format!("\n\\fB{name}\\fR = ")), "{name}");
    }
    for command in commands() {
        let (_, environment) = page(&format!("{}.1", name(&command)))
            .split_once(".SH ENVIRONMENT")
            .unwrap_or_default();
        for variable in command.get_arguments().filter_map(clap::Arg::get_env) {
            let variable = variable.to_string_lossy();
            assert!(environment.contains(&*variable), "{} lacks {variable}", name(&command));
        }
    }
    for (name, _, _) in [("SHORTWIRE_LIB", 0, 0), ("SHORTWIRE_RUN_DIR", 0, 0)] {
        assert!(page("shortwire.1").contains(name), "{name}");
    }
    for variable in ["SHORTWIRE_AFTER", "SHORTWIRE_PEER_POLICY", "SHORTWIRE_TRACE_CLC"] {
        assert!(page("libshortwire.7").contains(variable), "{variable}");
    }
    assert!(
        pages.iter().all(|(_, text)| !text.contains('@') || !text.contains("@\n")),
        "a list is left out"
    );
}
