//! Lines and what is wrong with them, files and whom they belong to, and what matches, beside an
//! oracle that knows less.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use matching::{Glob, Net, Ports};

fn file(text: &str) -> Vec<File> {
    vec![File { path: b"test.conf".to_vec(), text: text.as_bytes().to_vec() }]
}

const REDIS: Program<'static> = Program {
    file: b"/usr/bin/redis-check-rdb",
    started: b"/usr/bin/redis-server",
    args: b"--port 6380 --save ",
    user: 104,
    passwd: b"root:x:0:0::/root:/bin/sh\nredis:x:104:110::/var/lib/redis:/bin/false\n",
};

fn end(text: &str) -> Addr {
    let socket: std::net::SocketAddr = text.parse().expect("an address");
    let mut ip = [0; 16];
    let family = match socket.ip() {
        std::net::IpAddr::V4(v4) => {
            ip[..4].copy_from_slice(&v4.octets());
            libc::AF_INET
        }
        std::net::IpAddr::V6(v6) => {
            ip = v6.octets();
            libc::AF_INET6
        }
    };
    Addr { family: family as u16, port: socket.port(), ip }
}

/// What the files say of the program: settings with their lines, and the line that decides.
fn said(text: &str) -> (Vec<String>, Option<(Action, u32)>, usize) {
    let files = file(text);
    let verdict = judge(&files, &REDIS);
    assert_eq!(verdict.problems, [], "{text}");
    let show = |said: &Said<'_>| {
        format!("{}={}:{}", said.setting.name, String::from_utf8_lossy(said.value), said.at.line)
    };
    (
        verdict.settings.iter().map(show).collect(),
        verdict.otherwise.map(|(action, at)| (action, at.line)),
        verdict.rules.len(),
    )
}

#[test]
fn settings_and_comments() {
    let (settings, rule, _) = said(
        "# all of it\n\n  spin = 0 # never\ndmb-size=64K\n prefer =  \"ism,loopback\"  # two\nspin = 9\n",
    );
    assert_eq!(settings, ["spin=0:3", "dmb-size=64K:4", "prefer=ism,loopback:5"]);
    assert_eq!(rule, None);
}

#[test]
fn the_first_rule_for_the_program_decides() {
    for (line, holds) in [
        ("tcp", true),
        ("tcp program=redis-server", true),
        ("tcp program=redis-check-rdb", true),
        ("tcp program=redis", false),
        ("tcp program=redis-*", true),
        ("tcp program=/usr/bin/redis-server", true),
        ("tcp program=/usr/bin/*", true),
        ("tcp program=/usr/sbin/*", false),
        ("tcp program=\"redis-server\" args=\"*--port 6380*\"", true),
        ("tcp program=redis-server args=\"*--port 6379*\"", false),
        ("tcp user=redis", true),
        ("tcp user=104", true),
        ("tcp user=root", false),
        ("tcp user=nobody-has-this-name", false),
    ] {
        let (_, rule, _) = said(&format!("{line}\nshare\n"));
        let expected = if holds { (Action::Tcp, 1) } else { (Action::Share, 2) };
        assert_eq!(rule, Some(expected), "{line}");
    }
}

#[test]
fn settings_of_a_rule_go_before_those_that_stand_alone() {
    let (settings, rule, rules) = said(
        "spin = 1\nafter = 2\nshare port=5\nshare program=redis-server spin=3 copy=on\nshare spin=4\n",
    );
    assert_eq!(settings, ["spin=3:4", "copy=on:4", "after=2:2"]);
    assert_eq!((rule, rules), (Some((Action::Share, 4)), 1));
}

#[test]
fn rules_of_connections() {
    let files = file(
        "tcp local=127.0.0.1:6379 direction=in\nsame-uid peer=10.0.0.0/8\nshare peer=[fd00::/8]:80-90\ntcp",
    );
    let verdict = judge(&files, &REDIS);
    let ask = |names: [&str; 2], direction| {
        let names = names.map(end);
        for rule in &verdict.rules {
            if rule.conn.holds(&names, || direction)? {
                return Some(rule.at.line);
            }
        }
        Some(4)
    };
    let (inward, outward) = (Some(Direction::In), Some(Direction::Out));
    assert_eq!(ask(["127.0.0.1:6379", "127.0.0.1:40000"], inward), Some(1));
    assert_eq!(ask(["127.0.0.1:6379", "127.0.0.1:40000"], outward), Some(4));
    assert_eq!(ask(["127.0.0.1:6379", "127.0.0.1:40000"], None), None, "not yet");
    assert_eq!(ask(["127.0.0.1:1", "10.3.0.1:1"], None), Some(2));
    assert_eq!(ask(["127.0.0.1:1", "[::ffff:10.3.0.1]:1"], None), Some(2));
    assert_eq!(ask(["[::1]:1", "[fd12::1]:85"], None), Some(3));
    assert_eq!(ask(["[::1]:1", "[fd12::1]:91"], None), Some(4));
}

