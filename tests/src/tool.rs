//! Where programs are, and how ours are built.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::probe::need_compiler;
use crate::skip::{Skip, skip};

/// Whether programs run without the library, to test the tests.
pub fn plain() -> bool {
    env::var_os("SHORTWIRE_PLAIN").is_some_and(|v| !v.is_empty() && v != "0")
}

/// The `shortwire` command under test.
pub fn shortwire() -> PathBuf {
    let candidates = [
        env::var_os("SHORTWIRE_BIN").map(PathBuf::from),
        env::var_os("CARGO_TARGET_DIR").map(|dir| PathBuf::from(dir).join("release/shortwire")),
        Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/shortwire")),
    ];
    let found = candidates.into_iter().flatten().find(|path| path.is_file());
    let path = found.expect(
        "no shortwire command: run `make build`, or set SHORTWIRE_BIN, or SHORTWIRE_PLAIN=1",
    );
    path.canonicalize().unwrap_or(path)
}

/// A program of this machine. Some live where an ordinary PATH does not lead.
pub fn need(name: &str) -> Result<PathBuf, Skip> {
    let path = env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|d| d.path().join("bin"));
    let places = env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from))
        .chain(versions);
    match places.map(|place| place.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => skip(format!("{name} is not installed")),
    }
}

/// A shared library of this machine, by its soname.
pub fn need_library(soname: &str) -> Result<(), Skip> {
    let cache = Command::new(need("ldconfig")?).arg("-p").output();
    let known = |all: Vec<u8>| {
        String::from_utf8_lossy(&all).lines().any(|line| line.trim().starts_with(soname))
    };
    match cache {
        Ok(output) if known(output.stdout.clone()) => Ok(()),
        _ => skip(format!("{soname} is not installed")),
    }
}

/// The interpreter itself: what PATH leads to may be a shell script that starts it.
pub fn python() -> Result<PathBuf, Skip> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let shim = need("python3")?;
    let found = FOUND.get_or_init(|| {
        let said =
            Command::new(shim).args(["-c", "import sys; print(sys.executable)"]).output().ok()?;
        Some(PathBuf::from(String::from_utf8(said.stdout).ok()?.trim()))
    });
    found.clone().map_or_else(|| skip("python3 does not run"), Ok)
}

/// A source file of `tests/progs`.
pub fn prog(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("progs").join(name)
}

/// What cargo tells tests but not the library they share.
pub(crate) fn target() -> PathBuf {
    let own = env::current_exe().expect("own path");
    own.ancestors().nth(3).expect("a test lives in target/PROFILE/deps").to_path_buf()
}

fn build_directory() -> PathBuf {
    let dir = target().join("tmp/progs");
    fs::create_dir_all(&dir).expect("target/tmp/progs");
    dir
}

/// What several tests may be about to make: one does, the others wait and find it. Processes cannot
/// be told apart by their numbers, which other namespaces have too.
pub(crate) fn making(what: &Path) -> fs::File {
    let lock = fs::File::create(what.with_extension("lock")).expect("a file to lock");
    lock.lock().expect("a lock");
    lock
}

