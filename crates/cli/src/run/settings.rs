//! Options as the library reads them: from the environment, as plain numbers and words.

use clap::ValueEnum;
use smc::clc::Eid;
use smc::directory::LONGEST;
use smc::pnet::PnetId;

use super::args::Run;

/// What to put into the environment of the program: only what was asked for, so the library's
/// defaults stay its own.
pub fn variables(args: &Run) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    let mut put = |name, value: Option<String>| variables.extend(value.map(|value| (name, value)));
    put("SHORTWIRE_AFTER", args.after.map(|value| value.to_string()));
    put("SHORTWIRE_AFTER_BYTES", args.after_bytes.map(|value| value.to_string()));
    put("SHORTWIRE_DMB_SIZE", args.dmb_size.map(|value| value.to_string()));
    put("SHORTWIRE_MAX_MEMORY", args.max_memory.map(|value| value.to_string()));
    put("SHORTWIRE_MAX_MEMORY_USER", args.max_memory_user.map(|value| value.to_string()));
    put("SHORTWIRE_SPIN", args.spin.map(|value| value.to_string()));
    put("SHORTWIRE_PEER_POLICY", args.peer_policy.map(word));
    put("SHORTWIRE_PREFER", list(args.prefer.iter().map(|&device| word(device))));
    put("SHORTWIRE_PARTITION", args.partition.map(|value| value.to_string()));
    put("SHORTWIRE_RENDEZVOUS", args.rendezvous.clone());
    put("SHORTWIRE_IVSHMEM", args.ivshmem.clone());
    put("SHORTWIRE_BROKER", args.broker.map(|value| value.to_string()));
    put("SHORTWIRE_UEID", list(args.ueid.iter().cloned()));
    put("SHORTWIRE_SEID", args.seid.map(word));
    put("SHORTWIRE_PNETID", list(args.pnetid.iter().cloned()));
    put("SHORTWIRE_DISABLE", args.disable.then(|| "1".into()));
    put("SHORTWIRE_CONFIG", args.config.clone());
    put("SHORTWIRE_IO_URING", args.io_uring.map(word));
    put("SHORTWIRE_GO", args.go.map(word));
    put("SHORTWIRE_RAW", args.raw.map(word));
    put("SHORTWIRE_COPY", args.copy.then(|| "1".into()));
    put("SHORTWIRE_INTEGRITY", args.integrity.then(|| "1".into()));
    put("SHORTWIRE_PORT_PROOF", args.port_proof.then(|| "1".into()));
    put("SHORTWIRE_LOG", args.log.clone());
    put("SHORTWIRE_QUIET", args.quiet.then(|| "1".into()));
    variables
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

/// Joined by commas, each once, in the order given.
fn list(values: impl Iterator<Item = String>) -> Option<String> {
    let mut unique: Vec<String> = Vec::new();
    for value in values {
        if !unique.contains(&value) {
            unique.push(value);
        }
    }
    (!unique.is_empty()).then(|| unique.join(","))
}

/// The protocol's rule for user-defined enterprise IDs.
pub fn parse_ueid(text: &str) -> Result<String, String> {
    match Eid::user(text) {
        Ok(_) => Ok(text.to_string()),
        Err(error) => Err(format!("{error}; give 1 to 32 of A-Z 0-9 . - such as SHOP.1")),
    }
}

/// `NAME=ID`.
pub fn parse_pnetid(text: &str) -> Result<String, String> {
    let (name, id) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("give NAME=ID, such as ism=NET1")?;
    let id = PnetId::parse(id.as_bytes()).map_err(|error| format!("{error}, not {id:?}"))?;
    Ok(format!("{name}={id}"))
}

/// An absolute path: the library's programs may change their directory. It need not be there yet.
pub fn parse_rendezvous(text: &str) -> Result<String, String> {
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    let path = path.to_str().unwrap_or(text).to_string();
    match path.len() {
        n if n > LONGEST => {
            Err(format!("{n} bytes are too long for the path of a socket in it; {LONGEST} are not"))
        }
        _ => Ok(path),
    }
}

