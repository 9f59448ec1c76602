//! Connections that are opened anew for a few requests each: between processes that know each other
//! they are upgraded from the second response on.

use rustix::process::Signal;
use system_tests::{Ports, Side, case, compile, plain, secs, upgraded};

/// `conns` connections with so many requests each. At least `least` of them are to be upgraded, and
/// at most `most`.
fn pool(way: &str, workers: u32, conns: u64, requests: u64, (least, most): (u64, u64)) {
    case(&format!("pool-{way}-{workers}-{requests}"), |c| {
        let program = compile("pool")?;
        let [conns, requests, workers] =
            [conns, requests, u64::from(workers)].map(|n| n.to_string());
        // The end that opens has the higher address, or the lower one.
        for ports in [Ports::Low, Ports::High] {
            let (port, start) = (ports.free(), |arguments: &[&str]| {
                let mut command = Side::Run.command(&program);
                command.args(arguments);
                command
            });
            let number = port.to_string();
            let mut server = c.serve("server", port, &mut start(&["server", &number, &workers]));
            let mut client =
                c.start("client", &mut start(&["client", &number, &conns, &requests, way]));
            client.wait_line("done", secs(50));
            if !plain() {
                let upgraded = upgraded();
                assert!(
                    (least..=most).contains(&upgraded),
                    "{upgraded} of {conns} upgraded, not {least} to {most}"
                );
            }
            client.say("\n");
            client.success(secs(60));
            server.signal(Signal::KILL);
            server.wait(secs(60));
        }
        Ok(())
    });
}

macro_rules! pools {
    ($($test:ident $way:literal $workers:literal $requests:literal $range:expr;)*) => {
        $(#[test] fn $test() { pool($way, $workers, 200, $requests, $range); })*
    };
}

// 16 connections come first that last long enough in any case.
pools! {
    six_requests_each "plain" 1 6 (190, 216);
    without_waiting_for_connect "late" 1 6 (190, 216);
    that_end_by_halves "half" 1 6 (190, 216);
    whose_client_does_not_wait "gone" 1 8 (116, 216);
    in_the_hands_of_a_child "fork" 1 6 (16, 216);
    under_another_number "dup" 1 6 (190, 216);
    with_two_threads "threads" 1 20 (16, 216);
    one_request_each "plain" 1 1 (16, 24);
    to_one_of_three_workers "plain" 3 6 (66, 216);
    of_all_kinds "mixed" 2 5 (16, 216);
}
