//! Rules of netfilter for what stays on the machine.

use std::path::Path;

use system_tests::{Side, case, need, plain, prog, python, secs, skip};

/// `behind_rules.py`, in a network of its own with this chain.
fn behind(mode: &str, chain: &str) {
    case(&format!("rules-{mode}"), |c| {
        let (nft, ip, unshare, python) = (need("nft")?, need("ip")?, need("unshare")?, python()?);
        let rules = c.dir().join("rules");
        std::fs::write(&rules, format!("table ip t {{\n chain o {{\n{chain}\n }}\n}}\n"))
            .expect("a file");
        let script = "\"$1\" link set lo up && \"$2\" -f \"$3\" || exit 77; shift 3; exec \"$@\"";
        let mut command = Side::Run.command(Path::new(&unshare));
        command.args(["--net", "sh", "-c", script, "sh"]).arg(ip).arg(nft).arg(rules);
        command.arg(python).arg(prog("behind_rules.py")).arg(mode).env("SHORTWIRE_AFTER", "4");
        command.args(if plain() { &[] } else { &["shared"][..] });
        let mut program = c.start("program", &mut command);
        let status = program.wait(secs(300));
        if !status.success() && program.stderr().contains("unshare: ") {
            return skip("no network of its own can be made here");
        }
        if status.code() == Some(77) {
            return skip(format!("this kernel does not take the rules: {}", program.stderr()));
        }
        assert!(status.success(), "{status}: {}", program.stderr());
        assert_eq!(program.stdout(), "all right\n");
        Ok(())
    });
}

/// A client of the port that is redirected, and one of the port that it is redirected to, from one port:
/// by their names the server's end of one and the second client are a connection.
#[test]
fn ports_that_are_redirected() {
    behind(
        "redirected",
        "type nat hook output priority -100;\nip daddr 127.0.0.1 tcp dport 80 redirect to :8080;",
    );
}

/// The kernel counts a packet that it could not send, and counts it again when it can: where the ends
/// leave TCP is not known then.
#[test]
fn packets_that_cannot_be_sent() {
    behind(
        "dropped",
        "type filter hook output priority 0;\ntcp dport 7000 numgen random mod 100 < 8 drop",
    );
}
