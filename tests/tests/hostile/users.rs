//! Other users and other processes: who may share memory with whom, and what nobody may. As root.
#![allow(unsafe_code)]

use std::env;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::{
    Case, Outcome, Ports, Proc, Side, Skip, compile, expect_silence, need, secs, shortwire, skip,
};

use crate::attacks::Victim;
use crate::channel::{address, hear_with, say, seqpacket};
use crate::peer::{Claim, Peer, trap};
use crate::secrets::{Secrets, nothing_seen, talker};
use crate::{dial, echo_rounds, hostile};

/// Nobody of that number exists, which is what makes it another user.
const OTHER: u32 = 12_345;

fn needs_root() -> Outcome {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        skip("only root can become another user")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

/// Starts this test program again, as user `uid`, to play the part of `as_another` there.
fn play(c: &Case, victim: &Victim, uid: u32, part: &str) -> Proc {
    let program = c.dir().join("peer");
    if !program.exists() {
        fs::copy(env::current_exe().expect("own path"), &program)
            .expect("a copy that others can run");
    }
    let mut command = Command::new(program);
    command
        .args(["--ignored", "--exact", "users::as_another", "--nocapture", "--test-threads=1"])
        .uid(uid)
        .gid(uid);
    command.env("SWT_PART", part).env("SWT_PORT", victim.port.to_string());
    command.env("SWT_VICTIM", victim.server.pid().to_string());
    command.env("SWT_PROPOSAL", hex(&victim.proposal)).env("SWT_ACCEPT", hex(&victim.accept));
    c.start(part, &mut command)
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: this is a part of other tests"))
}

#[test]
#[ignore = "a part of other tests, played by another process"]
fn as_another() {
    let number = |name: &str| var(name).parse::<i64>().expect("a number");
    let (port, victim) = (number("SWT_PORT") as u16, number("SWT_VICTIM") as i32);
    let mut conn = dial(port);
    let low = conn.local_addr().expect("own address").port() < port;
    let trap = low.then(|| trap(&conn, port));
    echo_rounds(&mut conn, 0, 5);
    let part = var("SWT_PART");
    let claim = match part.strip_prefix("claim ") {
        Some(gid) => Claim { gid: unhex(gid).try_into().expect("a GID"), ..Claim::new(9) },
        None => Claim::new(u64::from(std::process::id())),
    };
    let peer = match &trap {
        Some(trap) => Peer::answer(conn, trap, &unhex(&var("SWT_ACCEPT")), claim),
        None => Peer::call(conn, port, &unhex(&var("SWT_PROPOSAL")), claim),
    };
    match &peer {
        Err(refused) => println!(
            "\npeer: refused with {} and {} descriptors",
            hex(&refused.said),
            refused.descriptors
        ),
        Ok(peer) => {
            nothing_seen(peer, &Secrets::of_talk());
            let seen = peer.theirs.contents().windows(6).filter(|w| w == b"SECRET").count();
            println!("\npeer: attached to {:x}, saw {seen}", peer.token);
        }
    }
    if part == "look" {
        println!("\npeer: could {:?}", looks(victim));
    }
}

/// The ways into another process that the kernel has; those that were open.
fn looks(pid: i32) -> Vec<String> {
    let mut open = Vec::new();
    for name in ["mem", "maps", "environ", "auxv", "syscall"] {
        if fs::read(format!("/proc/{pid}/{name}")).is_ok_and(|content| !content.is_empty()) {
            open.push(name.to_string());
        }
    }
    for folder in ["fd", "map_files"] {
        for entry in fs::read_dir(format!("/proc/{pid}/{folder}")).into_iter().flatten().flatten() {
            open.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
        }
    }
    // Without the list, the numbers themselves.
    for fd in 0..1024 {
        if fs::File::open(format!("/proc/{pid}/fd/{fd}")).is_ok() {
            open.push(format!("descriptor {fd}"));
        }
    }
    // SAFETY: system calls on locals.
    unsafe {
        let mut byte = [0u8; 8];
        let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 8 };
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(0x40_0000), iov_len: 8 };
        if libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) >= 0
            || *libc::__errno_location() != libc::EPERM
        {
            open.push("process_vm_readv".to_string());
        }
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process >= 0 {
            let process = OwnedFd::from_raw_fd(process as i32);
            for fd in 0..1024 {
                if libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) >= 0 {
                    open.push(format!("pidfd_getfd {fd}"));
                }
            }
        }
        if libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) == 0 {
            open.push("ptrace".to_string());
        }
    }
    open
}

