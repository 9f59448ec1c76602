//! What the `SHORTWIRE_*` variables may say: one reading for the command line, the library and
//! `doctor`.

use core::sync::atomic::Ordering::Relaxed;

use crate::clc::Eid;
use crate::config::{self, CONFIG, IoUring, PeerPolicy};
use crate::kind::{self, Kind};
use crate::{bar, broker, directory, log, pnet, run_dir, trace};

/// All names that `check` or `set` knows, without the prefix.
pub const NAMES: [&str; 27] = [
    "AFTER",
    "AFTER_BYTES",
    "BROKER",
    "CONFIG",
    "COPY",
    "DISABLE",
    "DMB_SIZE",
    "GO",
    "INTEGRITY",
    "IO_URING",
    "IVSHMEM",
    "LOG",
    "MAX_MEMORY",
    "MAX_MEMORY_USER",
    "PARTITION",
    "PEER_POLICY",
    "PNETID",
    "PORT_PROOF",
    "PREFER",
    "QUIET",
    "RAW",
    "RENDEZVOUS",
    "RUN_DIR",
    "SEID",
    "SPIN",
    "TRACE_CLC",
    "UEID",
];

/// A whole number, with K, M or G behind it of 1024, and perhaps a B or an iB behind that.
pub fn size(text: &[u8]) -> Option<u64> {
    let split = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit {
        b"" | b"b" | b"B" => 0,
        [k, rest @ ..] => {
            let shift = match k.to_ascii_lowercase() {
                b'k' => 10,
                b'm' => 20,
                b'g' => 30,
                _ => return None,
            };
            let known = [&b""[..], b"b", b"ib"].iter().any(|unit| rest.eq_ignore_ascii_case(unit));
            known.then_some(shift)?
        }
    };
    let number =
        digits.iter().try_fold(0u64, |n, d| n.checked_mul(10)?.checked_add(u64::from(d - b'0')))?;
    if digits.is_empty() { None } else { number.checked_mul(1 << shift) }
}

/// A size that a receive buffer may have.
pub fn dmb_size(text: &[u8]) -> Option<u64> {
    size(text).filter(|n| n.is_power_of_two() && (16 << 10..=16 << 20).contains(n))
}

/// Yes or no.
pub fn switch(text: &[u8]) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word.as_bytes()));
    match () {
        () if is(["1", "true", "yes", "on"]) => Some(true),
        () if is(["0", "false", "no", "off"]) => Some(false),
        () => None,
    }
}

/// Whom to share memory with.
pub fn policy(text: &[u8]) -> Option<PeerPolicy> {
    let policies = [
        ("off", PeerPolicy::Off),
        ("same-uid", PeerPolicy::SameUid),
        ("verified", PeerPolicy::Verified),
    ];
    policies
        .into_iter()
        .find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, policy)| policy)
}

/// What uses io_uring gets this.
pub fn io_uring(text: &[u8]) -> Option<IoUring> {
    let answers = [("look", IoUring::Look), ("stay", IoUring::Stay), ("deny", IoUring::Deny)];
    answers
        .into_iter()
        .find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, mode)| mode)
}

/// Whether Go programs are followed, or those without libc.
pub fn follows_go(text: &[u8]) -> Option<bool> {
    let answers = [("auto", true), ("off", false)];
    answers
        .into_iter()
        .find(|(name, _)| text.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, follows)| follows)
}

/// A device by its name.
pub fn device(name: &[u8]) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()))
}

/// The devices of a list; what is none is left out.
fn devices(text: &[u8]) -> impl Iterator<Item = Kind> {
    text.split(|byte| *byte == b',').filter_map(device)
}

fn list(text: &[u8], is_one: impl FnMut(&[u8]) -> bool) -> bool {
    text.split(|byte| *byte == b',').all(is_one)
}

