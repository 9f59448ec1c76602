//! `shortwire bench checksum` and `shortwire tune checksum` with the real measuring program. What
//! the figures are is not looked at: only that they are there, in the form that scripts rely on,
//! and that bad input loses nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::Value;
use system_tests::{Case, Outcome, case, plain, secs, shortwire, skip};

fn tool(name: &str, test: impl FnOnce(&Case) -> Outcome) {
    case(name, |c| if plain() { skip("needs the shortwire command") } else { test(c) });
}

/// Seconds. The tuner looks for rounds in which nothing else had the core, up to a minute for each of its
/// five cases.
const LONGEST: u64 = 600;

/// The end of `shortwire ARGS`, what it printed, and what it wrote to standard error. Profiles of
/// the user are those below `config` in the directory of the test.
fn shortwire_with(c: &Case, args: &[&str]) -> (ExitStatus, String, String) {
    let mut command = Command::new(shortwire());
    command.args(args).env("XDG_CONFIG_HOME", c.dir().join("config"));
    let mut run = c.start("command", &mut command);
    let status = run.wait(secs(LONGEST));
    (status, run.stdout(), run.stderr())
}

const SHORT: [&str; 6] = ["bench", "checksum", "--seconds", "0.01", "--repeat", "5"];

fn bench(c: &Case, args: &[&str]) -> (ExitStatus, String, String) {
    shortwire_with(c, &[&SHORT, args].concat())
}

fn object(c: &Case, args: &[&str]) -> Value {
    let (status, printed, said) = bench(c, &[args, &["--json"]].concat());
    assert!(status.success(), "{args:?}: {status}: {said}");
    serde_json::from_str(&printed).expect("one JSON object")
}

#[test]
fn every_row_has_the_fields_that_all_benches_share() {
    tool("json", |c| {
        let object = object(c, &["--only", "hot-64,mix-imix,latency-20,inline-20,copy-hot-64"]);
        assert_eq!(object["bench"], "checksum");
        assert!(
            object["machine"]["cpu"].is_string() && object["machine"]["counter_ghz"].is_number()
        );
        let rows = object["rows"].as_array().expect("rows");
        for case in ["hot-64", "mix-imix", "latency-20", "inline-20", "copy-hot-64"] {
            assert!(rows.iter().any(|row| row["name"] == case), "{case} is missing");
        }
        for row in rows {
            let number =
                |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"));
            assert_eq!(row["unit"], "ns", "{row}");
            assert!(row["name"].is_string() && row["against"].is_string(), "{row}");
            assert!(number("min") <= number("value") && number("value") <= number("max"), "{row}");
            assert!(number("ratio") > 0.0 && number("n") >= 5.0, "{row}");
        }
        let against =
            |name: &str| rows.iter().any(|row| row["name"] == "hot-64" && row["against"] == name);
        assert!(
            against("read") && against("memcpy") && against("smoltcp"),
            "limits and rivals stand beside it"
        );
        Ok(())
    });
}

#[test]
fn a_rival_that_sums_wrong_is_marked_and_not_timed() {
    tool("wrong", |c| {
        let object = object(c, &["--only", "hot-1M"]);
        let wrong = object["wrong"].as_array().expect("wrong ones");
        assert!(
            wrong.iter().any(|entry| entry["routine"] == "smoltcp"),
            "it sums in 32 bits: {wrong:?}"
        );
        assert!(!wrong.iter().any(|entry| entry["routine"] == "shortwire"), "ours must be right");
        let rows = object["rows"].as_array().expect("rows");
        assert!(!rows.iter().any(|row| row["against"] == "smoltcp"));
        Ok(())
    });
}

#[test]
fn a_kernel_by_name_is_the_one_that_is_used() {
    tool("kernel", |c| {
        assert_eq!(object(c, &["--only", "hot-64", "--kernel", "portable"])["kernel"], "portable");
        Ok(())
    });
}

#[test]
fn bad_input_is_told_and_loses_nothing() {
    tool("bad-input", |c| {
        let drawing = c.dir().join("curves.svg");
        fs::write(&drawing, "old").expect("a file");
        let drawing_path = drawing.to_string_lossy();
        for (args, word) in [
            (&["--kernel", "abacus"][..], "no such kernel"),
            (&["--only", "hot-63"], "hot-63"),
            (&["--only", "hot-64", "--svg", "/no/such/place.svg"], "/no/such/place.svg"),
            // One length is no curve.
            (&["--only", "hot-64", "--svg", &drawing_path], "two lengths"),
            (&["--repeat", "0"], "--repeat"),
            (&["--seconds", "soon"], "--seconds"),
            (&["--reproduce", "--only", "hot"], "--only"),
        ] {
            let (status, printed, said) =
                shortwire_with(c, &[&["bench", "checksum"], args].concat());
            assert!(status.code().is_some_and(|code| code != 0), "{args:?}: {status}");
            assert!(said.contains(word), "{args:?}: no `{word}` in: {said}");
            assert_eq!(printed, "", "{args:?}");
        }
        assert_eq!(fs::read_to_string(&drawing).expect("the file"), "old");
        assert_eq!(others_than(c.dir(), "curves.svg"), Vec::<String>::new());
        Ok(())
    });
}

/// What lies in the directory of the test beside a file and the command's output.
fn others_than(directory: &Path, known: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name != known && !name.ends_with(".out") && !name.ends_with(".err"))
        .collect()
}

