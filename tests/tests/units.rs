//! `shortwire enable`, `disable` and `doctor UNIT`, with Debian's own units and with ones that stand
//! in the way.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use system_tests::{Case, Skip, case, need, shortwire, skip};

/// A system of its own: the units that Debian's packages bring, and what they start.
struct System {
    root: PathBuf,
}

const DEBIANS: [&str; 6] =
    ["redis-server", "memcached", "nginx", "haproxy", "postgresql", "postgresql@"];

impl System {
    fn new(c: &Case) -> Result<System, Skip> {
        let system = System { root: c.dir().join("system") };
        let from = Path::new("/lib/systemd/system");
        for name in DEBIANS {
            let file = format!("{name}.service");
            let Ok(text) = fs::read_to_string(from.join(&file)) else {
                return skip(format!("{file} is not installed"));
            };
            system.write(&format!("lib/systemd/system/{file}"), &text);
            for word in text.split_whitespace().filter_map(|word| word.split("=").last()) {
                let word = word.trim_start_matches('-');
                if word.starts_with("/usr/") && Path::new(word).is_file() {
                    system.link(word, &word[1..]);
                }
            }
        }
        system.write("etc/postgresql/15/main/environment", "# of the cluster\nA = 'b'\n");
        fs::create_dir_all(system.root.join("etc/systemd/system")).expect("a folder");
        system.link("/lib/systemd/system/redis-server.service", "etc/systemd/system/redis.service");
        Ok(system)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn link(&self, to: &str, path: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let _ = symlink(to, path);
    }

    /// All files, and what stands in them.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        fn visit(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let kind = entry.file_type().expect("a kind");
                if kind.is_dir() {
                    found.insert(entry.path(), "a folder".into());
                    visit(&entry.path(), found);
                } else if kind.is_file() {
                    let text = fs::read_to_string(entry.path()).expect("a text");
                    found.insert(entry.path(), text);
                }
            }
        }
        let mut found = BTreeMap::new();
        visit(&self.root, &mut found);
        found
    }

    /// What the command says of each name, and whether it ended well.
    fn say(&self, what: &str, words: &[&str]) -> (BTreeMap<String, Value>, bool) {
        let said = Command::new(shortwire())
            .arg(what)
            .args(words)
            .arg("--json")
            .arg("--root")
            .arg(&self.root)
            .output()
            .expect("shortwire");
        let all: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}", String::from_utf8_lossy(&said.stderr));
        });
        let subjects = all["subjects"].as_array().expect("a list").iter();
        let named = subjects.map(|one| (one["name"].as_str().expect("a name").into(), one.clone()));
        (named.collect(), said.status.success())
    }

    fn unit(&self, name: &str, text: &str) {
        self.write(&format!("etc/systemd/system/{name}.service"), text);
    }
}

/// What systemd itself finds wrong with a unit and its drop-ins.
fn complaints(system: &System, unit: &str) -> Result<Vec<String>, Skip> {
    let path = format!(
        "{}:{}",
        system.root.join("etc/systemd/system").display(),
        system.root.join("lib/systemd/system").display()
    );
    let said = Command::new(need("systemd-analyze")?)
        .args(["verify", "--recursive-errors=no", "--man=no", unit])
        .env("SYSTEMD_UNIT_PATH", format!("{path}:"))
        .output()
        .expect("systemd-analyze");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    Ok(text.lines().map(String::from).collect())
}

