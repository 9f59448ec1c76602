//! `shortwire webhook` as an API server sees it, over HTTPS with a certificate that openssl made.

mod manifests;
mod pods;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};
use system_tests::{Case, Ports, Proc, Skip, case, millis, need, secs, shortwire};

const REVIEW: &str = include_str!("../../../crates/cli/src/webhook/review/replicaset.json");

/// A CA of this name, and a certificate of localhost that it has signed, in a folder as the kubelet lays secrets out: a link leads
/// to the folder of this version of them.
fn certificate(c: &Case, name: &str) -> Result<PathBuf, Skip> {
    let openssl = need("openssl")?;
    let (dir, new) = (c.dir().join("tls"), format!("..{name}"));
    fs::create_dir_all(dir.join(&new)).expect("a folder");
    let script = format!(
        "exec 2>&1; cd '{0}'; key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
         '{1}' req -x509 $key -days 2 -subj /CN={name} -keyout ca.key -out ca.crt
         '{1}' req $key -subj /CN=webhook -keyout tls.key -out tls.csr
         echo subjectAltName=DNS:localhost > names
         '{1}' x509 -req -days 2 -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names -in tls.csr -out tls.crt",
        dir.join(&new).display(),
        openssl.display()
    );
    c.start("openssl", Command::new("sh").args(["-ec", &script])).success(secs(60));
    switch(&dir, &new);
    Ok(dir)
}

/// The files of another version, at once.
fn switch(dir: &Path, version: &str) {
    let (next, data) = (dir.join("..next"), dir.join("..data"));
    std::os::unix::fs::symlink(version, &next).expect("a link");
    fs::rename(next, data).expect("another link");
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        let _ = std::os::unix::fs::symlink(format!("..data/{file}"), dir.join(file));
    }
}

struct Webhook {
    proc: Proc,
    port: u16,
    tls: PathBuf,
}

impl Webhook {
    fn start(c: &Case, linger: u32, more: &[&str]) -> Result<Webhook, Skip> {
        need("curl")?;
        let tls = certificate(c, "first")?;
        let port = Ports::Low.free();
        let mut command = Command::new(shortwire());
        command
            .arg("webhook")
            .arg("--cert")
            .arg(tls.join("tls.crt"))
            .arg("--key")
            .arg(tls.join("tls.key"));
        command
            .args(["--listen", &format!("127.0.0.1:{port}"), "--linger", &linger.to_string()])
            .args(more);
        let proc = c.serve("webhook", port, &mut command);
        Ok(Webhook { proc, port, tls })
    }

    /// What curl is told, with the status in a last line; or curl's own failure.
    fn curl(&self, c: &Case, path: &str, more: &[&str]) -> Result<String, i32> {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.tls.join("ca.crt"));
        command.args(more).arg(format!("https://localhost:{}{path}", self.port));
        let mut curl = c.start("curl", &mut command);
        match curl.wait(secs(60)).code() {
            Some(0) => Ok(curl.stdout()),
            code => Err(code.unwrap_or(-1)),
        }
    }

    fn status(&self, c: &Case, path: &str, more: &[&str]) -> String {
        self.curl(c, path, more).map_or_else(
            |code| format!("curl {code}"),
            |said| said.lines().last().unwrap_or_default().to_string(),
        )
    }

    fn post(&self, c: &Case, path: &str, body: &[u8]) -> Result<String, i32> {
        let file = c.dir().join("body");
        fs::write(&file, body).expect("a body");
        let data = format!("@{}", file.display());
        self.curl(c, path, &["-H", "Content-Type: application/json", "--data-binary", &data])
    }

    /// The response of a review, which is always that the pod may be.
    fn review(&self, c: &Case, path: &str, review: &Value) -> Value {
        self.try_review(c, path, review).expect("an answer")
    }

    /// The same, or curl's failure.
    fn try_review(&self, c: &Case, path: &str, review: &Value) -> Result<Value, i32> {
        let said = self.post(c, path, review.to_string().as_bytes())?;
        let (body, status) = said.rsplit_once('\n').expect("a status");
        assert_eq!(status, "200", "{body}");
        let answer: Value = serde_json::from_str(body).expect("JSON");
        let response = &answer["response"];
        assert_eq!(
            (&answer["kind"], &response["uid"], &response["allowed"]),
            (&json!("AdmissionReview"), &review["request"]["uid"], &json!(true))
        );
        Ok(response.clone())
    }
}

/// The pod as the API server would store it.
fn patched(c: &Case, pod: &Value, response: &Value) -> Value {
    let Some(patch) = response["patch"].as_str() else { return pod.clone() };
    let file = c.dir().join("patch");
    fs::write(&file, patch).expect("a file");
    let decoded = Command::new("base64").arg("-d").arg(&file).output().expect("base64 runs");
    assert!(decoded.status.success(), "{patch}");
    let patch: json_patch::Patch = serde_json::from_slice(&decoded.stdout).expect("a patch");
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).expect("a patch that can be applied");
    pod
}

