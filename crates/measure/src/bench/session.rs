//! What all runs of a bench share: a temporary directory, cpus to pin to, how long, and what was
//! seen meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::calls::{Attached, Counter};
use super::case::{Case, Path};
use super::machine::Machine;
use super::observe::Seen;
use super::outcome::Cpu;
use super::process::Process;
use crate::processors::two_cpus;

/// Between two looks at connections, in seconds. Some tools take longer to set out than to measure.
const SHORTEST_PERIOD: f64 = 0.3;

pub struct Session {
    /// What starts a program under the library.
    run: Vec<OsString>,
    directory: TempDir,
    pub seconds: f64,
    pub timeout: Duration,
    /// Server's and client's, where there are two to choose.
    pub cpus: Option<(usize, usize)>,
    /// The row that is being run.
    case: Cell<&'static str>,
    /// Whether it leaves it to the kernel where its programs run.
    free: Cell<bool>,
    files: Cell<u32>,
    seen: RefCell<BTreeMap<&'static str, Seen>>,
    /// Who counts the servers' system calls, if anybody does.
    pub counter: Option<Counter>,
    /// What the rows themselves do not say.
    pub conditions: Conditions,
}

/// Under what conditions all rows are measured.
#[derive(Clone, Default)]
pub struct Conditions {
    /// Where programs run; None: as the row has it.
    pub pin: Option<Pin>,
    /// Threads beside them that only compute.
    pub busy: u32,
    /// Of the network namespace that is made for the bench.
    pub congestion: Option<String>,
    /// Of `shortwire run`.
    pub spin: Option<u32>,
}

/// Where programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Pin {
    /// Wherever the kernel puts them
    Free,
    /// All on one processor
    One,
    /// Servers on one, clients on another
    Two,
}

/// What a client left behind, and what it cost both sides.
pub struct Finished {
    pub output: String,
    pub cpu: Cpu,
}

/// How one program of a pair is started.
pub struct Launch {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    path: Path,
    cpu: Option<usize>,
    options: &'static [&'static str],
    user: Option<(u32, u32)>,
    anywhere: bool,
}

impl Launch {
    pub fn new(
        name: &'static str,
        program: PathBuf,
        arguments: Vec<OsString>,
        path: Path,
    ) -> Launch {
        Launch {
            name,
            program,
            arguments,
            path,
            cpu: None,
            options: &[],
            user: None,
            anywhere: false,
        }
    }

    pub fn on(self, cpu: Option<usize>) -> Launch {
        Launch { cpu, ..self }
    }

    /// Whatever the bench's conditions are.
    pub fn anywhere(self) -> Launch {
        Launch { anywhere: true, ..self }
    }

    /// Options of `shortwire run`, where the path is Shortwire.
    pub fn options(self, options: &'static [&'static str]) -> Launch {
        Launch { options, ..self }
    }

    /// User and group, if not our own.
    pub fn user(self, user: Option<(u32, u32)>) -> Launch {
        Launch { user, ..self }
    }
}

impl Session {
    /// `run`: see [`crate::Run`].
    pub fn new(seconds: f64, timeout: Duration, run: Vec<OsString>) -> Result<Session> {
        let directory = tempfile::Builder::new()
            .prefix("shortwire-bench-")
            .tempdir()
            .context("cannot make a temporary directory; is TMPDIR writable?")?;
        allow_other_users_in(directory.path())?;
        Ok(Session {
            run,
            directory,
            seconds,
            timeout,
            cpus: two_cpus(),
            case: Cell::new(""),
            free: Cell::new(false),
            files: Cell::new(0),
            seen: RefCell::default(),
            counter: None,
            conditions: Conditions::default(),
        })
    }

    /// What is started from now on belongs to this row.
    pub fn begin(&self, case: &Case) {
        self.case.set(case.name);
        self.free.set(case.free);
    }

    pub fn machine(&self) -> Machine {
        Machine::describe(self.cpus)
    }

    pub fn directory(&self) -> &FilePath {
        self.directory.path()
    }

    /// A path in the temporary directory that nothing has used yet.
    pub fn fresh_path(&self, name: &str) -> PathBuf {
        self.files.set(self.files.get() + 1);
        self.directory().join(format!("{}-{name}", self.files.get()))
    }

    /// An address of the loopback interface that no run has used yet: a client finds the ports to
    /// an address the slower the more of them lie in TIME_WAIT.
    pub fn fresh_address(&self) -> Ipv4Addr {
        self.files.set(self.files.get() + 1);
        let [_, _, high, low] = self.files.get().to_be_bytes();
        Ipv4Addr::new(127, 77, high, low.max(1))
    }

    /// For programs whose own clock counts whole seconds.
    pub fn whole_seconds(&self) -> u64 {
        self.seconds.ceil().max(1.0) as u64
    }

