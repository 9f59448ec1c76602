//! What cargo builds, and the tests that are in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::children::{self, Ended};

pub fn command() -> Command {
    // The cargo that runs us.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::root());
    command
}

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    pub package: String,
    pub name: String,
    pub path: PathBuf,
    /// Where cargo runs it: the directory of its package.
    pub directory: PathBuf,
    /// An integration test, not the unit tests of a library or a program.
    pub integration: bool,
    /// What runs it where this machine's processor cannot: an emulator with its arguments.
    pub emulator: Vec<String>,
    /// Those of its tests that are meant, as test programs take them: parts of names, or `--skip` and a part.
    pub selection: Vec<String>,
    /// Its ignored tests are meant as well.
    pub ignored: bool,
    /// What it looks for in its environment beside what cargo sets.
    pub settings: Vec<(String, OsString)>,
}

impl Binary {
    /// Its tests are programs under Shortwire, so each is a job of its own.
    pub fn is_system_test(&self) -> bool {
        self.integration && self.package == "system-tests"
    }

    pub fn title(&self) -> String {
        format!("{} {}", self.package, self.name)
    }

    /// As cargo would run it.
    pub fn environment(&self, command: &mut Command) {
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        let own = self.path.parent().unwrap_or(Path::new("."));
        let profile = own.parent().unwrap_or(own);
        let paths = [own.to_path_buf(), profile.to_path_buf()];
        let rest = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let rest: Vec<PathBuf> =
            std::env::split_paths(&rest).filter(|path| !path.as_os_str().is_empty()).collect();
        let all = std::env::join_paths(paths.into_iter().chain(rest));
        command.env("LD_LIBRARY_PATH", all.unwrap_or_else(|_| OsString::new()));
        command.envs(self.settings.iter().cloned());
    }

    /// What to start for one of its tests, or for all that are meant.
    pub fn command_line(&self, test: Option<&str>) -> (OsString, Vec<OsString>) {
        let mut line: Vec<OsString> = self.emulator.iter().map(OsString::from).collect();
        line.push(self.path.clone().into_os_string());
        match test {
            Some(test) => line.extend(["--exact", test, "--test-threads=1"].map(OsString::from)),
            None => line.extend(self.selection.iter().map(OsString::from)),
        }
        line.extend(self.ignored.then(|| "--include-ignored".into()));
        let program = line.remove(0);
        (program, line)
    }

    /// The names of its tests.
    pub fn tests(&self) -> Vec<String> {
        let (program, arguments) = self.command_line(None);
        let mut list = Command::new(program);
        self.environment(list.args(arguments).arg("--list"));
        let ended = children::run(&mut list, None);
        ended
            .lines
            .iter()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(str::to_string)
            .collect()
    }
}

/// Builds tests and says which programs they are in.
pub fn build_tests(arguments: &[&str], environment: &[(&str, OsString)]) -> (Ended, Vec<Binary>) {
    let mut command = command();
    command
        .arg("test")
        .args(arguments)
        .args(["--no-run", "--message-format=json-render-diagnostics"]);
    command.envs(environment.iter().cloned());
    let mut ended = children::run(&mut command, None);
    let binaries = ended.lines.iter().filter_map(|line| binary(line)).collect();
    ended.lines.retain(|line| !line.starts_with('{'));
    (ended, binaries)
}

/// A message of cargo's, if it is about a program with tests.
fn binary(line: &str) -> Option<Binary> {
    if !line.starts_with("{\"reason\":\"compiler-artifact\"") {
        return None;
    }
    // Of the profile: a program that integration tests run is built for them too, and its target
    // may have tests as well.
    let profile = &line[line.find("\"profile\":{")?..];
    if !profile[..=profile.find('}')?].ends_with("\"test\":true}") {
        return None;
    }
    let path = PathBuf::from(text(line, "executable")?);
    let directory = PathBuf::from(text(line, "manifest_path")?).parent()?.to_path_buf();
    let target = &line[line.find("\"target\":")?..];
    // "path+file:///directory#name@0.1.0", without the name where the directory says it.
    let id = text(line, "package_id")?;
    let (place, version) = id.rsplit_once('#')?;
    let package = version
        .split_once('@')
        .map_or_else(|| place.rsplit('/').next().unwrap_or(place), |(name, _)| name);
    Some(Binary {
        package: package.to_string(),
        name: text(target, "name")?.to_string(),
        integration: target.starts_with("\"target\":{\"kind\":[\"test\"]"),
        path,
        directory,
        emulator: Vec::new(),
        selection: Vec::new(),
        ignored: false,
        settings: Vec::new(),
    })
}

/// The value of a JSON string without escapes. Paths that need any are not supported by other parts
/// of the build either.
fn text<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let start = line.find(&format!("\"{key}\":\""))? + key.len() + 4;
    line[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_are_read() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/tests#system-tests@0.1.0","manifest_path":"/w/tests/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"kill","src_path":"/w/tests/tests/kill.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":2,"debug_assertions":true,"overflow_checks":true,"test":true},"features":[],"filenames":["/w/target/debug/deps/kill-7"],"executable":"/w/target/debug/deps/kill-7","fresh":true}"#;
        let found = binary(line).unwrap();
        assert!(found.is_system_test() && found.title() == "system-tests kill");
        assert_eq!(
            (found.path.as_path(), found.directory.as_path()),
            (Path::new("/w/target/debug/deps/kill-7"), Path::new("/w/tests"))
        );
        let library = line
            .replace("tests#system-tests@0.1.0", "crates/shm#0.1.0")
            .replace("[\"test\"]", "[\"lib\"]");
        assert_eq!(
            binary(&library).map(|found| (found.title(), found.integration)),
            Some(("shm kill".to_string(), false))
        );
        assert_eq!(
            binary(
                &line.replace(
                    "\"executable\":\"/w/target/debug/deps/kill-7\"",
                    "\"executable\":null"
                )
            ),
            None
        );
        assert_eq!(binary(r#"{"reason":"build-finished","success":true}"#), None);
        let program = line.replace(
            "\"overflow_checks\":true,\"test\":true}",
            "\"overflow_checks\":true,\"test\":false}",
        );
        assert!(program != line && binary(&program).is_none());
    }
}