fn review() -> Value {
    serde_json::from_str(REVIEW).expect("the review")
}

fn dry_run(c: &Case, input: &Value, more: &[&str]) -> String {
    let file = c.dir().join("pod.json");
    fs::write(&file, input.to_string()).expect("a pod");
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" webhook --dry-run \"$@\" < \"$POD\""])
        .arg(shortwire())
        .args(more)
        .env("POD", &file);
    c.start("dry-run", &mut command).success(secs(60))
}

#[test]
fn reviews_over_https() {
    case("webhook-reviews", |c| {
        let mut hook = Webhook::start(c, 0, &["--set", "AFTER=4"])?;
        let question = review();
        let pod = &question["request"]["object"];
        let response = hook.review(c, "/inject", &question);
        let new = patched(c, pod, &response);
        assert_eq!(
            new["spec"]["containers"][0]["env"][1]["value"],
            "/opt/shortwire/libshortwire.so:/usr/lib/libjemalloc.so.2"
        );
        assert!(new.to_string().contains("/run/shortwire-pods/shop"));
        let mut again = question.clone();
        again["request"]["object"] = new.clone();
        assert!(hook.review(c, "/inject", &again).get("patch").is_none());
        // What --dry-run shows is what is done.
        let told: Value =
            serde_json::from_str(&dry_run(c, &question, &["--json", "--set", "AFTER=4"]))
                .expect("JSON");
        assert_eq!(told["pod"], new);
        let within = patched(c, pod, &hook.review(c, "/inject/within", &question));
        assert!(
            within.to_string().contains("libshortwire") && !within.to_string().contains("hostPath")
        );
        again["request"]["object"]["spec"]["hostNetwork"] = true.into();
        let response = hook.review(c, "/inject", &again);
        assert!(
            response["warnings"][0].as_str().is_some_and(|text| text.contains("hostNetwork")),
            "{response}"
        );
        let mut back = patched(c, &again["request"]["object"], &response);
        back["spec"].as_object_mut().expect("a spec").remove("hostNetwork");
        assert_eq!(&back, pod);
        assert_eq!(hook.status(c, "/healthz", &[]), "200");
        assert_eq!(hook.status(c, "/readyz", &[]), "200");
        let notes = hook.proc.stderr();
        assert!(notes.contains("shop/cart-7c5ddbdf54-: into shipper, cart, redis"), "{notes}");
        assert!(hook.proc.stop().success());
        Ok(())
    });
}

#[test]
fn a_deployment_can_be_looked_at_without_a_cluster() {
    case("webhook-dry-run", |c| {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}});
        let deployment = json!({"kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"template": template}});
        let said = dry_run(c, &deployment, &["--rendezvous", "/var/lib/meet"]);
        assert!(
            said.contains("load the library: web") && said.contains("\"/var/lib/meet/shop\""),
            "{said}"
        );
        let mut meshed = template;
        meshed["kind"] = "Pod".into();
        meshed["metadata"]["annotations"] = json!({"linkerd.io/inject": "enabled"});
        let said = dry_run(c, &meshed, &[]);
        assert!(
            said.contains("warning: the pod stays") && said.contains("nothing changes"),
            "{said}"
        );
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'kind: Pod' | \"$0\" webhook --dry-run"]).arg(shortwire());
        let mut refused = c.start("dry-run", &mut command);
        assert!(
            !refused.wait(secs(60)).success() && refused.stderr().contains("-o json"),
            "{}",
            refused.stderr()
        );
        Ok(())
    });
}

