//! What has to be known of a backend to run ops with integrity values on it.

use planner_core::backend::{
    BackendError, DeviceAddress, ErrorType, Kernels, Launch, Paging, Transfers,
};
use planner_core::{Graph, Machine, OpId};

/// Words of a run that [`Backend::sparse_kernels`] touch.
pub const RUN_WORDS: u64 = 256;

/// A backend with kernels that compute as [`value`](crate::value) says.
///
/// A value of this type is a way to open devices, not a device. It has what the traits of
/// [`planner_core::backend`] leave to embedders, and nothing else: how a device is opened, and
/// kernels.
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
    /// Why there is none, for a person. Then the suite reports every check as ignored.
    fn find(&self) -> Result<Found, String>;

    /// Opens a device, on which nothing is created yet.
    ///
    /// `machine` is the one that was found, with a device or a host of that size or smaller. A
    /// backend may keep to the smaller sizes, or ignore them. `order`, below
    /// [`orders`](Self::orders), says in which order streams run where nothing orders them;
    /// the same number gives the same order as far as the device can.
    ///
    /// # Errors
    /// Why it cannot be opened, for a person.
    fn open(&self, machine: Machine, order: u64) -> Result<Self::Device, String>;

    /// Makes the kernels of a graph, for one device. [`value`](crate::value) says what an op
    /// computes; [`fill_states`](crate::fill_states) and [`fill_inputs`](crate::fill_inputs)
    /// write states and inputs. Addresses and objects are multiples of 4 bytes, unless the
    /// machine's chunks are not.
    ///
    /// # Errors
    /// Those of the device.
    fn kernels<'g>(
        &self,
        device: &mut Self::Device,
        graph: Graph<'g>,
    ) -> Result<Self::Kernels<'g>, Self::Error>;

    /// Makes kernels like [`kernels`](Self::kernels) that touch only a part of each tensor: runs of
    /// [`RUN_WORDS`] words, which begin `spread_words` apart, the first at the start. So a tensor that
    /// is too large to be filled takes little time and memory.
    ///
    /// # Errors
    /// Why there are none, for a person. Then the suite ignores the check that needs them.
    fn sparse_kernels<'g>(
        &self,
        _device: &mut Self::Device,
        _graph: Graph<'g>,
        _spread_words: u64,
    ) -> Result<Self::Kernels<'g>, String> {
        Err("the integrity kernels of this backend touch all words of a tensor".to_owned())
    }

    /// Closes a device, whatever state it is in.
    ///
    /// # Errors
    /// What else the device has to complain of, such as messages of a validation layer.
    fn close(&self, device: Self::Device) -> Result<(), String> {
        drop(device);
        Ok(())
    }

    /// Lets the next wait of a device for all work of one of its streams fail, such as one that its
    /// drop makes.
    ///
    /// # Errors
    /// Why that cannot be done here, for a person. Then the suite ignores the check that needs it.
    fn fail_next_wait(&self, _device: &mut Self::Device) -> Result<(), String> {
        Err("no wait of this backend can be made to fail".to_owned())
    }

    /// Lets an op fail when it runs on the host in an iteration. The device's error then names the op and
    /// the iteration, as [`OpId`] is displayed and as `iteration 3`.
    ///
    /// # Errors
    /// Why that cannot be done here, for a person. Then the suite ignores the check that needs it.
    fn fail_host_op(
        &self,
        _kernels: &mut Self::Kernels<'_>,
        _op: OpId,
        _iteration: u64,
    ) -> Result<(), String> {
        Err("no op on the host of this backend can be made to fail".to_owned())
    }

    /// In how many orders each check of the suite runs; more than one only on devices that can
    /// choose.
    fn orders(&self) -> u64 {
        1
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

    /// Captures what is enqueued from now on, on all streams.
    ///
    /// # Errors
    /// Those of the device.
    fn begin_capture(&self, device: &mut Self::Device) -> Result<(), Self::Error>;

    /// Ends a capture.
    ///
    /// # Errors
    /// Those of the device.
    fn end_capture(&self, device: &mut Self::Device) -> Result<Self::Graph, Self::Error>;

    /// Enqueues a graph after all that is enqueued and before all that will be. Its kernels find the
    /// number of the iteration that they were captured in, and `iterations_later` added to it.
    ///
    /// # Errors
    /// A graph of another device, one whose memory has been unmapped, and those of the device.
    fn launch_graph(
        &self,
        device: &mut Self::Device,
        graph: &Self::Graph,
        iterations_later: u64,
    ) -> Result<(), Self::Error>;

    /// Enqueues on the compute stream that the number of the iteration, as kernels find it, is
    /// written to an address, in 64 bits.
    ///
    /// # Errors
    /// Those of the device.
    fn write_iteration(
        &self,
        device: &mut Self::Device,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), Self::Error>;
}

/// A device that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The device and its driver, for a person.
    pub device: String,
    /// What plans are made for: the device's memory and chunks, and speeds, measured or not.
    pub machine: Machine,
}

/// A check that a backend does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemption {
    /// What the device or its driver cannot do, and never will. The check does not run.
    Unsupported {
        /// Name of the check.
        check: &'static str,
        /// Why, for a person.
        reason: &'static str,
    },
    /// What does not work yet. The check runs, and the suite fails the day it passes.
    ExpectedFailure {
        /// Name of the check.
        check: &'static str,
        /// Why, for a person.
        reason: &'static str,
    },
}

impl Exemption {
    /// Name of the check.
    #[must_use]
    pub const fn check(&self) -> &'static str {
        match self {
            Self::Unsupported { check, .. } | Self::ExpectedFailure { check, .. } => check,
        }
    }
}
