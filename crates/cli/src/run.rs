//! `shortwire run`: prepares the environment and becomes the program.

mod args;
mod doubts;
mod elf;
mod go;
mod library;
mod preload;
mod program;
mod raw;
mod rdma;
mod settings;

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

pub use args::{Device, Run};
pub use go::Alone;
pub use library::{VARIABLES as LIBRARY_VARIABLES, build_of, find as find_library};
pub use preload::compose as compose_preload;
pub use program::{Obstacle, find as find_program, interpreter_of, is_go, obstacles};
pub use raw::way as raw_way;
pub use rdma::{Calls, calls_of, needs_device};
pub use settings::{parse_ivshmem, parse_ueid};

use crate::conffiles::Health;
use crate::{OWN_FAILURE, eids, sys};

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Returns only if the program could not be started.
pub fn run(args: &Run) -> ExitCode {
    run_with(args, &[])
}

/// The same with further variables in the program's environment.
pub fn run_with(args: &Run, more: &[(&'static str, OsString)]) -> ExitCode {
    let name = &args.program[0];
    let path = match program::find(name, env::var_os("PATH").as_deref()) {
        Ok(path) => path,
        Err(error) => return fail(error.exit_status(), &error.to_string()),
    };
    let library = match library::find_named(library_for(args, &path)) {
        Ok(library) => library,
        Err(error) => return fail(OWN_FAILURE, &format!("{error:#}")),
    };
    let mut obstacles = program::obstacles(&path);
    let artefact = library.path.with_file_name("shortwire-raw");
    let wants_raw = !args.disable && args.rsocket.is_none() && raw::is_wanted(args, &path);
    let doubt = if wants_raw { raw::doubt(&library.path, &artefact) } else { None };
    let (mut ways, mut raw, mut cost) = (Vec::new(), None, None);
    for obstacle in &obstacles {
        let way = obstacle.is_for_raw().then(|| raw::way(obstacle.file(&path)));
        ways.push(match (way, wants_raw) {
            (None, _) => String::new(),
            (Some(Ok(said)), true) => {
                raw = (obstacles.len() == 1 && artefact.exists()).then_some(artefact.clone());
                cost = said;
                String::new()
            }
            (Some(Ok(_)), false) => " (`--raw auto` follows such programs)".into(),
            (Some(Err(why)), true) => format!("; `--raw auto` cannot follow it: it {why}"),
            (Some(Err(_)), false) => String::new(),
        });
    }
    let forbids_preloading = obstacles.iter().any(program::Obstacle::forbids_preloading);
    if raw.is_some() {
        obstacles.clear();
    }
    if !args.quiet {
        for (obstacle, way) in obstacles.iter().zip(ways) {
            eprintln!("shortwire: warning: {}: {obstacle}{way}", name.to_string_lossy());
        }
        if let Some(cost) = cost.filter(|_| raw.is_some()) {
            eprintln!("shortwire: warning: {} {cost}", name.to_string_lossy());
        }
        if let Some(doubt) = doubt {
            eprintln!("shortwire: warning: {doubt}");
        }
        if matches!(args.rsocket, Some(args::Rsocket::Auto | args::Rsocket::Api))
            && rdma::calls_of(&path) == Some(rdma::Calls::Devices)
        {
            let (why, advice) = rdma::needs_device();
            eprintln!("shortwire: warning: {}: {why}. {advice}", name.to_string_lossy());
        }
        if !args.disable && args.rsocket.is_none() {
            for problem in Health::here(args.config.as_deref()).problems() {
                eprintln!("shortwire: warning: {problem}; {} stays TCP", name.to_string_lossy());
            }
        }
    }
    let preload = if forbids_preloading && raw.is_none() {
        env::var_os("LD_PRELOAD")
    } else {
        Some(preload::compose(&library.path, env::var_os("LD_PRELOAD").as_deref()))
    };
    let mut variables: Vec<(&str, OsString)> = more.to_vec();
    let settings: Vec<_> = match eids::variables(args) {
        Ok(found) => settings::variables(args).into_iter().chain(found).collect(),
        Err(error) => return fail(OWN_FAILURE, &format!("{error:#}")),
    };
    if !args.quiet {
        for doubt in doubts::doubts(args, &settings) {
            eprintln!("shortwire: warning: {doubt}");
        }
    }
    variables.extend(settings.into_iter().map(|(name, value)| (name, value.into())));
    let environment = environment(variables, preload);
    match raw {
        Some(raw) => {
            let names = [OsString::from("shortwire-raw"), path.into()];
            let arguments: Vec<_> = names.into_iter().chain(args.program.iter().cloned()).collect();
            start(&raw, &arguments, &environment)
        }
        None => start(&path, &args.program, &environment),
    }
}

/// Which library the program is to load.
fn library_for(args: &Run, path: &Path) -> library::Name {
    match args.rsocket {
        None => library::SOCKETS,
        Some(args::Rsocket::Api) => library::RSOCKET,
        Some(args::Rsocket::Sockets) => library::RSPRELOAD,
        Some(args::Rsocket::Auto) if needs(path, "librdmacm.so") => library::RSOCKET,
        Some(args::Rsocket::Auto) => library::RSPRELOAD,
    }
}

/// Whether a program is linked to a library of that name.
fn needs(path: &Path, library: &str) -> bool {
    let elf = std::fs::File::open(path).and_then(|file| elf::read(&file));
    elf.ok().flatten().is_some_and(|elf| elf.needs.iter().any(|name| name.starts_with(library)))
}

/// The present environment with our variables in place of any of the same name.
fn environment(
    settings: Vec<(&str, OsString)>,
    preload: Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let mut ours: Vec<(OsString, OsString)> =
        settings.into_iter().map(|(name, value)| (name.into(), value)).collect();
    ours.extend(preload.map(|value| ("LD_PRELOAD".into(), value)));
    let kept = env::vars_os().filter(|(name, _)| ours.iter().all(|(other, _)| other != name));
    kept.collect::<Vec<_>>().into_iter().chain(ours).collect()
}

fn start(path: &Path, arguments: &[OsString], environment: &[(OsString, OsString)]) -> ExitCode {
    let mut error = sys::exec(path, arguments, environment);
    if error.raw_os_error() == Some(libc::ENOEXEC) {
        // What execvp and shells do with a script that does not name its interpreter.
        let shell_arguments: Vec<OsString> = [OsString::from("sh"), path.into()]
            .into_iter()
            .chain(arguments[1..].iter().cloned())
            .collect();
        error = sys::exec(Path::new("/bin/sh"), &shell_arguments, environment);
    }
    let name = arguments[0].to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => fail(
            NOT_FOUND,
            &match program::missing(path) {
                Some(missing) => format!(
                    "cannot start {name}: the interpreter or loader that it names, {}, is not there",
                    missing.display()
                ),
                None => format!("cannot start {name}: it is not there any more"),
            },
        ),
        _ => {
            let words = error.to_string();
            let words = words.split(" (os error").next().unwrap_or_default();
            fail(NOT_EXECUTABLE, &format!("cannot start {name}: {words}"))
        }
    }
}

fn fail(status: u8, message: &str) -> ExitCode {
    eprintln!("shortwire run: {message}");
    ExitCode::from(status)
}

/// What a measuring program puts before options, `--` and a program's name to start it under this
/// very command.
pub fn words() -> anyhow::Result<Vec<OsString>> {
    find_library()?;
    Ok(vec![env::current_exe()?.into(), "run".into(), "--quiet".into()])
}
