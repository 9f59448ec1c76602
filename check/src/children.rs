//! The processes that the check starts end with it, whatever ends it: Ctrl-C, a signal, or its own
//! kill.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Process groups that are alive; a child leads its own, so that a Ctrl-C of the terminal reaches
/// us alone.
static GROUPS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

fn groups() -> MutexGuard<'static, BTreeSet<i32>> {
    GROUPS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Directories of the tests that run; gone when we are. Short, because sockets are bound in them,
/// and where every user can get.
pub fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("swc-{}", std::process::id()))
}

pub fn clean_up() {
    let _ = fs::remove_dir_all(scratch());
}

fn ending() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in ENDING {
        // SAFETY: the set is initialised, the signal exists.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: `sigemptyset` has filled it.
    unsafe { set.assume_init() }
}

/// From now on a signal that ends us first ends our children. To be called before there are other
/// threads.
pub fn end_with_us() {
    let set = ending();
    // SAFETY: a valid set, and no old one wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both live here.
        unsafe { libc::sigwait(&set, &mut signal) };
        // The lock is kept: nothing is started any more.
        let groups = groups();
        for &group in groups.iter() {
            kill_group(group);
        }
        // What is killed still writes to its directory for a moment.
        for _ in 0..50 {
            clean_up();
            if !scratch().exists() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("\nended by signal {signal}");
        std::process::exit(128 + signal);
    });
}

fn kill_group(group: i32) {
    // SAFETY: no memory is involved. The group is one of ours: its leader is not waited for before
    // it is taken off the list.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// What this thread starts from now on gets the processor where nothing else wants it, or nearly: a
/// third of the share of what others start.
pub fn give_way() {
    // SAFETY: no memory is involved. The priority is one thread's, and its children's.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
}

pub fn start(command: &mut Command) -> io::Result<Child> {
    let set = ending();
    command.stdin(Stdio::null()).process_group(0);
    // SAFETY: two system calls, no memory is touched between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            Ok(())
        });
    }
    let mut alive = groups();
    let child = command.spawn()?;
    alive.insert(child.id() as i32);
    Ok(child)
}

/// Waits for its end and takes what is left of its group with it. Also says what processor time it
/// took, with all that it waited for.
pub fn wait(mut child: Child) -> io::Result<(ExitStatus, Duration)> {
    let group = child.id() as i32;
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // Not reaped yet, so that the number stays ours while the group is killed. By number, because
    // libc's waitid does not give the usage.
    let how = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: `info` and `usage` have room for what is written.
    while unsafe {
        libc::syscall(
            libc::SYS_waitid,
            libc::P_PID,
            group,
            info.as_mut_ptr(),
            how,
            usage.as_mut_ptr(),
        )
    } < 0
    {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    // SAFETY: zero, or what waitid wrote.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    let mut alive = groups();
    kill_group(group);
    alive.remove(&group);
    Ok((child.wait()?, time(usage.ru_utime) + time(usage.ru_stime)))
}

pub fn end(child: Child) {
    kill_group(child.id() as i32);
    let _ = wait(child);
}

/// What a command printed, on both streams, and how it ended.
pub struct Ended {
    pub lines: Vec<String>,
    pub success: bool,
    pub took: Duration,
    /// Processor time of the command and of all that it waited for.
    pub computed: Duration,
}

impl Ended {
    /// "12.3 s, 4.5 s of a processor".
    pub fn times(&self) -> String {
        format!(
            "{:.1} s, {:.1} s of a processor",
            self.took.as_secs_f64(),
            self.computed.as_secs_f64()
        )
    }
}

/// Runs a command to its end, which a limit may bring.
pub fn run(command: &mut Command, limit: Option<Duration>) -> Ended {
    let began = Instant::now();
    let ended = try_run(command, limit);
    let took = began.elapsed();
    match ended {
        Ok((lines, success, computed)) => Ended { lines, success, took, computed },
        Err(error) => {
            let lines = vec![format!("cannot run {command:?}: {error}")];
            Ended { lines, success: false, took, computed: Duration::ZERO }
        }
    }
}

fn try_run(
    command: &mut Command,
    limit: Option<Duration>,
) -> io::Result<(Vec<String>, bool, Duration)> {
    let lines = Mutex::new(Vec::new());
    let keep =
        |line: String| lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(line);
    // One pipe for both, so that what belongs together stays together.
    let (reader, writer) = io::pipe()?;
    let mut child = start(command.stdout(writer.try_clone()?).stderr(writer))?;
    // The command holds the other ends of the pipe.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let group = child.id() as i32;
    let (status, computed) = thread::scope(|scope| {
        scope.spawn(|| each_line(reader, keep));
        let began = Instant::now();
        let mut late = false;
        while limit.is_some_and(|limit| began.elapsed() < limit) && child.try_wait_quietly(group)? {
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(limit) = limit
            && child.try_wait_quietly(group)?
        {
            late = true;
            kill_group(group);
            keep(format!("did not end within {} s, killed", limit.as_secs()));
        }
        let (status, computed) = wait(child)?;
        if !late && let Some(signal) = status.signal() {
            keep(format!("ended by signal {signal}"));
        }
        Ok::<_, io::Error>((status, computed))
    })?;
    Ok((
        lines.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()),
        status.success(),
        computed,
    ))
}

trait Quietly {
    fn try_wait_quietly(&mut self, group: i32) -> io::Result<bool>;
}

impl Quietly for Child {
    /// Whether it runs still; it is not reaped.
    fn try_wait_quietly(&mut self, group: i32) -> io::Result<bool> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let how = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        // SAFETY: `info` has room for what is written.
        if unsafe { libc::waitid(libc::P_PID, group as libc::id_t, info.as_mut_ptr(), how) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zero, or what waitid wrote for a child that has ended.
        Ok(unsafe { info.assume_init().si_pid() } == 0)
    }
}

fn each_line(from: impl Read, mut keep: impl FnMut(String)) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        keep(String::from_utf8_lossy(&line).trim_end_matches('\n').to_string());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_end_are_told() {
        let ended = run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 3"]), None);
        assert_eq!((ended.lines.join(" ").as_str(), ended.success), ("a b", false));
        assert!(run(&mut Command::new("true"), None).success);
        assert!(!run(&mut Command::new("/nonexistent"), None).success);
    }

    #[test]
    fn what_takes_too_long_is_killed_with_what_it_started() {
        let mut limit = Duration::from_millis(100);
        let ended = loop {
            let mut command = Command::new("sh");
            let ended = run(command.args(["-c", "sleep 1000 & echo $!; wait"]), Some(limit));
            assert!(!ended.success, "{:?}", ended.lines);
            // A busy machine may not have come to the line.
            if ended.lines.len() == 2 || limit > Duration::from_secs(20) {
                break ended;
            }
            limit *= 2;
        };
        assert_eq!(ended.lines.len(), 2, "{:?}", ended.lines);
        let stat =
            || fs::read_to_string(format!("/proc/{}/stat", ended.lines[0])).unwrap_or_default();
        while stat().contains("(sleep)") && !stat().contains(") Z") {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
