//! What is shipped for arm64: packages say so, what is in them is, and runs in a guest; the checksum takes few instructions.

use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::guest::Guest;
use system_tests::{Case, Skip, case, need, secs};

use crate::guest::{command_and_library, exchange, small};
use crate::products;

/// Runs a script of packaging, which leaves packages in a folder.
fn made(c: &Case, script: &str) -> Result<PathBuf, Skip> {
    let (top, out) = (Path::new(env!("CARGO_MANIFEST_DIR")), c.dir().join(script));
    let mut make = Command::new(top.join("../packaging").join(script));
    make.arg(products()?).arg(&out).env("HOME", c.dir());
    make.envs([("TARGET", "aarch64-unknown-linux-gnu"), ("CROSS", "aarch64-linux-gnu-")]);
    make.env("COMPRESSION", if script == "deb" { "none" } else { "w1.gzdio" });
    c.start(script, &mut make).success(secs(300));
    Ok(out)
}

fn sh(c: &Case, script: &str, folder: &Path) -> String {
    c.start("sh", Command::new("sh").args(["-ec", script]).arg(folder)).success(secs(120))
}

#[test]
#[ignore = "by make check-arm64"]
fn debs_are_of_arm64_and_run_there() {
    case("arm64-deb", |c| {
        for program in ["dpkg-deb", "readelf", "make", "aarch64-linux-gnu-objcopy"] {
            need(program)?;
        }
        let debs = made(c, "deb")?;
        let said = sh(c, "for deb in $0/*.deb; do dpkg-deb -f $deb Architecture; done", &debs);
        assert_eq!(said, "arm64\n".repeat(3));
        let machines = "dpkg-deb -x $0/shortwire_*.deb $0/root
            find $0/root -type f -exec readelf -h {} + 2> /dev/null | sed -n 's/^ *Machine: *//p' | sort | uniq -c";
        let said = sh(c, machines, &debs);
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["8", "AArch64"]);
        let root = debs.join("root/usr");
        let files = [root.join("bin/shortwire"), root.join("lib/shortwire/libshortwire.so")];
        exchange(c, small(c, Guest::arm64()?, files, "smc_peer")?)
    });
}

#[test]
#[ignore = "by make check-arm64"]
fn rpms_are_of_arm64() {
    case("arm64-rpm", |c| {
        for program in ["rpmbuild", "make", "aarch64-linux-gnu-objcopy"] {
            need(program)?;
        }
        let rpms = made(c, "rpm")?;
        let said = sh(c, "rpm -qp --qf '%{NAME} %{ARCH}\\n' $0/*.aarch64.rpm | sort", &rpms);
        let names = ["shortwire", "shortwire-debuginfo", "shortwire-devel"];
        assert_eq!(said, names.map(|name| format!("{name} aarch64\n")).concat());
        let said = sh(c, "rpm -qp --requires --provides $0/shortwire-0*.rpm", &rpms);
        // The first version of the C library that knew arm64.
        for part in ["libc.so.6(GLIBC_2.17)(64bit)", "libshortwire_rsocket.so.0()(64bit)"] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
        assert!(!said.contains("x86-64"), "{said}");
        Ok(())
    });
}

/// An emulated processor's time says nothing, the number of its instructions does.
#[test]
#[ignore = "by make check-arm64"]
fn checksums_take_few_instructions() {
    case("arm64-instructions", |c| {
        let bench = products()?.join("shortwire-checksum-bench");
        let mut guest = small(c, Guest::arm64()?, command_and_library()?, "smc_peer")?;
        guest.place(&bench, "/bin/shortwire-checksum-bench");
        let ended = guest.run(c, "", "shortwire bench checksum --instructions", secs(3600));
        let said = ended.success();
        println!("{said}");
        let row = |name: &str| -> Vec<u64> {
            let row = said.lines().find_map(|line| line.trim_start().strip_prefix(name));
            let row = row.unwrap_or_else(|| panic!("no row {name}:\n{said}"));
            row.split_whitespace().map(|count| count.parse().expect("a number")).collect()
        };
        let ours = row("shortwire ");
        assert_eq!(ours.len(), 10, "{said}");
        for rival in ["smoltcp ", "internet-checksum ", "etherparse ", "pnet "] {
            let theirs = row(rival);
            assert!(
                ours.iter().zip(&theirs).all(|(ours, theirs)| ours < theirs),
                "{rival}:\n{said}"
            );
        }
        Ok(())
    });
}
