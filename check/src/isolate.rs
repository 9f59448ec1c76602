//! Where a test runs: in network, process and mount namespaces of its own, with a /dev/shm, a /run
//! and a directory for temporary files of its own. So the ports, rendezvous names and processes of
//! one test are not there for another.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Network namespaces that are made within the present one get a table of TCP connections of their own. The
/// machine's, which they would share, has a quarter of a million chains where there is much memory, and each
/// look at the connections of one namespace goes through all: that was a seventh of the time of all
/// whole-system tests. Before Linux 6.1 there is no such setting.
///
/// From the size of its table a namespace gets how many closed connections it remembers and how many half-open ones it
/// takes. Those stay the machine's: a test is to meet as many as a user's program does.
const OWN_TABLES: &str = "echo 8192 2> /dev/null > /proc/sys/net/ipv4/tcp_child_ehash_entries
";

/// In the outer of two network namespaces, in which nothing is done but to make the test's own.
const OUTSIDE: &str = "
export CLOSED=$(cat /proc/sys/net/ipv4/tcp_max_tw_buckets) HALF_OPEN=$(cat /proc/sys/net/ipv4/tcp_max_syn_backlog)
exec \"$@\"";

/// The shell stays the first process, to which signals do nothing; everything in the namespaces
/// ends with it. Tests make further namespaces.
const INSIDE: &str = "
echo $CLOSED 2> /dev/null > /proc/sys/net/ipv4/tcp_max_tw_buckets
echo $HALF_OPEN 2> /dev/null > /proc/sys/net/ipv4/tcp_max_syn_backlog
unset CLOSED HALF_OPEN
mount -t tmpfs none /dev/shm && chmod 1777 /dev/shm && mount -t tmpfs none /run && ip link set lo up || exit 125
if [ \"$TMPDIR\" = /tmp ]; then mount --bind \"$OWN\" /tmp || exit 125; fi
\"$@\"; exit $?";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// By root.
    Root,
    /// By a user, in a user namespace; the test runs as the same user, with no more rights.
    User,
    /// None: one test at a time.
    None,
}

impl Isolation {
    /// What this machine allows.
    pub fn probe() -> Isolation {
        // SAFETY: it cannot fail and touches no memory.
        let first = if unsafe { libc::geteuid() } == 0 { Isolation::Root } else { Isolation::User };
        let works = first
            .command(OsStr::new("true"), &[] as &[&str])
            .output()
            .is_ok_and(|said| said.status.success());
        if works { first } else { Isolation::None }
    }

    pub fn command(self, program: &OsStr, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = match self {
            Isolation::None => Command::new(program),
            _ => Command::new("unshare"),
        };
        if self != Isolation::None {
            if self == Isolation::User {
                command.args(["--user", "--map-root-user"]);
            }
            command.args(["--net", "sh", "-c", &[OWN_TABLES, OUTSIDE].concat(), "sh", "unshare"]);
            command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
            command.args(["sh", "-c", &[OWN_TABLES, INSIDE].concat(), "sh"]);
            if self == Isolation::User {
                // SAFETY: these cannot fail and touch no memory.
                let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
                command
                    .args(["unshare", "--user"])
                    .arg(format!("--map-user={user}"))
                    .arg(format!("--map-group={group}"));
            }
            command.arg(program);
        }
        command.args(arguments);
        command
    }
}

/// Where a test finds its directory for temporary files: at /tmp, unless what is tested lies below
/// that.
pub fn temporary(isolation: Isolation, own: &Path, needed: &[&Path]) -> PathBuf {
    let hidden = needed.iter().any(|path| path.starts_with("/tmp"));
    if isolation == Isolation::None || hidden { own.to_path_buf() } else { PathBuf::from("/tmp") }
}

/// A directory for the temporary files of one test.
pub struct Scratch<'a>(&'a Path);

impl Scratch<'_> {
    pub fn new(path: &Path) -> Scratch<'_> {
        let _ = fs::remove_dir_all(path);
        let _ = fs::create_dir_all(path);
        // Some servers give up root and must still get here.
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o1777));
        Scratch(path)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}
