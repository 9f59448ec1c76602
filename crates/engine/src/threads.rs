//! Several engines, one per thread, as one network.
//!
//! Each app of a configuration says on which thread it runs. A link between two threads has a half
//! in each engine and a [`crossing`] between them. A thread whose app panics ends alone: the others
//! go on, what is sent to it is dropped and counted by its links, and [`Threads::health`] tells.
//! The next configuration starts it again.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::config::{Config, LinkSpec, Problems};
use crate::crossing::{CAPACITY, crossing};
use crate::engine::{ConfigureError, Crossing, Ended, Engine, Options, Until};
use crate::link::LinkStats;
use crate::registry::Registry;
use crate::stop::{Call, Stop};

/// Something for an engine to do between two breaths, on its own thread.
type Task = Box<dyn FnOnce(&mut Engine) + Send>;

/// How long an engine may take to answer. Apps do not block, so that one which does is a fault to
/// be told.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It breathes, or waits for a configuration.
    Running,
    /// An app panicked; what it said, with the name of the app.
    Crashed(String),
}

/// Why the network as a whole could not follow a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ThreadsError {
    /// Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Problems),
    /// The system has no thread for it.
    #[error("cannot start thread {thread}: {error}")]
    Spawn {
        /// Its number.
        thread: usize,
        /// The system's answer.
        error: std::io::Error,
    },
    /// The other threads did what was asked.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Some(Vec<ThreadError>),
}

/// What went wrong on one thread.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// It did not follow the configuration, or not in full.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// Its number, and what the app said.
    #[error("thread {0} crashed: {1}")]
    Crashed(usize, String),
    /// Its number. It has ended, or an app of it does not return.
    #[error("thread {0} does not answer")]
    Silent(usize),
}

/// Engines by the number of their thread.
pub struct Threads {
    options: Options,
    registry: Registry,
    workers: BTreeMap<usize, Worker>,
    /// Links between threads, with the threads of their ends.
    crossings: HashMap<LinkSpec, (usize, usize)>,
}

struct Worker {
    tasks: mpsc::Sender<Task>,
    /// It may rest for as long as its pace says, and hears of a task only by this.
    call: Call,
    /// Brings its engine's, in front of all else.
    stop: mpsc::Receiver<Stop>,
    thread: Option<JoinHandle<Result<(), String>>>,
    crash: Option<String>,
}

impl Threads {
    /// No thread runs before the first configuration. `options.thread` is ignored.
    pub fn new(options: Options, registry: Registry) -> Self {
        Self { options, registry, workers: BTreeMap::new(), crossings: HashMap::new() }
    }

    /// Makes the network what `config` says, by the difference on each thread.
    pub fn configure(&mut self, config: &Config) -> Result<(), ThreadsError> {
        config.check(&self.registry)?;
        let wanted = config.threads();
        let mut fresh = Vec::new();
        for &thread in &wanted {
            if self.health_of(thread) != Some(Health::Running) {
                self.workers.insert(
                    thread,
                    Worker::spawn(thread, self.options.clone(), self.registry.clone())?,
                );
                fresh.push(thread);
            }
        }
        let mut ends = self.renew_crossings(config, &fresh);
        let mut problems = Vec::new();
        let mut answers = Vec::new();
        for (&thread, worker) in &self.workers {
            let (part, ends) = (config.clone(), ends.remove(&thread).unwrap_or_default());
            answers.push((thread, worker.ask(move |engine| engine.configure_part(&part, ends))));
        }
        for (thread, answer) in answers {
            match self.wait(thread, &answer) {
                Ok(result) => problems.extend(result.err().map(ThreadError::from)),
                // A thread that is not wanted any more may have crashed long ago.
                Err(_) if !wanted.contains(&thread) => {}
                Err(error) => problems.push(error),
            }
        }
        self.workers.retain(|thread, _| wanted.contains(thread));
        if problems.is_empty() { Ok(()) } else { Err(ThreadsError::Some(problems)) }
    }

    /// New rings for links whose ends moved or whose thread is new; their ends by thread.
    fn renew_crossings(
        &mut self,
        config: &Config,
        fresh: &[usize],
    ) -> HashMap<usize, HashMap<LinkSpec, Crossing>> {
        let mut ends: HashMap<usize, HashMap<LinkSpec, Crossing>> = HashMap::new();
        let mut now = HashMap::new();
        for link in config.links() {
            let thread_of = |app| config.get(app).map_or(0, |spec| spec.thread);
            let (from, to) = (thread_of(&link.from.app), thread_of(&link.to.app));
            if from == to {
                continue;
            }
            now.insert(link.clone(), (from, to));
            let stays = self.crossings.get(link) == Some(&(from, to));
            if !stays || fresh.contains(&from) || fresh.contains(&to) {
                let (sender, receiver) = crossing(CAPACITY);
                ends.entry(from).or_default().insert(link.clone(), Crossing::Out(sender));
                ends.entry(to).or_default().insert(link.clone(), Crossing::In(receiver));
            }
        }
        self.crossings = now;
        ends
    }

