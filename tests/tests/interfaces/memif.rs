//! memif with DPDK's net_memif, which has nothing of ours, at the other end: in both roles, with
//! several queues, and after an end of either program by a signal that it cannot catch.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use system_tests::{
    Case, Deadline, Outcome, Proc, Skip, case, millis, need, processors, recording, secs, skip,
};

use super::{FRAMES, cables, engine};
use crate::wire::{End, Namespace};

/// DPDK, which forwards what comes at one of its two ports out of the other one.
///
/// It forwards only while its ports are connected: a connection that comes or goes meanwhile can end it by
/// SIGSEGV in the thread that forwards (DPDK 22.11).
struct Testpmd(Proc);

impl Testpmd {
    fn start(case: &Case, listens: bool, queues: u16) -> Result<Testpmd, Skip> {
        let program = need("dpdk-testpmd")?;
        let role = if listens { "server" } else { "client" };
        // Without it what DPDK prints into a file comes when it ends.
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(program);
        let cpus = processors();
        let lcores = format!("--lcores=(0-1)@({},{})", cpus[0], cpus[cpus.len().min(2) - 1]);
        command.args(["--no-huge", "--no-shconf", "--no-pci", "-m", "256", &lcores]);
        command.arg("--log-level=pmd.net.memif:debug");
        for (number, name) in ["a", "b"].into_iter().enumerate() {
            let mut socket = case.dir().join(name);
            if listens {
                // It does not take the place of one that was killed.
                let _ = std::fs::remove_file(&socket);
                socket = listening(&socket);
                let _ = std::fs::remove_file(&socket);
            }
            command.arg(format!(
                "--vdev=net_memif{number},role={role},id={number},socket={},socket-abstract=no,secret=hush",
                socket.display()
            ));
        }
        let queues = queues.to_string();
        command.args(["--", "--interactive", "--total-num-mbufs=8192", "--forward-mode=io"]);
        command.args(["--rxq", &queues, "--txq", &queues]);
        let mut this = Testpmd(case.start("testpmd", &mut command));
        let has_driver = this.until(|process| {
            // DPDK says so of a kind of device for which it has no driver.
            if process.stderr().contains("failed to initialize net_memif0") {
                return Some(false);
            }
            process.stdout().contains("Checking link statuses").then_some(true)
        });
        if !has_driver {
            return skip("this DPDK has no net_memif");
        }
        if listens {
            for socket in ["a", "b"].map(|name| case.dir().join(name)) {
                std::os::unix::fs::symlink(listening(&socket), &socket)
                    .expect("a name for the socket");
            }
        }
        this.forward(1);
        Ok(this)
    }

    fn until<T>(&mut self, look: impl Fn(&Proc) -> Option<T>) -> T {
        let end = Deadline::within(secs(60));
        loop {
            // Before the look: what it said last is seen even if it ends now.
            let ended = self.0.poll();
            if let Some(found) = look(&self.0) {
                return found;
            }
            let said = self.0.stderr();
            assert!(ended.is_none() && !end.is_over(), "dpdk-testpmd ({ended:?}): {said}");
            std::thread::sleep(millis(20));
        }
    }

    /// Begins to forward when both of its ports have been connected so many times.
    fn forward(&mut self, times: usize) {
        let connected = "memif_connect(): Connected.";
        self.until(|process| {
            (process.stderr().matches(connected).count() >= 2 * times).then_some(())
        });
        self.0.say("start\n");
    }

    fn pause(&mut self) {
        self.0.say("stop\n");
        self.until(|process| {
            process.stdout().contains("Accumulated forward statistics").then_some(())
        });
    }

    fn kill(mut self) {
        self.0.signal(Signal::KILL);
        self.0.wait(secs(60));
    }
}

/// Where DPDK listens. The engine is led there when DPDK's ports are started: of a client that it meets
/// before, DPDK takes some packets and then no more.
fn listening(socket: &Path) -> PathBuf {
    socket.with_extension("dpdk")
}