/// An absolute path, or `journald`.
pub fn parse_log(text: &str) -> Result<String, String> {
    if text.as_bytes() == smc::log::JOURNAL {
        return Ok(text.into());
    }
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    let path = path.to_str().ok_or("not a path in UTF-8")?;
    match path.len() {
        n if n > smc::log::LONGEST => Err(format!("{n} bytes are too long")),
        _ => Ok(path.to_string()),
    }
}

/// An absolute path for `--config`: the program, and those that it starts, may change their folder.
pub fn parse_file(text: &str) -> Result<String, String> {
    let file = std::path::absolute(text).map_err(|error| error.to_string())?;
    match file.to_str() {
        Some(path) if path.len() <= 255 => Ok(path.to_string()),
        _ => Err("its path is longer than 255 bytes, or no text".into()),
    }
}

/// An absolute path, or `off`.
pub fn parse_ivshmem(text: &str) -> Result<String, String> {
    const LONGEST: usize = 255;
    let path = if text == "off" {
        text.into()
    } else {
        std::path::absolute(text).map_err(|error| error.to_string())?
    };
    let path = path.to_str().ok_or("not a path in UTF-8")?;
    if path.len() > LONGEST {
        Err(format!("{} bytes are too long", path.len()))
    } else {
        Ok(path.to_string())
    }
}

/// `1`, `no`, `true`, `off`.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    let hint = || "give 1, true, yes or on, or else 0, false, no or off".to_string();
    smc::setting::switch(text.as_bytes()).ok_or_else(hint)
}

