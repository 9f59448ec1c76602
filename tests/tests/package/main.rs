//! What `make deb`, `make rpm` and `make install` make: it is built from the release files that are
//! there, installed into a system of its own, used, upgraded and removed while programs run, and
//! leaves nothing.
//!
//! Fresh systems of several Debian releases are in `target/check/systems` once
//! `make check-packages` has fetched them.

mod system;
mod walk;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;

use system::System;
use system_tests::{Case, Outcome, Proc, Skip, case, millis, need, secs, shortwire, skip};

/// The C library that Debian 10 and RHEL 8 have.
const OLDEST: (u32, u32) = (2, 28);

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

fn release() -> PathBuf {
    shortwire().parent().expect("a directory").to_path_buf()
}

/// The Debian packages: command, headers, symbols.
fn debs(c: &Case) -> Result<Vec<PathBuf>, Skip> {
    for program in ["dpkg-deb", "objcopy", "make"] {
        need(program)?;
    }
    let out = c.dir().join("debs");
    let mut build = Command::new(repository().join("packaging/deb"));
    c.start("deb", build.arg(release()).arg(&out).env("COMPRESSION", "none")).success(secs(120));
    let mut found: Vec<_> =
        fs::read_dir(out).expect("packages").flatten().map(|entry| entry.path()).collect();
    found.sort();
    assert_eq!(found.len(), 3, "{found:?}");
    Ok(found)
}

/// The same package with a later version.
fn next(c: &Case, deb: &Path) -> PathBuf {
    let tree = c.dir().join("next");
    let script = "dpkg-deb -R $0 $1; sed -i 's/^\\(Version\\|Depends\\): \\(.*\\)-1\\()\\?\\)$/\\1: \\2-2\\3/' $1/DEBIAN/control; \
                  rm -f $1.deb; dpkg-deb -Znone --root-owner-group -b $1 $1.deb";
    c.start("next", Command::new("sh").args(["-ec", script]).arg(deb).arg(&tree)).success(secs(60));
    fs::remove_dir_all(&tree).expect("removing a tree");
    tree.with_extension("deb")
}

/// Installs, uses, upgrades and removes it, in a system that has the files of `lower`.
fn lives_in(c: &Case, lower: &Path, debs: &[PathBuf]) -> Outcome {
    let system = System::over(c, lower)?;
    let here = lower == Path::new("/");
    if here
        && Command::new("dpkg")
            .args(["-s", "shortwire"])
            .output()
            .is_ok_and(|said| said.status.success())
    {
        return skip("the package is installed on this machine");
    }
    let command = debs
        .iter()
        .find(|deb| deb.to_string_lossy().contains("/shortwire_"))
        .expect("a package of the command");
    debs.iter().for_each(|deb| system.take(deb));
    // The headers need a compiler's, which a fresh system has not.
    let first =
        if here { "dpkg -i /tmp/*.deb" } else { "apt-get install -qq /tmp/shortwire_*.deb" };
    system.sh(c, first);
    system
        .sh(c, "rm /tmp/*.deb; shortwire --version; shortwire run -- true; test -x /usr/lib/shortwire/shortwire-peers");
    if here {
        system.sh(c, "export PKG_CONFIG_PATH=; cc -o /tmp/x $(pkg-config --cflags shortwire_csum) /usr/share/doc/shortwire-dev/examples/checksum.c \
            $(pkg-config --libs shortwire_csum); /tmp/x");
    }

    assert!(system.changes().contains(&"usr/bin/shortwire".to_string()), "what is written is seen");

    let peers = |role: &str, more: &[&str]| {
        let mut run = system.command("shortwire");
        run.args(["run", "--", "/usr/lib/shortwire/shortwire-peers", role, "--mode", "rr"])
            .args(more);
        c.start(role, &mut run)
    };
    let mut server = peers("server", &["--listen", "127.0.0.1:0"]);
    let said = server.wait_line("", secs(60));
    let address = said
        .split_whitespace()
        .find(|word| word.starts_with("127.0.0.1:"))
        .expect("an address")
        .to_string();
    let client = |seconds: &str| {
        peers("client", &["--connect", &address, "--connections", "4", "--seconds", seconds])
    };
    let shared = |client: &Proc| {
        // The first messages go over TCP.
        let pid = client.pid().to_string();
        system.sh(c, &format!("until shortwire ss | grep -q '{pid}/.*SMCD'; do sleep 0.1; done"));
    };

    // An upgrade and a removal under it; it checks every byte, and ends if one is wrong.
    let mut busy = client("600");
    shared(&busy);
    let later = next(c, command);
    system.take(&later);
    system.sh(c, "dpkg -i /tmp/next.deb; dpkg -s shortwire | grep -q '^Version: .*-2$'");
    let stands = |program: &Proc| {
        fs::read_to_string(format!("/proc/{}/maps", program.pid())).unwrap_or_default()
    };
    assert!(
        stands(&server).contains("libshortwire.so (deleted)"),
        "the server keeps the library that it has"
    );
    // One that is there for as long as it is looked at, and one that comes to its own end.
    let mut new = client("600");
    shared(&new);
    assert!(new.running(), "the new version's client ended: {}", new.stderr());
    new.stop();
    client("1").success(secs(60));

    system.sh(c, "dpkg --purge $(dpkg-query -W -f '${Package} ' 'shortwire*')");
    sleep(millis(300));
    assert!(busy.running() && server.running(), "both go on: {}", busy.stderr());
    busy.stop();
    // Whoever still names the library runs without it.
    let said = system.sh(c, "LD_PRELOAD=/usr/lib/shortwire/libshortwire.so ls /usr/bin/dpkg");
    assert!(said.contains("/usr/bin/dpkg\n") && said.contains("cannot be preloaded"), "{said}");
    server.stop();
    let left = system.changes();
    assert!(left.is_empty(), "the package leaves {left:?}");
    Ok(())
}