#[test]
fn debians_units_are_enabled_and_nothing_is_left() {
    case("units-debian", |c| {
        let system = System::new(c)?;
        let before = system.files();
        let names = ["redis", "memcached", "nginx", "haproxy", "postgresql@15-main"];
        let mut faults = BTreeMap::new();
        for name in names {
            faults.insert(name, complaints(&system, &format!("{name}.service"))?);
        }
        let (said, good) = system.say("enable", &[&names[..], &["--dry-run"]].concat());
        assert!(good && said.len() == 5, "{said:#?}");
        assert_eq!(system.files(), before, "a dry run writes nothing");
        let (said, good) = system.say("enable", &[&names[..], &["--set", "AFTER=4"]].concat());
        assert!(good && said.values().all(|one| one["done"] == "written"), "{said:#?}");
        let library = shortwire().with_file_name("libshortwire.so");
        for (name, one) in &said {
            let path = PathBuf::from(one["path"].as_str().expect("a path"));
            let text = fs::read_to_string(&path).expect("what was written");
            assert!(text.contains(&library.display().to_string()), "{name}: {text}");
            assert!(text.contains("SHORTWIRE_AFTER"), "{name}: {text}");
            let is_cluster = name == "postgresql@15-main.service";
            let place = if is_cluster {
                "etc/postgresql/15/main/environment".to_string()
            } else {
                format!("etc/systemd/system/{name}.d/50-shortwire.conf")
            };
            assert_eq!(path, system.root.join(place));
        }
        let redis = said["redis-server.service"]["text"].as_str().expect("a text").to_string();
        // The library lies here where the unit lets nothing be executed.
        let folder = library.parent().expect("a folder").display().to_string();
        assert_eq!(redis.lines().last(), Some(format!("ExecPaths={folder}").as_str()), "{redis}");
        assert!(!redis.contains("AF_NETLINK") && !redis.contains("PrivateUsers"), "{redis}");
        for name in names {
            let now = complaints(&system, &format!("{name}.service"))?;
            assert_eq!(now, faults[name], "systemd finds fault with what was written for {name}");
        }
        let written = system.files();
        let (said, good) = system.say("enable", &[&names[..], &["--set", "AFTER=4"]].concat());
        assert!(good && said.values().all(|one| one["done"] == "unchanged"), "{said:#?}");
        assert_eq!(system.files(), written);
        let (said, good) = system.say("disable", &names);
        assert!(good && said.values().all(|one| one["done"] == "removed"), "{said:#?}");
        assert_eq!(system.files(), before, "nothing is left");
        let (said, good) = system.say("disable", &names);
        assert!(good && said.values().all(|one| one["done"] == "absent"), "{said:#?}");
        Ok(())
    });
}

/// The words of all findings of one name.
fn words(one: &Value) -> String {
    let findings = one["findings"].as_array().expect("a list").iter();
    findings.map(|f| format!("{} {}\n", f["words"], f["advice"])).collect()
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    case("units-refused", |c| {
        let system = System::new(c)?;
        let sh = "ExecStart=/usr/bin/env true\n";
        system.link("/usr/bin/env", "usr/bin/env");
        system.write("etc/default/x", "A=1\nLD_PRELOAD=/usr/lib/libother.so\n");
        let units = [
            ("alone", format!("{sh}PrivateNetwork=yes\n"), "PrivateNetwork"),
            ("unset", format!("{sh}UnsetEnvironment=LD_PRELOAD\n"), "UnsetEnvironment"),
            ("file", format!("{sh}EnvironmentFile=-/etc/default/x\n"), "etc/default/x"),
            ("udp", format!("{sh}RestrictAddressFamilies=AF_UNIX\n"), "may not use TCP"),
            ("nothing", "Type=oneshot\n".to_string(), "starts no program"),
        ];
        for (name, text, _) in &units {
            system.unit(name, &format!("[Service]\n{text}"));
        }
        system.link("/dev/null", "etc/systemd/system/masked.service");
        let before = system.files();
        for (name, _, why) in &units {
            let (said, good) = system.say("enable", &[name]);
            let one = &said[&format!("{name}.service")];
            assert!(!good && one["done"] == "refused" && words(one).contains(why), "{one:#}");
        }
        for (name, why) in [
            ("masked", "masked"),
            ("postgresql", "postgresql@15-main"),
            ("postgresql@", "postgresql@15-main"),
            ("no-such-thing", "no unit of this name"),
            ("no@such.service", "there is no unit"),
        ] {
            let (said, good) = system.say("enable", &[name]);
            let one = said.values().next().expect("one");
            assert!(!good && one["done"] == "refused" && words(one).contains(why), "{one:#}");
        }
        assert_eq!(system.files(), before, "nothing was written");
        // What is refused keeps the others from nothing.
        let (said, good) = system.say("enable", &["alone", "nginx"]);
        assert!(!good && said["nginx.service"]["done"] == "written", "{said:#?}");
        // Somebody else's file of the same name.
        system.write("etc/systemd/system/nginx.service.d/50-shortwire.conf", "[Service]\n");
        let (said, good) = system.say("enable", &["nginx"]);
        assert!(!good && words(said.values().next().expect("one")).contains("has not written"));
        Ok(())
    });
}