    /// Lets the engine of a thread do something between two breaths, and waits for the result.
    pub fn ask<R: Send + 'static>(
        &mut self,
        thread: usize,
        task: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ThreadError> {
        let Some(worker) = self.workers.get(&thread) else {
            return Err(ThreadError::Silent(thread));
        };
        let answer = worker.ask(task);
        self.wait(thread, &answer)
    }

    /// As [`Self::ask`], for all threads that answer.
    pub fn ask_all<R: Send + 'static>(
        &mut self,
        task: impl FnOnce(&mut Engine) -> R + Send + Clone + 'static,
    ) -> BTreeMap<usize, R> {
        let threads: Vec<usize> = self.workers.keys().copied().collect();
        threads
            .into_iter()
            .filter_map(|thread| Some((thread, self.ask(thread, task.clone()).ok()?)))
            .collect()
    }

    fn wait<R>(&mut self, thread: usize, answer: &mpsc::Receiver<R>) -> Result<R, ThreadError> {
        match answer.recv_timeout(PATIENCE) {
            Ok(result) => Ok(result),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(ThreadError::Silent(thread)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let worker = self.workers.get_mut(&thread);
                let crash = worker.and_then(|worker| worker.join(true)).unwrap_or_default();
                Err(ThreadError::Crashed(thread, crash))
            }
        }
    }

    fn health_of(&mut self, thread: usize) -> Option<Health> {
        let worker = self.workers.get_mut(&thread)?;
        let crash = worker.join(false);
        Some(crash.map_or(Health::Running, Health::Crashed))
    }

    /// The state of each thread.
    pub fn health(&mut self) -> BTreeMap<usize, Health> {
        let threads: Vec<usize> = self.workers.keys().copied().collect();
        threads.into_iter().filter_map(|thread| Some((thread, self.health_of(thread)?))).collect()
    }

    /// All links with what passed them; of a link between threads what was sent on one and received
    /// on the other.
    pub fn links(&mut self) -> BTreeMap<LinkSpec, LinkStats> {
        let mut all: BTreeMap<LinkSpec, LinkStats> = BTreeMap::new();
        let parts =
            self.ask_all(|engine| engine.links().map(|(l, s)| (l.clone(), s)).collect::<Vec<_>>());
        for (thread, links) in parts {
            for (link, stats) in links {
                let entry = all.entry(link.clone()).or_default();
                match self.crossings.get(&link) {
                    Some((from, _)) if *from == thread => {
                        (entry.txpackets, entry.txbytes, entry.txdrop) =
                            (stats.txpackets, stats.txbytes, stats.txdrop);
                    }
                    Some(_) => (entry.rxpackets, entry.rxbytes) = (stats.rxpackets, stats.rxbytes),
                    None => *entry = stats,
                }
            }
        }
        all
    }

    /// Whether nothing will move any more: see [`Engine::finished`].
    pub fn finished(&mut self) -> bool {
        let look = |engine: &mut Engine| (engine.finished(), engine.crossed());
        // Twice, since a packet may have crossed behind the first look's back.
        let first = self.ask_all(look);
        first.values().all(|(finished, _)| *finished) && first == self.ask_all(look)
    }

    /// Stops all threads and waits for them.
    pub fn stop(&mut self) -> Result<(), ThreadsError> {
        self.configure(&Config::new())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Nobody is left to tell about apps that did not stop in order.
        let _ = self.stop();
    }
}

impl Worker {
    fn spawn(
        thread: usize,
        mut options: Options,
        registry: Registry,
    ) -> Result<Self, ThreadsError> {
        options.thread = thread;
        let (tasks, inbox) = mpsc::channel::<Task>();
        let call = Call::default();
        let heard = call.clone();
        let body = move || work(options, registry, &inbox, heard);
        let spawned = std::thread::Builder::new().name(format!("engine-{thread}")).spawn(body);
        let handle = spawned.map_err(|error| ThreadsError::Spawn { thread, error })?;
        let (stop, thread) = (mpsc::channel().1, Some(handle));
        let mut worker = Self { tasks, call, stop, thread, crash: None };
        worker.stop = worker.ask(|engine| engine.stopper());
        Ok(worker)
    }