    pub fn server_cpu(&self) -> Option<usize> {
        self.cpus.map(|(server, _)| server)
    }

    pub fn client_cpu(&self) -> Option<usize> {
        self.cpus.map(|(_, client)| client)
    }

    /// A program to connect to.
    pub fn serve(&self, launch: Launch) -> Result<Process> {
        let mut command = Vec::new();
        if let Some(counter) = &self.counter {
            command.extend(counter.prefix()?);
        }
        let cpu = self.pinned(&launch, self.server_cpu());
        self.launch(command, launch.on(cpu))
    }

    pub fn start(&self, launch: Launch) -> Result<Process> {
        let other = if self.conditions.pin == Some(Pin::One) {
            self.server_cpu()
        } else {
            self.client_cpu()
        };
        let cpu = self.pinned(&launch, other);
        self.launch(Vec::new(), launch.on(cpu))
    }

    fn pinned(&self, launch: &Launch, there: Option<usize>) -> Option<usize> {
        match self.conditions.pin {
            _ if launch.anywhere => None,
            None => launch.cpu.filter(|_| !self.free.get()),
            Some(Pin::Free) => None,
            Some(Pin::One | Pin::Two) => there,
        }
    }

    fn launch(&self, mut command: Vec<OsString>, launch: Launch) -> Result<Process> {
        if matches!(launch.path, Path::Shortwire | Path::Copy) {
            command.extend(self.run_words(&launch));
        }
        command.push(launch.program.into());
        command.extend(launch.arguments);
        let label = format!("{} over {}", launch.name, launch.path.name());
        Process::start(label, &command, launch.cpu, launch.user, &self.fresh_path(launch.name))
    }

    /// What stands before the name of a program that runs under the library.
    fn run_words(&self, launch: &Launch) -> Vec<OsString> {
        let mut words = self.run.clone();
        words.extend(launch.options.iter().map(OsString::from));
        words.extend(
            self.conditions.spin.iter().flat_map(|spin| ["--spin".into(), spin.to_string().into()]),
        );
        words.extend((launch.path == Path::Copy).then(|| "--copy".into()));
        words.push("--".into());
        words
    }

    /// Waits for a client, and now and then looks at its connections. It looks whatever the path,
    /// although only one has something to show, because looking costs time on the cpus under
    /// measurement.
    pub fn finish_client(
        &self,
        path: Path,
        servers: &[&Process],
        client: Process,
        expected: f64,
    ) -> Result<Finished> {
        let counting =
            self.counter.as_ref().map(|counter| counter.attach(servers)).transpose()?.flatten();
        let group = client.group();
        let period = Duration::from_secs_f64((expected * 0.6).max(SHORTEST_PERIOD));
        let mut next = period;
        let ended = client.finish(Duration::from_secs_f64(expected) + self.timeout, |elapsed| {
            if elapsed >= next {
                next = elapsed + period;
                let seen = Seen::of(group);
                if path == Path::Shortwire {
                    self.seen.borrow_mut().entry(self.case.get()).or_default().keep_fuller(seen);
                }
            }
            Some(next)
        })?;
        counting.map(Attached::stop).transpose()?;
        let server = servers.iter().map(|server| server.cpu()).sum();
        Ok(Finished { output: ended.output, cpu: Cpu { server, client: ended.cpu } })
    }

    pub fn seen(&self) -> BTreeMap<&'static str, Seen> {
        self.seen.take()
    }
}

/// A server that drops its privileges (nginx) must still reach its files.
fn allow_other_users_in(directory: &FilePath) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))
        .context("cannot set the permissions of the temporary directory")
}

/// Chosen by the kernel a moment ago. Someone else may take it first; the server's failure then
/// says so.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("cannot listen on 127.0.0.1; is the loopback interface up?")?;
    Ok(listener.local_addr()?.port())
}

/// Asked of the kernel and not by connecting: some servers take a stray connection for their
/// client.
pub fn is_listening(port: u16) -> Result<bool> {
    let table = std::fs::read_to_string("/proc/net/tcp").context("cannot read /proc/net/tcp")?;
    let local = format!(":{port:04X}");
    let mut rows = table.lines().skip(1).map(|line| line.split_whitespace().skip(1));
    Ok(rows.any(|mut fields| {
        fields.next().is_some_and(|address| address.ends_with(&local))
            && fields.nth(1) == Some("0A")
    }))
}

pub fn unsupported<T>(path: Path) -> Result<T> {
    bail!("this row has no path {}", path.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_seen_and_gone_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port).unwrap());
        drop(listener);
        // A child of another test may have a copy until its exec.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while is_listening(port).unwrap() {
            assert!(std::time::Instant::now() < end);
            std::thread::yield_now();
        }
        assert!(free_port().unwrap() > 0);
    }
}