#[test]
fn a_drawing_is_written() {
    tool("svg", |c| {
        let path = c.dir().join("curves.svg");
        let (status, _, said) =
            bench(c, &["--only", "hot-64,hot-1500", "--svg", &path.to_string_lossy()]);
        assert!(status.success(), "{status}: {said}");
        let text = fs::read_to_string(path).expect("the drawing");
        assert!(
            text.starts_with("<svg")
                && text.trim_end().ends_with("</svg>")
                && text.contains("shortwire")
        );
        Ok(())
    });
}

#[test]
fn damaged_and_foreign_profiles_are_a_warning() {
    tool("profiles", |c| {
        let place = c.dir().join("config/shortwire/checksum.profile");
        fs::create_dir_all(place.parent().expect("a parent")).expect("a directory");
        let foreign = "shortwire checksum profile 1\nprocessor = AuthenticAMD 99 1\nin-packet = 64\n\
                       next-packet-lines = 1\npackets-ahead = 1\nend\n";
        for (content, word) in
            [("nonsense", "damaged"), ("", "damaged"), (foreign, "another processor")]
        {
            fs::write(&place, content).expect("a file");
            let (status, printed, said) = bench(c, &["--only", "inline-20"]);
            assert!(status.success() && printed.contains("shortwire"), "{word}: {status}: {said}");
            assert!(said.contains(word) && said.contains("built-in"), "no `{word}` in: {said}");
        }
        Ok(())
    });
}

/// What they sum is right with any profile; a setting that cannot be used must be told, once and
/// before they begin.
#[test]
fn engines_and_scripts_use_the_profile() {
    tool("engine-profile", |c| {
        let place = c.dir().join("config/shortwire/checksum.profile");
        fs::create_dir_all(place.parent().expect("a parent")).expect("a directory");
        let network = c.dir().join("network.toml");
        let text = "links = [\"source.output -> sink.input\"]\n[apps.source]\nkind = \"Source\"\n[apps.sink]\nkind = \"Sink\"\n";
        fs::write(&network, text).expect("a file");
        let network = network.to_string_lossy();
        let commands: [&[&str]; 2] =
            [&["engine", &network, "--duration", "0.1"], &["snsh", "-e", "print('ran')"]];
        for args in commands {
            fs::write(&place, "nonsense").expect("a file");
            let (status, _, said) = shortwire_with(c, args);
            assert!(
                status.success() && said.matches("built-in profile is used").count() == 1,
                "{args:?}: {status}: {said}"
            );
            fs::remove_file(&place).expect("the file");
            let (status, _, said) = shortwire_with(c, args);
            assert!(status.success() && !said.contains("profile"), "{args:?}: {status}: {said}");
        }
        Ok(())
    });
}

#[test]
fn the_tuner_writes_what_the_command_reads_or_nothing() {
    tool("tune", |c| {
        let path = c.dir().join("config/shortwire/checksum.profile");
        let (status, printed, said) =
            shortwire_with(c, &["tune", "checksum", "--repeat", "40", "--json"]);
        if said.contains("cannot measure") {
            return skip(said);
        }
        let object: Value = serde_json::from_str(&printed).expect("one JSON object");
        assert_eq!(object["bench"], "tune-checksum");
        assert!(!object["rows"].as_array().expect("rows").is_empty());
        match status.code() {
            Some(0) => assert!(path.is_file() && object["written"].is_string(), "{said}"),
            Some(3) => assert!(!path.exists() && object["written"].is_null(), "{said}"),
            code => panic!("{code:?}: {said}"),
        }
        let (status, _, said) = bench(c, &["--only", "inline-20"]);
        assert!(status.success() && !said.contains("built-in"), "{status}: {said}");
        let elsewhere = c.dir().join("none/at/all.profile");
        let args = [
            "tune",
            "checksum",
            "--repeat",
            "40",
            "--dry-run",
            "--output",
            &elsewhere.to_string_lossy(),
        ];
        let (status, _, said) = shortwire_with(c, &args);
        if said.contains("cannot measure") {
            return skip(said);
        }
        assert!(matches!(status.code(), Some(0 | 3)), "{status}: {said}");
        assert!(!elsewhere.parent().expect("a parent").exists(), "--dry-run touches nothing");
        Ok(())
    });
}

#[test]
fn an_interrupt_ends_the_measuring_program() {
    tool("interrupt", |c| {
        let path = c.dir().join("curves.svg");
        let mut command = Command::new(shortwire());
        command
            .args([
                "bench",
                "checksum",
                "--only",
                "cold",
                "--repeat",
                "100000",
                "--seconds",
                "1m",
                "--svg",
            ])
            .arg(&path);
        let mut run = c.start("command", &mut command);
        let child = loop {
            let children = format!("/proc/{0}/task/{0}/children", run.pid());
            let children = fs::read_to_string(children).unwrap_or_default();
            if let Some(child) = children.split_whitespace().next().and_then(|pid| pid.parse().ok())
            {
                break Pid::from_raw(child).expect("a process id");
            }
            assert!(run.running(), "ended early: {}", run.stderr());
            std::thread::sleep(system_tests::millis(5));
        };
        run.signal(Signal::INT);
        let status = run.wait(secs(60));
        assert!(
            !status.success() && run.stderr().contains("interrupted"),
            "{status}: {}",
            run.stderr()
        );
        assert!(test_kill_process(child).is_err(), "the measuring program lives on");
        assert!(!path.exists(), "no drawing, and nothing in its place");
        assert_eq!(others_than(c.dir(), ""), Vec::<String>::new());
        Ok(())
    });
}
