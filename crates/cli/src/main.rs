use std::process::ExitCode;

fn main() -> ExitCode {
    shortwire_cli::main()
}
