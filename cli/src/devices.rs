//! `spillway devices`.

use crate::failure::Failure;
use crate::{backend, output};
use backend_checks::Unavailable;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use workloads::Shown;

/// List the devices of this machine that can run plans
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<Value>,
    /// Backends without a device.
    unavailable: Vec<Missing>,
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
struct Missing {
    backend: &'static str,
    reason: String,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let report = report();
    if arguments.json { output::print_json("devices", &report) } else { output::print(report.text) }
}

fn report() -> Report {
    let text = "sim\n    a simulated device of any machine (--machine list)\n".to_owned();
    let mut report = Report { devices: Vec::new(), unavailable: Vec::new(), text };
    let mut none = String::new();
    for backend in backend::all() {
        match backend.devices.map(|devices| devices()) {
            None => {}
            Some(Ok(devices)) => {
                for device in devices {
                    report.devices.push(device.fields);
                    report.text += &device.text;
                }
            }
            Some(Err(Unavailable(reason))) => {
                none += &format!("{}: no device: {}\n", backend.name, Shown::message(&reason));
                report.unavailable.push(Missing { backend: backend.name, reason });
            }
        }
    }
    report.text += &none;
    report
}