/// A victim with a peer policy of its own; the recorded messages are independent of it.
fn victim(c: &Case, ports: Ports, policy: &str) -> Result<Victim, Skip> {
    let mut victim = Victim::new(c, ports)?;
    victim.server.stop();
    let mut command = Command::new(shortwire());
    command.args(["run", "--peer-policy", policy, "--"]).arg(compile("many")?);
    command.args(["server", &victim.port.to_string()]).env_remove("LD_PRELOAD");
    victim.server = c.serve("server", victim.port, &mut command);
    Ok(victim)
}

/// PEER_UID, the reason of a Decline to another user than the kernel names.
const PEER_UID: &str = "09991003";
/// OTHER_USER, to any other user.
const OTHER_USER: &str = "09991022";

#[test]
fn another_user_shares_memory_by_policy_only() {
    for ports in [Ports::Low, Ports::High] {
        hostile("policy", |c| {
            needs_root()?;
            for (policy, uid, may) in
                [("verified", OTHER, true), ("same-uid", OTHER, false), ("same-uid", 0, true)]
            {
                let mut victim = victim(c, ports, policy)?;
                let mut honest = talker(c, &victim)?;
                let said = play(c, &victim, uid, "attach").success(secs(60));
                assert_eq!(said.contains("peer: attached"), may, "{policy}, user {uid}: {said}");
                assert!(
                    may || said.contains(OTHER_USER) && said.contains("and 0 descriptors"),
                    "{policy}, user {uid}: {said}"
                );
                honest.say("\n");
                honest.success(secs(60));
                victim.server.stop();
            }
            Ok(())
        });
    }
}

/// `verified` is about the very connection: the name of somebody else's can be reached by anybody,
/// and gives nothing.
#[test]
fn another_user_is_declined_without_memory() {
    hostile("other-user", |c| {
        needs_root()?;
        for uid in [OTHER, 65_534] {
            let mut victim = victim(c, Ports::Low, "verified")?;
            let mut conn = dial(victim.port);
            let mut total = echo_rounds(&mut conn, 0, 20);
            let name =
                crate::channel::name(conn.local_addr().expect("own address").port(), victim.port);
            // A thread's own user is its own alone.
            let stranger = std::thread::spawn({
                let proposal = victim.proposal.clone();
                move || {
                    // SAFETY: integers only.
                    let r = unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, uid, u32::MAX) };
                    assert_eq!(r, 0, "another effective user");
                    let channel = seqpacket();
                    let reached = rustix::net::connect(&channel, &address(&name)).is_ok();
                    say(&channel, &proposal, &[]);
                    (reached, channel)
                }
            });
            let (reached, channel) = stranger.join().expect("the stranger");
            assert!(reached, "the victim waits for its peer");
            let mut heard = None;
            for i in 2..100 {
                total += echo_rounds(&mut conn, i * 10, i * 10 + 10);
                heard = heard.or_else(|| hear_with(&channel));
            }
            let (said, memory) = heard.expect("an answer");
            assert!(said.get(4) == Some(&4) && memory.is_empty(), "user {uid} got {}", hex(&said));
            assert!(hex(&said).contains(PEER_UID), "user {uid} got {}", hex(&said));
            expect_silence(&mut conn, total);
            drop(conn);
            victim.server.stop();
        }
        Ok(())
    });
}

#[test]
fn another_user_sees_nothing_of_a_process_it_shares_memory_with() {
    hostile("looks", |c| {
        needs_root()?;
        let mut victim = victim(c, Ports::Low, "verified")?;
        let mut honest = talker(c, &victim)?;
        let said = play(c, &victim, OTHER, "look").success(secs(60));
        assert!(said.contains("peer: attached") && said.contains("peer: could []"), "{said}");
        // The search itself finds what is open to it.
        let said = play(c, &victim, 0, "look").success(secs(60));
        assert!(said.contains("\"maps\"") && said.contains("\"fd/0\""), "{said}");
        honest.say("\n");
        honest.success(secs(60));
        victim.server.stop();
        Ok(())
    });
}

/// A GID is what somebody says; the process behind it is what the kernel says. Another process
/// under the name of one that is attached gets memory of its own.
#[test]
fn a_borrowed_name_gets_no_borrowed_memory() {
    for ports in [Ports::Low, Ports::High] {
        hostile("borrowed", |c| -> Outcome {
            let mut victim = Victim::new(c, ports)?;
            let claim = Claim::new(77);
            let mut peer = victim.attach_as(claim).expect("a peer that keeps to the rules");
            peer.switch();
            peer.publish(&b"SECRET".repeat(100));
            let own = rustix::process::geteuid().as_raw();
            let said =
                play(c, &victim, own, &format!("claim {}", hex(&claim.gid))).success(secs(60));
            let arena = format!("{:x}", peer.token >> 24);
            assert!(
                said.contains("saw 0") && !said.contains(&format!("attached to {arena}")),
                "{arena}: {said}"
            );
            drop(peer);
            victim.server.stop();
            Ok(())
        });
    }
}