    /// The answer's channel closes without an answer if the thread has ended or crashes meanwhile.
    fn ask<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> mpsc::Receiver<R> {
        let (reply, answer) = mpsc::channel();
        let _ = self.tasks.send(Box::new(move |engine| drop(reply.send(task(engine)))));
        if let Some(handle) = &self.thread {
            self.call.request(handle.thread());
        }
        answer
    }

    /// The reason if the thread has ended by a crash. Looks only, or waits for it.
    fn join(&mut self, wait: bool) -> Option<String> {
        if let Some(thread) = self.thread.take_if(|thread| wait || thread.is_finished()) {
            self.crash = match thread.join() {
                Ok(Ok(())) => Some(String::from("ended")),
                Ok(Err(crash)) => Some(crash),
                Err(panic) => Some(words(&*panic)),
            };
        }
        self.crash.clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (closed, _) = mpsc::channel();
        drop(std::mem::replace(&mut self.tasks, closed));
        // It may rest for as long as its pace says: a stop is heard meanwhile.
        if let Ok(stop) = self.stop.recv() {
            stop.request();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread's life: breathe, do what is asked, until nobody can ask any more.
fn work(
    options: Options,
    registry: Registry,
    inbox: &mpsc::Receiver<Task>,
    call: Call,
) -> Result<(), String> {
    pin(options.thread);
    let mut engine = Engine::with_registry(options, registry);
    engine.listen_to(call.clone());
    let lived = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let mut mail = Err(mpsc::TryRecvError::Empty);
            let done = |_: &Engine| {
                mail = inbox.try_recv();
                !matches!(mail, Err(mpsc::TryRecvError::Empty))
            };
            let ended = engine.run(Until { done: Some(Box::new(done)), ..Until::default() });
            if ended == Ended::Stopped {
                // Of what was still asked nothing is left out.
                mail = inbox.recv().map_err(|_| mpsc::TryRecvError::Disconnected);
            }
            match mail {
                Ok(task) => {
                    task(&mut engine);
                    // There may be another one, which came before the request was taken.
                    call.request_here();
                }
                Err(mpsc::TryRecvError::Disconnected) => return,
                Err(mpsc::TryRecvError::Empty) => {}
            }
        }
    }));
    let crash = lived.err().map(|panic| match engine.calling() {
        Some(app) => format!("app '{app}' panicked: {}", words(&*panic)),
        None => words(&*panic),
    });
    // The app that panicked may do so again when it is stopped.
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(engine)));
    match (crash, dropped) {
        (Some(crash), _) => Err(crash),
        (None, Err(panic)) => Err(words(&*panic)),
        (None, Ok(())) => Ok(()),
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| String::from("panicked"))
}

/// Binds this thread to the processor of its number among those that the process may use. Threads
/// that have no processor of their own are left to the kernel.
fn pin(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(processor) = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).nth(thread)
    else {
        return;
    };
    let mut own = CpuSet::new();
    own.set(processor);
    let _ = sched_setaffinity(None, &own);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Pace;

    /// It would not end before its next breath, a quarter of an hour later.
    #[test]
    fn a_thread_ends_although_it_rests() {
        let options = Options { pace: Pace::Hertz(0.001), ..Options::default() };
        let worker = Worker::spawn(0, options, Registry::standard().clone()).unwrap();
        worker.ask(|_| ()).recv().unwrap();
        // Until it sleeps.
        std::thread::sleep(Duration::from_millis(100));
        drop(worker);
    }

    /// The next breath is due in a quarter of an hour.
    #[test]
    fn whoever_asks_makes_no_breaths() {
        let options = Options { pace: Pace::Hertz(0.001), ..Options::default() };
        let worker = Worker::spawn(0, options, Registry::standard().clone()).unwrap();
        let breaths = (0..50).map(|_| worker.ask(|engine| engine.breaths()).recv().unwrap());
        // Some may come in front of the first rest.
        assert!(breaths.max() < Some(25));
    }

    /// Without a call it would not answer before its next breath, long after `PATIENCE`.
    #[test]
    fn a_network_that_rests_stops_at_once() {
        let options = Options { pace: Pace::Hertz(0.001), ..Options::default() };
        let mut threads = Threads::new(options, Registry::standard().clone());
        let mut config = Config::new();
        config.app("sink", "Sink", toml::Table::new()).unwrap();
        threads.configure(&config).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(threads.ask_all(|_| ()).len(), 1, "it answers");
        threads.stop().unwrap();
    }
}
