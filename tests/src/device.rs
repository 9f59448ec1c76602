//! Real programs over a device of choice: nothing but `--prefer` differs.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::probe::need_devices;
use crate::{Case, Ports, Proc, Side, Skip, Watch, expect_same, need, secs, stream};

/// A program under Shortwire that offers these devices, or what it does unasked.
pub fn prefer(devices: &str, program: &Path) -> Command {
    let mut command = Side::Run.command(program);
    if !devices.is_empty() {
        command.env("SHORTWIRE_PREFER", devices);
    }
    command
}

/// iperf3 under the eyes of a watch, longer if it had no time to look; both ends offer devices.
pub fn iperf3(c: &Case, [server, client]: [&str; 2], options: &[&str]) -> Result<Watch, Skip> {
    [server, client].into_iter().try_for_each(need_devices)?;
    let (iperf3, port) = (need("iperf3")?, Ports::Low.free());
    let number = port.to_string();
    let watch = c.watch(&[port]);
    watch.during(3, |turn| {
        let args = ["-s", "-1", "-B", "127.0.0.1", "-p", &number];
        let mut server = c.serve("server", port, prefer(server, &iperf3).args(args));
        let seconds = (2 << turn).to_string();
        let args = ["-c", "127.0.0.1", "-p", &number, "-t", &seconds];
        c.start("client", prefer(client, &iperf3).args(args).args(options)).success(secs(100));
        server.wait(secs(60));
        Ok(())
    })?;
    Ok(watch)
}

/// Redis and its 50 clients.
pub fn redis_benchmark(c: &Case, devices: &str) -> Result<Watch, Skip> {
    need_devices(devices)?;
    let (redis, benchmark, port) =
        (need("redis-server")?, need("redis-benchmark")?, Ports::High.free());
    let number = port.to_string();
    let args =
        ["--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
    let mut server = c.serve("redis-server", port, prefer(devices, &redis).args(args).arg(c.dir()));
    let watch = c.watch(&[port]);
    let args = ["-p", &number, "-n", "20000", "-t", REDIS_KINDS];
    watch.during(4, |_| {
        expect_rates(c, prefer(devices, &benchmark).args(args));
        Ok(())
    })?;
    server.stop();
    Ok(watch)
}

/// Kinds of requests for redis-benchmark, with short and long answers.
pub const REDIS_KINDS: &str = "get,set,lpush,lrange_300";

/// A run of redis-benchmark, which must tell a rate above 0 for each kind of request.
pub fn expect_rates(c: &Case, benchmark: &mut Command) {
    let said = c.start("redis-benchmark", benchmark.arg("--csv")).success(secs(100));
    let rates: Vec<f64> =
        said.lines().filter_map(|line| line.split('"').nth(3)?.parse().ok()).collect();
    assert!(!rates.is_empty() && rates.iter().all(|&rate| rate > 0.0), "{said}");
}

/// A file of 1 GiB below the case's directory, `files/big`. Each page begins with the number of its
/// MiB.
pub fn gibibyte(c: &Case) -> PathBuf {
    let file = c.dir().join("files/big");
    fs::create_dir_all(c.dir().join("files")).expect("a directory");
    let mut block = stream::bytes(1, 1 << 20);
    let mut content = BufWriter::new(fs::File::create(&file).expect("a file"));
    for number in 0..1024u64 {
        block.chunks_mut(4096).for_each(|page| page[..8].copy_from_slice(&number.to_ne_bytes()));
        content.write_all(&block).expect("the file");
    }
    drop(content.into_inner().expect("the file"));
    file
}

/// The configuration of an nginx that serves `files` at `listen`.
pub fn nginx_conf(c: &Case, listen: &str) -> PathBuf {
    let conf = c.dir().join("nginx.conf");
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let text = format!(
        "{user} daemon off; worker_processes 2; pid nginx.pid; error_log stderr; events {{ worker_connections 64; }}
         http {{ access_log off; sendfile on;
           client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t;
           server {{ listen {listen}; root files; }} }}"
    );
    fs::write(&conf, text).expect("nginx.conf");
    conf
}

/// What a curl has fetched is the file.
pub fn expect_fetched(client: &mut Proc, file: &Path) {
    let status = client.wait(secs(100));
    assert!(status.success(), "curl: {status}: {}", client.stderr());
    expect_same(client.stdout_path(), file);
}

/// nginx and curl, 1 GiB.
pub fn curl(c: &Case, devices: &str) -> Result<Watch, Skip> {
    need_devices(devices)?;
    let (curl, nginx, port) = (need("curl")?, need("nginx")?, Ports::Low.free());
    let (file, conf) = (gibibyte(c), nginx_conf(c, &format!("127.0.0.1:{port}")));
    let mut server =
        c.serve("nginx", port, prefer(devices, &nginx).arg("-p").arg(c.dir()).arg("-c").arg(&conf));
    let watch = c.watch(&[port]);
    let url = format!("http://127.0.0.1:{port}/big");
    watch.during(3, |_| {
        let mut client = c.start("curl", prefer(devices, &curl).args(["-sS", "--fail", &url]));
        expect_fetched(&mut client, &file);
        Ok(())
    })?;
    server.stop();
    Ok(watch)
}
