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
    match Config::from_toml(text) {
        Err(error) => error.to_string(),
        Ok(file) => file.check(Registry::standard()).expect_err("nothing is wrong").to_string(),
    }
}

#[test]
fn problems_have_lines() {
    for (text, expected) in [
        (
            "links = [\n  \"a.b -> c.d\",\n  \"a.b\",\n]\n",
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
