//! `spillway completions`.

use crate::failure::Failure;
use crate::output;
use clap::{Args, Command};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  spillway completions bash > ~/.local/share/bash-completion/completions/spillway
  spillway completions zsh > ~/.zfunc/_spillway
  spillway completions fish > ~/.config/fish/completions/spillway.fish";

/// Print the script that lets a shell complete commands and options
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments, mut program: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "spillway", &mut script);
    output::print(script)
}
