//! Containers as far as Shortwire sees them: network, mount and pid namespaces of their own, and a
//! /dev/shm.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;

use crate::deadline::Deadline;
use crate::{Case, Proc, Side, Skip, millis, need, secs, skip};

pub struct Container {
    /// The first process in it; it lasts as long as this.
    _holder: Proc,
    init: i32,
}

impl Container {
    pub fn new(c: &Case, name: &str) -> Result<Container, Skip> {
        if !rustix::process::geteuid().is_root() {
            return skip("needs root, to make namespaces");
        }
        need("ip")?;
        need("nsenter")?;
        let script = "mount -t tmpfs none /dev/shm && mount -t proc proc /proc && ip link set lo up && echo ready && exec sleep 1000";
        let mut command = Command::new(need("unshare")?);
        command.args(["-n", "-p", "-m", "-f", "--kill-child", "sh", "-c", script]);
        let mut holder = c.start(name, &mut command);
        while !holder.stdout().starts_with("ready") {
            if holder.poll().is_some() {
                return skip(format!("no namespaces here: {}", holder.stderr().trim()));
            }
            sleep(millis(5));
        }
        let own = holder.pid();
        let children =
            fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let init = children.trim().parse().expect("the first process of a container");
        Ok(Container { _holder: holder, init })
    }

    /// What runs a program in it.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-n", "-p", "-m"]);
        command
    }

    /// A program in it, which meets others in `dir` if one is named.
    pub fn command(&self, side: Side, dir: Option<&Path>, program: &Path) -> Command {
        self.wrapped(&[], side, dir, program)
    }

    /// The same, started by another program.
    pub fn wrapped(&self, by: &[&str], side: Side, dir: Option<&Path>, program: &Path) -> Command {
        let mut command = self.enter();
        command.args(by);
        let inner = side.command(program);
        command.arg(inner.get_program()).args(inner.get_args()).env_remove("LD_PRELOAD");
        if let Some(dir) = dir {
            command.env("SHORTWIRE_RENDEZVOUS", dir);
        }
        command
    }

    /// Runs a shell script in it, which must succeed.
    pub fn sh(&self, script: &str) {
        must(self.enter().args(["sh", "-ec", script]));
    }

    /// Runs a shell script in its network namespace only, where processes are called as here.
    fn in_network(&self, script: &str) {
        must(Command::new("nsenter").args([
            "-t",
            &self.init.to_string(),
            "-n",
            "sh",
            "-ec",
            script,
        ]));
    }

    /// Waits until somebody listens on the port there.
    pub fn wait_listening(&self, server: &mut Proc, port: u16) {
        let end = Deadline::within(secs(60));
        let wanted = format!(":{port:04X}");
        let listening = |table: &str| {
            let text =
                fs::read_to_string(format!("/proc/{}/net/{table}", self.init)).unwrap_or_default();
            text.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(&wanted))
                    && fields.nth(1) == Some("0A")
            })
        };
        while !listening("tcp") && !listening("tcp6") {
            assert!(
                server.running() && !end.is_over(),
                "nobody listens on {port}: {}",
                server.stderr()
            );
            sleep(millis(5));
        }
    }
}

fn must(command: &mut Command) {
    let said = command.output().expect("nsenter runs");
    assert!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
}

/// Two containers and the router between them.
pub struct Pair {
    pub client: Container,
    pub server: Container,
    router: Container,
    /// Where the client finds the server.
    pub address: &'static str,
}

impl Pair {
    /// All pairs have the same addresses. With NAT the client sees the router's address in place of
    /// the server's, and the server the router's in place of the client's.
    pub fn new(c: &Case, nat: bool) -> Result<Pair, Skip> {
        let [router, client, server] =
            ["router", "client-side", "server-side"].map(|name| Container::new(c, name));
        let (router, client, server) = (router?, client?, server?);
        for (end, side, net) in [(&client, "c", 9), (&server, "s", 8)] {
            router.in_network(&format!(
                "ip link add {side} type veth peer name e0 netns {}; ip addr add 10.{net}.0.1/24 dev {side};
                 ip link set {side} up; echo 1 > /proc/sys/net/ipv4/ip_forward",
                end.init
            ));
            end.in_network(&format!(
                "ip addr add 10.{net}.0.2/24 dev e0; ip link set e0 up; ip route add default via 10.{net}.0.1"
            ));
        }
        let mut this = Pair { client, server, router, address: "10.8.0.2" };
        if nat {
            this.translate("masquerade")?;
        }
        Ok(this)
    }

    /// NAT as the router does it from now on.
    pub fn translate(&mut self, source: &str) -> Result<(), Skip> {
        let nft = need("nft")?;
        let rules = format!(
            "add table ip nat; flush table ip nat
             add chain ip nat pre {{ type nat hook prerouting priority -100; }}
             add chain ip nat post {{ type nat hook postrouting priority 100; }}
             add rule ip nat pre ip daddr 10.9.0.1 meta l4proto tcp dnat to 10.8.0.2
             add rule ip nat post oifname s {source}"
        );
        let said = self.router.enter().arg(nft).arg(rules).output().expect("nsenter runs");
        if !said.status.success() {
            return skip(format!("no NAT here: {}", String::from_utf8_lossy(&said.stderr).trim()));
        }
        self.address = "10.9.0.1";
        Ok(())
    }
}
