//! The engine's ports to the kernel: what goes in at one end of a cable comes out at the end of
//! another, and nothing is left behind, however the engine ends.

use rustix::process::Signal;
use system_tests::{
    Case, Deadline, OneProcessor, Outcome, Proc, case, millis, need, recording, secs,
};

mod engine;
mod memif;
mod middle;
mod objects;
mod talk;
mod wire;

use engine::{configuration, start, stop};
use wire::{End, Namespace, need_af_xdp};

const FRAMES: usize = 1000;

/// Two cables: the engine has a1 and b1, the test a0 and b0.
fn cables() -> Result<Namespace, system_tests::Skip> {
    let namespace = Namespace::new()?;
    namespace.cable("a0", "a1");
    namespace.cable("b0", "b1");
    Ok(namespace)
}

/// A recorded pcap goes from `from` to `to` and back through a running engine.
fn carries(case: &Case, engine: &Proc, from: &End, to: &End) {
    let path = case.dir().join("recording.pcap");
    recording::write(&path, &recording::frames(FRAMES));
    let frames = recording::read(&path);
    from.reach(to, || engine.stderr());
    for (from, to) in [(from, to), (to, from)] {
        let arrived = from.replay(to, &frames);
        assert_eq!(
            arrived.len(),
            frames.len(),
            "frames that arrived; the engine says: {}",
            engine.stderr()
        );
        for (number, (arrived, sent)) in arrived.iter().zip(&frames).enumerate() {
            assert_eq!(arrived, sent, "frame {number}");
        }
    }
}

fn forwards(name: &str, kind: &str, more: &str) {
    case(name, |case| {
        if kind == "XDP" {
            need_af_xdp()?;
        }
        let _in_order = OneProcessor::new();
        let namespace = cables()?;
        let port = |interface: &str| format!("interface = \"{interface}\"{more}");
        let engine = start(case, &namespace, &engine::wire(kind, &port("a1"), &port("b1")))?;
        carries(case, &engine, &End::of(&namespace, "a0"), &End::of(&namespace, "b0"));
        stop(engine);
        assert!(!namespace.has_xdp("a1") && !namespace.has_xdp("b1"), "an XDP program is left");
        Ok(())
    });
}

#[test]
fn xdp_native_forwards() {
    forwards("xdp-native", "XDP", ", mode = \"native\"");
}

#[test]
fn xdp_generic_forwards() {
    forwards("xdp-generic", "XDP", ", mode = \"generic\"");
}

#[test]
fn raw_sockets_forward() {
    forwards("raw-socket", "RawSocket", "");
}

#[test]
fn raw_sockets_forward_through_the_queueing_discipline() {
    forwards("raw-socket-qdisc", "RawSocket", ", bypass = false");
}

/// An engine that gets no processor for a while finds what came meanwhile: a ring that is given over
/// in parts by a clock had room for 64 packets, however small.
#[test]
fn raw_sockets_keep_what_comes_while_the_engine_stands_still() {
    const FRAMES: usize = 200;
    case("raw-socket-still", |case| {
        let namespace = cables()?;
        let wire = engine::wire("RawSocket", "interface = \"a1\"", "interface = \"b1\"");
        let engine = start(case, &namespace, &wire)?;
        let (from, to) = (End::of(&namespace, "a0"), End::of(&namespace, "b0"));
        from.reach(&to, || engine.stderr());
        engine.signal(Signal::STOP);
        let frames = recording::frames(FRAMES);
        for frame in &frames {
            from.send(frame);
            std::thread::sleep(millis(2));
        }
        engine.signal(Signal::CONT);
        for (number, sent) in frames.iter().enumerate() {
            let arrived = to.receive(secs(60));
            assert_eq!(arrived.as_ref(), Some(sent), "frame {number}: {}", engine.stderr());
        }
        stop(engine);
        Ok(())
    });
}