/// Whoever can connect may say what he likes: others are answered all the same.
#[test]
fn hostile_clients() {
    case("webhook-hostile", |c| {
        let mut hook = Webhook::start(c, 0, &[])?;
        let good = review().to_string();
        let json = ["-H", "Content-Type: application/json"];
        // As many as have a seat, less one: they say nothing, or begin a record of TLS and never end it.
        let mut silent: Vec<TcpStream> = (0..31)
            .map(|_| TcpStream::connect(("127.0.0.1", hook.port)).expect("a connection"))
            .collect();
        for client in silent.iter_mut().step_by(2) {
            client.write_all(b"\x16\x03\x01\x40\x00").expect("room");
        }
        hook.review(c, "/inject", &review());
        // All the seats of those who are slow are free in a while.
        let end = Instant::now() + secs(60);
        drop(silent.split_off(1));
        let mut slow = silent.pop().expect("one of them");
        let mut told = Vec::new();
        slow.set_read_timeout(Some(secs(60))).expect("a time limit");
        let _ = slow.read_to_end(&mut told);
        assert!(Instant::now() < end, "a client that says nothing keeps its seat");
        let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
        let many = format!("[{}1]", "{\"\":0},".repeat(90_000));
        for (body, status) in [
            (&good.as_bytes()[..good.len() / 2], "400"),
            (b"kind: AdmissionReview", "400"),
            (b"{\"kind\": \"AdmissionReview\"}", "400"),
            (b"\xff\xfe\x00", "400"),
            (b"", "400"),
            (deep.as_bytes(), "400"),
            (many.as_bytes(), "413"),
            (&vec![b' '; (1 << 20) + 1], "413"),
        ] {
            let said = hook.post(c, "/inject", body).map_or_else(
                |code| format!("curl {code}"),
                |said| said.lines().last().unwrap_or_default().to_string(),
            );
            // curl may find the connection closed while it still sends.
            assert!(
                said == status || (status == "413" && said.starts_with("curl 5")),
                "{said} for {:.40}",
                String::from_utf8_lossy(body)
            );
        }
        for (path, more, status) in [
            ("/inject", &["--data-binary", "{}", "-H", "Content-Type: text/plain"][..], "415"),
            (
                "/inject",
                &["--data-binary", "{}", json[0], json[1], "-H", "Transfer-Encoding: chunked"],
                "411",
            ),
            ("/inject", &[], "405"),
            ("/inject", &["-X", "DELETE"], "405"),
            ("/nothing", &[], "404"),
            ("/healthz", &["-H", &format!("X: {}", "x".repeat(20_000))], "431"),
            // TLS 1.2 is refused, and so are we by who trusts another CA.
            ("/healthz", &["--tls-max", "1.2"], "curl 35"),
            (
                "/healthz",
                &["--capath", "/nonexistent", "--cacert", "/etc/ssl/certs/ca-certificates.crt"],
                "curl 60",
            ),
        ] {
            let said = hook.status(c, path, more);
            assert!(
                said == status || (status == "curl 60" && said == "curl 77"),
                "{path} {more:.60?}: {said}"
            );
        }
        // No TLS at all.
        let mut bare = TcpStream::connect(("127.0.0.1", hook.port)).expect("a connection");
        bare.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").expect("room");
        let mut told = Vec::new();
        let _ = bare.read_to_end(&mut told);
        assert!(!String::from_utf8_lossy(&told).contains("200 OK"));
        hook.review(c, "/inject", &review());
        assert!(
            hook.proc.running() && !hook.proc.stderr().contains("panicked"),
            "{}",
            hook.proc.stderr()
        );
        assert!(hook.proc.stop().success());
        Ok(())
    });
}

#[test]
fn a_renewed_certificate_is_taken_over() {
    case("webhook-renewed", |c| {
        let mut hook = Webhook::start(c, 0, &[])?;
        let first = fs::read(hook.tls.join("ca.crt")).expect("a certificate");
        // A pair that does not fit changes nothing.
        let (tls, broken) = (hook.tls.clone(), hook.tls.join("..broken"));
        fs::create_dir(&broken).expect("a folder");
        fs::copy(tls.join("tls.crt"), broken.join("tls.crt")).expect("a copy");
        fs::write(broken.join("tls.key"), "no key").expect("a file");
        fs::write(broken.join("ca.crt"), &first).expect("a file");
        switch(&tls, "..broken");
        hook.proc.wait_line("shortwire webhook: the certificate stays the old one", secs(60));
        assert_eq!(hook.status(c, "/healthz", &[]), "200");
        certificate(c, "second")?;
        assert_ne!(fs::read(tls.join("ca.crt")).expect("a certificate"), first);
        hook.proc.wait_line("shortwire webhook: the certificate is a new one", secs(60));
        assert_eq!(hook.status(c, "/healthz", &[]), "200");
        assert!(hook.proc.stop().success());
        Ok(())
    });
}

/// From SIGTERM on it is not ready, and goes on answering until nobody is sent there any more.
#[test]
fn an_end_that_loses_no_question() {
    case("webhook-end", |c| {
        // More time, where a busy machine has not asked within the first.
        for linger in [8, 60] {
            let mut hook = Webhook::start(c, linger, &[])?;
            let told = Instant::now();
            hook.proc.signal(Signal::TERM);
            let mut is_ready = true;
            while is_ready && hook.proc.running() {
                sleep(millis(50));
                is_ready = hook.status(c, "/readyz", &[]) != "503";
            }
            let answer = hook.try_review(c, "/inject", &review());
            let is_over = told.elapsed() >= secs(linger.into());
            assert!(hook.proc.wait(secs(linger.into()) + secs(30)).success());
            if !is_ready && answer.is_ok() {
                break;
            }
            assert!(is_over && linger == 8, "it ended while it was asked: {is_ready} {answer:?}");
        }
        let mut command = Command::new(shortwire());
        command.args(["webhook", "--cert", "/nonexistent", "--key", "/nonexistent"]);
        let mut refused = c.start("refused", &mut command);
        assert_eq!(refused.wait(secs(60)).code(), Some(1));
        assert!(refused.stderr().contains("cannot read /nonexistent"), "{}", refused.stderr());
        Ok(())
    });
}