/// An interface and a memif for each of DPDK's ports.
fn network(case: &Case, listen: bool, queues: u16) -> String {
    let mut apps = String::new();
    for (id, name) in ["a", "b"].into_iter().enumerate() {
        let path = case.dir().join(name);
        let _ = writeln!(apps, "port_{name} = {{ kind = \"RawSocket\", interface = \"{name}1\" }}");
        let _ = writeln!(
            apps,
            "memif_{name} = {{ kind = \"Memif\", path = \"{}\", listen = {listen}, id = {id}, secret = \"hush\", \
             queues = {queues}, ring = 512 }}",
            path.display()
        );
    }
    format!(
        "links = [\"port_a.tx -> memif_a.rx\", \"memif_a.tx -> port_a.rx\", \"port_b.tx -> memif_b.rx\", \
         \"memif_b.tx -> port_b.rx\"]\n[apps]\n{apps}"
    )
}

/// As `carries`, but where there are several queues packets of different flows may change places.
fn carries(case: &Case, engine: &Proc, namespace: &Namespace, queues: u16) {
    let (a, b) = (End::of(namespace, "a0"), End::of(namespace, "b0"));
    if queues == 1 {
        return super::carries(case, engine, &a, &b);
    }
    a.reach(&b, || engine.stderr());
    let mut frames = recording::frames(FRAMES);
    // Flows of their own, with checksums that nobody looks at.
    for (number, frame) in frames.iter_mut().enumerate() {
        let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
        frame[ip + 15] = (number % 50) as u8;
    }
    for (from, to) in [(&a, &b), (&b, &a)] {
        let mut arrived = from.replay(to, &frames);
        let mut sent = frames.clone();
        // In each flow as they were sent: a stable order by flow.
        let flow = |frame: &Vec<u8>| frame[12..34].to_vec();
        assert_eq!(arrived.len(), sent.len(), "the engine says: {}", engine.stderr());
        let key = |frame: &Vec<u8>| match frame[12..14] {
            // The engine keeps what is not IP in order by its Ethernet addresses alone.
            [0x81, 0] => Vec::new(),
            _ => flow(frame)[14..].to_vec(),
        };
        arrived.sort_by_key(key);
        sent.sort_by_key(key);
        assert!(arrived == sent, "other frames, or in another order within a flow");
    }
}

fn with_dpdk(name: &str, listen: bool, queues: u16) {
    case(name, |case| -> Outcome {
        need("dpdk-testpmd")?;
        let namespace = cables()?;
        let configuration = network(case, listen, queues);
        let mut engine = engine::start(case, &namespace, &configuration)?;
        engine.wait_line("running:", secs(60));
        let dpdk = Testpmd::start(case, !listen, queues)?;
        carries(case, &engine, &namespace, queues);
        dpdk.kill();
        let mut dpdk = Testpmd::start(case, !listen, queues)?;
        carries(case, &engine, &namespace, queues);
        dpdk.pause();
        engine.signal(Signal::KILL);
        engine.wait(secs(60));
        let mut engine = engine::start(case, &namespace, &configuration)?;
        if listen {
            // As a client DPDK connects again only when somebody asks it for the state of the link.
            dpdk.kill();
            engine.wait_line("running:", secs(60));
            dpdk = Testpmd::start(case, !listen, queues)?;
        } else {
            dpdk.forward(2);
        }
        carries(case, &engine, &namespace, queues);
        engine::stop(engine);
        dpdk.kill();
        Ok(())
    });
}

#[test]
fn dpdk_connects_to_memif() {
    with_dpdk("memif-dpdk-client", true, 1);
}

#[test]
fn memif_connects_to_dpdk() {
    with_dpdk("memif-dpdk-server", false, 1);
}

#[test]
fn dpdk_connects_to_memif_with_three_queues() {
    with_dpdk("memif-dpdk-client-queues", true, 3);
}

#[test]
fn memif_connects_to_dpdk_with_three_queues() {
    with_dpdk("memif-dpdk-server-queues", false, 3);
}
