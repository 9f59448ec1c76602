//! Service units as the files say them: what a unit starts, and its settings in the order in which
//! systemd reads them. Read directly, because that works in an image and where no systemd runs.

pub mod sandbox;
mod text;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

pub use text::{quoted, words};

/// Whose units, and of which system.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Where that system's files lie.
    pub root: PathBuf,
    /// The user's own units rather than the system's.
    pub user: bool,
}

/// A service unit.
#[derive(Debug)]
pub struct Unit {
    /// Its own name, not that of an alias.
    pub name: String,
    /// The file of it and its drop-ins, in the order in which they count.
    pub files: Vec<PathBuf>,
    /// Of its section Service.
    settings: Vec<(String, String)>,
}

impl Scope {
    /// A path of that system.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Where units are, the first that counts first.
    fn folders(&self) -> Vec<PathBuf> {
        let home = env::home_dir().unwrap_or_default();
        let own = |variable: &str, else_below_home: &str| {
            env::var_os(variable).map_or_else(|| home.join(else_below_home), PathBuf::from)
        };
        let folders: Vec<PathBuf> = if self.user {
            let run =
                env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("systemd/user"));
            [
                Some(own("XDG_CONFIG_HOME", ".config").join("systemd/user")),
                Some("/etc/systemd/user".into()),
                run,
                Some("/run/systemd/user".into()),
                Some(own("XDG_DATA_HOME", ".local/share").join("systemd/user")),
                Some("/usr/local/lib/systemd/user".into()),
                Some("/usr/lib/systemd/user".into()),
            ]
            .into_iter()
            .flatten()
            .collect()
        } else {
            [
                "/etc/systemd/system.control",
                "/run/systemd/system.control",
                "/run/systemd/transient",
                "/run/systemd/generator.early",
                "/etc/systemd/system",
                "/etc/systemd/systemd.attached",
                "/run/systemd/system",
                "/run/systemd/systemd.attached",
                "/run/systemd/generator",
                "/usr/local/lib/systemd/system",
                "/usr/lib/systemd/system",
                "/lib/systemd/system",
                "/run/systemd/generator.late",
            ]
            .map(PathBuf::from)
            .to_vec()
        };
        folders.iter().map(|folder| self.path(folder)).collect()
    }

    /// Where an administrator's drop-ins are written.
    pub fn own_folder(&self) -> PathBuf {
        let nth = if self.user { 0 } else { 4 };
        self.folders().swap_remove(nth)
    }
}

/// The template of an instance: `a@.service` of `a@b.service`.
fn template(name: &str) -> Option<String> {
    let (before, after) = name.split_once('@')?;
    let (instance, kind) = after.rsplit_once('.')?;
    (!instance.is_empty()).then(|| format!("{before}@.{kind}"))
}

/// What stands for the instance in `a@b.service`.
pub fn instance(name: &str) -> Option<&str> {
    name.split_once('@')?.1.rsplit_once('.').map(|(instance, _)| instance).filter(|i| !i.is_empty())
}

/// With the ending that every service has.
pub fn full_name(name: &str) -> String {
    if name.ends_with(".service") { name.to_string() } else { format!("{name}.service") }
}

impl Unit {
    /// The unit of this name, as it is without the drop-in `but`. None if there is no file of it.
    pub fn find(name: &str, scope: &Scope, but: Option<&Path>) -> Result<Option<Unit>> {
        let mut name = full_name(name);
        let folders = scope.folders();
        for _ in 0..8 {
            let names: Vec<String> =
                [Some(name.clone()), template(&name)].into_iter().flatten().collect();
            let file = names
                .iter()
                .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
                .find(|path| path.symlink_metadata().is_ok());
            let Some(file) = file else { return Ok(None) };
            if let Ok(to) = fs::read_link(&file) {
                if to == Path::new("/dev/null") {
                    bail!("{name} is masked ({}): systemctl unmask it first", file.display());
                }
                let to = to.file_name().map(|to| to.to_string_lossy().into_owned());
                if let Some(to) = to.filter(|to| !names.contains(to)) {
                    name = to;
                    continue;
                }
            }
            return Unit::read(name, file, &folders, but).map(Some);
        }
        bail!("{name} is an alias of itself")
    }

    fn read(name: String, file: PathBuf, folders: &[PathBuf], but: Option<&Path>) -> Result<Unit> {
        let mut files = vec![real(&file, folders)];
        // The folder that counts more comes first; the more special name, too.
        let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
        for drop_ins in drop_in_names(&name) {
            for folder in folders {
                let entries = fs::read_dir(folder.join(&drop_ins)).into_iter().flatten().flatten();
                for entry in entries {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if name.ends_with(".conf") {
                        found.entry(name).or_insert_with(|| entry.path());
                    }
                }
            }
        }
        files.extend(found.into_values().filter(|path| Some(path.as_path()) != but));
        let mut settings = Vec::new();
        for file in &files {
            let text = match fs::read_to_string(file) {
                Ok(text) => text,
                Err(error) => bail!("cannot read {}: {error}", file.display()),
            };
            settings.extend(text::section(&text, "Service"));
        }
        Ok(Unit { name, files, settings })
    }

