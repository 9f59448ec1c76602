//! `shortwire metrics`: the counters of all programs, for Prometheus, and a page that draws them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use terminal::signals;
use terminal::units::parse_seconds;

use crate::exposition::{CLASSIC, OPENMETRICS, classic};
use crate::http::{self, Place, Request, Response};

mod collect;
mod encode;
mod textfile;

use collect::Collector;

/// The page, which asks for `/data.json` once a second.
const PAGE: &str = include_str!("metrics/page.html");
/// Unless something else is said.
const LISTEN: &str = "127.0.0.1:9988";
/// Between two looks that nobody asks for: what is counted between a look and the end of a
/// connection is not seen by pair, and TCP connections that come and go between two are not seen
/// at all.
const LOOK: Duration = Duration::from_secs(5);
/// A look that is younger will do.
const YOUNG: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
#[command(about = "Serve counters for Prometheus, and a page that draws them")]
#[command(after_help = "What is served:
  /metrics    counters by program and by pair of programs, as OpenMetrics or
              the older text format
  /           a page that draws which program talks to which, through memory or
              over TCP, and why
  /data.json  what the page draws

Counters never fall while this runs: what a program has counted stays when it ends, however it ends. Run as root it sees all users'
programs. It answers anybody who can connect: on loopback every local user.

In prometheus.yml:
  scrape_configs:
    - job_name: shortwire
      static_configs: [{targets: ['127.0.0.1:9988']}]

Examples:
  shortwire metrics  http://127.0.0.1:9988/
  shortwire metrics --listen unix:/run/shortwire.sock
  shortwire metrics --every 15 \\
      --textfile /var/lib/prometheus/node-exporter/shortwire.prom
  shortwire metrics --textfile shortwire.prom
      once, such as from cron

doc/seeing.md lists the metrics; a dashboard for Grafana is in share/shortwire/grafana-dashboard.json.")]
pub struct Metrics {
    /// Where to listen (default: 127.0.0.1:9988, unless there is a --textfile)
    #[arg(long, value_name = "ADDR:PORT|unix:PATH", value_parser = parse_place)]
    pub listen: Option<Place>,
    /// Write a file for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub textfile: Option<PathBuf>,
    /// Write the file again and again
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, requires = "textfile")]
    pub every: Option<f64>,
}

fn parse_place(text: &str) -> Result<Place, String> {
    match text.strip_prefix("unix:") {
        Some(path) => Ok(Place::Unix(path.into())),
        None => text.parse::<SocketAddr>().map(Place::Tcp).map_err(|_| {
            "give an address and a port such as 127.0.0.1:9988, or unix:/run/shortwire.sock".into()
        }),
    }
}

pub fn run(args: &Metrics) -> Result<ExitCode> {
    let collector = Arc::new(Mutex::new(Collector::default()));
    let look = {
        let collector = collector.clone();
        move |age: Duration| {
            let mut collector = collector.lock().unwrap_or_else(|error| error.into_inner());
            collector.look_unless(age);
            collector.view()
        }
    };
    let write = |path: &PathBuf| {
        textfile::write(path, &classic(&encode::text(&look(YOUNG))))
            .with_context(|| format!("cannot write {}", path.display()))
    };
    let listen = match (&args.listen, &args.textfile) {
        (None, None) => Some(parse_place(LISTEN).map_err(anyhow::Error::msg)?),
        (place, _) => place.clone(),
    };
    // The first may fail, and then it is told; whoever serves or repeats goes on later.
    if let Some(path) = &args.textfile {
        write(path)?;
    }
    if listen.is_none() && args.every.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    signals::catch_interrupts();
    if let Some(place) = &listen {
        let look = look.clone();
        let served = http::serve(place, move |request| answer(request, &look))
            .with_context(|| format!("cannot listen on {}", words(place)))?;
        eprintln!("serving {served}");
    }
    let every = args.every.map(Duration::from_secs_f64);
    let (mut looked, mut written) = (Instant::now(), Instant::now());
    look(YOUNG);
    while !signals::interrupted() {
        std::thread::sleep(Duration::from_millis(100));
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            look(LOOK);
        }
        if let (Some(path), Some(every)) = (&args.textfile, every)
            && written.elapsed() >= every
        {
            written = Instant::now();
            if let Err(error) = write(path) {
                eprintln!("shortwire metrics: {error:#}");
            }
        }
    }
    if let Some(Place::Unix(path)) = &listen {
        let _ = std::fs::remove_file(path);
    }
    Ok(ExitCode::SUCCESS)
}

fn words(place: &Place) -> String {
    match place {
        Place::Tcp(address) => address.to_string(),
        Place::Unix(path) => path.display().to_string(),
    }
}

fn answer(request: &Request, look: &impl Fn(Duration) -> Arc<collect::View>) -> Response {
    match request.path.as_str() {
        "/" => Response::ok("text/html; charset=utf-8", PAGE.into()),
        "/metrics" => {
            let text = encode::text(&look(YOUNG));
            if request.accept.contains("application/openmetrics-text") {
                Response::ok(OPENMETRICS, text)
            } else {
                Response::ok(CLASSIC, classic(&text))
            }
        }
        "/data.json" => match serde_json::to_string(&*look(YOUNG)) {
            Ok(text) => Response::ok("application/json", text),
            Err(error) => Response::refused("500 Internal Server Error", &error.to_string()),
        },
        _ => Response::refused("404 Not Found", "there are /, /metrics and /data.json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(parse_place("unix:/x"), Ok(Place::Unix("/x".into())));
        assert_eq!(parse_place("[::1]:80"), Ok(Place::Tcp("[::1]:80".parse().unwrap())));
        assert!(parse_place("localhost").is_err_and(|why| why.contains("such as 127.0.0.1:9988")));
    }
}
