use serde_json::Value;
use system_tests::{Ports, Side, case, need, secs};

use crate::until_seen;

fn iperf3(name: &str, ports: Ports, options: &[&str], ends: usize) {
    case(name, |c| {
        let (iperf3, port) = (need("iperf3")?, ports.free());
        let number = port.to_string();
        // Client and server end of each stream; the control connection may or may not be busy
        // enough.
        until_seen(c, &[port], ends, |times| {
            // -1: the server serves one test and ends.
            let mut server = c.serve(
                "server",
                port,
                Side::Run.command(&iperf3).args(["-s", "-1", "-B", "127.0.0.1", "-p", &number]),
            );
            // More than either end may be without a processor.
            let seconds = (3 * times).to_string();
            let usual = ["-c", "127.0.0.1", "-p", &number, "-t", &seconds, "--json"];
            let said = c.client("client", Side::Run, &iperf3, &[&usual[..], options].concat());
            let report: Value = serde_json::from_str(&said).expect("iperf3's JSON");
            assert!(report.get("error").is_none(), "{said}");
            for sum in ["sum_sent", "sum_received"]
                .iter()
                .chain(options.contains(&"--bidir").then_some(&"sum_received_bidir_reverse"))
            {
                let bytes = report
                    .pointer(&format!("/end/{sum}/bytes"))
                    .and_then(Value::as_f64)
                    .unwrap_or(0.0);
                assert!(bytes > 1e6, "{sum} is {bytes} bytes: {said}");
            }
            server.wait(secs(60));
        });
        Ok(())
    });
}

#[test]
fn iperf3_one_stream() {
    iperf3("iperf3-1", Ports::Low, &[], 2);
}

#[test]
fn iperf3_four_streams() {
    iperf3("iperf3-4", Ports::High, &["-P", "4"], 8);
}

#[test]
fn iperf3_reverse() {
    iperf3("iperf3-R", Ports::High, &["-R"], 2);
}

#[test]
fn iperf3_both_ways() {
    iperf3("iperf3-bidir", Ports::Low, &["--bidir"], 4);
}

/// -Z sends with sendfile.
#[test]
fn iperf3_zero_copy() {
    iperf3("iperf3-Z", Ports::Low, &["-Z"], 2);
}