fn taps(name: &str, more: &str) {
    case(name, |case| {
        let namespace = Namespace::new()?;
        let port = |interface: &str| format!("interface = \"{interface}\"{more}");
        let mut engine =
            start(case, &namespace, &engine::wire("Tap", &port("tap0"), &port("tap1")))?;
        await_interfaces(&namespace, &["tap0", "tap1"], &mut engine);
        carries(case, &engine, &End::of(&namespace, "tap0"), &End::of(&namespace, "tap1"));
        stop(engine);
        assert!(namespace.try_ip("link show tap0").is_err(), "the interface is left");
        Ok(())
    });
}

fn await_interfaces(namespace: &Namespace, names: &[&str], engine: &mut Proc) {
    let end = Deadline::within(secs(20));
    let is_up = |name: &&str| {
        namespace.try_ip(&format!("link show {name}")).is_ok_and(|text| text.contains(",UP"))
    };
    while !names.iter().all(is_up) {
        assert!(engine.running() && !end.is_over(), "no {names:?}: {}", engine.stderr());
        std::thread::sleep(millis(10));
    }
}

#[test]
fn taps_forward() {
    taps("tap", "");
}

#[test]
fn taps_forward_with_vnet_headers() {
    taps("tap-vnet", ", vnet-header = true");
}

#[test]
fn kinds_can_be_mixed() {
    case("mixed", |case| {
        need_af_xdp()?;
        let namespace = cables()?;
        let apps =
            [("one", "XDP", "interface = \"a1\""), ("other", "RawSocket", "interface = \"b1\"")];
        let links = ["one.tx -> other.rx", "other.tx -> one.rx"];
        let engine = start(case, &namespace, &configuration(&apps, &links))?;
        carries(case, &engine, &End::of(&namespace, "a0"), &End::of(&namespace, "b0"));
        stop(engine);
        Ok(())
    });
}

/// Two engines, each with an interface, joined by `kind`; the second one is then killed and another
/// takes its place.
fn joined(name: &str, kind: &'static str, args: fn(&Case, bool) -> String) {
    case(name, |case| {
        let namespace = cables()?;
        let half = |interface: &str, listen: bool| {
            let port = format!("interface = \"{interface}\"");
            let apps = [("port", "RawSocket", port.as_str()), ("join", kind, &args(case, listen))];
            configuration(&apps, &["port.tx -> join.rx", "join.tx -> port.rx"])
        };
        let first = start(case, &namespace, &half("a1", true))?;
        let mut second = start(case, &namespace, &half("b1", false))?;
        let (from, to) = (End::of(&namespace, "a0"), End::of(&namespace, "b0"));
        carries(case, &first, &from, &to);
        second.signal(Signal::KILL);
        second.wait(secs(60));
        let third = start(case, &namespace, &half("b1", false))?;
        carries(case, &first, &from, &to);
        stop(third);
        stop(first);
        assert!(!case.dir().join("meet").exists(), "the socket is left");
        Ok(())
    });
}

fn at_path(case: &Case, listen: bool) -> String {
    format!("path = \"{}\", listen = {listen}", case.dir().join("meet").display())
}

#[test]
fn engines_join_through_shared_memory() {
    joined("shm-link", "ShmLink", at_path);
}

#[test]
fn engines_join_through_memif() {
    joined("memif", "Memif", at_path);
}

#[test]
fn engines_join_through_a_unix_socket_of_packets() {
    joined("unix-packet", "UnixSocket", at_path);
}

#[test]
fn engines_join_through_a_unix_stream() {
    joined("unix-stream", "UnixSocket", |case, listen| {
        format!("{}, mode = \"stream\"", at_path(case, listen))
    });
}

#[test]
fn engines_join_through_unix_datagrams() {
    joined("unix-datagram", "UnixSocket", |case, listen| {
        let (ours, theirs) = if listen { ("one", "two") } else { ("two", "one") };
        let path = |name: &str| case.dir().join(name).display().to_string();
        format!("mode = \"datagram\", local = \"{}\", path = \"{}\"", path(ours), path(theirs))
    });
}

