//! A worker that gave up its user: with what it has inherited it reaches the connections that it
//! has inherited, and no others.

use std::process::Command;

use system_tests::{Case, Ports, Proc, Side, Skip, compile, secs, skip};

use crate::hostile;

/// Nobody of that number exists, which is what makes it another user.
const OTHER: u32 = 12_346;

fn client(c: &Case, name: &str, port: u16) -> Result<Proc, Skip> {
    let args = ["client", &port.to_string(), "20000"];
    let mut client = c.start(name, Side::Run.command(compile("worker")?).args(args));
    client.wait_line("ready", secs(60));
    Ok(client)
}

fn spoils(name: &str, ports: Ports) {
    hostile(name, |c| {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can give up a user");
        }
        let [port, second] = [ports.free(), ports.free()];
        let mut command: Command = Side::Run.command(compile("worker")?);
        let mut server = c.serve(
            "server",
            port,
            command.args(["server", &port.to_string(), &second.to_string()]),
        );
        let mut known = client(c, "known", port)?;
        server.say(&format!("hostile {OTHER}\n"));
        server.wait_line("spoiled", secs(60));
        server.say("sibling\n");
        server.wait_line("sibling", secs(60));
        // Of a process with which the family had a connection before, of one that it meets now, and
        // the sibling's.
        let mut met = client(c, "met", port)?;
        let mut beside = client(c, "beside", second)?;
        // Once more, with what has come into being since.
        server.say("sibling\n");
        // A descriptor that is accepted while the sibling is made is shared with it, and stays on
        // TCP.
        server.wait_lines("sibling", 2, secs(60));
        for (client, name) in [(&mut known, "known"), (&mut met, "met"), (&mut beside, "beside")] {
            client.say("\n");
            assert_eq!(client.wait_line("talked", secs(60)), "talked, past TCP", "{name}");
            client.success(secs(60));
        }
        assert!(server.running(), "{}", server.stderr());
        server.stop();
        Ok(())
    });
}

#[test]
fn a_worker_spoils_what_it_inherited_alone() {
    spoils("worker-low", Ports::Low);
}

#[test]
fn a_worker_of_the_end_that_calls() {
    spoils("worker-high", Ports::High);
}
