//! Measures a CUDA device.

use super::Arguments;
use crate::backend::cuda;
use crate::failure::Failure;
use crate::{output, progress};
use backend_cuda::{Cuda, Integrity, Link, Measured, Measurement, Options, Unavailable};
use planner_core::MachineParameters;
use serde::Serialize;
use spillway::units::{bytes, time};
use workloads::{OwnedMachine, Shown, format};

/// The figures of the device. Pairs of speeds are for copies up and down.
#[derive(Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    machine: String,
    device_bytes: u64,
    host_bytes: u64,
    chunk_bytes: u64,
    h2d_bytes_per_s: u64,
    d2h_bytes_per_s: u64,
    transfer_latency_ns: u64,
    map_ns_per_chunk: u64,
    unmap_ns_per_chunk: u64,
    /// The speeds while the other direction is idle.
    one_way_bytes_per_s: [u64; 2],
    /// The speeds while both directions are busy. `None` if they could not be measured.
    both_ways_bytes_per_s: Option<[u64; 2]>,
    /// The device's time for a launch and for a wait.
    launch_ns: u64,
    wait_ns: u64,
    /// Whether mapping waits for the device to finish its work.
    mapping_waits_for_work: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let is_taken = output::check(&[], &[&arguments.output], arguments.json)?;
    let devices = cuda::chosen()?;
    let measured = measure(&devices, arguments);
    let measured = measured
        .map_err(|Unavailable(reason)| Failure::cannot(Shown::message(reason).to_string()))?;
    let machine = measured.named(arguments.name.clone());
    if let Some(path) = &arguments.output {
        let saved = output::save(path, &format::write_machine(&machine));
        saved.map_err(|failure| failure.with(&report(&machine, &measured)))?;
    }
    if arguments.json {
        return output::print_json("measure", &report(&machine, &measured));
    }
    output::summarize(&shown(&machine, &measured), is_taken)
}

fn measure(devices: &Integrity, arguments: &Arguments) -> Result<Measured, Unavailable> {
    let cuda = Cuda::load(devices.driver.as_deref())?;
    let bar = progress::bar(0, "measuring {bar:40} {pos}/{len}");
    let options = Options { ordinal: devices.ordinal, chunk_bytes: arguments.chunk };
    let measurement = Measurement { options, host_bytes: arguments.host };
    let measured = cuda.measure(&measurement, |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    measured
}

fn report(machine: &OwnedMachine, measured: &Measured) -> Report {
    let MachineParameters { device_bytes, host_bytes, chunk_bytes, .. } = *machine.machine;
    let MachineParameters { h2d_bytes_per_s, d2h_bytes_per_s, transfer_latency_ns, .. } =
        *machine.machine;
    let MachineParameters { map_ns_per_chunk, unmap_ns_per_chunk, .. } = *machine.machine;
    let [launch_ns, wait_ns] = measured.costs_ns();
    Report {
        backend: "cuda",
        device: measured.info.name.clone(),
        machine: machine.name.clone(),
        device_bytes,
        host_bytes,
        chunk_bytes,
        h2d_bytes_per_s,
        d2h_bytes_per_s,
        transfer_latency_ns,
        map_ns_per_chunk,
        unmap_ns_per_chunk,
        one_way_bytes_per_s: speeds(measured.alone),
        both_ways_bytes_per_s: measured.together.map(speeds),
        launch_ns,
        wait_ns,
        mapping_waits_for_work: measured.mapping.waits_for_work(),
    }
}

fn speeds(links: [Link; 2]) -> [u64; 2] {
    links.map(|link| link.bytes_per_s.round() as u64)
}

fn shown(machine: &OwnedMachine, measured: &Measured) -> String {
    let OwnedMachine { name, machine, .. } = machine;
    let [launch_ns, wait_ns] = measured.costs_ns();
    let gbs = |links: [Link; 2]| {
        let [up, down] = links.map(|link| link.bytes_per_s / 1e9);
        format!("{up:.2} GB/s up and {down:.2} GB/s down")
    };
    let mut text = format!(
        "{}: {}\n    device {}, host {}, chunks of {}\n    copies both ways at once {}, one way \
         {}; latency {} per copy\n    \
         {} to map a chunk, {} to unmap it; a launch takes {} of the device, and a wait {}\n",
        Shown::name(name),
        Shown::name(&measured.info.name),
        bytes(machine.device_bytes),
        bytes(machine.host_bytes),
        bytes(machine.chunk_bytes),
        measured.together.map_or_else(|| "not measured".to_owned(), gbs),
        gbs(measured.alone),
        time(machine.transfer_latency_ns),
        time(machine.map_ns_per_chunk),
        time(machine.unmap_ns_per_chunk),
        time(launch_ns),
        time(wait_ns),
    );
    if measured.mapping.waits_for_work() {
        text += "    mapping waits for the device's work; plans with placements avoid the wait\n";
    }
    text
}