#[test]
fn debian_packages_come_and_go() {
    case("package-deb", |c| lives_in(c, Path::new("/"), &debs(c)?));
}

/// In fresh systems, the oldest with a C library of before 2.34.
#[test]
fn debian_packages_on_other_releases() {
    case("package-releases", |c| {
        let systems =
            shortwire().ancestors().nth(2).expect("the target directory").join("check/systems");
        let mut found: Vec<_> =
            fs::read_dir(&systems).into_iter().flatten().flatten().map(|e| e.path()).collect();
        found.retain(|path| path.join("usr/bin/dpkg").exists());
        found.sort();
        if found.is_empty() {
            return skip("no other system is here (make check-packages fetches some)");
        }
        let debs = debs(c)?;
        for lower in found {
            println!("{}", lower.display());
            lives_in(c, &lower, &debs)?;
        }
        Ok(())
    });
}

#[test]
fn redis_goes_on_through_an_upgrade_and_a_removal() {
    case("package-redis", |c| {
        let (redis, benchmark) = (need("redis-server")?, need("redis-benchmark")?);
        let debs = debs(c)?;
        let system = System::over(c, Path::new("/"))?;
        debs.iter().for_each(|deb| system.take(deb));
        system.sh(c, "dpkg -i /tmp/shortwire_*.deb");
        let run = |name: &str, program: &Path, more: &[&str]| {
            c.start(name, system.command("shortwire").args(["run", "--"]).arg(program).args(more))
        };
        let mut server = run("redis", &redis, &["--port", "7391", "--save", "", "--dir", "/tmp"]);
        server.wait_line("", secs(60));
        system.sh(c, "until redis-cli -p 7391 ping; do sleep 0.05; done");
        let load = ["-p", "7391", "-t", "set,get", "-c", "8", "-l", "-q"];
        let mut clients = run("benchmark", &benchmark, &load);
        system.sh(c, "until shortwire ss | grep -q SMCD; do sleep 0.05; done");
        system.take(&next(
            c,
            debs.iter()
                .find(|deb| deb.to_string_lossy().contains("/shortwire_"))
                .expect("a package"),
        ));
        // The clients connect anew for each round of requests.
        system
            .sh(c, "dpkg -i /tmp/next.deb; until shortwire ss | grep -q SMCD; do sleep 0.05; done");
        system.sh(c, "dpkg --purge shortwire");
        // They go on behind it.
        let count = "$(redis-cli -p 7391 info stats | sed -n 's/^total_commands_processed:\\([0-9]*\\).*/\\1/p')";
        system.sh(
            c,
            &format!(
                "before={count}; until [ {count} -gt $((before + 10000)) ]; do sleep 0.1; done"
            ),
        );
        assert!(clients.running(), "the clients go on: {}", clients.stderr());
        clients.stop();
        server.stop();
        Ok(())
    });
}

