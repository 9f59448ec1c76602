//! Networks as TOML files: what is read, and the lines of what is wrong.

use engine::config::{Config, LinkSpec};
use engine::{Options, Pace, Registry};

const GOOD: &str = r#"
links = [
    "src.output -> tee.input",
    "tee.a -> sink.input",   # a comment
]

[engine]
hz = 1000.0
tick = 100

[apps]
sink = "Sink"

[apps.src]
kind = "Source"
size = 60

[apps.tee]
kind = "Tee"
thread = 1
"#;

#[test]
fn a_file_is_the_same_as_calls() {
    let file = Config::from_toml(GOOD).unwrap();
    let mut config = Config::new();
    let size = std::collections::BTreeMap::from([("size", 60)]);
    config
        .app("src", "Source", size)
        .unwrap()
        .app("sink", "Sink", ())
        .unwrap()
        .app_on(1, "tee", "Tee", ())
        .unwrap();
    config.link("src.output -> tee.input").unwrap().link("tee.a -> sink.input").unwrap();
    assert_eq!(file.config, config);
    file.check(Registry::standard()).unwrap();
    let mut options = Options::default();
    file.settings.apply(&mut options);
    assert_eq!((options.pace, options.tick, options.cycles), (Pace::Hertz(1000.0), 100, true));
}

#[test]
fn an_empty_file_is_an_empty_network() {
    let file = Config::from_toml("").unwrap();
    assert_eq!(file.config, Config::new());
    assert_eq!(file.config.links(), [] as [LinkSpec; 0]);
}

fn problems(text: &str) -> String {
    Config::from_toml_checked(text, Registry::standard()).expect_err("nothing is wrong").to_string()
}

#[test]
fn a_file_is_not_written_where_it_is_read_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("in.pcap"), "a capture").unwrap();
    std::os::unix::fs::symlink(at("in.pcap"), at("link.pcap")).unwrap();
    std::fs::hard_link(at("in.pcap"), at("hard.pcap")).unwrap();
    let network = |apps: [(&str, &str, &str); 2]| {
        apps.map(|(name, kind, file)| {
            format!("[apps.{name}]\nkind = \"{kind}\"\nfile = \"{}\"\n", at(file))
        })
        .concat()
    };
    for name in ["in.pcap", "link.pcap", "hard.pcap", "../IN/in.pcap"] {
        let name = name.replace("IN", folder.path().file_name().unwrap().to_str().unwrap());
        let said = problems(&network([("a", "PcapReader", "in.pcap"), ("b", "PcapWriter", &name)]));
        for part in ["line 6", "app 'b'", "app 'a' reads", &at("in.pcap"), &at(&name)] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }
    let twice =
        problems(&network([("a", "PcapWriter", "new.pcap"), ("b", "PcapWriter", "new.pcap")]));
    assert!(twice.contains("app 'a' writes") && twice.lines().count() == 1, "{twice}");
    for apps in [
        [("a", "PcapReader", "in.pcap"), ("b", "PcapWriter", "new.pcap")],
        [("a", "PcapReader", "in.pcap"), ("b", "PcapReader", "link.pcap")],
        [
            ("a", "PcapWriter", "../../../../../dev/null"),
            ("b", "PcapWriter", "../../../../../dev/null"),
        ],
    ] {
        Config::from_toml_checked(&network(apps), Registry::standard()).unwrap();
    }
}

