//! In a guest with a kernel of its own, where connections leave TCP.

use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::guest::Guest;
use system_tests::{Case, Skip, case, compile_for, need, secs};

use crate::{COMPILER, SYSROOT, products};

/// Of the C library that the compiler for arm64 brings along.
const LIBRARIES: [&str; 4] = ["ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1"];

/// A guest that has nothing but busybox, the command, its library, and a program.
fn small(case: &Case, program: &str) -> Result<Guest, Skip> {
    let mut guest = Guest::arm64()?;
    for library in LIBRARIES {
        guest.place(&Path::new(SYSROOT).join("lib").join(library), &format!("/lib/{library}"));
    }
    let strip = need("aarch64-linux-gnu-strip")?;
    let products = products()?;
    let files = [
        (products.join("shortwire"), "shortwire"),
        (products.join("libshortwire.so"), "libshortwire.so"),
        (compile_for(program, COMPILER)?, program),
    ];
    for (path, name) in files {
        // Debug information is most of it, and an emulated processor unpacks the file system.
        let short: PathBuf = case.dir().join(name);
        let status = Command::new(&strip).arg("-o").arg(&short).arg(&path).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot strip {}", path.display());
        guest.place(&short, &format!("/bin/{name}"));
    }
    Ok(guest)
}

#[test]
#[ignore = "by make check-arm64"]
fn connections_are_in_shared_memory() {
    case("arm64-one", |c| {
        let ended = small(c, "smc_peer")?.run(c, "", include_str!("one.sh"), secs(300));
        let said = ended.success();
        assert!(said.lines().any(|line| line == "aarch64"), "{said}");
        for name in ["loopback", "copied", "ism"] {
            let turn = said.split("== ").find(|turn| turn.starts_with(&format!("{name}\n")));
            let turn = turn.unwrap_or_else(|| panic!("no turn {name}:\n{said}"));
            for line in ["server: 0", "client: 0", "to client: intact", "to server: intact"] {
                assert!(turn.lines().any(|said| said == line), "{line} is missing in\n{turn}");
            }
            let rows = turn.lines().filter(|row| row.starts_with("ss: "));
            assert_eq!(rows.filter(|row| row.contains(" SMCD")).count(), 2, "{turn}");
        }
        Ok(())
    });
}
