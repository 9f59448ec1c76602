//! Lua typed at a terminal.

use std::path::PathBuf;

use engine::lua::{Evaluated, ScriptError, Session};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

const PROMPT: &str = "snsh> ";
const MORE: &str = "   >> ";

/// Reads and runs lines until the end of input. Errors are shown and lose nothing.
pub fn run(session: &Session) -> Result<(), ScriptError> {
    let mut editor = DefaultEditor::new()
        .map_err(|error| ScriptError::Failed(format!("no line editor: {error}")))?;
    let history = history_file();
    if let Some(history) = &history {
        // The first time there is none.
        let _ = editor.load_history(history);
    }
    let mut text = String::new();
    loop {
        match editor.readline(if text.is_empty() { PROMPT } else { MORE }) {
            Ok(line) => text.push_str(&line),
            Err(ReadlineError::Interrupted) => {
                text.clear();
                continue;
            }
            Err(_) => break,
        }
        if text.trim().is_empty() {
            text.clear();
            continue;
        }
        match session.evaluate(&text) {
            Ok(Evaluated::Incomplete) => {
                text.push('\n');
                continue;
            }
            Ok(Evaluated::Values(values)) if values.is_empty() => {}
            Ok(Evaluated::Values(values)) => println!("{}", values.join("\t")),
            Err(error) => {
                eprintln!("{error}");
                // What was interrupted is over; the next line may be interrupted again.
                if let (ScriptError::Interrupted, Some(signals)) = (error, super::signals()) {
                    signals.forget();
                }
            }
        }
        let _ = editor.add_history_entry(text.as_str());
        text.clear();
    }
    if let Some(history) = &history {
        // A history that cannot be kept is no reason to complain.
        let _ = editor.save_history(history);
    }
    Ok(())
}

/// `$XDG_STATE_HOME/shortwire/snsh_history`, its folder made if need be.
fn history_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    let folder = state.join("shortwire");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("snsh_history"))
}