#[test]
fn what_a_sandbox_needs_is_in_the_drop_in() {
    case("units-needs", |c| {
        let system = System::new(c)?;
        let library = shortwire().with_file_name("libshortwire.so");
        let folder = library.parent().expect("a folder").display().to_string();
        system.link("/usr/bin/env", "usr/bin/env");
        fs::create_dir_all(system.root.join("srv/root")).expect("a folder");
        let start = "[Service]\nExecStart=/usr/bin/env true\n";
        for (name, text, line) in [
            ("families", "RestrictAddressFamilies=AF_INET", "RestrictAddressFamilies=AF_UNIX"),
            (
                "denied",
                "RestrictAddressFamilies=~AF_UNIX AF_PACKET",
                "RestrictAddressFamilies=AF_UNIX",
            ),
            ("calls", "SystemCallFilter=@basic-io @io-event @network-io", "memfd_create"),
            ("forbidden", "SystemCallFilter=~memfd_create @clock", "SystemCallFilter=memfd_create"),
            ("noexec", "NoExecPaths=/\nExecPaths=/usr", &format!("ExecPaths={folder}")),
            ("root", "RootDirectory=/srv/root", &format!("BindReadOnlyPaths={folder}")),
            (
                "kept",
                "Environment=A=1 \"LD_PRELOAD=/usr/lib/a.so /usr/lib/b.so\"",
                ":/usr/lib/a.so:/usr/lib/b.so\"",
            ),
        ] {
            system.unit(name, &format!("{start}{text}\n"));
            let unit = format!("{name}.service");
            let faults = complaints(&system, &unit)?;
            let (said, good) = system.say("enable", &[name]);
            let one = &said[&unit];
            let text = one["text"].as_str().unwrap_or_default();
            assert!(good && text.contains(line), "{name}: {one:#}");
            assert_eq!(complaints(&system, &unit)?, faults, "{name}: {text}");
            // With the drop-in nothing is needed any more, and the drop-in stays as it is.
            let (said, _) = system.say("enable", &[name]);
            assert_eq!(said[&unit]["done"], "unchanged", "{name}");
        }
        for (name, text) in [
            ("usual", "RestrictAddressFamilies=AF_INET AF_UNIX\nSystemCallFilter=@system-service"),
            ("back", "RestrictAddressFamilies=AF_INET\nRestrictAddressFamilies="),
        ] {
            system.unit(name, &format!("{start}{text}\n"));
            let (said, _) = system.say("enable", &[name]);
            let text = said[&format!("{name}.service")]["text"].as_str().unwrap_or_default();
            assert_eq!(text.lines().count(), 3, "{name} needs the variable alone: {text}");
        }
        Ok(())
    });
}

/// A script of the program's name, which a shell finds first.
#[test]
fn a_program_is_started_by_a_script() {
    case("units-program", |c| {
        let home = c.dir().join("home");
        let bin = home.join(".local/bin");
        let say = |what: &str, more: &[&str]| {
            let said = Command::new(shortwire())
                .args([what, "--user", "--program", "env"])
                .args(more)
                .env("HOME", &home)
                .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
                .env_remove("LD_PRELOAD")
                .output()
                .expect("shortwire");
            (String::from_utf8_lossy(&said.stdout).into_owned(), said.status.success())
        };
        let (said, good) = say("enable", &["--set", "AFTER=5"]);
        assert!(good && said.contains("wrote") && !said.contains("in front of"), "{said}");
        let script = bin.join("env");
        let mode = fs::metadata(&script).expect("a script").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let out = Command::new(&script).arg("A=b c").output().expect("the script");
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        for line in ["A=b c", "SHORTWIRE_AFTER=5"] {
            assert!(out.lines().any(|l| l == line), "{line}: {out}");
        }
        assert!(out.lines().any(|l| l.starts_with("LD_PRELOAD=") && l.ends_with("shortwire.so")));
        assert!(say("enable", &["--set", "AFTER=5"]).0.contains("enabled already"));
        let (said, good) = say("disable", &[]);
        assert!(good && said.contains("removed") && !script.exists(), "{said}");
        assert!(say("disable", &[]).0.contains("was not enabled"));
        // The program has gone since.
        let text = "#!/bin/sh\n# Written by `shortwire enable`; `shortwire disable` removes it.\n";
        fs::write(bin.join("gone-since"), text).expect("a script");
        let gone = |which: &[&str]| {
            let mut command = Command::new(shortwire());
            command.args(["disable", "--program", "gone-since", "--user"]).args(which);
            command.env("HOME", &home).status().expect("shortwire").success()
        };
        assert!(gone(&["--dry-run"]) && bin.join("gone-since").exists());
        assert!(gone(&[]) && !bin.join("gone-since").exists());
        assert!(gone(&[]), "nothing is left of a name that nothing has");
        Ok(())
    });
}

