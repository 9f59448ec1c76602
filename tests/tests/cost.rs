//! What the library costs a connection that is never upgraded: instructions, which are the same in
//! each run, however busy the machine is.

use std::collections::HashMap;
use std::process::Command;

use system_tests::{case, compile, secs, shortwire, skip};

/// For a call: most instructions of the library, and most of them that are locked. The aim is 150
/// instructions for a close, and two locked ones for any call; each line may only come down.
const MOST: &[(&str, u32, u32)] = &[
    ("socket", 90, 1),
    ("connect", 40, 0),
    ("accept4", 92, 1),
    ("epoll_ctl", 780, 9),
    ("first-write", 460, 5),
    ("epoll_wait", 155, 2),
    ("first-read", 190, 2),
    ("write", 175, 2),
    ("read", 190, 2),
    ("read-empty", 175, 2),
    ("close-watched", 490, 9),
    ("close", 235, 5),
];

#[test]
fn a_connection_on_tcp_costs_little() {
    case("cost", |c| {
        if cfg!(not(target_arch = "x86_64")) {
            return skip("steps are counted on x86-64 only");
        }
        let mut command = Command::new(compile("cost")?);
        // It meets itself otherwise.
        command.arg(shortwire().with_file_name("libshortwire.so")).env("SHORTWIRE_AFTER", "100");
        let said = c.start("cost", &mut command).success(secs(60));
        let lines = said.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let costs: HashMap<&str, [u32; 3]> = lines
            .map(|l| (l[0], [l[1], l[2], l[3]].map(|n| n.parse().expect("a count"))))
            .collect();
        assert_eq!(costs.len(), MOST.len(), "{said}");
        for &(call, instructions, locked) in MOST {
            let [took, locks, system_calls] = costs[call];
            assert!(took > 0 || call == "connect", "{call} is not hooked:\n{said}");
            assert_eq!(system_calls, 1, "{call} makes system calls of its own:\n{said}");
            assert!(
                took <= instructions && locks <= locked,
                "{call}, at most {instructions} and {locked} locked:\n{said}"
            );
        }
        println!("{said}");
        Ok(())
    });
}
