use planner_core::backend::{BackendError, ErrorType, Launch, Paging, Transfers};
use planner_core::{Graph, Machine};

/// A backend with kernels that compute as [`value`](crate::value) says.
///
/// A value of this type is a way to open devices, not a device. It implements what the traits
/// of [`planner_core::backend`] leave to embedders, and nothing else: how a device is opened,
/// what an op computes, and what lies in the host's block.
pub trait Backend: Send + Sync + 'static {
    /// The error of its devices.
    type Error: BackendError + 'static;

    /// An open device, made for one graph.
    type Device<'g>: Transfers + Paging + ErrorType<Error = Self::Error>;

    /// Its name in commands and tables, such as `vulkan`.
    fn name(&self) -> &'static str;

    /// Looks for the device.
    ///
    /// # Errors
    /// Why there is none, for a person. Then the suite reports every check as ignored.
    fn find(&self) -> Result<Found, String>;

    /// Opens a device, on which nothing is created yet. Its
    /// [`create_host`](Transfers::create_host) puts
    /// [`initial_state`](crate::value::initial_state) into the room of every state.
    ///
    /// `machine` is the one that was found, with a device or a host of that size or smaller. A
    /// backend may keep to the smaller sizes, or ignore them. `order`, below
    /// [`orders`](Self::orders), says in which order streams run where nothing orders them;
    /// the same number gives the same order as far as the device can.
    ///
    /// # Errors
    /// Why it cannot be opened, for a person.
    fn open<'g>(
        &self,
        graph: Graph<'g>,
        machine: Machine,
        order: u64,
    ) -> Result<Self::Device<'g>, String>;

    /// Enqueues an op of the graph on the compute stream; [`value`](crate::value) says what it
    /// computes. Addresses and objects are multiples of 4 bytes, unless the machine's chunks
    /// are not.
    ///
    /// # Errors
    /// Those of the device.
    fn launch(&self, device: &mut Self::Device<'_>, launch: &Launch<'_>)
    -> Result<(), Self::Error>;

    /// Writes into the host's block, at once. No enqueued work uses these bytes.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    fn write_host(
        &self,
        device: &mut Self::Device<'_>,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), Self::Error>;

    /// Reads from the host's block. No enqueued work writes these bytes. This must work after
    /// any error of the device as well.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    fn read_host(
        &self,
        device: &mut Self::Device<'_>,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), Self::Error>;

    /// Takes leave of a device, whatever state it is in.
    ///
    /// # Errors
    /// What else the device has to complain of, such as messages of a validation layer.
    fn close(&self, device: Self::Device<'_>) -> Result<(), String> {
        drop(device);
        Ok(())
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