/// Starts a cluster of PostgreSQL as its unit does, from copies of its files in a mount namespace of
/// its own, once it is enabled; a client of another user asks it.
const CLUSTER: &str = r#"
mount --make-rprivate / && mount --bind "$DIR/etc" /etc/postgresql
conf=/etc/postgresql/15/main
sed -i "s#^data_directory.*#data_directory = '$DIR/data'#; s#^port.*#port = $PORT#" $conf/postgresql.conf
sed -i "s#^unix_socket_directories.*#unix_socket_directories = '$DIR'#" $conf/postgresql.conf
printf 'local all all trust\nhost all all 127.0.0.1/32 trust\n' > $conf/pg_hba.conf
"$SHORTWIRE" enable postgresql@15-main --set AFTER=4
pg_ctlcluster --skip-systemctl-redirect 15 main start
trap 'touch seen' EXIT
(seq -f 'select %.0f;' 3000; echo '\! echo asked >&2'; until [ -e seen ]; do sleep 0.1; done) |
    LD_PRELOAD="$DIR/libshortwire.so" SHORTWIRE_AFTER=4 setpriv --reuid 33 --regid 33 --clear-groups \
    psql -qAt -h 127.0.0.1 -p $PORT -U postgres postgres | tail -1 &
for i in $(seq 600); do
    "$SHORTWIRE" ss --json > ss.json
    [ $(tr -d ' \n' < ss.json | grep -o '"mode":"SMCD"' | wc -l) -ge 2 ] && break
    sleep 0.1
done
"$SHORTWIRE" doctor $(head -1 "$DIR/data/postmaster.pid")
touch seen
pg_ctlcluster --skip-systemctl-redirect 15 main -m fast stop
"$SHORTWIRE" disable postgresql@15-main
wait
"#;

#[test]
fn a_cluster_of_postgresql_is_enabled() {
    case("units-postgresql", |c| {
        if !rustix::process::geteuid().is_root() || system_tests::plain() {
            return skip("only root has mount namespaces, and it is about the library");
        }
        for tool in ["pg_ctlcluster", "psql", "unshare", "setpriv"] {
            need(tool)?;
        }
        let data = Path::new("/var/lib/postgresql/15/main");
        if !data.is_dir() || !Path::new("/etc/postgresql/15/main").is_dir() {
            return skip("there is no cluster 15-main to copy");
        }
        let copy = |from: &Path, to: &str| {
            let done = Command::new("cp").arg("-a").arg(from).arg(c.dir().join(to)).status();
            assert!(done.is_ok_and(|status| status.success()), "a copy of {}", from.display());
        };
        copy(Path::new("/etc/postgresql"), "etc");
        copy(data, "data");
        copy(&shortwire().with_file_name("libshortwire.so"), "libshortwire.so");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-ec", CLUSTER]).current_dir(c.dir());
        command.env("DIR", c.dir()).env("PORT", system_tests::Ports::Low.free().to_string());
        command.env("SHORTWIRE", shortwire());
        command.env("SHORTWIRE_LIB", c.dir().join("libshortwire.so"));
        let mut run = c.start("cluster", command.env_remove("LD_PRELOAD"));
        let said = run.success(system_tests::secs(60));
        for words in [
            "environment\n",
            "the library is loaded",
            "1 of 1 connections of it and the",
            "go through shared memory",
            "removed what stood in",
        ] {
            assert!(said.contains(words), "{words}: {said}\n{}", run.stderr());
        }
        let left = fs::read_to_string(c.dir().join("etc/15/main/environment")).expect("the file");
        assert!(!left.contains("shortwire"), "{left}");
        fs::remove_file(c.dir().join("libshortwire.so")).expect("the copy");
        Ok(())
    });
}