fn copy(c: &Case, from: &Path, name: &str, mode: u32) -> PathBuf {
    let to = c.dir().join(name);
    fs::copy(from, &to).expect("a copy");
    chown(&to, Some(0), Some(0)).expect("root's");
    fs::set_permissions(&to, fs::Permissions::from_mode(mode)).expect("permissions");
    to
}

/// The capability to bind low ports, permitted and effective: struct vfs_cap_data of version 2.
fn give_capability(program: &Path) -> bool {
    let data: Vec<u8> =
        [0x0200_0001u32, 1 << 10, 0, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    rustix::fs::setxattr(program, c"security.capability", &data, rustix::fs::XattrFlags::empty())
        .is_ok()
}

fn maps(server: &Proc) -> String {
    fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("mappings")
}

/// A program that has more rights than whoever starts it loads nothing of theirs.
#[test]
fn a_setuid_program_is_left_alone() {
    hostile("setuid", |c| {
        needs_root()?;
        let program = compile("many")?;
        let library =
            copy(c, &shortwire().with_file_name("libshortwire.so"), "preloaded.so", 0o755);
        let capable = copy(c, &program, "capable", 0o755);
        let mut kinds = vec![
            (copy(c, &program, "plain", 0o755), true),
            (copy(c, &program, "setuid", 0o4755), false),
        ];
        if give_capability(&capable) {
            kinds.push((capable, false));
        }
        for (program, loads) in kinds {
            let port = Ports::Low.free();
            let mut command = Command::new(&program);
            command.args(["server", &port.to_string()]).uid(OTHER).gid(OTHER);
            command.env("LD_PRELOAD", &library).env("SHORTWIRE_AFTER", "1");
            let server = c.serve("server", port, &mut command);
            assert_eq!(maps(&server).contains("preloaded.so"), loads, "{}", program.display());
            echo_rounds(&mut dial(port), 0, 100);
        }
        Ok(())
    });
}

/// Where the administrator loads the library everywhere, by /etc/ld.so.preload, it is in setuid
/// programs too. There it does nothing, whatever the environment of whoever starts them says.
#[test]
fn a_setuid_program_does_not_read_our_environment() {
    hostile("ld.so.preload", |c| {
        needs_root()?;
        let (unshare, setpriv) = (need("unshare")?, need("setpriv")?);
        let program = compile("many")?;
        let library =
            copy(c, &shortwire().with_file_name("libshortwire.so"), "preloaded.so", 0o755);
        let etc = c.dir().join("etc");
        fs::create_dir(&etc).expect("a folder");
        fs::write(etc.join("ld.so.preload"), format!("{}\n", library.display())).expect("a file");
        let kinds = [
            (copy(c, &program, "plain", 0o755), true),
            (copy(c, &program, "setuid", 0o4755), false),
        ];
        for (program, works) in kinds {
            let port = Ports::Low.free();
            // mount and setpriv themselves are started before the file is in place, or by it as
            // ordinary programs.
            let script = format!(
                "mount --bind {} /etc && exec {} --reuid {OTHER} --regid {OTHER} --clear-groups {} server {port}",
                etc.display(),
                setpriv.display(),
                program.display()
            );
            let mut command = Command::new(&unshare);
            command
                .args(["--mount", "--", "sh", "-c", &script])
                .env("SHORTWIRE_AFTER", "1")
                .env_remove("LD_PRELOAD");
            let server = c.serve("server", port, &mut command);
            if !maps(&server).contains("preloaded.so") {
                return skip("/etc/ld.so.preload is not read here");
            }
            let watch = c.watch(&[port]);
            let args = ["talk".to_string(), port.to_string(), "2000".to_string()];
            let mut client = c.start("client", Side::Run.command(compile("many")?).args(args));
            client.wait_line("talked", secs(60));
            if works {
                watch.wait_smcd(2, secs(60));
            }
            client.say("\n");
            client.success(secs(60));
            assert_eq!(maps(&server).contains("shortwire-table"), works, "{}", program.display());
            if !works {
                watch.expect_tcp();
            }
        }
        Ok(())
    });
}