fn age(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// Builds `progs/NAME.c` or `progs/NAME.go` unless that is done, and gives the program's path. A
/// line "// cc: OPTIONS" in a C program gives further options. A Go program that imports "C" gets the C
/// library.
pub fn compile(name: &str) -> Result<PathBuf, Skip> {
    compile_for(name, "cc")
}

/// Of what another compiler has built.
fn suffix(compiler: &str) -> String {
    if compiler == "cc" { String::new() } else { format!("-{compiler}") }
}

/// As `compile`, by another C compiler, for another architecture perhaps.
pub fn compile_for(name: &str, compiler: &str) -> Result<PathBuf, Skip> {
    let (stem, kind) = name.rsplit_once('.').unwrap_or((name, "c"));
    let source = prog(&format!("{stem}.{kind}"));
    let by = suffix(compiler);
    let name = format!("{}-{kind}{by}", stem.replace('/', "-"));
    let all = |dir: &Path| {
        fs::read_dir(dir).expect("tests/progs").flatten().map(|f| f.path()).collect::<Vec<_>>()
    };
    let beside = [prog(""), source.parent().expect("a directory").to_path_buf()]
        .map(|dir| all(&dir))
        .concat();
    let newest =
        beside.iter().filter(|path| **path == source || path.extension().is_some_and(|e| e == "h"));
    let newest = newest.filter_map(|path| age(path)).max();
    built_once(&name, newest, |unfinished| {
        let text = fs::read_to_string(&source).expect("the source");
        if kind == "go" {
            let has_c = text.lines().any(|line| line == "import \"C\"");
            let mut go = Command::new(need("go")?);
            go.args(["build", "-p", "2", "-o"])
                .arg(unfinished)
                .arg(&source)
                .env("CGO_ENABLED", if has_c { "1" } else { "0" })
                .env("GOFLAGS", "");
            return Ok(go);
        }
        let options = text.lines().filter_map(|line| line.strip_prefix("// cc: "));
        let options: Vec<_> = options.flat_map(str::split_whitespace).collect();
        if compiler == "cc" && !options.is_empty() {
            need_compiler(&options)?;
        }
        let mut cc = Command::new(need(compiler)?);
        cc.args(["-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o"]).arg(unfinished).arg(&source);
        cc.args(options);
        Ok(cc)
    })
}

/// `progs/NAME.go` without the C library, also where it imports "C", linked as `kind` says: what `go build
/// -buildmode` takes.
pub fn compile_pure_go(name: &str, kind: &str) -> Result<PathBuf, Skip> {
    let (source, program) = (prog(&format!("{name}.go")), format!("{name}-go-{kind}"));
    built_once(&program, age(&source), |unfinished| {
        let text = fs::read_to_string(&source).expect("the source");
        // Go takes a file for source by its name.
        let pure = build_directory().join(format!("{program}.go"));
        fs::write(&pure, text.replace("import \"C\"\n", "")).expect("a source without C");
        let mut go = Command::new(need("go")?);
        go.args(["build", "-p", "2", "-buildmode", kind, "-o"]).arg(unfinished).arg(pure);
        go.envs([("GOFLAGS", ""), ("CGO_ENABLED", "0")]);
        Ok(go)
    })
}

/// A program that several tests run: the first builds it, by a command that is told where it is to be,
/// the others wait and find it. It is built anew if something that it is made of is newer.
fn built_once(
    name: &str,
    newest: Option<SystemTime>,
    command: impl FnOnce(&Path) -> Result<Command, Skip>,
) -> Result<PathBuf, Skip> {
    let program = build_directory().join(name);
    let _one = making(&program);
    if age(&program) > newest {
        return Ok(program);
    }
    let unfinished = program.with_extension("new");
    let mut command = command(&unfinished)?;
    let said = command.output().expect("starting a compiler");
    assert!(
        said.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&said.stderr)
    );
    fs::rename(&unfinished, &program).expect("placing the program");
    Ok(program)
}

/// A text that several tests of one `make check` need: the first makes it, the others wait for it
/// and read it. Elsewhere a test makes its own.
pub fn shared(name: &str, make: impl FnOnce() -> String) -> String {
    let Ok(run) = env::var("CHECK_RUN") else { return make() };
    let path = build_directory().join(name);
    let _one = making(&path);
    let found = fs::read_to_string(&path).unwrap_or_default();
    if let Some((of, text)) = found.split_once('\n')
        && of == run
    {
        return text.to_string();
    }
    let text = make();
    fs::write(&path, format!("{run}\n{text}")).expect("a text for other tests");
    text
}

/// Builds `tests/conformance`: the program, and the same as a static one where there is a static
/// libc.
pub fn compile_conformance() -> Result<(PathBuf, Option<PathBuf>), Skip> {
    compile_conformance_for("cc")
}

/// As `compile_conformance`, by another C compiler.
pub fn compile_conformance_for(compiler: &str) -> Result<(PathBuf, Option<PathBuf>), Skip> {
    let by = suffix(compiler);
    let [program, fixed, object] = ["conformance", "conformance-static", "conformance.o"]
        .map(|name| build_directory().join(format!("{name}{by}")));
    let _one = making(&program);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let mut sources: Vec<_> =
        fs::read_dir(here).expect("sources").flatten().map(|f| f.path()).collect();
    let newest = sources.iter().chain(&[prog("common.h")]).filter_map(|path| age(path)).max();
    sources.retain(|path| path.extension().is_some_and(|e| e == "c"));
    sources.sort();
    if age(&program) <= newest {
        need(compiler)?;
    }
    let build = |result: &Path, how: &[&str], from: &[PathBuf]| -> Result<(), String> {
        if age(result) > newest {
            return Ok(());
        }
        let unfinished = result.with_extension("new");
        let said = Command::new(compiler).args(how).arg("-o").arg(&unfinished).args(from).output();
        let said = said.map_err(|e| e.to_string())?;
        if !said.status.success() {
            return Err(String::from_utf8_lossy(&said.stderr).into_owned());
        }
        fs::rename(&unfinished, result).map_err(|e| e.to_string())
    };
    // Compiled once, into one object for both.
    build(&object, &["-O2", "-g", "-Wall", "-Wextra", "-pthread", "-r", "-nostdlib"], &sources)
        .and_then(|()| build(&program, &["-pthread"], std::slice::from_ref(&object)))
        .unwrap_or_else(|why| panic!("tests/conformance does not compile:\n{why}"));
    let fixed = build(&fixed, &["-pthread", "-static"], &[object]).is_ok().then_some(fixed);
    Ok((program, fixed))
}

/// Two files with one content; if not, a failure says where they begin to differ.
pub fn expect_same(received: &Path, wanted: &Path) {
    // No sums are compared: those of gibibytes took a twentieth of the time of all whole-system tests.
    let said = Command::new("cmp").args([received, wanted]).output().expect("cmp");
    assert!(said.status.success(), "what was received differs: {said:?}");
}
