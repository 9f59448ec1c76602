//! What is built for arm64, run by emulation: C programs with the library in front of them under
//! qemu's user emulation, and guests with a kernel of arm64. `make check-arm64` builds it first.
//!
//! User emulation answers getsockopt(TCP_INFO) with four bytes, and a connection that does not know
//! how many bytes went over TCP stays there: no ring is to be had in this way, but in a guest.

mod guest;
mod raw;
mod shipped;

use std::path::PathBuf;
use std::process::Command;

use system_tests::{Ports, Skip, case, compile_for, need, secs, skip};

const SYSROOT: &str = "/usr/aarch64-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Where command and libraries for arm64 are.
fn products() -> Result<PathBuf, Skip> {
    match std::env::var_os("SHORTWIRE_ARM64") {
        Some(place) => Ok(place.into()),
        None => skip("SHORTWIRE_ARM64 does not say where what is built for arm64 is"),
    }
}

/// `NAME.c` of progs under the emulator, with the library.
fn emulated(name: &str) -> Result<Command, Skip> {
    let qemu = need("qemu-aarch64")?;
    let library = products()?.join("libshortwire.so");
    assert!(library.exists(), "there is no {}", library.display());
    let mut command = Command::new(qemu);
    command.args(["-L", SYSROOT, "-E"]).arg(format!("LD_PRELOAD={}", library.display()));
    command.arg(compile_for(name, COMPILER)?);
    Ok(command)
}

#[test]
#[ignore = "by make check-arm64"]
fn variadic_calls_reach_libc_with_all_their_arguments() {
    case("arm64-execs", |c| {
        let said = c.start("execs", &mut emulated("execs")?).success(secs(120));
        let many = "12 1 2 3 4 5 6 7 8 9 10 11 12";
        let wanted =
            format!("execl {many} own\nexeclp {many} own\nexecle {many} told\ndprintf 7 2.5\n");
        assert_eq!(said, wanted);
        Ok(())
    });
}

#[test]
#[ignore = "by make check-arm64"]
fn bytes_come_as_they_were_sent() {
    case("arm64-transfer", |c| {
        for (driver, op) in [("lockstep", "send"), ("threads", "vec"), ("edge", "msg")] {
            let port = Ports::High.free().to_string();
            let side = |side: &str| -> Result<Command, Skip> {
                let mut command = emulated("transfer")?;
                command.args([side, &port, driver, op, "3000000", "3000000", "7", "2"]);
                Ok(command)
            };
            let mut server = c.start("server", &mut side("server")?);
            server.wait_line("listening", secs(120));
            let mut client = c.start("client", &mut side("client")?);
            for side in [&mut client, &mut server] {
                let said = side.success(secs(300));
                assert_eq!(said.lines().filter(|line| line.ends_with(" ok")).count(), 2, "{said}");
            }
        }
        Ok(())
    });
}
