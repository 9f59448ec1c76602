//! A newcomer's first minutes: examples that are copied show what they promise, a bench that cannot
//! keep its page says so at once, and Ctrl-C is seen by whoever started it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;

use rustix::process::Signal;
use system_tests::device::nginx_conf;
use system_tests::{
    Case, Deadline, Outcome, Ports, Side, case, millis, need, plain, secs, shortwire, skip,
};

fn tool(name: &str, test: impl FnOnce(&Case) -> Outcome) {
    case(name, |c| if plain() { skip("needs the shortwire command") } else { test(c) });
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(shortwire());
    command.args(arguments).env_remove("LD_PRELOAD");
    command
}

/// The command line of the example of `shortwire help trace-clc` that fetches pages.
fn traced_example(c: &Case) -> String {
    let help = c.start("help", &mut command(&["help", "trace-clc"])).success(secs(60));
    let (_, rest) = help.split_once("Examples:\n").expect("examples");
    let lines: Vec<&str> = rest.lines().take_while(|line| !line.contains("tshark")).collect();
    lines.join("\n")
}

/// The command line that the client in `pod.yaml` repeats.
fn client_of_the_pod() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containers/pod.yaml");
    let text = fs::read_to_string(file).expect("pod.yaml");
    let line = text.lines().find(|line| line.contains("while sleep 1")).expect("a client");
    let (_, rest) = line.split_once("do ").expect("a loop");
    rest.split_once("; done").expect("its end").0.into()
}

/// Runs a command line of an example against nginx, both ends with a record of handshakes.
fn meets(c: &Case, example: &str, records: &Path) -> Outcome {
    let (nginx, port) = (need("nginx")?, Ports::Low.free());
    need("curl")?;
    fs::create_dir_all(c.dir().join("files")).expect("a folder");
    fs::write(c.dir().join("files/index.html"), "a page").expect("a page");
    let conf = nginx_conf(c, &format!("127.0.0.1:{port}"));
    let mut server = Side::Run.command(&nginx);
    let mut server = c.serve("nginx", port, server.arg("-p").arg(c.dir()).arg("-c").arg(&conf));
    let own = shortwire().display().to_string();
    let line = example
        .replace("/shortwire/shortwire", &own)
        .replace("  shortwire ", &format!("{own} "))
        .replace(":8080", &format!(":{port}"))
        .replace("clc.pcap", &records.display().to_string());
    assert!(line.contains(&own) && line.contains(&port.to_string()), "{line}");
    let mut client = Command::new("sh");
    client.args(["-c", &line]).env_remove("LD_PRELOAD").env("SHORTWIRE_TRACE_CLC", records);
    c.start("client", &mut client).success(secs(60));
    server.stop();
    // A header has 24 bytes, and each of Proposal, Accept and Confirm more than that.
    let end = Deadline::within(secs(60));
    let length = || fs::metadata(records).map_or(0, |meta| meta.len());
    while length() < 300 {
        assert!(!end.is_over(), "{} bytes of handshakes: {line}", length());
        sleep(millis(20));
    }
    Ok(())
}

#[test]
fn the_example_of_trace_clc_records_a_handshake() {
    tool("first-trace", |c| meets(c, &traced_example(c), &c.dir().join("records.pcap")));
}

#[test]
fn the_client_of_the_pod_shares_memory() {
    tool("first-pod", |c| {
        let records = c.dir().join("records.pcap");
        // The library appends to what `trace-clc` begins.
        let begun =
            command(&["trace-clc", "-o", &records.display().to_string(), "--", "true"]).status();
        assert!(begun.is_ok_and(|status| status.success()));
        meets(c, &client_of_the_pod(), &records)
    });
}

fn bench(more: &[&str]) -> Command {
    let short = ["bench", "sockets", "--only", "pingpong", "--repeat", "1", "--seconds", "0.1"];
    command(&[&short[..], more].concat())
}

#[test]
fn a_page_that_cannot_be_kept_is_refused_before_anything_is_measured() {
    tool("first-page", |c| {
        for place in ["/nonexistent/page.html", "/dev/null", "/"] {
            let mut run = c.start("refused", &mut bench(&["--html", place]));
            let status = run.wait(secs(60));
            assert_eq!(status.code(), Some(1), "{place}: {}", run.stderr());
            assert!(run.stderr().contains(place), "{}", run.stderr());
            assert!(!run.stderr().contains("round 1"), "{place} comes too late: {}", run.stderr());
        }
        let page = c.dir().join("page.html");
        let mut run = c.start("page", &mut bench(&["--html", &page.display().to_string()]));
        let table = run.success(secs(300));
        assert!(table.contains("pingpong 14 B"), "{table}");
        let page = fs::read_to_string(page).expect("a page");
        assert!(
            page.contains("</html>") && page.contains("A quick look: 1 round(s)"),
            "{page:.2000}"
        );
        Ok(())
    });
}

/// 130 is what a shell makes of a program that Ctrl-C has ended.
#[test]
fn an_interrupted_demo_says_so_by_its_exit_status() {
    tool("first-interrupt", |c| {
        for (name, signal, status) in
            [("interrupt", Signal::INT, 130), ("terminate", Signal::TERM, 143)]
        {
            let mut demo = c.start(name, &mut command(&["demo"]));
            demo.wait_line("round 1/", secs(300));
            demo.signal(signal);
            let ended = demo.wait_open(secs(120));
            assert_eq!(ended.code(), Some(status), "{ended}: {}", demo.stderr());
            assert!(demo.stderr().contains("interrupted; everything"), "{}", demo.stderr());
        }
        Ok(())
    });
}

/// On a terminal of 80 columns, where tables have a narrow form.
#[test]
fn the_figures_of_a_bench_fit_a_terminal() {
    tool("first-terminal", |c| {
        let script = need("script")?;
        let out = c.dir().join("typescript");
        let line = format!(
            "stty cols 80; {} bench sockets --only pingpong,rr --repeat 1 --seconds 0.1",
            shortwire().display()
        );
        let mut terminal = Command::new(script);
        terminal.args(["-q", "-e", "-c", &line]).arg(&out).env_remove("LD_PRELOAD");
        c.start("script", &mut terminal).success(secs(300));
        let text = fs::read_to_string(&out).expect("what was on the terminal");
        let (_, figures) = text.split_once("measure  ").expect("a table");
        // What is red takes no more room.
        let figures = figures.replace("\u{1b}[1;31m", "").replace("\u{1b}[0m", "");
        let wide: Vec<_> =
            figures.lines().skip(1).filter(|line| line.trim_end().chars().count() > 80).collect();
        assert!(wide.iter().all(|line| line.contains("Script done")), "{wide:#?}");
        assert!(figures.contains("latency in us"), "{figures}");
        Ok(())
    });
}
