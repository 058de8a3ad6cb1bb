//! Measures a device for a machine file.

mod copies;
mod costs;
mod fit;
mod mapping;

pub use copies::{Copies, Load};
pub use costs::Costs;
pub use fit::Link;
pub use mapping::Mapping;

use crate::{Cuda, CudaDevice, DeviceInfo, Options, Unavailable};
use planner_core::{Machine, MachineParameters, Stream};

/// The least size of chunks if the options name none.
const CHUNK_BYTES: u64 = 2 << 20;
/// The divisor of the part of free memory that is left to the driver and to libraries.
const LEFT: u64 = 64;
/// The least memory that is left to them, if it is no more than an eighth: contexts, cuBLAS's workspaces and
/// kernels take as much on small devices as on large ones.
const LEAST_LEFT_BYTES: u64 = 1 << 30;
const MOST_LEFT: u64 = 8;

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The device.
    pub info: DeviceInfo,
    /// The machine for which plans are made. Its links have the speeds while both are in use, if
    /// these could be measured, and the mean latency of both. A plan that copies in one direction
    /// may be faster.
    pub machine: Machine,
    /// The links to the device and to the host, each while the other link is idle.
    pub alone: [Link; 2],
    /// The links while both are in use. `None` if too few rows of copies were enqueued ahead.
    pub together: Option<[Link; 2]>,
    /// Times of copies, by size.
    pub copies: Vec<Copies>,
    /// Times of mapping, with the chunks of the machine.
    pub mapping: Mapping,
    /// Times of launches and waits, which predictions leave out.
    pub costs: Costs,
}

/// The device to measure, and the figures that are given instead of measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measurement {
    /// The device and the size of its chunks; by default 2 MiB, or the granularity if it is larger.
    pub options: Options,
    /// The machine's host memory. By default, the memory that can be pinned.
    pub host_bytes: Option<u64>,
}

impl Measured {
    /// The speeds to the device and to the host, each while the other direction is idle, if they
    /// differ from the machine's. `None` if the machine has these speeds itself.
    #[must_use]
    pub fn one_way_bytes_per_s(&self) -> Option<[u64; 2]> {
        self.together.map(|_| self.alone.map(|link| link.bytes_per_s.round() as u64))
    }

    /// The device's time in nanoseconds for a launch and for a wait.
    #[must_use]
    pub fn costs_ns(&self) -> [u64; 2] {
        [self.costs.launch_ns, self.costs.wait_ns].map(|ns| ns.round() as u64)
    }

    /// The machine with a name, its one-way speeds and its costs. By default, it has its own
    /// [name](Self::name).
    #[cfg(feature = "facade")]
    #[must_use]
    pub fn named(&self, name: Option<String>) -> spillway::OwnedMachine {
        let name = name.unwrap_or_else(|| self.name());
        spillway::OwnedMachine::new(name, self.machine)
            .with_one_way_bytes_per_s(self.one_way_bytes_per_s())
            .with_costs_ns(Some(self.costs_ns()))
    }

    /// A name for the machine: the device's name in small letters and digits.
    #[must_use]
    pub fn name(&self) -> String {
        let letters = self.info.name.to_ascii_lowercase();
        let words = letters.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }
}

impl Cuda {
    /// Measures copies, mapping, launches and waits, which takes some seconds. `progress` gets the
    /// number of finished parts and of all parts. The device should have no other work.
    ///
    /// # Errors
    /// The errors of [`Cuda::open`] and of the driver, a device whose larger copies take no longer
    /// than small ones, and host memory that cannot be pinned.
    pub fn measure(
        &self,
        &Measurement { options, host_bytes }: &Measurement,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Measured, Unavailable> {
        let info = self.device(options.ordinal)?;
        let chunk_bytes = options.chunk_bytes.unwrap_or(info.granularity_bytes.max(CHUNK_BYTES));
        let options = Options { chunk_bytes: Some(chunk_bytes), ..options };
        let host_bytes = match host_bytes {
            Some(bytes) => {
                self.check_pinnable(options.ordinal, bytes)?;
                bytes
            }
            None => self.pinnable_bytes(options.ordinal)?,
        };
        let costs = costs::measure(self, &options)?;
        let mapping = mapping::measure(self, &options)?;
        let mut done = 0;
        let copies = copies::measure(self, &options, info.free_bytes, || {
            done += 1;
            progress(done, copies::ROWS);
        })?;
        let link = |load: Load, way: usize| {
            let points =
                copies.iter().filter_map(|of| Some((of.bytes, of.ns[load as usize][way]?)));
            Link::fit(&points.collect::<Vec<_>>())
        };
        let links = |load| Some([link(load, 0)?, link(load, 1)?]);
        let unfit = "larger copies take no longer than small ones, or the host enqueues copies \
                     more slowly than the device makes them, so the link has no speed";
        let alone = links(Load::Alone).ok_or_else(|| Unavailable(unfit.to_owned()))?;
        let together = links(Load::BothWays);
        let [map_ns, unmap_ns] = mapping.paid_ns();
        let free_bytes = info.free_bytes - left_bytes(info.free_bytes);
        let [up, down] = together.unwrap_or(alone);
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(free_bytes / chunk_bytes * chunk_bytes)
                .with_host_bytes(host_bytes)
                .with_chunk_bytes(chunk_bytes)
                .with_h2d_bytes_per_s(up.bytes_per_s.round() as u64)
                .with_d2h_bytes_per_s(down.bytes_per_s.round() as u64)
                .with_transfer_latency_ns(
                    f64::midpoint(up.latency_ns, down.latency_ns).round() as u64
                )
                .with_map_ns_per_chunk(map_ns.round() as u64)
                .with_unmap_ns_per_chunk(unmap_ns.round() as u64),
        );
        let machine = machine.map_err(|error| Unavailable(error.to_string()))?;
        Ok(Measured { info, machine, alone, together, copies, mapping, costs })
    }

    /// Measures only mapping, with chunks of the size in the options.
    ///
    /// # Errors
    /// The errors of [`Cuda::open`] and of the driver.
    pub fn measure_mapping(&self, options: &Options) -> Result<Mapping, Unavailable> {
        mapping::measure(self, options)
    }
}

/// Opens a device for measurements, with its kernels loaded.
fn open(cuda: &Cuda, options: &Options) -> Result<CudaDevice, Unavailable> {
    let mut device = cuda.open(options)?;
    device.occupy(Stream::Compute, 1)?;
    device.wait_idle()?;
    Ok(device)
}

/// The part of free memory that plans leave to the driver and to libraries.
fn left_bytes(free_bytes: u64) -> u64 {
    (free_bytes / LEFT).max(LEAST_LEFT_BYTES.min(free_bytes / MOST_LEFT))
}

#[cfg(test)]
mod tests {
    use super::left_bytes;

    #[test]
    fn plans_leave_the_driver_a_gibibyte_if_they_can() {
        let gib = |gib: u64| gib << 30;
        assert_eq!(left_bytes(gib(128)), gib(2));
        assert_eq!(left_bytes(gib(24)), gib(1));
        assert_eq!(left_bytes(gib(4)), gib(1) / 2);
        assert_eq!(left_bytes(0), 0);
    }
}