#[test]
fn problems_have_lines() {
    for (text, expected) in [
        (
            "links = [\n  \"a.output -> a.output\",\n  \"a.b\",\n]\n[apps]\na = \"Join\"\n",
            "line 3: 'a.b' is not a link: write \"app.output -> app.input\"",
        ),
        ("\n\n[apps.x]\nsize = 1\n", "line 3: app 'x': missing key 'kind'"),
        (
            "[apps.x]\nkind = \"Source\"\nsize = 60\nsise = 1\n",
            "line 4: app 'x' (Source): unknown key 'sise'; did you mean 'size'?",
        ),
        (
            "[apps.x]\nkind = \"Source\"\nsize = \"big\"\n",
            "line 3: app 'x' (Source): key 'size': invalid type: string \"big\", expected usize",
        ),
        (
            "[apps.x]\nkind = \"Source\"\nsize = 5000\n",
            "line 3: app 'x' (Source): key 'size': 5000 is too long: a packet has up to 1984 bytes",
        ),
        (
            "[apps.x]\nkind = \"Sorce\"\n",
            "line 2: app 'x': there is no kind 'Sorce'; did you mean 'Source'?",
        ),
        (
            "[apps]\nx = \"Snik\"\n",
            "line 2: app 'x': there is no kind 'Snik'; did you mean 'Sink'?",
        ),
        (
            "links = [\"x.o -> y.i\"]\n[apps]\nx = \"Source\"\n",
            "line 1: link 'x.o -> y.i': no such app 'y'; did you mean 'x'?",
        ),
        (
            "[engine]\nbusywait = true\ntik = 1\n",
            "line 3: [engine]: unknown key 'tik'; did you mean 'tick'?",
        ),
        (
            "[engine]\nbusywait = true\nhz = 5\n",
            "line 1: [engine]: 'busywait' and 'hz' exclude each other",
        ),
        (
            "[engine]\ntick = 0\nhz = 0\n",
            "line 2: [engine]: key 'tick': 0 is not a number of ticks per second, 1 or more\n\
             line 3: [engine]: key 'hz': 0 is not a number of breaths per second, 1 or more",
        ),
        (
            "[engine]\nhz = 0.99\n",
            "line 2: [engine]: key 'hz': 0.99 is not a number of breaths per second, 1 or more",
        ),
        (
            "[engine]\nhz = -1000.0\n",
            "line 2: [engine]: key 'hz': -1000 is not a number of breaths per second, 1 or more",
        ),
        (
            "[engine]\nhz = nan\n",
            "line 2: [engine]: key 'hz': NaN is not a number of breaths per second, 1 or more",
        ),
        (
            "[engine]\nhz = inf\n",
            "line 2: [engine]: key 'hz': inf is not a number of breaths per second, 1 or more",
        ),
        (
            "[apps.x]\nkind = \"RateLimiter\"\nrate = 8e6\nburst = 1513\n",
            "line 4: app 'x' (RateLimiter): key 'burst': 1513 is too little: a usual frame of Ethernet has 1514 bytes, and would never pass",
        ),
        ("\n[app.x]\nkind = \"Sink\"\n", "line 2: unknown key 'app'; did you mean 'apps'?"),
        (
            "[apps.x]\nkind = \"Sink\"\nthread = -1\n",
            "line 1: app 'x': 'thread' is a number from 0 to 1023",
        ),
        (
            "[apps.'x y']\nkind = \"Sink\"\n",
            "line 1: 'x y' is not a name: letters, digits and '_' make one",
        ),
        ("[apps.x]\nkind = \"Sink\"\n[apps.x]\nkind = \"Tee\"\n", "line 3: duplicate key"),
        (
            "[apps.x]\nkind = \"Sink\"\n[apps.x]\nkind = \"Tee\"\n[apps.y]\nkind = \"Tee\"\nkind = \"Tee\"\n",
            "line 3: duplicate key\nline 7: duplicate key",
        ),
        ("apps = 3\n", "line 1: 'apps' is a table: write [apps.NAME]"),
    ] {
        assert_eq!(problems(text), expected, "{text}");
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "links = [\"a.o -> b.i\"]\n[apps.a]\nkind = \"Sorce\"\n[apps.c]\nkind = \"Source\"\nsize = -1\n";
    assert_eq!(
        problems(text),
        "line 1: link 'a.o -> b.i': no such app 'b'; did you mean 'a'?\n\
         line 3: app 'a': there is no kind 'Sorce'; did you mean 'Source'?\n\
         line 6: app 'c' (Source): key 'size': invalid value: integer `-1`, expected usize"
    );
}

#[test]
fn no_mistake_hides_another_one() {
    let text = "\
links = [\"a.o -> b.i\", \"x\", \"k.o -> t.i\"]
[engine]
busywai = true
tick = \"often\"
pakets = 5
[apps.a]
kind = \"XDP\"
queue = \"zero\"
colour = \"red\"
[apps.s]
kind = \"Source\"
sise = 3
size = 5000
[apps.k]
size = 5
[apps.t]
kind = \"Tee\"
thread = -1
rate = 3
";
    let said = problems(text);
    let expected = [
        "line 1: 'x' is not a link",
        "line 1: link 'a.o -> b.i': app 'a' (XDP) has no output 'o'; it has tx",
        "line 1: link 'a.o -> b.i': no such app 'b'",
        "line 3: [engine]: unknown key 'busywai'; did you mean 'busywait'?",
        "line 4: [engine]: key 'tick'",
        "line 5: [engine]: unknown key 'pakets'; did you mean 'packets'?",
        "line 6: app 'a' (XDP): missing key 'interface'",
        "line 8: app 'a' (XDP): key 'queue'",
        "line 9: app 'a' (XDP): unknown key 'colour'; known are",
        "line 12: app 's' (Source): unknown key 'sise'",
        "line 13: app 's' (Source): key 'size': 5000 is too long",
        "line 14: app 'k': missing key 'kind'",
        "line 16: app 't': 'thread' is a number",
        "line 19: app 't' (Tee): unknown key 'rate'",
    ];
    for part in expected {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
    // Nothing beside them: a link to `k`, which is in the file, is not a mistake of its own.
    assert_eq!(said.lines().count(), expected.len(), "{said}");
}

#[test]
fn whatever_a_file_holds_is_read_or_refused() {
    let mut seed = 7_u64;
    let mut random = |limit: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % limit
    };
    let mut refused = 0;
    for _ in 0..3000 {
        let mut text = GOOD.as_bytes().to_vec();
        for _ in 0..1 + random(4) {
            let (at, from) = (random(text.len()), random(text.len()));
            match random(3) {
                0 => text[at] = b"[]=\".\n#\xc3\xa9x0"[random(11)],
                1 => drop(text.remove(at)),
                _ => text = [&text[..at], &text[from..]].concat(),
            }
            text.push(b'\n');
        }
        let text = String::from_utf8_lossy(&text);
        if let Err(error) = Config::from_toml_checked(&text, Registry::standard()) {
            refused += 1;
            assert!(error.to_string().starts_with("line "), "{error}");
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn mistakes_in_the_syntax_are_told_at_once() {
    let said = problems("[apps.a]\nkind = \"Sink\n[apps.b]\nkind = Tee\n");
    assert!(said.contains("line 2:") && said.contains("line 4:"), "{said}");
}
