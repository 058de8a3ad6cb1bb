//! Machines by name.
//!
//! Memory and link speeds are figures of the vendors and of published experiments, with 10 µs per transfer.
//! Chunks are 2 MiB, the smallest size that CUDA maps. Mapping one and setting its access rights takes about
//! 40 µs by published measurements of CUDA's virtual memory calls, and unmapping takes about as long. These
//! are orders of magnitude, the same for all machines.

use planner_core::{Machine, MachineParameters};

/// A machine with its name, as in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedMachine {
    /// The name of the machine, which plans refer to.
    pub name: String,
    /// The machine. Plans are predicted with its link speeds, which are the speeds of copies in both
    /// directions at once.
    pub machine: Machine,
    /// The speeds to the device and to the host in bytes per second, each while the other direction is idle;
    /// `None` if they are not known or are equal to the machine's speeds.
    pub one_way_bytes_per_s: Option<[u64; 2]>,
    /// The device's time in nanoseconds for a launch and for a wait, which predictions leave out; `None` if
    /// they are not known.
    pub costs_ns: Option<[u64; 2]>,
}

impl OwnedMachine {
    /// Creates a machine with a name, without one-way speeds and costs.
    pub fn new(name: impl Into<String>, machine: Machine) -> Self {
        Self { name: name.into(), machine, one_way_bytes_per_s: None, costs_ns: None }
    }

    /// Keeps the name, and replaces the machine.
    #[must_use]
    pub fn with_machine(self, machine: Machine) -> Self {
        Self { machine, ..self }
    }

    /// Sets the speeds to the device and to the host in bytes per second, each while the other direction is
    /// idle.
    #[must_use]
    pub fn with_one_way_bytes_per_s(self, one_way_bytes_per_s: Option<[u64; 2]>) -> Self {
        Self { one_way_bytes_per_s, ..self }
    }

    /// Sets the device's time in nanoseconds for a launch and for a wait.
    #[must_use]
    pub fn with_costs_ns(self, costs_ns: Option<[u64; 2]>) -> Self {
        Self { costs_ns, ..self }
    }
}

const V100_PCIE3: MachineParameters = MachineParameters::new()
    .with_device_bytes(16 << 30)
    .with_host_bytes(61_000_000_000)
    .with_chunk_bytes(2 << 20)
    .with_h2d_bytes_per_s(12_000_000_000)
    .with_d2h_bytes_per_s(12_000_000_000)
    .with_transfer_latency_ns(10_000)
    .with_map_ns_per_chunk(40_000)
    .with_unmap_ns_per_chunk(40_000);

const V100_NVLINK: MachineParameters = V100_PCIE3
    .with_host_bytes(594_000_000_000)
    .with_h2d_bytes_per_s(50_000_000_000)
    .with_d2h_bytes_per_s(50_000_000_000);

const A100_PCIE4: MachineParameters = V100_PCIE3
    .with_device_bytes(40 << 30)
    .with_host_bytes(256_000_000_000)
    .with_h2d_bytes_per_s(25_000_000_000)
    .with_d2h_bytes_per_s(25_000_000_000);

const H200_PCIE5: MachineParameters = V100_PCIE3
    .with_device_bytes(141_000_000_000)
    .with_host_bytes(1_000_000_000_000)
    .with_h2d_bytes_per_s(55_000_000_000)
    .with_d2h_bytes_per_s(55_000_000_000);

/// The machine of SwapAdvisor's training. The paper gives 12 GB/s one way and 20 GB/s both ways.
const V100_PCIE3_244GB: MachineParameters = V100_PCIE3.with_host_bytes(244_000_000_000);

const V100_PCIE3_DUPLEX: MachineParameters =
    V100_PCIE3_244GB.with_h2d_bytes_per_s(10_000_000_000).with_d2h_bytes_per_s(10_000_000_000);

/// NVIDIA's specification: 24 GB, PCIe 4.0 x16, which is 31.5 GB/s each way before overheads; copies attain
/// about 25. The host is an assumption: a workstation that fits the states of 14 billion parameters in
/// training.
const RTX_4090: MachineParameters = V100_PCIE3
    .with_device_bytes(24 << 30)
    .with_host_bytes(256_000_000_000)
    .with_h2d_bytes_per_s(25_000_000_000)
    .with_d2h_bytes_per_s(25_000_000_000);

/// NVIDIA's specification: 32 GB, PCIe 5.0 x16, 63 GB/s each way before overheads; 50 are assumed,
/// with the same host.
const RTX_5090: MachineParameters = RTX_4090
    .with_device_bytes(32 << 30)
    .with_h2d_bytes_per_s(50_000_000_000)
    .with_d2h_bytes_per_s(50_000_000_000);

