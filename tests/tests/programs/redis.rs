use system_tests::device::expect_rates;
use system_tests::stream::bytes;
use system_tests::{Case, Deadline, Ports, Proc, Side, Skip, case, need, patience, secs};

use crate::until_seen;

pub fn server(c: &Case, port: u16, more: &[&str]) -> Result<Proc, Skip> {
    let mut command = Side::Run.command(need("redis-server")?);
    command
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
        ])
        .arg(c.dir());
    Ok(c.serve("redis-server", port, command.args(more)))
}

/// Many values of a megabyte through one connection of redis-cli, and back.
#[test]
fn redis_cli_set_and_get() {
    for ports in [Ports::Low, Ports::High] {
        case(&format!("redis-cli-{ports:?}"), |c| {
            let (cli, port) = (need("redis-cli")?, ports.free());
            let mut redis = server(c, port, &[])?;
            let watch = c.watch(&[port]);
            let mut client = c.start(
                "redis-cli",
                Side::Run.command(&cli).args(["-p", &port.to_string(), "--raw"]),
            );
            let value = |i: u64| -> String {
                bytes(i, 1 << 20).iter().map(|b| char::from(b'a' + b % 26)).collect()
            };
            let mut expected = String::new();
            for i in 0..12 {
                client.say(&format!("SET big{i} {}\nGET big{i}\nSTRLEN big{i}\n", value(i)));
                expected += &format!("OK\n{}\n{}\n", value(i), 1 << 20);
            }
            client.wait_lines("1048576", 12, secs(60));
            watch.wait_smcd(2, secs(60));
            let said = client.success(secs(60));
            assert!(
                said == expected,
                "redis-cli printed {} bytes, not the {} expected",
                said.len(),
                expected.len()
            );
            redis.stop();
            Ok(())
        });
    }
}

/// `count` requests, and fewer where they take longer.
fn benchmark(name: &str, ports: Ports, server_args: &[&str], count: u32, args: &[&str]) {
    case(name, |c| {
        let (benchmark, port) = (need("redis-benchmark")?, ports.free());
        let number = port.to_string();
        let mut redis = server(c, port, server_args)?;
        until_seen(c, &[port], 50, |times| {
            let count = (count / patience() * times).to_string();
            let mut command = Side::Run.command(&benchmark);
            expect_rates(c, command.args(["-p", &number, "-n", &count]).args(args));
        });
        redis.stop();
        Ok(())
    });
}

#[test]
fn redis_benchmark() {
    benchmark(
        "redis-benchmark-1",
        Ports::Low,
        &[],
        20_000,
        &["-P", "1", "-t", "get,set,lpush,lrange_300"],
    );
}

#[test]
fn redis_benchmark_pipelined() {
    benchmark("redis-benchmark-16", Ports::High, &[], 400_000, &["-P", "16", "-t", "get,set,incr"]);
}

#[test]
fn redis_with_io_threads() {
    let threads = ["--io-threads", "2", "--io-threads-do-reads", "yes"];
    benchmark(
        "redis-io-threads",
        Ports::Low,
        &threads,
        60_000,
        &["-P", "4", "-t", "get,set", "-d", "2000"],
    );
}

/// One sum of all keys and values. DEBUG DIGEST is refused since Redis 7, and all refusals are alike.
const DIGEST: &str = "local all = redis.call('keys', '*') table.sort(all) local sum = '' \
    for _, key in ipairs(all) do sum = redis.sha1hex(sum .. key .. redis.call('get', key)) end \
    return sum";

/// A fork for the snapshot while clients go on, then a replica that copies everything through one
/// connection.
#[test]
fn redis_snapshot_and_replica() {
    case("redis-replica", |c| {
        let (benchmark, cli) = (need("redis-benchmark")?, need("redis-cli")?);
        let (port, second) = (Ports::Low.free(), Ports::High.free());
        let (number, other) = (port.to_string(), second.to_string());
        let mut first = server(c, port, &[])?;
        let mut client = c.start(
            "load",
            Side::Run
                .command(&benchmark)
                .args(["-p", &number, "-n", "30000", "-r", "20000", "-d", "1000", "-t", "set"]),
        );
        c.client("bgsave", Side::Run, &cli, &["-p", &number, "bgsave"]);
        client.success(secs(60));
        let mut replica = server(c, second, &["--replicaof", "127.0.0.1", &number])?;
        let size = |port: &str| c.client("dbsize", Side::Run, &cli, &["-p", port, "dbsize"]);
        let end = Deadline::within(secs(60));
        while size(&number) != size(&other) || size(&number).trim() == "0" {
            assert!(!end.is_over(), "the replica has {} of {} keys", size(&other), size(&number));
            std::thread::sleep(system_tests::millis(100));
        }
        // Through the replication stream, which by now is a busy connection.
        c.client(
            "more",
            Side::Run,
            &benchmark,
            &["-p", &number, "-n", "10000", "-d", "3000", "-t", "set", "-q"],
        );
        let digest =
            |port: &str| c.client("digest", Side::Run, &cli, &["-p", port, "eval", DIGEST, "0"]);
        let end = Deadline::within(secs(60));
        loop {
            let sums = [digest(&number), digest(&other)];
            if sums[0] == sums[1] && sums[0].trim().len() == 40 {
                break;
            }
            assert!(!end.is_over(), "the replica differs: {sums:?}");
            std::thread::sleep(system_tests::millis(100));
        }
        replica.stop();
        first.stop();
        Ok(())
    });
}