    /// The last word on a setting; None if there is none.
    pub fn last(&self, key: &str) -> Option<&str> {
        let last = self.settings.iter().rev().find(|(name, _)| name == key)?;
        Some(last.1.as_str()).filter(|value| !value.is_empty())
    }

    /// A setting that may be given often: an empty one takes back what came before.
    pub fn all(&self, key: &str) -> Vec<&str> {
        let mut all = Vec::new();
        for (_, value) in self.settings.iter().filter(|(name, _)| name == key) {
            if value.is_empty() {
                all.clear();
            } else {
                all.push(value.as_str());
            }
        }
        all
    }

    /// The words of such a setting.
    pub fn all_words(&self, key: &str) -> Vec<String> {
        self.all(key).into_iter().flat_map(words).collect()
    }

    /// Whether a switch is on.
    pub fn is_on(&self, key: &str) -> bool {
        self.last(key).is_some_and(|value| {
            ["1", "yes", "y", "true", "t", "on"].contains(&value.to_ascii_lowercase().as_str())
        })
    }

    /// A variable of its Environment=.
    pub fn variable(&self, name: &str) -> Option<String> {
        let all = self.all_words("Environment");
        all.iter()
            .rev()
            .find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_string()))
    }

    /// The program that it starts.
    pub fn program(&self) -> Option<PathBuf> {
        let line = *self.all("ExecStart").first()?;
        let first = words(line).into_iter().next()?;
        let path = first.trim_start_matches(['-', '@', ':', '+', '!', '|']);
        path.starts_with('/').then(|| path.into())
    }
}

/// Where a unit's file is read: an alias' own folder is not that of the file.
fn real(file: &Path, folders: &[PathBuf]) -> PathBuf {
    let Some(to) = fs::read_link(file).ok().filter(|_| !file.exists()) else { return file.into() };
    let name = to.file_name().unwrap_or_default();
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| file.into())
}

/// Folders of drop-ins, the most special one first.
fn drop_in_names(name: &str) -> Vec<String> {
    let mut names = vec![format!("{name}.d")];
    names.extend(template(name).map(|template| format!("{template}.d")));
    let stem = name.trim_end_matches(".service");
    let dashes: Vec<usize> = stem.match_indices('-').map(|(at, _)| at).collect();
    names.extend(dashes.iter().rev().map(|at| format!("{}-.service.d", &stem[..*at])));
    names.push("service.d".into());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, Scope) {
        let root = tempfile::tempdir().unwrap();
        let scope = Scope { root: root.path().into(), user: false };
        for (path, text) in files {
            let path = scope.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (root, scope)
    }

    #[test]
    fn drop_ins_come_behind_the_unit_and_mask_each_other() {
        let (_root, scope) = system(&[
            ("/lib/systemd/system/a-b@.service", "[Service]\nUser=one\nEnvironment=A=1\n"),
            ("/lib/systemd/system/a-b@.service.d/50-x.conf", "[Service]\nUser=template\n"),
            ("/etc/systemd/system/a-b@.service.d/50-x.conf", "[Service]\nUser=admin\n"),
            ("/etc/systemd/system/a-b@i.service.d/60-y.conf", "[Service]\nEnvironment=B=2\n"),
            ("/etc/systemd/system/a-.service.d/10-z.conf", "[Unit]\nUser=no\n[Service]\nNice=5\n"),
            (
                "/etc/systemd/system/service.d/70-all.conf",
                "[Service]\nEnvironment=\nEnvironment=C=3\n",
            ),
        ]);
        let unit = Unit::find("a-b@i", &scope, None).unwrap().unwrap();
        assert_eq!(unit.name, "a-b@i.service");
        assert_eq!(unit.files.len(), 5);
        assert_eq!((unit.last("User"), unit.last("Nice")), (Some("admin"), Some("5")));
        assert_eq!(unit.all("Environment"), ["C=3"]);
        assert_eq!(unit.variable("C").as_deref(), Some("3"));
        let but = scope.path("/etc/systemd/system/service.d/70-all.conf");
        let unit = Unit::find("a-b@i", &scope, Some(&but)).unwrap().unwrap();
        assert_eq!(unit.all("Environment"), ["A=1", "B=2"]);
        assert!(Unit::find("none", &scope, None).unwrap().is_none());
    }

    #[test]
    fn an_alias_leads_to_its_unit_and_a_mask_to_nothing() {
        let (_root, scope) = system(&[(
            "/lib/systemd/system/redis-server.service",
            "[Service]\nExecStart=-/bin/r x\n",
        )]);
        let etc = scope.path("/etc/systemd/system");
        fs::create_dir_all(&etc).unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, etc.join(name)).unwrap();
        link("/lib/systemd/system/redis-server.service", "redis.service");
        link("/dev/null", "off.service");
        let unit = Unit::find("redis", &scope, None).unwrap().unwrap();
        assert_eq!(unit.name, "redis-server.service");
        assert_eq!(unit.program(), Some("/bin/r".into()));
        let masked = Unit::find("off", &scope, None).unwrap_err().to_string();
        assert!(masked.contains("masked"), "{masked}");
    }
}