#[test]
fn a_killed_engine_leaves_no_program() {
    case("xdp-kill", |case| {
        need_af_xdp()?;
        let namespace = cables()?;
        for mode in ["native", "generic"] {
            let port = |interface: &str| format!("interface = \"{interface}\", mode = \"{mode}\"");
            let mut engine =
                start(case, &namespace, &engine::wire("XDP", &port("a1"), &port("b1")))?;
            End::of(&namespace, "a0").reach(&End::of(&namespace, "b0"), || engine.stderr());
            assert!(namespace.has_xdp("a1") && namespace.has_xdp("b1"));
            // Those of the whole machine are listed, also of tests that run beside this one.
            let open = objects::of(engine.pid());
            let mut left = objects::list()?;
            left.retain(|object| open.contains(object));
            for kind in ["program", "map"] {
                assert!(
                    left.iter().any(|object| object.0 == kind),
                    "no {kind} of the engine is seen"
                );
            }
            engine.signal(Signal::KILL);
            engine.wait(secs(60));
            // The kernel frees them a moment after the process.
            let end = Deadline::within(secs(20));
            while namespace.has_xdp("a1") || namespace.has_xdp("b1") || !left.is_empty() {
                assert!(!end.is_over(), "left behind: {left:?}");
                std::thread::sleep(millis(20));
                let all = objects::list()?;
                left.retain(|object| all.contains(object));
            }
        }
        Ok(())
    });
}

/// The cable of one port is pulled out of the machine while another pair goes on; then it is put
/// back.
fn survives(name: &str, kind: &'static str) {
    case(name, |case| {
        if kind == "XDP" {
            need_af_xdp()?;
        }
        let _in_order = OneProcessor::new();
        let namespace = cables()?;
        namespace.cable("c0", "c1");
        let port = |name: &str| format!("interface = \"{name}\"");
        let (a, b, c) = (port("a1"), port("b1"), port("c1"));
        let apps = [("a", kind, a.as_str()), ("b", kind, &b), ("c", kind, &c)];
        // What arrives at a leaves at b and c, what arrives at b leaves at a.
        let links = ["a.tx -> b.rx", "b.tx -> c.rx", "c.tx -> a.rx"];
        let mut engine = start(case, &namespace, &configuration(&apps, &links))?;
        let (b0, c0) = (End::of(&namespace, "b0"), End::of(&namespace, "c0"));
        b0.reach(&c0, || engine.stderr());
        namespace.ip("link del a0");
        let frames = recording::frames(200);
        for _ in 0..3 {
            assert_eq!(
                b0.replay(&c0, &frames),
                frames,
                "after the interface went: {}",
                engine.stderr()
            );
            // Into the port that is gone.
            c0.send(&frames[0]);
        }
        engine.wait_line("app 'a'", secs(60));
        namespace.cable("a0", "a1");
        let a0 = End::of(&namespace, "a0");
        a0.reach(&b0, || engine.stderr());
        assert_eq!(
            a0.replay(&b0, &frames),
            frames,
            "after the interface came back: {}",
            engine.stderr()
        );
        stop(engine);
        Ok(())
    });
}

#[test]
fn xdp_survives_the_end_of_an_interface() {
    survives("xdp-gone", "XDP");
}

#[test]
fn raw_sockets_survive_the_end_of_an_interface() {
    survives("raw-gone", "RawSocket");
}

/// Starts an engine of which one app cannot start: its sentence must say `expected`, and another
/// pair of ports must work.
fn refuses(case: &Case, namespace: &Namespace, kind: &str, args: &str, expected: &str) -> Outcome {
    let apps = [
        ("bad", kind, args),
        ("one", "RawSocket", "interface = \"a1\""),
        ("other", "RawSocket", "interface = \"b1\""),
    ];
    let links = ["bad.tx -> one.rx", "one.tx -> other.rx", "other.tx -> bad.rx"];
    let mut engine = start(case, namespace, &configuration(&apps, &links))?;
    let said = engine.wait_line("app 'bad'", secs(60));
    assert!(said.contains(expected), "it says: {said}");
    End::of(namespace, "a0").reach(&End::of(namespace, "b0"), || engine.stderr());
    // The others worked, and one could not start.
    engine::stop_with(engine, 1);
    Ok(())
}

