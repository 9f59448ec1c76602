//! Counters as other processes see them, also after the engine was killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use engine::app::Kind;
use engine::apps::basic::Match;
use engine::counters::{Process, RunDir, processes};
use engine::{Config, Engine, Options, Registry, Threads, Until};

fn network() -> Config {
    let mut config = Config::new();
    config
        .app("src", "Source", ())
        .unwrap()
        .app("match", "Match", ())
        .unwrap()
        .app("sink", "Sink", ())
        .unwrap();
    config.link("src.a -> sink.input").unwrap().link("src.b -> match.rx").unwrap();
    config
}

fn only(root: &Path) -> Process {
    let mut all = processes(root).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn the_tree_follows_the_network() {
    let root = tempfile::tempdir().unwrap();
    let run_dir = Arc::new(RunDir::create(root.path()).unwrap());
    let mut engine =
        Engine::new(Options { run_dir: Some(run_dir.clone()), thread: 3, ..Options::default() });
    engine.configure(&network()).unwrap();
    engine.run(Until { duration: Some(Duration::from_millis(3)), ..Until::default() });
    let process = only(root.path());
    assert_eq!((process.pid, process.alive), (std::process::id(), true));
    let tree = process.read().unwrap();

    let link = &tree.links["src.a -> sink.input"];
    let stats = engine.link("src.a -> sink.input").unwrap().stats();
    assert!(stats.txpackets > 0);
    for (name, value) in [
        ("txpackets", stats.txpackets),
        ("txbytes", stats.txbytes),
        ("txdrop", stats.txdrop),
        ("rxpackets", stats.rxpackets),
        ("rxbytes", stats.rxbytes),
    ] {
        assert_eq!(link.values[name], value, "{name}");
    }
    let own = &tree.engines[&3];
    assert_eq!((own.counters.get("breaths"), own.counters.get("configs")), (engine.breaths(), 1));
    assert_eq!(own.latency.counts(), engine.latency().counts());
    assert_eq!(tree.apps.keys().collect::<Vec<_>>(), ["match", "sink", "src"]);
    assert_eq!(
        (tree.apps["match"].label.as_str(), tree.apps["match"].get("running")),
        ("Match", 1)
    );
    for name in Match::COUNTERS {
        assert!(tree.apps["match"].values.contains_key(*name), "{name}");
    }
    assert!(tree.apps["src"].get("ns") > 0);

    let mut next = network();
    next.remove("match");
    engine.configure(&next).unwrap();
    let tree = process.read().unwrap();
    assert_eq!(tree.links.keys().collect::<Vec<_>>(), ["src.a -> sink.input"]);
    assert_eq!(tree.apps.keys().collect::<Vec<_>>(), ["sink", "src"]);
    assert_eq!(
        tree.links["src.a -> sink.input"].get("txpackets"),
        stats.txpackets,
        "the counters go on"
    );
    drop((engine, run_dir));
    assert_eq!(processes(root.path()).unwrap(), []);
}

#[test]
fn threads_share_a_tree() {
    let root = tempfile::tempdir().unwrap();
    let run_dir = Arc::new(RunDir::create(root.path()).unwrap());
    let options = Options { run_dir: Some(run_dir), ..Options::default() };
    let mut threads = Threads::new(options, Registry::standard().clone());
    let mut config = Config::new();
    config.app_on(0, "src", "Source", ()).unwrap().app_on(1, "sink", "Sink", ()).unwrap();
    config.link("src.output -> sink.input").unwrap();
    threads.configure(&config).unwrap();
    let process = only(root.path());
    // Each side publishes its half; sooner or later packets show up in both.
    let link = loop {
        let tree = process.read().unwrap();
        assert_eq!(tree.engines.keys().copied().collect::<Vec<_>>(), [0, 1]);
        let link = tree.links["src.output -> sink.input"].clone();
        if link.get("rxpackets") > 0 && link.get("txpackets") > 0 {
            break link;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(link.values.len(), 5);
    drop(threads);
    assert_eq!(processes(root.path()).unwrap(), []);
}

/// Not a test by itself: the process that the next one kills.
#[test]
fn child() {
    let Some(root) = std::env::var_os("ENGINE_TEST_ROOT") else { return };
    let run_dir = Arc::new(RunDir::create(Path::new(&root)).unwrap());
    let mut engine = Engine::new(Options { run_dir: Some(run_dir), ..Options::default() });
    engine.configure(&network()).unwrap();
    engine.run(Until { duration: Some(Duration::from_millis(2)), ..Until::default() });
    println!("\nready");
    engine.run(Until::default());
}

#[test]
fn a_killed_engine_can_be_read_and_is_swept() {
    let root = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("ENGINE_TEST_ROOT", root.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    let running = only(root.path());
    assert_eq!((running.pid, running.alive), (child.id(), true));
    child.kill().unwrap();
    child.wait().unwrap();
    // Its last numbers are there until the next engine starts.
    let dead = only(root.path());
    assert_eq!((dead.pid, dead.alive), (running.pid, false));
    assert!(dead.read().unwrap().links["src.a -> sink.input"].get("txpackets") > 0);
    let next = RunDir::create(root.path()).unwrap();
    assert_eq!(only(root.path()).path, next.path());
    assert!(dead.read().is_err());
}

#[test]
fn engines_of_one_process_have_a_folder_each() {
    let root = tempfile::tempdir().unwrap();
    let first = RunDir::create(root.path()).unwrap();
    let second = RunDir::create(root.path()).unwrap();
    assert_ne!(first.path(), second.path());
    let all = processes(root.path()).unwrap();
    assert_eq!(
        all.iter().map(|process| process.path.as_path()).collect::<Vec<_>>(),
        [first.path(), second.path()]
    );
    assert!(all.iter().all(|process| process.alive));
    // What is not ours is left alone.
    std::fs::create_dir(root.path().join("precious")).unwrap();
    drop(first);
    drop(RunDir::create(root.path()).unwrap());
    assert!(root.path().join("precious").exists() && second.path().exists());
}

#[test]
fn damaged_files_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    let run_dir = Arc::new(RunDir::create(root.path()).unwrap());
    let mut engine = Engine::new(Options { run_dir: Some(run_dir.clone()), ..Options::default() });
    engine.configure(&network()).unwrap();
    for (name, content) in [("short", vec![1; 10]), ("wrong", vec![0xff; 4096])] {
        let folder = run_dir.path().join("apps").join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("counters"), content).unwrap();
    }
    let tree = only(root.path()).read().unwrap();
    assert_eq!(tree.apps.keys().collect::<Vec<_>>(), ["match", "sink", "src"]);
}