/// NVIDIA's data sheet: 96 GB of HBM3, 480 GB of LPDDR5X, 450 GB/s each way between the two; 400 are
/// assumed.
const GH200: MachineParameters = V100_PCIE3
    .with_device_bytes(96_000_000_000)
    .with_host_bytes(480_000_000_000)
    .with_h2d_bytes_per_s(400_000_000_000)
    .with_d2h_bytes_per_s(400_000_000_000);

/// NVIDIA's specification of the RTX 4060 and 4070 for laptops: 8 GB, PCIe 4.0 x8, 15.8 GB/s each way
/// before overheads; 12 and a host of 64 GB are assumed.
const LAPTOP_8GB: MachineParameters = V100_PCIE3
    .with_device_bytes(8 << 30)
    .with_host_bytes(64_000_000_000)
    .with_h2d_bytes_per_s(12_000_000_000)
    .with_d2h_bytes_per_s(12_000_000_000);

const fn sound(parameters: MachineParameters) -> Machine {
    match Machine::new(parameters) {
        Ok(machine) => machine,
        Err(_) => panic!("a machine has a chunk of no bytes or a link of no speed"),
    }
}

const BUILTIN: [(&str, Machine, &str); 10] = [
    (
        "v100-pcie3",
        sound(V100_PCIE3),
        "V100, 16 GiB; PCIe 3.0 x16 at 12 GB/s; a cloud host of 61 GB",
    ),
    (
        "v100-pcie3-244gb",
        sound(V100_PCIE3_244GB),
        "the same, 12 GB/s each way, with a host of 244 GB",
    ),
    (
        "v100-pcie3-duplex",
        sound(V100_PCIE3_DUPLEX),
        "the same, 10 GB/s each way: what a published one attains in both at once",
    ),
    (
        "v100-nvlink",
        sound(V100_NVLINK),
        "V100, 16 GiB; NVLink to a POWER9 of 594 GB, 50 GB/s each way in total",
    ),
    (
        "a100-pcie4",
        sound(A100_PCIE4),
        "A100, 40 GiB; PCIe 4.0 x16, 25 GB/s and 256 GB of host assumed",
    ),
    (
        "h200-pcie5",
        sound(H200_PCIE5),
        "H200, 141 GB; PCIe 5.0 x16, 55 GB/s and 1 TB of host assumed",
    ),
    (
        "rtx4090",
        sound(RTX_4090),
        "GeForce RTX 4090, 24 GB; PCIe 4.0 x16, 25 GB/s and 256 GB of host assumed",
    ),
    (
        "rtx5090",
        sound(RTX_5090),
        "GeForce RTX 5090, 32 GB; PCIe 5.0 x16, 50 GB/s and 256 GB of host assumed",
    ),
    (
        "gh200",
        sound(GH200),
        "GH200, 96 GB; NVLink-C2C to a Grace of 480 GB, 400 of nominal 450 GB/s assumed",
    ),
    (
        "laptop-8gb",
        sound(LAPTOP_8GB),
        "GeForce RTX 4060 or 4070 for laptops, 8 GB; PCIe 4.0 x8, 12 GB/s and 64 GB of host assumed",
    ),
];

/// Returns the machine with this name.
#[must_use]
pub fn builtin(name: &str) -> Option<OwnedMachine> {
    all().map(|(machine, _)| machine).find(|machine| machine.name == name)
}

/// Lists every built-in machine, with a line that describes it and its assumptions.
pub fn all() -> impl Iterator<Item = (OwnedMachine, &'static str)> {
    BUILTIN.into_iter().map(|(name, machine, about)| (OwnedMachine::new(name, machine), about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (machine, _) in all() {
            assert_eq!(builtin(&machine.name), Some(machine));
        }
        assert_eq!(builtin("v100"), None);
    }

    #[test]
    fn the_documented_figures_hold() {
        let pcie = builtin("v100-pcie3").unwrap().machine;
        assert_eq!((pcie.device_bytes, pcie.h2d_bytes_per_s), (17_179_869_184, 12_000_000_000));
        assert_eq!(pcie.host_bytes, 61_000_000_000);
        let nvlink = builtin("v100-nvlink").unwrap().machine;
        assert_eq!((nvlink.device_bytes, nvlink.d2h_bytes_per_s), (17_179_869_184, 50_000_000_000));
        for (name, device_bytes, link_gb_s, host_gb) in [
            ("rtx4090", 24 << 30, 25, 256),
            ("rtx5090", 32 << 30, 50, 256),
            ("gh200", 96_000_000_000, 400, 480),
            ("laptop-8gb", 8 << 30, 12, 64),
        ] {
            let machine = builtin(name).unwrap().machine;
            assert_eq!(machine.device_bytes, device_bytes, "{name}");
            assert_eq!(machine.host_bytes, host_gb * 1_000_000_000, "{name}");
            let links = [machine.h2d_bytes_per_s, machine.d2h_bytes_per_s];
            assert_eq!(links, [link_gb_s * 1_000_000_000; 2], "{name}");
            assert_eq!(machine.chunk_bytes, 2 << 20, "{name}");
        }
    }
}