#[test]
fn an_interface_that_does_not_exist_is_told() {
    case("no-interface", |case| {
        for kind in ["XDP", "RawSocket"] {
            refuses(
                case,
                &cables()?,
                kind,
                "interface = \"eth7\"",
                "there is no interface \"eth7\"",
            )?;
        }
        Ok(())
    });
}

#[test]
fn an_interface_with_a_program_is_told() {
    case("occupied", |case| {
        need_af_xdp()?;
        let namespace = cables()?;
        namespace.cable("c0", "c1");
        let first =
            start(case, &namespace, &configuration(&[("c", "XDP", "interface = \"c1\"")], &[]))?;
        let end = Deadline::within(secs(20));
        while !namespace.has_xdp("c1") {
            assert!(!end.is_over(), "no program: {}", first.stderr());
            std::thread::sleep(millis(10));
        }
        refuses(case, &namespace, "XDP", "interface = \"c1\"", "already has an XDP program")?;
        stop(first);
        Ok(())
    });
}

#[test]
fn a_queue_that_does_not_exist_is_told() {
    case("no-queue", |case| {
        need_af_xdp()?;
        let namespace = cables()?;
        namespace.cable("c0", "c1");
        refuses(case, &namespace, "XDP", "interface = \"c1\", queue = 700", "no queue 700")?;
        assert!(!namespace.has_xdp("c1"), "the program stayed");
        Ok(())
    });
}

#[test]
fn missing_rights_are_told() {
    case("rights", |case| {
        need("setpriv")?;
        let namespace = cables()?;
        let port = |interface: &str| format!("interface = \"{interface}\"");
        for (kind, expected) in
            [("RawSocket", "CAP_NET_RAW"), ("XDP", "run as root"), ("Tap", "CAP_NET_ADMIN")]
        {
            let mut command = namespace.command(&need("setpriv")?);
            command
                .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
                .arg(system_tests::shortwire());
            let names = if kind == "Tap" { ["tap0", "tap1"] } else { ["a1", "b1"] };
            let configuration = engine::wire(kind, &port(names[0]), &port(names[1]));
            let mut engine = engine::start_with(case, command, &configuration)?;
            let said = engine.wait_line("app 'one'", secs(60));
            assert!(said.contains(expected), "{kind} says: {said}");
            let status = engine.wait(secs(60));
            assert_eq!(
                status.code(),
                Some(1),
                "a network of which nothing could start ends: {}",
                engine.stderr()
            );
        }
        Ok(())
    });
}

/// Frames that are too long are told at the start, counted, and in nobody's way.
fn jumbo(name: &str, kind: &'static str, counted: &str) {
    case(name, |case| {
        if kind == "XDP" {
            need_af_xdp()?;
        }
        let _in_order = OneProcessor::new();
        let namespace = cables()?;
        for interface in ["a0", "a1"] {
            namespace.ip(&format!("link set {interface} mtu 9000"));
        }
        let port = |interface: &str| format!("interface = \"{interface}\"");
        let mut engine = start(case, &namespace, &engine::wire(kind, &port("a1"), &port("b1")))?;
        let said = engine.wait_line("app 'one'", secs(60));
        assert!(
            said.contains("MTU of 9000") && said.contains("ip link set a1 mtu"),
            "it says: {said}"
        );
        let (from, to) = (End::of(&namespace, "a0"), End::of(&namespace, "b0"));
        from.reach(&to, || engine.stderr());
        let mut long = recording::frames(1).remove(0);
        long.resize(5000, 7);
        from.send(&long);
        let frames = recording::frames(20);
        assert_eq!(from.replay(&to, &frames), frames, "the engine says: {}", engine.stderr());
        engine.signal(Signal::INT);
        let report = engine.success(secs(60));
        assert!(report.contains(counted), "`{counted}` is missing in {report}");
        Ok(())
    });
}

#[test]
fn long_frames_are_told_and_counted_by_raw_sockets() {
    jumbo("jumbo-raw", "RawSocket", "dropped: 0 received by the kernel, 1 too long");
}

#[test]
fn long_frames_are_told_and_counted_by_xdp() {
    jumbo("jumbo-xdp", "XDP", "dropped: 1 received by the kernel");
}
