//! The abilities that a backend needs to run ops with integrity values.

use planner_core::backend::{
    BackendError, DeviceAddress, ErrorType, Kernels, Launch, Paging, Transfers,
};
use planner_core::{Graph, Machine, OpId};

/// The number of words in each run that the kernels of [`Backend::sparse_kernels`] touch.
pub const RUN_WORDS: u64 = 256;

/// A backend with kernels that compute as [`value`](crate::value) defines.
///
/// A value of this type opens devices and is not a device itself. It adds only what the traits of
/// [`planner_core::backend`] leave to embedders: a way to open a device, and kernels.
pub trait Backend: Send + Sync + 'static {
    /// The error of its devices.
    type Error: BackendError + 'static;

    /// An open device.
    type Device: Transfers + Paging + ErrorType<Error = Self::Error>;

    /// The kernels of a graph.
    type Kernels<'g>: Kernels<Self::Device>;

    /// Its name in commands and tables, such as `vulkan`.
    fn name(&self) -> &'static str;

    /// Looks for the device.
    ///
    /// # Errors
    /// Why there is no device, as text for people. Then the suite reports every check as ignored.
    fn find(&self) -> Result<Found, String>;

    /// Opens a device on which nothing is created yet.
    ///
    /// `machine` is the machine that was found, or one with a smaller device or host. A backend may
    /// keep to the smaller sizes or ignore them. `order`, below [`orders`](Self::orders), chooses
    /// the order of streams that nothing else orders. The same number gives the same order as far
    /// as the device can.
    ///
    /// # Errors
    /// Why the device cannot be opened, as text for people.
    fn open(&self, machine: Machine, order: u64) -> Result<Self::Device, String>;

    /// Makes the kernels of a graph for one device. [`value`](crate::value) defines the values that
    /// an op computes. [`fill_states`](crate::fill_states) and [`fill_inputs`](crate::fill_inputs)
    /// write states and inputs. Addresses and object sizes are multiples of 4 bytes, unless the
    /// machine's chunks are not.
    ///
    /// # Errors
    /// The errors of the device.
    fn kernels<'g>(
        &self,
        device: &mut Self::Device,
        graph: Graph<'g>,
    ) -> Result<Self::Kernels<'g>, Self::Error>;

    /// Makes kernels like [`kernels`](Self::kernels) that touch only a part of each tensor: runs of
    /// [`RUN_WORDS`] words. The first run begins at the start, and runs begin `spread_words` words
    /// apart. A tensor that is too large to be filled then takes little time and memory.
    ///
    /// # Errors
    /// Why there are no such kernels, as text for people. Then the suite ignores the check that
    /// needs them.
    fn sparse_kernels<'g>(
        &self,
        _device: &mut Self::Device,
        _graph: Graph<'g>,
        _spread_words: u64,
    ) -> Result<Self::Kernels<'g>, String> {
        Err("the integrity kernels of this backend touch all words of a tensor".to_owned())
    }

    /// Closes a device in any state.
    ///
    /// # Errors
    /// Other complaints of the device, such as messages of a validation layer.
    fn close(&self, device: Self::Device) -> Result<(), String> {
        drop(device);
        Ok(())
    }

    /// Makes the device's next wait for all work of one of its streams fail, for example a wait in
    /// its drop.
    ///
    /// # Errors
    /// Why that is not possible here, as text for people. Then the suite ignores the check that
    /// needs it.
    fn fail_next_wait(&self, _device: &mut Self::Device) -> Result<(), String> {
        Err("this backend cannot make a wait fail".to_owned())
    }

    /// Makes an op fail when it runs on the host in an iteration. The device's error then names the
    /// op as [`OpId`] displays it, and the iteration as in `iteration 3`.
    ///
    /// # Errors
    /// Why that is not possible here, as text for people. Then the suite ignores the check that
    /// needs it.
    fn fail_host_op(
        &self,
        _kernels: &mut Self::Kernels<'_>,
        _op: OpId,
        _iteration: u64,
    ) -> Result<(), String> {
        Err("this backend cannot make an op on the host fail".to_owned())
    }

    /// The number of orders in which each check of the suite runs. More than one only on devices
    /// that can choose an order.
    fn orders(&self) -> u64 {
        1
    }

    /// Whether the checks of the suite run one after the other in one thread, because devices of
    /// several threads disturb each other.
    fn one_at_a_time(&self) -> bool {
        false
    }

    /// The checks of the suite that this backend does not pass, each with the reason.
    fn exemptions(&self) -> &[Exemption] {
        &[]
    }
}

/// A backend whose devices capture work as graphs, for the suite's checks of graphs.
pub trait Graphs: Backend {
    /// Captured work of one device.
    type Graph;

    /// Captures all work that is enqueued from now on, on all streams.
    ///
    /// # Errors
    /// The errors of the device.
    fn begin_capture(&self, device: &mut Self::Device) -> Result<(), Self::Error>;

    /// Ends a capture.
    ///
    /// # Errors
    /// The errors of the device.
    fn end_capture(&self, device: &mut Self::Device) -> Result<Self::Graph, Self::Error>;

    /// Enqueues a graph after all earlier work and before all later work. Its kernels get the
    /// number of the captured iteration plus `iterations_later`.
    ///
    /// # Errors
    /// The graph is of another device, memory was unmapped since the capture, and the errors of the
    /// device.
    fn launch_graph(
        &self,
        device: &mut Self::Device,
        graph: &Self::Graph,
        iterations_later: u64,
    ) -> Result<(), Self::Error>;

    /// Enqueues a write on the compute stream. It writes the number of the iteration, as kernels
    /// get it, to an address in 64 bits.
    ///
    /// # Errors
    /// The errors of the device.
    fn write_iteration(
        &self,
        device: &mut Self::Device,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), Self::Error>;
}

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The device and its driver, as text for people.
    pub device: String,
    /// The machine for which plans are made: the device's memory and chunks, and speeds, measured
    /// or not.
    pub machine: Machine,
}

/// A check that a backend does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// The device or its driver will never pass the check. The check does not run.
    Unsupported {
        /// The name of the check.
        check: &'static str,
        /// The reason, as text for people.
        reason: &'static str,
    },
    /// The check does not pass yet. It runs, and the suite fails once it passes.
    ExpectedFailure {
        /// The name of the check.
        check: &'static str,
        /// The reason, as text for people.
        reason: &'static str,
    },
}

impl Exemption {
    /// The name of the check.
    #[must_use]
    pub const fn check(&self) -> &'static str {
        match self {
            Self::Unsupported { check, .. } | Self::ExpectedFailure { check, .. } => check,
        }
    }
}
