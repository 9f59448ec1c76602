//! What the target for configuration files does with its input.

use smc::policy::{File, Program, Statement, judge, parse};

/// What a line says depends on that line alone, what is set may be set, and what is wrong can be
/// told in one line.
pub fn policy(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    let mut said = 0;
    for (number, statement) in parse(bytes) {
        said += 1;
        let line = lines[number as usize - 1];
        let alone: Vec<_> = parse(line).collect();
        assert_eq!(alone.len(), 1);
        assert_eq!(alone[0].1.is_ok(), statement.is_ok());
        match statement {
            Err(problem) => assert!(!problem.to_string().contains(|c: char| c.is_control())),
            Ok(Statement::Setting(setting, value)) => may_be(setting.variable, value),
            Ok(Statement::Rule(rule)) => {
                rule.settings().for_each(|(setting, value)| may_be(setting.variable, value));
            }
        }
    }
    // The arguments of the program are the file's own, so that patterns have something to match.
    let program = Program {
        file: b"/usr/bin/program",
        started: b"program",
        args: lines.first().unwrap_or(&&b""[..]),
        user: 7,
        passwd: b"user:x:7:7::/:/bin/sh\n",
    };
    let files = [File { path: b"file".to_vec(), text: bytes.to_vec() }];
    let verdict = judge(&files, &program);
    assert!(verdict.problems.len() + verdict.rules.len() <= said);
    let at = verdict.otherwise.map_or(u32::MAX, |(_, at)| at.line);
    assert!(verdict.rules.iter().all(|rule| rule.at.line < at));
    for (at, setting) in verdict.settings.iter().map(|said| (said.at, said.setting)) {
        assert!(at.line as usize <= lines.len());
        let same = verdict.settings.iter().filter(|other| other.setting.name == setting.name);
        assert_eq!(same.count(), 1);
    }
}

fn may_be(variable: &str, value: &[u8]) {
    assert!(!value.is_empty() && smc::setting::check(variable.as_bytes(), value).is_ok());
}
