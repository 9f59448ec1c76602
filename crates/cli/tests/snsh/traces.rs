//! What the compiler did, and what is said about it.

use super::*;

/// Findings of a run of the example with the mistake.
fn mistake(args: &[&str]) -> String {
    let output = snsh(&[&["--traces", "-"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn the_mistake_is_named_and_clean_code_is_not_accused() {
    let path = example("mistake.lua");
    let words = [
        "instances if1 and if2 of Driver run different traces since `ring` has 2 ctypes",
        "mistake.lua:17 creates a new ctype every time",
    ];
    let is_named = |text: &String| words.iter().all(|words| text.contains(words));
    let text = longer(0.3, |seconds| mistake(&["--shared", &path, seconds]), is_named);
    assert!(is_named(&text), "{text}");
    let words = "instances if1 and if2 of Driver run different traces";
    let is_named = |text: &String| text.contains(words);
    let text = longer(0.3, |seconds| mistake(&[&path, seconds]), is_named);
    assert!(is_named(&text), "{text}");
    for args in [
        &["--shared", &path, "0.3", "clean"][..],
        &[&path, "0.3", "clean"],
        &[&example("protocols.lua"), "0.3"],
    ] {
        let text = mistake(args);
        assert!(text.contains("findings: none"), "{args:?}\n{text}");
    }
}

#[test]
fn traces_are_written_in_every_form() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, expected) in [
        ("t.svg", "</svg>"),
        ("t.dot", "digraph traces {"),
        ("t.json", "\"looping\": true"),
        ("t.txt", "looping"),
    ] {
        let file = folder.path().join(name);
        let run = |seconds: &str| {
            let path = file.to_str().expect("UTF-8");
            let output = snsh(&["--traces", path, &example("passthrough.lua"), seconds]);
            assert!(output.status.success(), "{}", stderr(&output));
            std::fs::read_to_string(&file).expect("the file of traces")
        };
        let is_told = |text: &String| text.contains(expected) && text.contains("passthrough.lua");
        let text = longer(0.2, run, is_told);
        assert!(is_told(&text), "{name}: {text}");
    }
    let output = snsh(&["--traces", "/no/such/folder/t.svg", "-e", "print('ran')"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""));
    assert!(stderr(&output).contains("cannot write /no/such/folder/t.svg"));
}