#[test]
fn rpm_packages_hold_the_same() {
    case("package-rpm", |c| {
        need("rpmbuild")?;
        let (out, root) = (c.dir().join("rpms"), c.dir().join("root"));
        let mut build = Command::new(repository().join("packaging/rpm"));
        c.start(
            "rpm",
            build.arg(release()).arg(&out).env("HOME", c.dir()).env("COMPRESSION", "w1.gzdio"),
        )
        .success(secs(120));
        let sh = |script: &str| {
            let mut shell = Command::new("sh");
            c.start("sh", shell.args(["-ec", script]).arg(&root).arg(&out)).success(secs(60))
        };
        let needs = sh("rpm -qp --requires $1/shortwire-0*.rpm");
        let versions = needs
            .lines()
            .filter_map(|line| line.strip_prefix("libc.so.6(GLIBC_")?.split(')').next());
        let newest = versions.filter_map(version).max();
        assert!(newest.is_some_and(|newest| newest <= OLDEST), "{needs}");
        sh(
            "mkdir $0; rpm --root $0 --initdb; rpm --root $0 -i --nodeps $1/*.rpm; $0/usr/bin/shortwire run -- true",
        );
        sh(
            "test -f $0/usr/include/shortwire_csum.h; test -d $0/usr/lib/debug/.build-id; test -e $0/usr/lib64/libshortwire_rsocket.so",
        );
        sh(
            "rpm --root $0 -e shortwire shortwire-devel shortwire-debuginfo; find $0 -name '*shortwire*' | tee /dev/stderr | wc -l | grep -qx 0",
        );
        Ok(())
    });
}

/// Nothing is built and no cargo is asked; what `make uninstall` leaves are directories.
#[test]
fn make_install_and_uninstall() {
    case("package-install", |c| {
        need("make")?;
        let root = c.dir().join("root");
        let make = |goal: &str| {
            let mut make = Command::new("make");
            make.args([
                "-C",
                &repository().display().to_string(),
                goal,
                "CARGO=false",
                "PREFIX=/opt/here",
            ]);
            make.arg(format!("RELEASE={}", release().display()))
                .arg(format!("DESTDIR={}", root.display()));
            c.start(goal, make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL")).success(secs(60));
        };
        let files = || {
            let find =
                Command::new("find").arg(&root).args(["!", "-type", "d"]).output().expect("find");
            String::from_utf8_lossy(&find.stdout).lines().map(str::to_string).collect::<Vec<_>>()
        };
        make("install");
        assert!(files().len() > 50, "{:?}", files());
        let run = c.client(
            "installed",
            system_tests::Side::Plain,
            &root.join("opt/here/bin/shortwire"),
            &["run", "--rsocket", "--", "echo", "ran"],
        );
        assert_eq!(run, "ran\n");
        make("uninstall");
        assert_eq!(files(), Vec::<String>::new());
        Ok(())
    });
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the library puts before libc's functions is what doc/preload.md says of it.
#[test]
fn each_entry_point_is_in_the_document() {
    case("package-names", |_| {
        let objdump = need("objdump")?;
        let output = Command::new(&objdump)
            .arg("-T")
            .arg(release().join("libshortwire.so"))
            .output()
            .expect("objdump");
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        let names: Vec<_> = table
            .lines()
            .filter(|line| line.contains(" g ") && !line.contains("*UND*"))
            .filter_map(|line| line.split_whitespace().next_back())
            .collect();
        assert!(names.len() > 100, "{table}");
        let document = include_str!("../../../doc/preload.md");
        let (_, rows) = document.split_once("## Entry points").expect("a table");
        let (rows, _) = rows.split_once("\n## ").expect("more behind it");
        let quoted: BTreeSet<_> =
            rows.split('`').skip(1).step_by(2).flat_map(str::split_whitespace).collect();
        let lacks: Vec<_> = names.iter().filter(|name| !quoted.contains(*name)).collect();
        assert!(lacks.is_empty(), "doc/preload.md lacks {lacks:?}");
        let count = format!(": {} names.", names.len());
        assert!(document.contains(&count), "doc/preload.md does not say {count:?}");
        Ok(())
    });
}

/// What is shipped runs with the oldest C library that is promised. The others' symbols have no
/// versions.
#[test]
fn the_c_library_may_be_old() {
    case("package-glibc", |_| {
        let objdump = need("objdump")?;
        let programs = ["shortwire", "shortwire-peers", "shortwire-checksum-bench"];
        let libraries = ["libshortwire.so", "libshortwire_rsocket.so", "libshortwire_csum.so"];
        for file in programs.into_iter().chain(libraries) {
            let output = Command::new(&objdump)
                .arg("-T")
                .arg(release().join(file))
                .output()
                .expect("objdump");
            let table = String::from_utf8_lossy(&output.stdout).into_owned();
            let asked = table
                .lines()
                .filter_map(|line| Some((line, line.split_once("(GLIBC_")?.1.split_once(')')?.0)));
            let asked: Vec<_> =
                asked.filter_map(|(line, text)| Some((version(text)?, line))).collect();
            assert!(asked.len() > 10, "{file}: {table}");
            let newer: Vec<_> = asked.iter().filter(|(version, _)| *version > OLDEST).collect();
            assert!(
                newer.is_empty(),
                "{file} asks for a newer C library than {OLDEST:?}: {newer:#?}"
            );
        }
        Ok(())
    });
}