/// The receive buffer that the peer writes into: SMC-D's sizes are powers of two.
pub fn parse_dmb_size(text: &str) -> Result<u64, String> {
    let hint = || "give a power of two from 16K to 16M, such as 256K".to_string();
    smc::setting::dmb_size(text.as_bytes()).ok_or_else(hint)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Run, clap::Error> {
        Run::try_parse_from(["run"].iter().chain(arguments))
    }

    #[test]
    fn nothing_asked_nothing_set() {
        assert!(variables(&parse(&["--", "ls", "-l"]).unwrap()).is_empty());
    }

    #[test]
    fn options_become_plain_values() {
        let run = parse(&[
            "--after=0",
            "--after-bytes",
            "1M",
            "--dmb-size=256K",
            "--max-memory=1G",
            "--max-memory-user=2G",
            "--spin",
            "20",
            "--peer-policy",
            "same-uid",
            "--prefer",
            "loopback,ism,loopback",
            "--partition=7",
            "--rendezvous=/run/meet",
            "--ivshmem=/sys/bus/pci/devices/0000:00:04.0/resource2",
            "--broker=7000",
            "--ueid",
            "SHOP.1",
            "--seid=off",
            "--pnetid",
            "ism=net1,lo=NET1",
            "--disable",
            "--config=/etc/other.conf",
            "--io-uring=deny",
            "--go=off",
            "--raw=auto",
            "--copy",
            "--integrity",
            "--port-proof",
            "--log=/var/log/shortwire.log",
            "-q",
            "ls",
            "--after",
            "x",
        ])
        .unwrap();
        assert_eq!(
            run.program,
            ["ls", "--after", "x"],
            "what follows the program is the program's"
        );
        let expected = [
            ("SHORTWIRE_AFTER", "0"),
            ("SHORTWIRE_AFTER_BYTES", "1048576"),
            ("SHORTWIRE_DMB_SIZE", "262144"),
            ("SHORTWIRE_MAX_MEMORY", "1073741824"),
            ("SHORTWIRE_MAX_MEMORY_USER", "2147483648"),
            ("SHORTWIRE_SPIN", "20"),
            ("SHORTWIRE_PEER_POLICY", "same-uid"),
            ("SHORTWIRE_PREFER", "loopback,ism"),
            ("SHORTWIRE_PARTITION", "7"),
            ("SHORTWIRE_RENDEZVOUS", "/run/meet"),
            ("SHORTWIRE_IVSHMEM", "/sys/bus/pci/devices/0000:00:04.0/resource2"),
            ("SHORTWIRE_BROKER", "7000"),
            ("SHORTWIRE_UEID", "SHOP.1"),
            ("SHORTWIRE_SEID", "off"),
            ("SHORTWIRE_PNETID", "ism=NET1,lo=NET1"),
            ("SHORTWIRE_DISABLE", "1"),
            ("SHORTWIRE_CONFIG", "/etc/other.conf"),
            ("SHORTWIRE_IO_URING", "deny"),
            ("SHORTWIRE_GO", "off"),
            ("SHORTWIRE_RAW", "auto"),
            ("SHORTWIRE_COPY", "1"),
            ("SHORTWIRE_INTEGRITY", "1"),
            ("SHORTWIRE_PORT_PROOF", "1"),
            ("SHORTWIRE_LOG", "/var/log/shortwire.log"),
            ("SHORTWIRE_QUIET", "1"),
        ];
        let got = variables(&run);
        assert_eq!(
            got.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>(),
            expected
        );
        let mut given: Vec<_> = got.iter().map(|(name, _)| (*name).to_string()).collect();
        given.sort_unstable();
        assert_eq!(given, arguments(), "each argument is handed to the library");
    }

    /// The variables that arguments stand for, in order.
    fn arguments() -> Vec<String> {
        let command = Run::command();
        let variable = |argument: &clap::Arg| Some(argument.get_env()?.to_str()?.to_string());
        let mut variables: Vec<_> = command.get_arguments().filter_map(variable).collect();
        variables.sort_unstable();
        variables
    }

    /// A setting is in the arguments, in the library's two lists of what it may say and what that
    /// does, and in the document, or in none of them.
    #[test]
    fn each_setting_is_everywhere() {
        let document = include_str!("../../../../doc/options.md");
        let (checks, sets) = include_str!("../../../smc/src/setting.rs")
            .split_once("pub fn set(")
            .expect("what is checked stands before what is set");
        let variables = arguments();
        for variable in &variables {
            let name = variable.strip_prefix("SHORTWIRE_").expect("our prefix");
            let quoted = format!("b\"{name}\"");
            assert!(checks.contains(&quoted), "setting.rs `check` lacks {name}");
            assert!(
                smc::setting::check(name.as_bytes(), b"\x01").is_err(),
                "{name} may say anything"
            );
            // The first is for `run` alone, the second is read before there is anything to set.
            let elsewhere = ["QUIET", "CONFIG"].contains(&name);
            assert!(elsewhere || sets.contains(&quoted), "setting.rs `set` lacks {name}");
            let row = |line: &&str| {
                [format!("| `{variable}` |"), format!("| `{variable}=1` |")]
                    .iter()
                    .any(|cell| line.contains(cell))
            };
            let rows = document.lines().filter(row).count();
            assert_eq!(rows, 1, "doc/options.md has {rows} rows of {variable}");
        }
        let options = document.lines().filter(|line| line.starts_with("| `--")).count();
        assert_eq!(options, variables.len(), "doc/options.md has options that there are not");
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in [
            ["--dmb-size", "100K"],
            ["--after", "-1"],
            ["--spin", "often"],
            ["--peer-policy", "none"],
            ["--prefer", "carrier-pigeon"],
            ["--partition", "127"],
            ["--rendezvous", ""],
            ["--rendezvous", &format!("/{}", "x".repeat(LONGEST))],
            ["--ivshmem", ""],
            ["--broker", "0"],
            ["--ueid", "lower"],
            ["--seid", "maybe"],
            ["--pnetid", "ism"],
            ["--pnetid", "ism=no-id"],
            ["--pnetid", "=NET1"],
            ["--io-uring", "maybe"],
            ["--go", "maybe"],
            ["--raw", "maybe"],
            ["--log", ""],
            ["--no-such", "option"],
        ] {
            assert!(parse(&[bad[0], bad[1], "--", "ls"]).is_err(), "{bad:?}");
        }
        assert!(parse(&[]).is_err(), "a program is needed");
    }

    #[test]
    fn ueids() {
        for good in ["A", "0", "EX-1.2", &"Z".repeat(32)] {
            assert!(parse_ueid(good).is_ok(), "{good}");
        }
        for bad in ["", ".A", "-A", "A..B", "a", "A B", &"Z".repeat(33)] {
            assert!(parse_ueid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dmb_sizes_are_the_protocols() {
        assert_eq!(parse_dmb_size("16K"), Ok(16 << 10));
        assert_eq!(parse_dmb_size("16M"), Ok(16 << 20));
        for bad in ["8K", "32M", "100K", "0", "many"] {
            assert!(parse_dmb_size(bad).is_err(), "{bad}");
        }
    }
}
