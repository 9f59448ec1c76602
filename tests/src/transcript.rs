//! The same program with and without the library must print the same.

use std::path::Path;

use crate::{Case, Ports, Proc, Side, Watch, plain, secs};

/// One way to run a program that is called as `PROGRAM PORT ARGS...`.
#[derive(Clone, Copy)]
pub struct Variant<'a> {
    pub ports: Ports,
    pub args: &'a [&'a str],
    /// The program stops once, with `warm` on its standard error, and its connection must be in
    /// mode SMCD then.
    pub upgraded: bool,
}

struct Running {
    subject: Proc,
    watch: Option<Watch>,
}

/// The programs mostly sleep, so all variants run at once.
fn begin(case: &Case, program: &Path, side: Side, variant: &Variant) -> Running {
    let port = variant.ports.free();
    let pause = variant.upgraded && side == Side::Run && !plain();
    let mut command = side.command(program);
    command.arg(port.to_string()).args(variant.args);
    if pause {
        command.env("SWT_PAUSE", "1");
    }
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Running { watch: pause.then(|| case.watch(&[port])), subject: case.start(&name, &mut command) }
}

/// Lets it go on from where it has stopped.
fn go_on(running: &mut Running) {
    if let Some(watch) = running.watch.take() {
        running.subject.wait_line("warm", secs(60));
        watch.wait_smcd(1, secs(60));
        running.subject.say("\n");
    }
}

fn end(mut running: Running) -> (bool, String, String) {
    let status = running.subject.wait(secs(100));
    let errors = format!("{status}\n{}", running.subject.stderr());
    (status.success(), running.subject.stdout(), errors)
}

/// Runs the program once without the library, as the first variant says, and each variant under
/// `shortwire run`; all must end well and print the same.
pub fn same_transcript(case: &Case, program: &Path, variants: &[Variant]) {
    let reference = begin(case, program, Side::Plain, &Variant { upgraded: false, ..variants[0] });
    let mut runs: Vec<Running> =
        variants.iter().map(|variant| begin(case, program, Side::Run, variant)).collect();
    // None stands still while another runs to its end: its own time limit goes on.
    runs.iter_mut().for_each(go_on);
    let (well, expected, errors) = end(reference);
    assert!(
        well,
        "{program:?} {:?} fails even without the library: {errors}\n{expected}",
        variants[0].args
    );
    let mut failures = Vec::new();
    for (variant, running) in variants.iter().zip(runs) {
        let (well, found, errors) = end(running);
        let difference = difference(&expected, &found);
        if !well || !difference.is_empty() {
            let (args, ports) = (variant.args, variant.ports);
            failures.push(format!(
                "{args:?} ({ports:?} port):\n{difference}-- its end and errors\n{errors}"
            ));
        }
    }
    let failures = failures.join("\n\n");
    assert!(failures.is_empty(), "{program:?} under shortwire run (- without, + with)\n{failures}");
}

/// The differing lines, each with the section it stands in.
fn difference(expected: &str, found: &str) -> String {
    let (mut text, mut section) = (String::new(), "");
    let (mut want, mut have) = (expected.lines(), found.lines());
    loop {
        match (want.next(), have.next()) {
            (None, None) => return text,
            (a, b) if a == b => {
                section = a.filter(|line| line.starts_with("==")).unwrap_or(section)
            }
            (a, b) => {
                text +=
                    &format!("{section}\n- {}\n+ {}\n", a.unwrap_or("(end)"), b.unwrap_or("(end)"));
                if a.is_none() || b.is_none() {
                    return text;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn differences_name_their_section() {
        assert_eq!(difference("== a\nx\n", "== a\nx\n"), "");
        assert_eq!(difference("== a\nx\ny\n", "== a\nz\ny\n"), "== a\n- x\n+ z\n");
        assert_eq!(difference("== a\nx\n", "== a\n"), "== a\n- x\n+ (end)\n");
    }
}
