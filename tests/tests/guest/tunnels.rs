//! Tunnels and translation against a kernel that has all of them: the engine's own tests of its apps
//! beside the kernel's run in a guest, where none may be skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::guest::Guest;
use system_tests::{case, need, secs};

const MODULES: [&str; 26] = [
    "tun",
    "veth",
    "vxlan",
    "ip_gre",
    "ip6_gre",
    "l2tp_eth",
    "l2tp_ip",
    "l2tp_ip6",
    "esp4",
    "esp6",
    "xfrm_user",
    "xfrm_interface",
    "gcm",
    "ghash-generic",
    "aesni-intel",
    "ctr",
    "drbg",
    "sha512_generic",
    "seqiv",
    "echainiv",
    "crc32c_generic",
    "nft_chain_nat",
    "nft_ct",
    "nft_masq",
    "nft_nat",
    "nft_objref",
];

/// The program of the tests, as cargo builds it with all unit tests: for its package alone cargo would build
/// it, and what it is made of, once more, with the features that this one asks for.
fn program() -> PathBuf {
    let arguments = "test --quiet --workspace --exclude system-tests --test linux --no-run";
    let said = Command::new(env!("CARGO"))
        .args(arguments.split(' '))
        .args(["--message-format", "json"])
        .output()
        .expect("cargo runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let text = String::from_utf8_lossy(&said.stdout);
    let names = text.split("\"executable\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    names.map(PathBuf::from).find(|path| is_linux(path)).expect("the name of a program")
}

fn is_linux(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("linux-"))
}

#[test]
fn the_kernels_tunnels_are_the_other_end() {
    case("tunnels", |case| {
        let (ip, nft) = (need("ip")?, need("nft")?);
        let program = program();
        let name = program.file_name().expect("a name").to_string_lossy().into_owned();
        let mut guest = Guest::new()?;
        guest.modules(&MODULES).program(&ip).program(&nft).program(&program);
        // Each test has a namespace of its own; the emulator has one processor to spare.
        let script = format!("ip link set lo up; {name} --test-threads=1 2>&1");
        let ended = guest.run(case, "", &script, secs(600));
        // The failed tests alone: of all that the guest says a report may show only an end.
        if let Some(at) = ended.output.find("\nfailures:") {
            panic!("{}", &ended.output[at..]);
        }
        ended.success();
        for last in ["tunnels::gretap", "nat::nftables_behind_nat"] {
            assert!(ended.output.contains(&format!("test {last} ... ok")), "{}", ended.output);
        }
        assert!(!ended.output.contains("skipped: "), "{}", ended.output);
        Ok(())
    });
}
