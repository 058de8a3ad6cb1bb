//! `spillway man`.

use crate::failure::Failure;
use crate::output;
use clap::{Args, Command};
use clap_mangen::Man;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  spillway man | man -l -
  spillway man -o ~/.local/share/man/man1";

/// Print the program's manual page, or write the pages of the program and all commands
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Write spillway.1, spillway-plan.1 and the other pages to this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments, mut program: Command) -> Result<(), Failure> {
    program.build();
    let Some(folder) = &arguments.output else { return output::print(page(program)?) };
    let commands: Vec<Command> = program.get_subcommands().cloned().collect();
    for command in std::iter::once(program).chain(commands) {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        output::save(&folder.join(format!("{name}.1")), &page(command)?)?;
    }
    Ok(())
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let rendered = Man::new(command).render(&mut page);
    rendered.map_err(|error| Failure::cannot(error.to_string()))?;
    Ok(page)
}
