//! `spillway model`.

use crate::failure::Failure;
use crate::graph_file;
use crate::output;
use crate::work;
use clap::Args;
use std::path::PathBuf;
use zoo::models;

const EXAMPLES: &str = "\
Examples:
  spillway model list
  spillway model resnet50:batch=512 -o resnet50.graph.json.gz
  spillway model resnet152:batch=16,mode=inference | spillway plan - --budget 50%";

/// Generate the graph of a well-known model, or list the models.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A model with its parameters, such as resnet50:batch=512,mode=training, or list
    spec: String,
    /// Write the graph to this file [default: standard output]
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.spec == "list" {
        return output::print(list());
    }
    output::check(&[], &[&arguments.output], false)?;
    let graph = work::generate(&arguments.spec)?;
    graph_file::write(&graph, &[], arguments.output.as_deref())
}

fn list() -> String {
    let mut text = String::new();
    for model in models::list() {
        text += &format!("{}\n    {}\n", model.name, model.about);
        for parameter in model.parameters {
            let assignment = format!("{}={}", parameter.name, parameter.default);
            let (about, domain) = (parameter.about, parameter.domain);
            text += &format!("    {assignment:<20} {about} ({domain})\n");
        }
    }
    text
}
