//! Subcommands as modules of scripts.

use super::*;

#[test]
fn programs_run_from_scripts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("64.pcap");
    let code = format!(
        "local blaster = require('program.packetblaster.packetblaster')
        blaster.run {{ 'synth', '--pcap', '{0}', '--count', 100, '--json' }}
        require('program.packetblaster.replay.replay').run {{ '{0}', '--no-loop', '--json', 'model:0' }}
        require('program.ps.ps').run()
        require('program.snsh.snsh').run {{ '-e', 'print(\"inner\", ...)' }}
        print('then')",
        file.display()
    );
    let output = Command::new(env!("CARGO_BIN_EXE_shortwire"))
        .env("SHORTWIRE_RUN_DIR", folder.path())
        .args(["snsh", "-e", &code])
        .output()
        .expect("the command under test");
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert_eq!(text.matches("\"packets\": 100").count(), 2, "{text}");
    assert!(text.contains("\"to\": \"model:0\"") && text.ends_with("inner\nthen\n"), "{text}");
    assert_eq!(std::fs::metadata(&file).expect("the capture").len(), 24 + 100 * (16 + 60));
}

#[test]
fn programs_that_fail_and_words_that_are_none_are_told() {
    for (code, answer) in [
        (
            "require('program.packetblaster.packetblaster').run { 'replay', '/no/such.pcap', 'model:0' }",
            "(command line):1: `shortwire packetblaster replay /no/such.pcap model:0` ended with exit status: 1",
        ),
        (
            "require('program.top.top').run('x')",
            "the parameters are a list of words such as { \"--help\" }, not a string",
        ),
        ("require('program.top.top').run { {} }", "parameter 1 is a table instead of a word"),
        (
            "require('program.packetblaster.packetblster')",
            "did you mean 'program.packetblaster.packetblaster'?",
        ),
        ("require('apps.basic.basic_app')", "did you mean 'apps.basic.basic_apps'?"),
    ] {
        let text = refuses(code);
        assert!(text.contains(answer), "{code}\n{text}");
    }
}

/// As the source document calls it, with a card in the place of an interface.
#[test]
fn the_packetblaster_takes_a_card() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("64.pcap");
    let blast = |words: &[&str]| {
        let program = env!("CARGO_BIN_EXE_shortwire");
        Command::new(program)
            .arg("packetblaster")
            .args(words)
            .output()
            .expect("the command under test")
    };
    let path = file.to_str().expect("UTF-8");
    assert!(blast(&["synth", "--pcap", path, "--sizes", "68", "--count", "16"]).status.success());
    let output = blast(&[
        "replay",
        path,
        "82:00.1",
        "--model",
        "0000:82:00.1=model:0",
        "--count",
        "100000",
        "--json",
    ]);
    assert!(
        output.status.success() && stdout(&output).contains("\"packets\": 100000"),
        "{}",
        stderr(&output)
    );
    // A device of this machine's would be driven.
    if std::path::Path::new("/sys/bus/pci/devices/0000:82:00.1").exists() {
        eprintln!("skipped: there is a device at 0000:82:00.1");
    } else {
        let output = blast(&["replay", path, "0000:82:00.1"]);
        let text = stderr(&output);
        assert!(output.status.code() == Some(1) && text.contains("no PCI"), "{text}");
    }
    let output = blast(&["replay", path, "eth0"]);
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("is named by --if"),
        "{}",
        stderr(&output)
    );
}
