//! `shortwire webhook`: what Kubernetes asks of each new pod, and how a pod comes to have the library.

mod certificate;
mod dry;
mod mesh;
mod patch;
mod pod;
mod review;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use terminal::signals;

use crate::enable::parse_setting;
use crate::http::{PATIENCE, Place, Request, Response, Server};
use certificate::Certificate;
use pod::Ours;

/// Longest question, bytes. All seats hold one at a time, and all of them are to fit into the memory that the manifests allow.
const LARGEST: usize = 1 << 20;
/// Between two looks at the files of the certificate.
const LOOK: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
#[command(about = "Let pods of Kubernetes share memory: an admission webhook")]
#[command(
    long_about = "Answers the API server over HTTPS what changes in a new pod: an init container brings the library, LD_PRELOAD names it (in front of \
one that is there), and a folder of the node, one for each namespace, is where pods of that namespace meet. Pods are asked about by the label \
shortwire.dev/inject=enabled, on their namespace or on them; the manifests in share/shortwire/kubernetes, or the Helm chart beside them, say so to the API server.

Left alone, with a warning to whoever makes the pod: pods of a mesh (Istio, Linkerd, Kuma, Consul, ...), with hostNetwork, or for Windows; \
containers whose LD_PRELOAD is not a plain value, or with something mounted where the library is to be. Whatever goes wrong here, pods start without \
the library. Containers whose image has no libgcc_s.so.1 or a glibc before 2.28 must be left out by annotation: nothing starts in them."
)]
#[command(after_help = "Labels and annotations of a pod:
  shortwire.dev/inject: enabled|disabled     label, here or on the namespace
  shortwire.dev/exclude-containers: a,b      these stay as they are
  shortwire.dev/rendezvous: none             shared memory within the pod only
  shortwire.dev/set: AFTER=4,SPIN=0          settings, as `enable --set` has

What is served:
  POST /inject          an AdmissionReview (admission.k8s.io/v1)
  POST /inject/within   the same for pods that may mount nothing of the node
  GET /healthz, /readyz for the kubelet; /readyz is 503 from SIGTERM on

Examples:
  shortwire webhook --cert tls.crt --key tls.key --image REGISTRY/shortwire
  kubectl get deployment web -o json | shortwire webhook --dry-run
  kubectl create --dry-run=client -o json -f pod.yaml >pod.json
  shortwire webhook --dry-run --json <pod.json | jq .pod

doc/kubernetes.md has the rest.")]
pub struct Webhook {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Certificate for the service's name, with those that it is signed by, as PEM; read again when it changes
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run", value_hint = clap::ValueHint::FilePath)]
    pub cert: Option<PathBuf>,
    /// Its key, as PEM
    #[arg(long, value_name = "FILE", required_unless_present = "dry_run", value_hint = clap::ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// Image that brings the library into pods: this one (`make image`)
    #[arg(long, value_name = "IMAGE", default_value = "shortwire:latest")]
    pub image: String,
    /// When nodes fetch it
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub pull_policy: Option<String>,
    /// Folder of the nodes in which each namespace has one where its pods meet; `none`: connections leave TCP within a pod only
    #[arg(long, value_name = "DIR|none", default_value = "/run/shortwire-pods", value_parser = parse_folder)]
    pub rendezvous: Folder,
    /// Setting for all pods: the name of a variable without SHORTWIRE_, and its value
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<String>,
    /// Seconds to go on answering after SIGTERM, until nobody is sent here any more
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub linger: u32,
    /// Read a pod (or a Deployment, Job, ..., or an AdmissionReview) as JSON from standard input, and print what would change in it
    #[arg(long, conflicts_with_all = ["cert", "key", "listen"])]
    pub dry_run: bool,
    /// ... in this namespace, unless it names one itself
    #[arg(long, value_name = "NAME", requires = "dry_run", default_value = "default")]
    pub namespace: String,
    /// ... as one JSON object: patch, warnings, containers, pod
    #[arg(long, requires = "dry_run")]
    pub json: bool,
}

