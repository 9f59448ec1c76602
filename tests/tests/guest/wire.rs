//! Streams between machines: Debian's programs for rsockets in two guests with soft-RoCE, over our
//! library at one end and librdmacm's own at the other, in both roles.

use std::path::Path;

use system_tests::guest::{Ended, Guest, pair};
use system_tests::{Case, Skip, case, need, secs, shortwire};

use crate::roce::{self, turn};

const RXE0: &str = "/bin/rdma link add rxe0 type rxe netdev $card || exit 1\n. /functions\n";

/// librdmacm's library that makes rsockets of sockets.
const SPREAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

fn machine() -> Result<Guest, Skip> {
    let mut guest = roce::machine()?;
    guest.with_others();
    for name in ["rstream", "riostream", "udpong", "rcopy"] {
        guest.program(&need(name)?);
    }
    guest.program(&shortwire()).program(&shortwire().with_file_name("libshortwire_rsocket.so"));
    guest.copy(Path::new(SPREAD)).file("/functions", include_str!("wire/functions.sh"));
    Ok(guest)
}

fn run(case: &Case, script: &str, limit: u64) -> Result<Ended, Skip> {
    Ok(pair::run(case, [machine()?, machine()?], RXE0, script, secs(limit)))
}

/// Lines of the table, of which none may be wrong.
fn right(said: &str) -> usize {
    assert!(!said.contains("WRONG"), "{said}");
    said.lines().filter(|line| line.starts_with("ok: ")).count()
}

#[test]
fn our_streams_and_librdmacms_between_guests() {
    case("wire", |case| {
        let ended = run(case, include_str!("wire/short.sh"), 700)?;
        let said = ended.success();
        let one = turn(said, "one program");
        let mut sums = one.lines().filter(|line| line.ends_with("  -"));
        assert!(sums.next() == sums.next() && right(one) == 2, "{one}");
        let both = turn(said, "both roles");
        assert_eq!(right(both), 14, "{both}");
        // What a device says of writes that it has refused.
        assert!(!both.contains("rxe"), "{both}");
        Ok(())
    });
}

/// `make check-wire`: the whole table.
#[test]
#[ignore = "takes ten minutes and more: make check-wire"]
fn every_size_and_mode_between_guests() {
    case("wire-table", |case| {
        let ended = run(case, include_str!("wire/table.sh"), 5000)?;
        println!("{}", ended.output);
        assert!(right(ended.success()) > 100);
        Ok(())
    });
}
