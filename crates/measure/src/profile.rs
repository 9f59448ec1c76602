//! The prefetch profile of the checksums: where its file lies, and how commands that compute
//! checksums come to use it.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use checksum::prefetch::{Profile, set_profile};

pub const SYSTEM: &str = "/etc/shortwire/checksum.profile";

/// `$XDG_CONFIG_HOME/shortwire/checksum.profile`, usually below `~/.config`.
pub fn of_user() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
    let directory =
        directory.context("neither XDG_CONFIG_HOME nor HOME is set; say where with --output")?;
    Ok(directory.join("shortwire/checksum.profile"))
}

/// To be called first by every command that computes checksums; it reads two small files at most.
/// Whatever is wrong with the file costs only speed, so it is a warning.
pub fn load() -> Profile {
    let places: Vec<PathBuf> = of_user().into_iter().chain([SYSTEM.into()]).collect();
    let (profile, warning) = first_of(&places);
    if let Some(warning) = warning {
        eprintln!("shortwire: {warning}");
    }
    set_profile(profile);
    profile
}

/// The first file that exists counts, even if it cannot be used: an older one behind it would be a
/// surprise.
fn first_of(places: &[PathBuf]) -> (Profile, Option<String>) {
    for place in places {
        match read(place) {
            Ok(None) => {}
            Ok(Some(profile)) => return (profile, None),
            Err(error) => {
                return (
                    Profile::built_in(),
                    Some(format!("{error:#}. The built-in profile is used.")),
                );
            }
        }
    }
    (Profile::built_in(), None)
}

fn read(path: &Path) -> Result<Option<Profile>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    // What is no text fails in `parse`, at the line where it begins.
    Profile::parse(&String::from_utf8_lossy(&text))
        .map(Some)
        .with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(files: &[Option<&[u8]>]) -> (Profile, Option<String>) {
        let directory = tempfile::tempdir().unwrap();
        let place = |(number, content): (usize, &Option<&[u8]>)| {
            let path = directory.path().join(format!("{number}.profile"));
            content.iter().for_each(|content| fs::write(&path, content).unwrap());
            path
        };
        first_of(&files.iter().enumerate().map(place).collect::<Vec<_>>())
    }

    fn text(profile: Profile) -> String {
        profile.to_string()
    }

    #[test]
    fn the_users_file_comes_before_the_systems() {
        let (mine, theirs) = (Profile::new(320, 5, 1), Profile::new(64, 4, 4));
        assert_eq!(
            outcome(&[Some(text(mine).as_bytes()), Some(text(theirs).as_bytes())]),
            (mine, None)
        );
        assert_eq!(outcome(&[None, Some(text(theirs).as_bytes())]), (theirs, None));
        assert_eq!(outcome(&[None, None]), (Profile::built_in(), None));
    }

    #[test]
    fn damaged_and_foreign_files_give_the_built_in_profile_and_a_warning() {
        let good = text(Profile::new(320, 5, 1));
        let here = checksum::prefetch::Processor::current().to_string();
        let foreign = good.replace(&here, "AuthenticAMD 99 1");
        let too_far = good.replace("= 320", "= 99999");
        let cases: [(&[u8], &str); 5] = [
            (&good.as_bytes()[..good.len() / 2], "damaged"),
            (b"", "damaged"),
            (b"\xff\xfe\x00", "damaged"),
            (too_far.as_bytes(), "damaged"),
            (foreign.as_bytes(), "another processor"),
        ];
        for (content, word) in cases {
            // A good file of the system behind it must not count.
            let (profile, warning) = outcome(&[Some(content), Some(good.as_bytes())]);
            assert_eq!(profile, Profile::built_in());
            let warning = warning.unwrap();
            assert!(warning.contains(word) && warning.contains("0.profile"), "{warning}");
        }
    }

    #[test]
    fn a_directory_in_its_place_is_a_warning_too() {
        let directory = tempfile::tempdir().unwrap();
        let (profile, warning) = first_of(&[directory.path().into()]);
        assert_eq!(profile, Profile::built_in());
        assert!(warning.unwrap().contains("cannot read"));
    }
}