/// An absolute path, or none.
#[derive(Clone, Debug)]
pub struct Folder(Option<String>);

fn parse_folder(text: &str) -> Result<Folder, String> {
    match text.trim_end_matches('/') {
        "none" => Ok(Folder(None)),
        path if path.starts_with('/') && !path.split('/').any(|part| part == "..") => {
            Ok(Folder(Some(path.into())))
        }
        _ => {
            Err("an absolute path on the nodes without .., such as /run/shortwire-pods, or none"
                .into())
        }
    }
}

pub fn run(args: &Webhook) -> Result<ExitCode> {
    let ours = Ours {
        image: args.image.clone(),
        pull_policy: args.pull_policy.clone(),
        meet: args.rendezvous.0.clone(),
        settings: args.settings.clone(),
    };
    match (&args.cert, &args.key) {
        (Some(chain), Some(key)) => serve(
            args,
            ours,
            Arc::new(Certificate::read(chain, key).with_context(|| {
                format!("cannot use {} and {}", chain.display(), key.display())
            })?),
        ),
        _ if args.dry_run => dry::run(&ours, &args.namespace, args.json),
        _ => bail!("--cert and --key are needed: the API server speaks TLS only"),
    }
}

fn serve(args: &Webhook, ours: Ours, certificate: Arc<Certificate>) -> Result<ExitCode> {
    signals::catch_interrupts();
    let ending = Arc::new(AtomicBool::new(false));
    let handler = {
        let ending = ending.clone();
        let within = Ours { meet: None, ..ours.clone() };
        // A question becomes many times as large when it is read: one at a time.
        let turn = Mutex::new(());
        move |request: &Request| match request.path.as_str() {
            "/healthz" => Response::ok("text/plain", "ok\n".into()),
            "/readyz" if ending.load(Relaxed) => {
                Response::refused("503 Service Unavailable", "ending")
            }
            "/readyz" => Response::ok("text/plain", "ok\n".into()),
            "/inject" | "/inject/within" if !request.is_post => {
                Response::refused("405 Method Not Allowed", "POST an AdmissionReview")
            }
            "/inject" | "/inject/within" => {
                let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
                inject(request, if request.path == "/inject" { &ours } else { &within })
            }
            _ => Response::refused(
                "404 Not Found",
                "there are /inject, /inject/within, /healthz and /readyz",
            ),
        }
    };
    let tls = Some(certificate.config()?);
    let server = Server::start(&Place::Tcp(args.listen), tls, LARGEST, handler)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    eprintln!("serving {}", server.place);
    let mut looked = Instant::now();
    while !signals::interrupted() {
        sleep(Duration::from_millis(100));
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            match certificate.look() {
                None => {}
                Some(Ok(())) => {
                    eprintln!("shortwire webhook: the certificate is a new one from now on")
                }
                Some(Err(why)) => {
                    eprintln!("shortwire webhook: the certificate stays the old one: {why:#}")
                }
            }
        }
    }
    // Other parts of the cluster learn of the end later than this.
    ending.store(true, Relaxed);
    sleep(Duration::from_secs(args.linger.into()));
    let end = Instant::now() + 2 * PATIENCE;
    while server.busy() > 0 && Instant::now() < end {
        sleep(Duration::from_millis(10));
    }
    Ok(ExitCode::SUCCESS)
}

fn inject(request: &Request, ours: &Ours) -> Response {
    let kind = request.kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return Response::refused("415 Unsupported Media Type", "Content-Type is application/json");
    }
    if review::has_too_many_values(&request.body) {
        let why = format!("at most {} values", review::MOST_VALUES);
        return Response::refused("413 Content Too Large", &why);
    }
    match review::answer(&request.body, ours) {
        Ok(answer) => {
            if let Some(note) = answer.note {
                eprintln!("{note}");
            }
            Response::ok("application/json", answer.review.to_string())
        }
        Err(why) => Response::refused("400 Bad Request", &why),
    }
}
