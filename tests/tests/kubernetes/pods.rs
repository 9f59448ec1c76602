//! What the patch makes of two pods, started as a node would start them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};
use system_tests::container::Pair;
use system_tests::{Side, case, connections, need, plain, secs, shortwire, skip};

use crate::dry_run;

/// Answers lines of 32 bytes until the other end has enough.
const SERVER: &str = "
import socket
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('0.0.0.0', 7000))
s.listen(5)
c = s.accept()[0]
while True:
    said = c.recv(32, socket.MSG_WAITALL)
    if len(said) < 32: break
    c.sendall(said)
";
const CLIENT: &str = "
import os, socket, sys
c = socket.create_connection((sys.argv[1], 7000))
for i in range(600):
    said = str(i).encode().ljust(32)
    c.sendall(said)
    assert c.recv(32, socket.MSG_WAITALL) == said
print('asked', os.environ['LD_PRELOAD'], flush=True)
sys.stdin.readline()
";

/// Two pods of a namespace, as the kubelet would start what became of them: the init container first, as its security context
/// says, then a program of another user than root, with the volumes and the variables that the patch names.
#[test]
fn two_pods_meet() {
    case("webhook-pods", |c| {
        let (pair, setpriv) = (Pair::new(c, false)?, need("setpriv")?);
        let python = PathBuf::from("/usr/bin/python3");
        if !python.exists() {
            return skip("no /usr/bin/python3 that every user can run");
        }
        let node = c.dir().join("node");
        let pod = json!({"kind": "Pod", "metadata": {"name": "x", "namespace": "shop"}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
        let meet = format!("--rendezvous={}", node.display());
        let told: Value =
            serde_json::from_str(&dry_run(c, &pod, &["--json", &meet])).expect("JSON");
        let spec = &told["pod"]["spec"];
        let host_path = spec["volumes"][1]["hostPath"]["path"].as_str().expect("a hostPath");
        // DirectoryOrCreate: by root, 0755.
        fs::create_dir_all(host_path).expect("the namespace's folder");
        fs::set_permissions(&node, fs::Permissions::from_mode(0o755)).expect("its rights");
        let installer = &spec["initContainers"][0];
        assert_eq!(installer["securityContext"]["runAsUser"], 0);
        let library = shortwire().with_file_name("libshortwire.so");
        let script = installer["command"][2]
            .as_str()
            .expect("a script")
            .replace("/usr/lib/shortwire/libshortwire.so", &library.display().to_string());
        let env = spec["containers"][0]["env"].as_array().expect("variables");
        let env: Vec<String> = env
            .iter()
            .map(|e| format!("{}={}", e["name"].as_str().unwrap(), e["value"].as_str().unwrap()))
            .collect();
        for side in [&pair.server, &pair.client] {
            side.sh(&format!(
                "mount -t tmpfs none /opt; mkdir /opt/shortwire; mount -t tmpfs -o mode=1777,size=16m none /opt/shortwire
                 mount -t tmpfs none /run; mkdir /run/shortwire-pods; mount --bind {host_path} /run/shortwire-pods
                 {0} --bounding-set=-all --inh-caps=-all -- sh -c '{script}'
                 mount -o remount,ro,bind /opt/shortwire
                 test -r /opt/shortwire/libshortwire.so; test \"$(stat -c %a /run/shortwire-pods)\" = 1777",
                setpriv.display()
            ));
        }
        let mut by = vec![
            setpriv.to_str().expect("a path"),
            "--reuid=1000",
            "--regid=1000",
            "--clear-groups",
            "env",
        ];
        by.extend(env.iter().map(String::as_str));
        for tries in 0.. {
            let mut command = pair.server.wrapped(&by, Side::Plain, None, &python);
            let mut server = c.start("server", command.args(["-c", SERVER]));
            pair.server.wait_listening(&mut server, 7000);
            let mut command = pair.client.wrapped(&by, Side::Plain, None, &python);
            let mut client = c.start("client", command.args(["-c", CLIENT, pair.address]));
            client.wait_line("asked /opt/shortwire/libshortwire.so", secs(60));
            let ends = connections(&[7000]).iter().filter(|end| end.smcd).count();
            client.say("\n");
            client.success(secs(60));
            server.success(secs(60));
            if ends == 2 || plain() {
                return Ok(());
            }
            // On a busy machine the patience of a connection may be used up before the other end has had its turn.
            assert!(tries < 4, "two pods found each other in no try");
        }
        Ok(())
    });
}