/// Whether variable `name`, without its prefix, may have this value; if not, what it may be. One
/// that is empty counts as not set, and of a variable that is none of ours nothing is known.
pub fn check(name: &[u8], value: &[u8]) -> Result<(), &'static str> {
    const SIZE: &str = "a number of bytes, or one with K, M or G behind it, such as 65536 or 64K";
    const SWITCH: &str = "1, true, yes or on, or else 0, false, no or off";
    let within =
        |range: core::ops::RangeInclusive<u64>| size(value).is_some_and(|n| range.contains(&n));
    let path = |longest: usize| value.first() == Some(&b'/') && value.len() <= longest;
    let (understood, expected) = match name {
        _ if value.is_empty() => return Ok(()),
        b"AFTER" => (within(0..=u64::from(u32::MAX)), "a number of sends and receives, such as 8"),
        b"AFTER_BYTES" | b"MAX_MEMORY" | b"MAX_MEMORY_USER" => (size(value).is_some(), SIZE),
        b"DMB_SIZE" => (dmb_size(value).is_some(), "a power of two from 16K to 16M, such as 256K"),
        b"SPIN" => (within(0..=1_000_000), "microseconds, 0 to 1000000"),
        b"PEER_POLICY" => (policy(value).is_some(), "off, same-uid or verified"),
        b"DISABLE" | b"SEID" | b"COPY" | b"INTEGRITY" | b"PORT_PROOF" | b"QUIET" => {
            (switch(value).is_some(), SWITCH)
        }
        b"PREFER" => {
            let known = list(value, |name| device(name).is_some());
            (known, "a comma-separated list of loopback, ivshmem, ism, verbs")
        }
        b"PARTITION" => (within(0..=u64::from(kind::PARTITIONS) - 1), "a partition, 0 to 126"),
        b"BROKER" => (within(1..=65_535), "a port, 1 to 65535"),
        b"UEID" => {
            let known = list(value, |name| {
                core::str::from_utf8(name).is_ok_and(|name| Eid::user(name).is_ok())
            });
            let few = value.split(|byte| *byte == b',').count() <= 4;
            (known && few, "at most 4 enterprise IDs, each 1 to 32 of A-Z 0-9 . - such as SHOP.1")
        }
        b"PNETID" => (pnet::is_list(value), "NAME=ID,..., such as ism=NET1"),
        b"RENDEZVOUS" => {
            (path(directory::LONGEST), "the absolute path of a directory, and not a long one")
        }
        b"CONFIG" => (path(255), "the absolute path of a file"),
        b"IVSHMEM" => (value == b"off" || path(255), "the absolute path of a bar, or off"),
        b"LOG" => {
            let known = value == log::JOURNAL || path(log::LONGEST);
            (known, "the absolute path of a file, or journald")
        }
        b"IO_URING" => (io_uring(value).is_some(), "look, stay or deny"),
        b"GO" | b"RAW" => (follows_go(value).is_some(), "auto or off"),
        _ => return Ok(()),
    };
    if understood { Ok(()) } else { Err(expected) }
}

/// Applies one `SHORTWIRE_*` variable (name without the prefix) to this process. What it may say,
/// `check` tells; whatever else it says has no effect.
pub fn set(name: &[u8], value: &[u8]) {
    let number = size(value);
    let on = switch(value);
    match name {
        b"AFTER" => number.map_or((), |n| CONFIG.after.store(n.min(1 << 30) as u32, Relaxed)),
        b"AFTER_BYTES" => number.map_or((), |n| CONFIG.after_bytes.store(n, Relaxed)),
        b"DMB_SIZE" => dmb_size(value).map_or((), |n| CONFIG.dmb_size.store(n as u32, Relaxed)),
        b"MAX_MEMORY" => number.map_or((), |n| CONFIG.max_memory.store(n.max(1), Relaxed)),
        b"MAX_MEMORY_USER" => {
            number.map_or((), |n| CONFIG.max_memory_user.store(n.max(1), Relaxed))
        }
        b"RENDEZVOUS" => directory::set(value),
        b"IVSHMEM" => bar::set(value),
        b"BROKER" => number.filter(|n| (1..65_536).contains(n)).map_or((), broker::set_port),
        b"RUN_DIR" => run_dir::set(value),
        b"SPIN" => {
            number.map_or((), |n| CONFIG.spin_ns.store(n.min(1_000_000) as u32 * 1000, Relaxed))
        }
        b"PEER_POLICY" => policy(value).map_or((), |policy| CONFIG.set_policy(policy)),
        b"DISABLE" if on == Some(true) => CONFIG.disable(),
        b"UEID" => {
            let names = value
                .split(|byte| *byte == b',')
                .filter_map(|name| core::str::from_utf8(name).ok());
            config::set_ueids(names.filter_map(|name| Eid::user(name).ok()));
        }
        b"SEID" => on.map_or((), |on| CONFIG.seid.store(on, Relaxed)),
        b"PNETID" => pnet::set(value),
        b"TRACE_CLC" => trace::set_path(value),
        b"LOG" => log::set_path(value),
        b"PREFER" => CONFIG.set_prefer(devices(value)),
        b"PARTITION" => number
            .filter(|n| *n < u64::from(kind::PARTITIONS))
            .map_or((), |n| kind::ISM.set_partition(n as u16)),
        b"INTEGRITY" => on.map_or((), |on| CONFIG.integrity.store(on, Relaxed)),
        b"PORT_PROOF" => on.map_or((), |on| CONFIG.port_proof.store(on, Relaxed)),
        b"COPY" => on.map_or((), |on| CONFIG.copy.store(on, Relaxed)),
        b"IO_URING" => io_uring(value).map_or((), |mode| CONFIG.set_io_uring(mode)),
        b"GO" => follows_go(value).map_or((), |follows| CONFIG.go.store(follows, Relaxed)),
        b"RAW" => follows_go(value).map_or((), |follows| CONFIG.raw.store(follows, Relaxed)),
        _ => {}
    }
}