/// Each has the text that tells what to do about it.
#[test]
fn what_is_wrong_with_a_line_is_told() {
    for (line, told) in [
        ("sharee program=x", "neither a rule nor a setting"),
        ("spin 20", "NAME = VALUE"),
        ("splin = 20", "neither a rule nor a setting"),
        ("spin = often", "microseconds, 0 to 1000000"),
        ("spin =", "leave the line out"),
        ("prefer = \"ism", "no end"),
        ("prefer = \"ism\" loopback", "KEY=VALUE"),
        ("tcp program", "KEY=VALUE"),
        ("tcp program = x", "KEY=VALUE"),
        ("tcp programme=x", "it may have program, args"),
        ("tcp port=80 port=81", "twice"),
        ("tcp spin=1 spin=2", "twice"),
        ("tcp port=0", "a port, or a range"),
        ("tcp port=90-80", "a port, or a range"),
        ("tcp port=65536", "a port, or a range"),
        ("tcp peer=127.0.0", "an address such as"),
        ("tcp peer=10.0.0.0/33", "an address such as"),
        ("tcp peer=::1/129", "an address such as"),
        ("tcp peer=[::1", "an address such as"),
        ("tcp direction=up", "in or out"),
        ("tcp program=bin/x", "the path of a program"),
        ("tcp user=a:b", "the name of a user"),
        ("tcp user=4294967296", "the name of a user"),
        ("tcp args=\"x", "no end"),
        ("share dmb-size=100K", "a power of two"),
        ("share port=80 spin=1", "for whole programs"),
        ("share peer-policy=off", "first word of a rule"),
    ] {
        let files = file(line);
        let verdict = judge(&files, &REDIS);
        let said: Vec<_> = verdict.problems.iter().map(|(_, why)| why.to_string()).collect();
        assert!(said.len() == 1 && said[0].contains(told), "{line}: {said:?}");
    }
    let files = file("\u{1b}[2J\n");
    assert!(!judge(&files, &REDIS).problems[0].1.to_string().contains('\u{1b}'));
}

fn places(folder: &Path) -> Places {
    let path = |name: &str| folder.join(name).as_os_str().as_bytes().to_vec();
    Places { named: path("named"), own: path("own"), system: path("system") }
}

#[test]
fn files_count_in_their_order_if_they_are_to_be_trusted() {
    let folder = tempfile();
    let me = rustix::process::geteuid().as_raw();
    let write = |name: &str, mode: u32| {
        let path = folder.join(name);
        fs::write(&path, name).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    let mut places = places(&folder);
    places.named.clear();
    let found = Found::read(&places, me);
    assert!(found.files.is_empty() && found.refused.is_empty() && !found.is_broken());
    // Only root's files count for the system, and this may not be root.
    let own = if me == 0 {
        &["named", "own", "system.d/1.conf", "system.d/2.conf", "system"][..]
    } else {
        &["named", "own"][..]
    };
    fs::create_dir(folder.join("system.d")).expect("a folder");
    own.iter().for_each(|name| write(name, 0o644));
    places.named = folder.join("named").as_os_str().as_bytes().to_vec();
    for other in ["system.d/.3.conf", "system.d/4.conf~", "system.d/conf"] {
        write(other, 0o644);
    }
    let found = Found::read(&places, me);
    let texts: Vec<_> = found.files.iter().map(|file| file.text.as_slice()).collect();
    assert_eq!(texts, own.iter().map(|name| name.as_bytes()).collect::<Vec<_>>());
    // Of those that may not be trusted the user's own is passed over.
    for (name, broken) in [("own", false), ("named", true)] {
        write(name, 0o664);
        let found = Found::read(&places, me);
        assert_eq!(found.refused.len(), 1);
        assert_eq!((found.refused[0].why, found.is_broken()), (Unread::Writable, broken), "{name}");
        write(name, 0o644);
    }
    let strange = Found::read(&places, me.wrapping_add(1));
    assert_eq!(strange.is_broken(), me != 0);
    fs::write(folder.join("named"), vec![b'#'; syntax::LONGEST + 1]).expect("written");
    assert_eq!(Found::read(&places, me).refused[0].why, Unread::TooLong);
    fs::remove_file(folder.join("named")).expect("removed");
    assert_eq!(Found::read(&places, me).refused[0].why, Unread::Missing);
    fs::create_dir(folder.join("named")).expect("a folder");
    assert_eq!(Found::read(&places, me).refused[0].why, Unread::NoFile);
    fs::remove_dir_all(&folder).expect("removed");
}

fn tempfile() -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("shortwire-policy-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir(&path).expect("a folder");
    path
}

#[test]
fn places_follow_the_environment() {
    let of = |pairs: &[(&str, &'static str)]| {
        let pairs: BTreeMap<_, _> = pairs.iter().copied().collect();
        let places = Places::of(|name| pairs.get(name).map(|value| value.as_bytes()));
        [places.named, places.own].map(|path| String::from_utf8(path).expect("text"))
    };
    assert_eq!(of(&[]), ["", ""]);
    assert_eq!(of(&[("HOME", "/h")]), ["", "/h/.config/shortwire.conf"]);
    assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), ["", "/x/shortwire.conf"]);
    assert_eq!(of(&[("HOME", "h"), ("SHORTWIRE_CONFIG", "/c")]), ["/c", ""]);
}

