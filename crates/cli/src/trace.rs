//! `shortwire trace-clc`: makes the file and becomes the program; the library writes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use smc::trace::{MAX_PATH, file_header};

use crate::args::{Args, Command, TraceClc};
use crate::{OWN_FAILURE, run};

pub fn run(args: &TraceClc) -> ExitCode {
    let path = match make(&args.output) {
        Ok(path) => path,
        Err(error) => {
            eprintln!("shortwire trace-clc: {error:#}");
            return ExitCode::from(OWN_FAILURE);
        }
    };
    let words = ["shortwire", "run", "--"].map(OsString::from).into_iter().chain(args.program.iter().cloned());
    match Args::try_parse_from(words) {
        Ok(Args { command: Command::Run(run) }) => {
            run::run_with(&run, &[("SHORTWIRE_TRACE_CLC", path.into_os_string())])
        }
        // A setting in the environment that makes no sense.
        Ok(_) => ExitCode::from(OWN_FAILURE),
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
    ensure!(file, "{} is no ordinary file; records of several processes need one", output.display());
    let length = path.as_os_str().as_bytes().len();
    ensure!(length <= MAX_PATH, "the path of {} has {length} bytes, {MAX_PATH} are possible", output.display());
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
        assert!(make(&deep.join("f".repeat(100))).unwrap_err().to_string().contains("255 are possible"));
    }
}