/// Whether a setting says that every connection stays TCP.
pub fn is_off(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"DISABLE" => switch(value) == Some(true),
        b"PEER_POLICY" => policy(value) == Some(PeerPolicy::Off),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_units_and_refuse_words() {
        assert_eq!(size(b"64K"), Some(65536));
        assert_eq!(size(b"1m"), Some(1 << 20));
        assert_eq!(size(b"64MB"), Some(64 << 20));
        assert_eq!(size(b"3GiB"), Some(3 << 30));
        assert_eq!(size(b"7"), Some(7));
        assert_eq!(size(b"7b"), Some(7));
        assert_eq!(size(b"18446744073709551615"), Some(u64::MAX));
        for bad in [
            "18446744073709551616",
            "18014398509481984K",
            "",
            "K",
            "4x",
            "4Kx",
            "-1",
            "0x10",
            "1 M",
            "64iB",
        ] {
            assert_eq!(size(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn switches_are_said_in_many_ways() {
        assert!(
            ["1", "true", "YES", "On"].iter().all(|word| switch(word.as_bytes()) == Some(true))
        );
        assert!(
            ["0", "False", "no", "OFF"].iter().all(|word| switch(word.as_bytes()) == Some(false))
        );
        assert!(["", "2", "maybe", "disable"].iter().all(|word| switch(word.as_bytes()).is_none()));
    }

    #[test]
    fn what_is_not_understood_is_told() {
        let refused = |setting: &str| {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            check(name.as_bytes(), value.as_bytes()).is_err()
        };
        for good in [
            "PEER_POLICY=Off",
            "PEER_POLICY=verified",
            "DISABLE=true",
            "MAX_MEMORY=64MB",
            "PREFER=ism,Loopback",
            "PREFER=",
            "AFTER=",
            "SEID=off",
            "RENDEZVOUS=/run/meet",
            "IVSHMEM=off",
            "CONFIG=/etc/other.conf",
            "UEID=A,B",
            "PNETID=ism=NET1,lo=NET1",
            "SPIN=0",
            "NO_SUCH_THING=whatever",
        ] {
            assert!(!refused(good), "{good}");
        }
        for bad in [
            "PEER_POLICY=none",
            "DISABLE=maybe",
            "MAX_MEMORY=much",
            "PREFER=ismm",
            "PREFER=loopback,",
            "AFTER=-1",
            "AFTER=soon",
            "DMB_SIZE=100K",
            "SPIN=often",
            "SPIN=1000001",
            "PARTITION=127",
            "BROKER=0",
            "RENDEZVOUS=meet",
            "IVSHMEM=resource2",
            "CONFIG=other.conf",
            "UEID=lower",
            "UEID=A,B,C,D,E",
            "PNETID=ism",
            "IO_URING=maybe",
            "GO=maybe",
            "COPY=2",
        ] {
            assert!(refused(bad), "{bad}");
        }
    }

    #[test]
    fn all_names_are_listed() {
        // As the two functions above have them: b"NAME" at the beginning of an arm.
        let arms = include_str!("setting.rs").split("#[cfg(test)]").next().unwrap();
        let is_name = |word: &&str| {
            word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
        };
        let mut found: Vec<&str> = arms
            .split("b\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .filter(is_name)
            .collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, NAMES);
    }

    #[test]
    fn the_order_of_devices_is_what_was_asked_for() {
        let config = config::Config::new();
        let order = |text: &[u8]| {
            config.set_prefer(devices(text));
            config.prefer().collect::<Vec<_>>()
        };
        let (loopback, ism, ivshmem, verbs) =
            (Kind::Loopback, Kind::Ism, Kind::Ivshmem, Kind::Verbs);
        assert_eq!(order(b""), [loopback, ivshmem, ism, verbs]);
        assert_eq!(order(b"ivshmem,loopback"), [ivshmem, loopback]);
        assert_eq!(order(b"ism,loopback"), [ism, loopback]);
        assert_eq!(order(b"ism"), [ism]);
        assert_eq!(order(b"loopback,loopback,verbs"), [loopback, verbs]);
        assert_eq!(order(b"verbs,ism,loopback,ism"), [verbs, ism, loopback]);
        assert_eq!(order(b"wire"), [loopback, ivshmem, ism, verbs], "none that exists");
    }
}