/// By all ways to divide the text.
fn glob_oracle(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', rest @ ..] => (0..=text.len()).any(|at| glob_oracle(rest, &text[at..])),
        [c, rest @ ..] => {
            text.first().is_some_and(|t| *c == b'?' || c == t) && glob_oracle(rest, &text[1..])
        }
    }
}

/// A line by splitting strings, without comments and quotes; None: it is refused.
fn line_oracle(line: &str) -> Option<Vec<(String, String)>> {
    let mut words = line.split_ascii_whitespace();
    let first = words.next().unwrap_or_default();
    let mut pairs = vec![("action".to_string(), first.to_string())];
    for word in words {
        let (key, value) = word.split_once('=')?;
        if key.is_empty() || pairs.iter().any(|(known, _)| known == key) {
            return None;
        }
        let good = match key {
            "program" => !value.is_empty() && (!value.contains('/') || value.starts_with('/')),
            "args" => true,
            "user" => !value.is_empty() && !value.contains('/'),
            "port" => value.parse::<u16>().is_ok_and(|port| port != 0),
            "direction" => ["in", "out"].contains(&value),
            "spin" => value.parse::<u32>().is_ok_and(|n| n <= 1_000_000),
            _ => false,
        };
        if !good {
            return None;
        }
        pairs.push((key.into(), value.into()));
    }
    let has = |key: &str| pairs.iter().any(|(known, _)| known == key);
    (["share", "tcp", "same-uid"].contains(&first)
        && !(has("spin") && (has("port") || has("direction"))))
    .then_some(pairs)
}

proptest! {
    #[test]
    fn patterns_match_as_the_oracle_says(pattern in "[ab*?]{0,8}", text in "[abc]{0,10}") {
        let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
        prop_assert_eq!(Glob(pattern).matches(text), glob_oracle(pattern, text));
    }

    #[test]
    fn networks_match_bit_by_bit(net: [u8; 4], bits in 0u8..=32, ip: [u8; 4], near: bool, port: u16) {
        // Most pairs of random addresses have nothing in common.
        let ip = if near { [net[0], net[1], net[2], ip[3]] } else { ip };
        let [a, b] = [net, ip].map(u32::from_be_bytes);
        let same = (0..bits).all(|bit| a >> (31 - bit) & 1 == b >> (31 - bit) & 1);
        let text = format!("{}/{bits}", std::net::Ipv4Addr::from(net));
        let net = Net::parse(text.as_bytes()).expect("a network");
        let address = std::net::Ipv4Addr::from(ip);
        prop_assert_eq!(net.has(&end(&format!("{address}:{port}"))), same);
        let mapped = end(&format!("[{}]:{port}", address.to_ipv6_mapped()));
        prop_assert_eq!(net.has(&mapped), same);
    }

    #[test]
    fn ports_are_what_numbers_say(first: u16, last: u16, port: u16) {
        let parsed = Ports::parse(format!("{first}-{last}").as_bytes());
        prop_assert_eq!(parsed.is_some(), first != 0 && first <= last);
        if let Some(ports) = parsed {
            prop_assert_eq!(ports.has(port), first <= port && port <= last);
        }
    }

    #[test]
    fn rules_are_read_as_by_splitting_strings(
        line in "(share|tcp|same-uid|tpc)( {1,2}(program|args|user|port|direction|spin|foo)(=)?(/?x|80|0|in|out|[a-c]{0,2})){0,4}",
    ) {
        let files = file(&line);
        let (_, read) = parse(&files[0].text).next().expect("a statement");
        match (read, line_oracle(&line)) {
            (Err(_), None) => {}
            (Ok(Statement::Rule(rule)), Some(pairs)) => {
                let of = |key: &str| {
                    let found = pairs.iter().find(|(known, _)| known == key);
                    found.map(|(_, value)| value.as_bytes())
                };
                prop_assert_eq!(Some(rule.action.name().as_bytes()), of("action"));
                prop_assert_eq!(rule.program.map(|glob| glob.0), of("program"));
                prop_assert_eq!(rule.args.map(|glob| glob.0), of("args"));
                prop_assert_eq!(rule.user, of("user").and_then(User::parse));
                prop_assert_eq!(rule.conn.port, of("port").and_then(Ports::parse));
                prop_assert_eq!(rule.conn.direction, of("direction").and_then(Direction::parse));
                prop_assert_eq!(rule.settings().next().map(|(_, value)| value), of("spin"));
            }
            (read, expected) => prop_assert!(false, "{line}: {} {expected:?}", read.is_ok()),
        }
    }

    #[test]
    fn any_bytes_are_read_to_their_end(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (line, statement) in parse(&text) {
            prop_assert!(line >= 1);
            if let Err(problem) = statement {
                prop_assert!(!problem.to_string().contains(|c: char| c.is_control()));
            }
        }
    }
}
