//! Two guests that share a bar: programs in one and in the other, over the bar and over their
//! network.

use std::fs;

use system_tests::guest::{Guest, Running, pair};
use system_tests::{Case, Skip, case, need, secs, shortwire};

/// What curl fetches.
const BYTES: u32 = 32 << 20;
/// Microseconds: what a cycle takes here takes a few of them there.
const SPIN: u32 = 1000;
const BAR: &str = "64M";

fn guest(case: &Case, role: &str) -> Result<Running, Skip> {
    let mut guest = Guest::new()?;
    guest.with_others();
    let at = |name: &str| case.dir().join(name).display().to_string();
    let bar = format!("memory-backend-file,id=bar,share=on,mem-path={},size={BAR}", at("bar"));
    guest.qemu(&["-object", &bar, "-device", "ivshmem-plain,memdev=bar"]);
    let side = if role == "server" { "on" } else { "off" };
    guest.qemu(&[
        "-netdev",
        &format!("stream,id=n,server={side},addr.type=unix,addr.path={}", at("cable")),
    ]);
    let mac = if role == "server" { 1 } else { 2 };
    guest.qemu(&["-device", &format!("virtio-net-pci,netdev=n,mac=02:00:00:00:02:0{mac}")]);
    // Whose a connection is the broker asks through sock_diag; elsewhere the kernel loads its
    // modules by itself.
    guest.modules(&["virtio_net", "tcp_diag"]);
    for name in ["iperf3", "redis-server", "redis-benchmark", "nginx", "curl"] {
        guest.program(&need(name)?);
    }
    guest.program(&shortwire()).program(&shortwire().with_file_name("libshortwire.so"));
    guest.file("/etc/passwd", "root:x:0:0:root:/:/bin/sh\n").file("/etc/group", "root:x:0:\n");
    guest.file(
        "/srv/nginx.conf",
        "user root; daemon off; worker_processes 1; pid nginx.pid; error_log stderr; events { worker_connections 64; }
         http { access_log off; sendfile on;
           client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t;
           server { listen 80; root files; } }",
    );
    let script = format!("role={role} bytes={BYTES} spin={SPIN}\n{}", include_str!("ivshmem.sh"));
    Ok(guest.start(case, role, "", &script))
}

fn number(said: &str, name: &str) -> f64 {
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name} in\n{said}"));
    line.split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{name}{line}"))
}

#[test]
fn programs_of_two_guests_share_a_bar() {
    case("ivshmem-guests", |case| {
        let server = guest(case, "server")?;
        pair::wait_listening(&case.dir().join("cable"));
        let client = guest(case, "client")?;
        let client = client.wait(secs(700));
        let said = client.success().to_string();
        server.wait(secs(300)).success();
        assert!(said.contains("after: 0002 ivshmem") && said.contains("ready"), "{said}");
        let upgraded = |how: &str| {
            said.lines()
                .filter(|line| {
                    line.starts_with(how) && line.contains(" SMCD") && !line.contains(" TCP")
                })
                .count()
        };
        assert_eq!((upgraded("plain ss: "), upgraded("run ss: ") > 0), (0, true), "{said}");
        assert!(
            said.lines().any(|line| line.starts_with("run group: ") && line.contains("ivshmem")),
            "{said}"
        );
        let [bandwidth, latency] = ["bandwidth", "latency"]
            .map(|what| ["run", "plain"].map(|how| number(&said, &format!("{how} {what} "))));
        println!(
            "ivshmem against the virtio network, both emulated: bandwidth {:.2} x ({} : {} Kbit/s), latency {:.2} x ({} : {} ms)",
            bandwidth[0] / bandwidth[1],
            bandwidth[0],
            bandwidth[1],
            latency[0] / latency[1],
            latency[0],
            latency[1],
        );
        assert!(fs::metadata(case.dir().join("bar")).is_ok_and(|bar| bar.len() == 64 << 20));
        Ok(())
    });
}
