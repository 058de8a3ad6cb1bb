//! Kernels whose results show every wrong byte, and the device that the conformance suite tests.

use crate::{HostDevice, HostError};
use backend_checks::{HostFailure, check_host_launch, check_launch};
use integrity::{
    Backend, Found, HostArithmetic, Passes, Read, Reading, Write, fill_inputs, fill_states, value,
};
use planner_core::backend::{
    DeviceRange, FillError, HostKernels, HostLaunch, InputWriter, Kernels, Launch, StateWriter,
    Transfers,
};
use planner_core::{Graph, Machine, MachineParameters, OpId};
#[cfg(target_os = "linux")]
use {crate::MappedDevice, crate::mapped, planner_core::Stream};

/// Kernels for every op of a graph, with the arithmetic of the crate `integrity`.
#[derive(Clone, Copy, Debug)]
pub struct IntegrityKernels<'g> {
    graph: Graph<'g>,
    /// The op that fails on the host, and the iteration in which it fails.
    failing: Option<(OpId, u64)>,
}

/// Computes a launch in a memory, by a function that reads bytes and a function that writes them.
fn compute<M, E>(
    memory: &mut M,
    op: OpId,
    Passes { reads, repeated, writes }: Passes,
    read: impl Fn(&mut M, DeviceRange, &mut [u8]) -> Result<(), E>,
    write: impl Fn(&mut M, DeviceRange, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut readings = Vec::new();
    for Read { at, bytes, .. } in reads {
        let mut bytes_read = vec![0; bytes as usize];
        read(memory, DeviceRange { address: at, bytes }, &mut bytes_read)?;
        readings.push(Reading::of(&bytes_read));
    }
    let results = value::op_results(op, repeated, readings.into_iter());
    for Write { kind, position, at, bytes, .. } in writes {
        let mut written = vec![0; bytes as usize];
        value::written(results.of(kind), position, bytes).fill(0, &mut written);
        write(memory, DeviceRange { address: at, bytes }, &written)?;
    }
    Ok(())
}

fn compute_on_host_device(
    device: &mut HostDevice,
    launch: &Launch<'_>,
    passes: Passes,
) -> Result<(), HostError> {
    let read = |device: &mut HostDevice, from, into: &mut [u8]| device.read(from, into);
    compute(device, launch.op, passes, read, HostDevice::write)
}

/// Computes a launch on its stream.
#[cfg(target_os = "linux")]
fn compute_on_mapped_device(
    device: &mut MappedDevice,
    launch: &Launch<'_>,
    passes: Passes,
) -> Result<(), HostError> {
    let op = launch.op;
    if launch.stream == Stream::Network {
        return device.launch_on_network(launch, move || {
            let read = |(): &mut (), from, into: &mut [u8]| mapped::read_bytes(from, into);
            compute(&mut (), op, passes, read, |(), to, bytes| mapped::write_bytes(to, bytes))
        });
    }
    let read = |device: &mut MappedDevice, from, into: &mut [u8]| device.read(from, into);
    compute(device, op, passes, read, MappedDevice::write)
}

/// Implements the kernels for a device and a function that computes a launch there.
macro_rules! kernels {
    ($device:ty, $compute:expr) => {
        impl Kernels<$device> for IntegrityKernels<'_> {
            fn launch(
                &mut self,
                device: &mut $device,
                launch: &Launch<'_>,
            ) -> Result<(), HostError> {
                check_launch(&self.graph, launch)?;
                $compute(device, launch, Passes::new(&self.graph, launch))
            }

            fn on_host(&mut self) -> Option<&mut dyn HostKernels<$device>> {
                Some(self)
            }

            fn fill_states(
                &mut self,
                states: &mut StateWriter<'_, $device>,
            ) -> Result<(), FillError<HostError>> {
                fill_states(states)
            }

            fn fill_inputs(
                &mut self,
                inputs: &mut InputWriter<'_, $device>,
            ) -> Result<(), FillError<HostError>> {
                fill_inputs(inputs)
            }
        }
    };
}

kernels!(HostDevice, compute_on_host_device);
#[cfg(target_os = "linux")]
kernels!(MappedDevice, compute_on_mapped_device);

impl HostKernels<HostDevice> for IntegrityKernels<'_> {
    fn launch_on_host(
        &mut self,
        device: &mut HostDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), HostError> {
        let HostLaunch { op, iteration, .. } = *launch;
        check_host_launch(&self.graph, launch)?;
        if self.failing == Some((op, iteration)) {
            return Err(
                HostFailure { op, iteration, reason: "it was made to fail".to_owned() }.into()
            );
        }
        let passes = Passes::on_host(&self.graph, launch);
        compute(
            device,
            op,
            passes,
            |device, from, into| device.read_host(from.address.0, into),
            |device, to, bytes| device.write_host(to.address.0, bytes),
        )
    }
}

#[cfg(target_os = "linux")]
impl HostKernels<MappedDevice> for IntegrityKernels<'_> {
    fn launch_on_host(
        &mut self,
        device: &mut MappedDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), HostError> {
        check_host_launch(&self.graph, launch)?;
        let arithmetic = HostArithmetic::new(&self.graph, launch.op).failing(self.failing);
        device.launch_on_host(launch, move |mut run| {
            let values = arithmetic.values(run.iteration, |position| run.read(position));
            values.map(|values| arithmetic.write(values, &mut run.writes))
        })
    }
}

/// A machine of 1 GiB in chunks of 4 KiB.
fn machine() -> Result<Machine, String> {
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 30)
        .with_host_bytes(1 << 30)
        .with_chunk_bytes(4096)
        .with_h2d_bytes_per_s(1_000_000_000)
        .with_d2h_bytes_per_s(1_000_000_000);
    Machine::new(parameters).map_err(|error| error.to_string())
}

/// Opens devices of 1 GiB in chunks of 4 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Backend for Host {
    type Error = HostError;
    type Device = HostDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        "host"
    }

    fn find(&self) -> Result<Found, String> {
        Ok(Found { device: "host memory".to_owned(), machine: machine()? })
    }

    fn open(&self, machine: Machine, _order: u64) -> Result<HostDevice, String> {
        Ok(HostDevice::new(machine.chunk_bytes, machine.device_bytes))
    }

    fn kernels<'g>(
        &self,
        _device: &mut HostDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, HostError> {
        Ok(IntegrityKernels { graph, failing: None })
    }

    fn fail_host_op(
        &self,
        kernels: &mut IntegrityKernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        kernels.failing = Some((op, iteration));
        Ok(())
    }
}

/// Opens [`MappedDevice`]s of 1 GiB in chunks of 4 KiB.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapped;

#[cfg(target_os = "linux")]
impl Backend for Mapped {
    type Error = HostError;
    type Device = MappedDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        "mapped"
    }

    fn find(&self) -> Result<Found, String> {
        Ok(Found { device: "host memory, mapped".to_owned(), machine: machine()? })
    }

    fn open(&self, machine: Machine, _order: u64) -> Result<MappedDevice, String> {
        MappedDevice::new(machine.chunk_bytes, machine.device_bytes)
            .map_err(|error| error.to_string())
    }

    fn kernels<'g>(
        &self,
        _device: &mut MappedDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, HostError> {
        Ok(IntegrityKernels { graph, failing: None })
    }

    fn fail_host_op(
        &self,
        kernels: &mut IntegrityKernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        kernels.failing = Some((op, iteration));
        Ok(())
    }
}
