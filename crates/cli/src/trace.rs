//! `shortwire trace-clc`: makes the file and becomes the program; the library writes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use smc::trace::{MAX_PATH, file_header};

use crate::OWN_FAILURE;
use crate::run::{Run, run_with};

#[derive(clap::Args)]
#[command(name = "trace-clc", about = "Run a program and record its handshakes, for Wireshark")]
#[command(override_usage = "shortwire trace-clc [-o FILE] -- PROG [ARGS]...")]
#[command(
    long_about = "Runs PROG as `shortwire run` does and writes each message of the handshakes (CLC: Proposal, Accept, Confirm, Decline) that \
its connections send and receive to a pcap file, as it happens. The messages travel beside the TCP stream; in the file each is a TCP segment \
between the real addresses, with sequence numbers that count handshake bytes only. Programs that PROG starts write to the same file.

A handshake begins when a connection has been used for some requests. One that ends sooner, such as that of a single curl, has none, and \
a file of 24 bytes has no handshake in it.

Settings of `shortwire run` are taken from their environment variables."
)]
#[command(after_help = "Examples:
  shortwire trace-clc -o clc.pcap -- \\
      curl -s -o /dev/null 'http://127.0.0.1:8080/?[1-20]'
  tshark -r clc.pcap -V
  shortwire trace-clc -- redis-benchmark -t get -n 1000

The other end must run under `shortwire run`, too.")]
pub struct TraceClc {
    /// The file to write, anew
    #[arg(short, long, value_name = "FILE", default_value = "clc.pcap", value_hint = clap::ValueHint::FilePath)]
    pub output: PathBuf,
    /// The program and its arguments
    #[arg(value_name = "PROG", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

pub fn run(args: &TraceClc) -> ExitCode {
    let path = match make(&args.output) {
        Ok(path) => path,
        Err(error) => {
            eprintln!("shortwire trace-clc: {error:#}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    let words =
        ["shortwire run", "--"].map(OsString::from).into_iter().chain(args.program.iter().cloned());
    match Run::try_parse_from(words) {
        Ok(run) => run_with(&run, &[("SHORTWIRE_TRACE_CLC", path.into_os_string())]),
        // A setting in the environment that makes no sense.
        Err(error) => {
            let _ = error.print();
            ExitCode::from(OWN_FAILURE)
        }
    }
}

/// The file with nothing on record yet; its whole path, since the program may work elsewhere.
fn make(output: &Path) -> Result<PathBuf> {
    let failed = || format!("cannot write {}", output.display());
    fs::write(output, file_header()).with_context(failed)?;
    let path = output.canonicalize().with_context(failed)?;
    let file = path.metadata().with_context(failed)?.is_file();
    ensure!(
        file,
        "{} is no ordinary file; records of several processes need one",
        output.display()
    );
    let length = path.as_os_str().as_bytes().len();
    ensure!(
        length <= MAX_PATH,
        "the path of {} has {length} bytes, {MAX_PATH} are possible",
        output.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_begun_anew_and_must_be_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clc.pcap");
        fs::write(&path, [7; 1000]).unwrap();
        assert_eq!(make(&path).unwrap(), path.canonicalize().unwrap());
        assert_eq!(fs::read(&path).unwrap(), file_header());
        assert!(make(folder.path()).is_err());
        assert!(make(Path::new("/dev/null")).unwrap_err().to_string().contains("no ordinary file"));
        let deep = folder.path().join("d".repeat(200));
        fs::create_dir(&deep).unwrap();
        assert!(
            make(&deep.join("f".repeat(100))).unwrap_err().to_string().contains("255 are possible")
        );
    }
}
