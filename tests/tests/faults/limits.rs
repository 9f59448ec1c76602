//! Scarcity that lasts: limits, full file systems, calls that a sandbox forbids. Whatever a program
//! can do without the library it can do with it.
#![allow(unsafe_code)]

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;

use system_tests::{Case, Outcome, Ports, Skip, need, secs, shortwire, skip};

use crate::inject::{Fault, inject};
use crate::{Holds, await_listener, faulty, program};

/// Many more connections than a leak of one descriptor each could hide in.
const CONNS: &str = "12";

/// Both sides under the same `burden`; what they hold at the end.
fn both(
    c: &Case,
    ports: Ports,
    mut burden: impl FnMut(Command) -> Command,
) -> Result<[Holds; 2], Skip> {
    let port = ports.free();
    let mut server = c.start("server", &mut burden(program("server", port, &[CONNS])?));
    await_listener(&mut server, port);
    let mut client = c.start("client", &mut burden(program("client", port, &[CONNS])?));
    client.success(secs(100));
    server.success(secs(100));
    Ok([&server, &client].map(|p| Holds::said(p).expect("its count")))
}

/// No more of anything than where nothing is scarce.
fn no_more(found: [Holds; 2], sound: [Holds; 2], what: &str) {
    for (found, sound) in found.into_iter().zip(sound) {
        assert!(found.within(sound, 0), "{what}: holds {found:?}, otherwise {sound:?}");
    }
}

#[test]
fn calls_that_a_sandbox_forbids() {
    faulty("forbidden", |c| {
        let sound = both(c, Ports::Low, |command| command)?;
        let forbidden = [
            (libc::SYS_memfd_create, libc::EPERM, true),
            (libc::SYS_memfd_create, libc::ENOSYS, true),
            (libc::SYS_socket, libc::EACCES, true),
            (libc::SYS_socket, libc::EAFNOSUPPORT, true),
            (libc::SYS_connect, libc::EPERM, false),
            (libc::SYS_bind, libc::EPERM, false),
            (libc::SYS_getrandom, libc::ENOSYS, true),
            (libc::SYS_fstatfs, libc::EPERM, false),
            (libc::SYS_sendmsg, libc::EPERM, false),
            (libc::SYS_recvmsg, libc::EPERM, false),
            (libc::SYS_process_vm_readv, libc::EPERM, false),
            (libc::SYS_process_vm_writev, libc::EPERM, false),
        ];
        for (call, errno, used) in forbidden {
            for ports in [Ports::Low, Ports::High] {
                let mut watchers = Vec::new();
                let found = both(c, ports, |mut command| {
                    watchers.push(inject(&mut command, 0, Fault::Forbid(call, errno)));
                    command
                })?;
                no_more(found, sound, &format!("call {call} with {errno}"));
                let hits =
                    watchers.into_iter().map(|w| w.end().hit.is_some()).filter(|hit| *hit).count();
                assert!(hits > 0 || !used, "call {call} was never made");
                // Without memory or a rendezvous there is nothing to share.
                let needs = [libc::SYS_memfd_create, libc::SYS_socket, libc::SYS_sendmsg];
                assert!(!needs.contains(&call) || found.iter().all(|h| h.arenas == 0), "{found:?}");
            }
        }
        Ok(())
    });
}

fn limited(mut command: Command, resource: libc::__rlimit_resource_t, value: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: one system call on a copy.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    command
}

/// From what the program itself needs just so, up to what is enough for all.
#[test]
fn few_descriptors() {
    faulty("descriptors", |c| {
        for ports in [Ports::Low, Ports::High] {
            let sound = both(c, ports, |command| command)?;
            for limit in [8, 9, 10, 11, 12, 13, 14, 16, 20, 32, 64, 65, 66, 80, 100] {
                let plain = |mut command: Command| {
                    command.env_remove("LD_PRELOAD");
                    limited(command, libc::RLIMIT_NOFILE, limit)
                };
                both(c, ports, plain)?;
                let found = both(c, ports, |command| limited(command, libc::RLIMIT_NOFILE, limit))?;
                no_more(found, sound, &format!("{limit} descriptors"));
            }
        }
        Ok(())
    });
}

#[test]
fn little_address_space() {
    faulty("addresses", |c| {
        let sound = both(c, Ports::Low, |command| command)?;
        for mib in
            [16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 2048]
        {
            let found =
                both(c, Ports::Low, |command| limited(command, libc::RLIMIT_AS, mib << 20))?;
            no_more(found, sound, &format!("{mib} MiB of addresses"));
        }
        Ok(())
    });
}

/// The shared memory is no file of /dev/shm: a full one changes nothing.
#[test]
fn a_full_dev_shm() {
    faulty("dev-shm", |c| -> Outcome {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can have a /dev/shm of its own");
        }
        let unshare = need("unshare")?;
        let sound = both(c, Ports::Low, |command| command)?;
        let found = both(c, Ports::Low, |command| {
            let mut words = vec![command.get_program().to_owned()];
            words.extend(command.get_args().map(|a| a.to_owned()));
            let words: Vec<String> =
                words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
            let library = shortwire().with_file_name("libshortwire.so");
            let script = format!(
                "mount -t tmpfs -o size=4k tmpfs /dev/shm && (cat /dev/zero > /dev/shm/all 2>/dev/null; exec env LD_PRELOAD={} {})",
                library.display(),
                words.join(" ")
            );
            let mut command = Command::new(&unshare);
            command
                .args(["--mount", "--", "sh", "-c", &script])
                .env_remove("LD_PRELOAD")
                .env("SHORTWIRE_AFTER", "2");
            command
        })?;
        no_more(found, sound, "a full /dev/shm");
        assert!(found.iter().all(|h| h.arenas > 0), "memory is shared all the same: {found:?}");
        Ok(())
    });
}

/// A control group for memory, of either version; removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Result<Group, Skip> {
        let places =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        // Process numbers are those of a namespace, and others run here, too.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        for (place, file) in places {
            let path = PathBuf::from(place).join(format!("swt-{}-{}", now.tv_sec, now.tv_nsec));
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Group(path);
            if fs::write(group.0.join(file), limit.to_string()).is_ok() {
                return Ok(group);
            }
        }
        skip("no control group for memory can be made here")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Where memory runs out the kernel kills, as it would kill the program without the library; the
/// other end sees an end.
#[test]
fn little_memory() {
    faulty("memory", |c| {
        for mib in [1, 2, 3, 4, 6, 8, 16] {
            let group = Group::new(mib << 20)?;
            let port = Ports::Low.free();
            let mut server = c.start("server", &mut program("server", port, &["1", "survive"])?);
            await_listener(&mut server, port);
            let procs =
                std::ffi::CString::new(group.0.join("cgroup.procs").to_string_lossy().into_owned())
                    .expect("a path");
            let mut client = program("client", port, &["1", "survive"])?;
            // SAFETY: system calls on a string that lives in the closure.
            unsafe {
                client.pre_exec(move || {
                    let fd = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                    let written = libc::write(fd, b"0".as_ptr().cast(), 1);
                    libc::close(fd);
                    if written == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
                })
            };
            let mut client = c.start("client", &mut client);
            let status = client.wait(secs(100));
            assert!(
                status.success() || status.signal() == Some(9),
                "{mib} MiB: {status}: {}",
                client.stderr()
            );
            if !server.running() || status.success() {
                server.success(secs(100));
                continue;
            }
            // It may have been killed before it connected.
            let mut next = c.start("next", &mut program("client", port, &["1", "survive"])?);
            next.wait(secs(100));
            server.success(secs(100));
        }
        Ok(())
    });
}
