use std::os::unix::fs::PermissionsExt;
use std::process::{Command as Program, Stdio};

use super::*;

/// A folder with the files, a program and a unit of names that nothing else has.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).unwrap();
    // One of them is ours, as far as a list of cases goes.
    for (name, text) in [
        ("xyzzy-program", "#!/bin/sh\n"),
        ("shortwire", "#!/bin/sh\necho xyzzy-case hot a table\n"),
    ] {
        let program = folder.path().join(name);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(folder.path().join("xyzzy-unit.service"), "").unwrap();
    folder
}

/// What a shell says to a script; None if it is not installed.
fn said(shell: &str, arguments: &[&str], folder: &Path) -> Option<String> {
    let mut program = Program::new(shell);
    let path = std::env::var("PATH").unwrap_or_default();
    program.args(arguments).env("PATH", format!("{}:{path}", folder.display()));
    program.env("SYSTEMD_UNIT_PATH", folder).env("HOME", folder).stdin(Stdio::null());
    let output = match program.output() {
        Ok(output) => output,
        Err(_) => {
            println!("skipped: completions of {shell}: not installed");
            return None;
        }
    };
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && complaints.is_empty(), "{arguments:?}: {complaints}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// A line that is being written, and a word that is offered for its end.
const OFFERED: &[(&[&str], &str)] = &[
    (&["run", "--", "xyzzy-p"], "xyzzy-program"),
    (&["run", "--after", "4", "--", "xyzzy-p"], "xyzzy-program"),
    (&["gain", "--", "xyzzy-p"], "xyzzy-program"),
    (&["trace-clc", "-o", "x.pcap", "--", "xyzzy-p"], "xyzzy-program"),
    (&["doctor", "xyzzy-p"], "xyzzy-program"),
    (&["doctor", "xyzzy-u"], "xyzzy-unit"),
    (&["enable", "xyzzy-u"], "xyzzy-unit"),
    (&["enable", "--dry-run", "xyzzy-p"], "xyzzy-program"),
    (&["disable", "xyzzy-u"], "xyzzy-unit"),
    (&["bench", "sockets", "--only", "pingp"], "pingpong"),
    (&["bench", "sockets", "--only", "redis-get,pingp"], "redis-get,pingpong"),
    (&["bench", "checksum", "--only", "xyzzy-c"], "xyzzy-case"),
    (&["bench", "checksum", "--only", "hot,xyzzy-c"], "hot,xyzzy-case"),
    (&["run", "--prefer", "ism,loop"], "ism,loopback"),
    (&["run", "--peer-policy", "ver"], "verified"),
    (&["doc"], "doctor"),
    (&["enable", "--dry"], "--dry-run"),
];

#[test]
fn bash_offers_programs_units_and_rows() {
    let folder = place();
    for (words, offered) in OFFERED {
        let script = format!(
            "source $0; COMP_WORDS=(shortwire {}); COMP_CWORD={}; \
             function=$(complete -p shortwire | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); \
             $function shortwire \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len()
        );
        let file = folder.path().join("shortwire.bash").display().to_string();
        let arguments = ["--norc", "--noprofile", "-c", &script, &file];
        let Some(said) = said("bash", &arguments, folder.path()) else { return };
        assert!(said.lines().any(|line| line == *offered), "{words:?}: {said}");
    }
    // `--only=pingp` is three words to bash.
    let script = "source $0; COMP_WORDS=(shortwire bench sockets --only = pingp); COMP_CWORD=5; \
                  _shortwire_all shortwire pingp =; printf '%s\n' \"${COMPREPLY[@]}\"";
    let file = folder.path().join("shortwire.bash").display().to_string();
    assert_eq!(
        said("bash", &["--norc", "-c", script, &file], folder.path()).unwrap(),
        "pingpong\n"
    );
}

#[test]
fn fish_offers_programs_units_and_rows() {
    let folder = place();
    for (words, offered) in OFFERED {
        let script = format!("source $argv[1]; complete -C 'shortwire {}'", words.join(" "));
        let file = folder.path().join("shortwire.fish").display().to_string();
        let Some(said) = said("fish", &["--no-config", "-c", &script, &file], folder.path()) else {
            return;
        };
        let words_of = said.lines().map(|line| line.split('\t').next().unwrap_or_default());
        assert!(words_of.into_iter().any(|word| word == *offered), "{words:?}: {said}");
    }
}

#[test]
fn zsh_offers_programs_units_and_rows() {
    let folder = place();
    // A terminal of its own, in which the line is written and Tab is pressed.
    let script = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1='' PS2=''; bindkey -e; autoload -U compinit; compinit -u -D; setopt NO_LIST_BEEP"
zpty -w shell "source $1; compdef _shortwire shortwire; unsetopt ALWAYS_LAST_PROMPT; print READ''Y"
# Until it has said a word, for a minute at most.
await() {
    local all part n
    for ((n = 0; n < 600; n++)); do
        while zpty -r -t shell part; do all+=$part; done
        [[ $all == *$1* ]] && return
        sleep 0.1
    done
    print -r -- "no $1: $all"
}
await READY
for line word in "${@:2}"; do
    zpty -n -w shell "$line"$'\t'
    await $word
    zpty -n -w shell $'\C-u'
done
exit 0
"#;
    let file = folder.path().join("_shortwire").display().to_string();
    let wanted: Vec<_> = OFFERED
        .iter()
        .filter(|(words, _)| ["run", "doctor", "enable", "bench"].contains(&words[0]))
        .collect();
    let mut arguments: Vec<String> = ["-f", "-c", script, "zsh", &file].map(String::from).into();
    for (words, offered) in wanted {
        arguments.extend([format!("shortwire {}", words.join(" ")), offered.to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(said) = said("zsh", &arguments, folder.path()) else { return };
    assert_eq!(said, "");
}
