//! Man pages and completions, from the definition of the command line itself.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap_complete::Shell;

pub fn man(out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut command = shortwire_cli::command();
    command.build();
    clap_mangen::generate_to(command, out).with_context(|| format!("cannot write man pages to {}", out.display()))?;
    // The help of the help command is in every page already.
    for entry in fs::read_dir(out)?.flatten() {
        if entry.file_name().to_string_lossy().contains("-help") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

pub fn completions(out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shortwire_cli::command(), "shortwire", out)
            .with_context(|| format!("cannot write completions to {}", out.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        let directory = std::env::temp_dir().join(format!("shortwire-xtask-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn each_command_has_a_page() {
        let out = scratch("man");
        man(&out).unwrap();
        for page in
            ["shortwire.1", "shortwire-run.1", "shortwire-ss.1", "shortwire-stats.1", "shortwire-bench-sockets.1"]
        {
            let text = fs::read_to_string(out.join(page)).unwrap();
            assert!(text.contains(".SH"), "{page}");
        }
        assert!(!out.join("shortwire-help.1").exists());
        fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn each_shell_has_completions() {
        let out = scratch("completions");
        completions(&out).unwrap();
        for name in ["shortwire.bash", "_shortwire", "shortwire.fish"] {
            assert!(fs::read_to_string(out.join(name)).unwrap().contains("peer-policy"), "{name}");
        }
        fs::remove_dir_all(out).unwrap();
    }
}
