//! Writers for the values of states and inputs.

use super::{ErrorType, HostRange, Transfers};
use crate::graph::{Graph, Kind, TensorId};
use crate::host::HostLayout;
use bytemuck::NoUninit;
use core::fmt;

/// The reason why a value does not fit its tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The graph has no such tensor, or the tensor has another kind.
    Kind {
        /// The tensor.
        tensor: TensorId,
        /// The kind that the writer is for.
        kind: Kind,
    },
    /// The value has another size than the tensor.
    Bytes {
        /// The tensor.
        tensor: TensorId,
        /// Its size.
        bytes: u64,
        /// The size of the value.
        given_bytes: u64,
    },
    /// The part ends after the tensor.
    Part {
        /// The tensor.
        tensor: TensorId,
        /// Its size.
        bytes: u64,
        /// The first byte of the part.
        first_byte: u64,
        /// The size of the part.
        given_bytes: u64,
    },
    /// The place in the host block is not aligned for the type of the value.
    Alignment {
        /// The tensor.
        tensor: TensorId,
        /// The offset of the place in the host block.
        offset_bytes: u64,
        /// The alignment of the type.
        align_bytes: u64,
    },
}

impl WriteError {
    /// The tensor.
    #[must_use]
    pub const fn tensor(&self) -> TensorId {
        match *self {
            Self::Kind { tensor, .. }
            | Self::Bytes { tensor, .. }
            | Self::Part { tensor, .. }
            | Self::Alignment { tensor, .. } => tensor,
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Kind { tensor, kind: Kind::State } => write!(f, "{tensor} is no state"),
            Self::Kind { tensor, .. } => write!(f, "{tensor} is no input"),
            Self::Bytes { tensor, bytes, given_bytes } => {
                write!(f, "the value for {tensor} has {given_bytes} bytes, not {bytes}")
            }
            Self::Part { tensor, bytes, first_byte, given_bytes } => write!(
                f,
                "{given_bytes} bytes from byte {first_byte} on are not all in {tensor}, which has \
                 {bytes} bytes"
            ),
            Self::Alignment { tensor, offset_bytes, align_bytes } => write!(
                f,
                "{tensor} is written from byte {offset_bytes} of the host block on, which is no \
                 multiple of {align_bytes}, the alignment of the value's type"
            ),
        }
    }
}

impl core::error::Error for WriteError {}

/// The reason why states or inputs are not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FillError<E> {
    /// The device reports an error.
    Device(E),
    /// A value does not fit its tensor.
    Write(WriteError),
}

impl<E> FillError<E> {
    /// Maps the error of the device.
    pub fn map<F>(self, of_device: impl FnOnce(E) -> F) -> FillError<F> {
        match self {
            Self::Device(error) => FillError::Device(of_device(error)),
            Self::Write(error) => FillError::Write(error),
        }
    }
}

impl<E> From<E> for FillError<E> {
    fn from(error: E) -> Self {
        Self::Device(error)
    }
}

impl<E: fmt::Display> fmt::Display for FillError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Write(error) => error.fmt(f),
        }
    }
}

impl<E: core::error::Error> core::error::Error for FillError<E> {}

/// The places of the tensors of one kind in the host block.
#[derive(Clone, Copy, Debug)]
struct Slots<'w> {
    graph: &'w Graph<'w>,
    layout: &'w HostLayout<'w>,
    kind: Kind,
    slot: u32,
}

impl Slots<'_> {
    fn range(&self, tensor: TensorId) -> Result<HostRange, WriteError> {
        let found = self.graph.tensors().get(tensor.index());
        let found = found.filter(|found| found.kind == self.kind);
        let bytes = found.ok_or(WriteError::Kind { tensor, kind: self.kind })?.bytes;
        Ok(HostRange { offset_bytes: self.layout.offset_bytes(tensor, self.slot, 0), bytes })
    }

    /// The offset in the host block at which a value is written, from `first_byte` of the tensor on, or the
    /// whole value.
    fn place<T>(
        &self,
        tensor: TensorId,
        first_byte: Option<u64>,
        values: &[T],
    ) -> Result<u64, WriteError> {
        let HostRange { offset_bytes, bytes } = self.range(tensor)?;
        let given_bytes = size_of_val(values) as u64;
        let first = match first_byte {
            None if given_bytes != bytes => {
                return Err(WriteError::Bytes { tensor, bytes, given_bytes });
            }
            None => 0,
            Some(first_byte) => {
                let end = first_byte.checked_add(given_bytes);
                if end.is_none_or(|end| end > bytes) {
                    return Err(WriteError::Part { tensor, bytes, first_byte, given_bytes });
                }
                first_byte
            }
        };
        let (offset_bytes, align_bytes) =
            (offset_bytes.saturating_add(first), align_of::<T>() as u64);
        if !offset_bytes.is_multiple_of(align_bytes) {
            return Err(WriteError::Alignment { tensor, offset_bytes, align_bytes });
        }
        Ok(offset_bytes)
    }

    fn tensors(&self) -> impl Iterator<Item = TensorId> + use<'_> {
        let kind = self.kind;
        self.graph.tensor_ids().filter(move |&id| self.graph.tensor(id).kind == kind)
    }
}

/// The methods of both writers.
macro_rules! writer {
    ($writer:ident, $kind:literal) => {
        impl<'w, B: ErrorType> $writer<'w, B> {
            /// The device.
            pub const fn device(&mut self) -> &mut B {
                self.device
            }

            /// The graph.
            #[must_use]
            pub const fn graph(&self) -> &'w Graph<'w> {
                self.slots.graph
            }

            /// The layout of the host block.
            #[must_use]
            pub const fn layout(&self) -> &'w HostLayout<'w> {
                self.slots.layout
            }

            #[doc = concat!("The ", $kind, "s, in the order of the graph.")]
            pub fn tensors(&self) -> impl Iterator<Item = TensorId> + use<'_, 'w, B> {
                self.slots.tensors()
            }

            #[doc = concat!("The bytes of a ", $kind, " in the host block. A device that reaches them itself can write them.")]
            ///
            /// # Errors
            /// [`WriteError::Kind`].
            pub fn range(&self, tensor: TensorId) -> Result<HostRange, FillError<B::Error>> {
                self.slots.range(tensor).map_err(FillError::Write)
            }
        }

        impl<B: Transfers> $writer<'_, B> {
            #[doc = concat!("Writes the whole value of a ", $kind, ".")]
            ///
            /// # Errors
            /// A [`WriteError`] if the tensor is of another kind or the value has another size, or if the
            /// tensor does not begin at a multiple of the type's alignment; the errors of the device.
            pub fn write<T: NoUninit>(
                &mut self,
                tensor: TensorId,
                value: &[T],
            ) -> Result<(), FillError<B::Error>> {
                self.put(tensor, None, value)
            }

            #[doc = concat!("Writes a part of the value of a ", $kind, ", from a byte on.")]
            ///
            /// # Errors
            /// A [`WriteError`] if the tensor is of another kind, if not all bytes are in it, or if they do not
            /// begin at a multiple of the type's alignment; the errors of the device.
            pub fn write_at<T: NoUninit>(
                &mut self,
                tensor: TensorId,
                first_byte: u64,
                part: &[T],
            ) -> Result<(), FillError<B::Error>> {
                self.put(tensor, Some(first_byte), part)
            }

            fn put<T: NoUninit>(
                &mut self,
                tensor: TensorId,
                first_byte: Option<u64>,
                values: &[T],
            ) -> Result<(), FillError<B::Error>> {
                let place = self.slots.place(tensor, first_byte, values);
                let offset_bytes = place.map_err(FillError::Write)?;
                Ok(self.device.write_host(offset_bytes, bytemuck::cast_slice(values))?)
            }
        }
    };
}

/// Writes the first values of states into the host block. They are undefined until they are written.
#[derive(Debug)]
pub struct StateWriter<'w, B> {
    device: &'w mut B,
    slots: Slots<'w>,
}

impl<'w, B> StateWriter<'w, B> {
    /// A writer for a graph's states in the host block of a device.
    pub const fn new(graph: &'w Graph<'w>, device: &'w mut B, layout: &'w HostLayout<'w>) -> Self {
        Self { device, slots: Slots { graph, layout, kind: Kind::State, slot: 0 } }
    }
}

writer!(StateWriter, "state");

/// Writes the values of inputs in one iteration into the host block.
#[derive(Debug)]
pub struct InputWriter<'w, B> {
    device: &'w mut B,
    slots: Slots<'w>,
    iteration: u64,
}

impl<'w, B> InputWriter<'w, B> {
    /// A writer for a graph's inputs in an iteration, in the host block of a device.
    pub const fn new(
        graph: &'w Graph<'w>,
        device: &'w mut B,
        layout: &'w HostLayout<'w>,
        iteration: u64,
    ) -> Self {
        let slot = HostLayout::slot(iteration);
        Self { device, slots: Slots { graph, layout, kind: Kind::Input, slot }, iteration }
    }

    /// The iteration, counted from 1.
    #[must_use]
    pub const fn iteration(&self) -> u64 {
        self.iteration
    }
}

writer!(InputWriter, "input");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, Tensor};
    use crate::scratch::Scratch;

    /// Two states and two inputs; the first of each has an odd size.
    fn with_slots(check: impl FnOnce(Slots<'_>)) {
        let of = |bytes, kind| Tensor { bytes, kind };
        let tensors =
            [of(7, Kind::State), of(8, Kind::State), of(3, Kind::Input), of(5, Kind::Input)];
        let (ops, operands) = ([Op { reads: 4, ..Op::default() }], [0, 1, 2, 3].map(TensorId));
        let mut memory = [0; 100];
        let graph = Graph::new(&tensors, &ops, &operands, &mut Scratch::new(&mut memory)).unwrap();
        let mut places = [[0; 2], [7; 2], [15, 23], [18, 26]];
        let layout = HostLayout::of_slots(&mut places, &[0; 4]);
        check(Slots { graph: &graph, layout: &layout, kind: Kind::State, slot: 0 });
    }

    #[test]
    fn values_that_do_not_fit_are_refused_with_the_tensor() {
        with_slots(|states| {
            let (one, other) = (TensorId(0), TensorId(1));
            assert_eq!(states.place(one, None, &[0u8; 7]), Ok(0));
            assert_eq!(states.place(other, None, &[0u8; 8]), Ok(7));
            assert_eq!(states.place(other, Some(1), &[0u32]), Ok(8));
            let refused = |tensor, first, value: &[u32]| {
                let error = states.place(tensor, first, value).unwrap_err();
                assert_eq!(error.tensor(), tensor);
                error
            };
            let bytes = WriteError::Bytes { tensor: other, bytes: 8, given_bytes: 4 };
            assert_eq!(refused(other, None, &[0]), bytes);
            let alignment =
                WriteError::Alignment { tensor: other, offset_bytes: 7, align_bytes: 4 };
            assert_eq!(refused(other, None, &[0, 0]), alignment);
            for first_byte in [5, u64::MAX] {
                let given_bytes = 4;
                let part = WriteError::Part { tensor: other, bytes: 8, first_byte, given_bytes };
                assert_eq!(refused(other, Some(first_byte), &[0]), part);
            }
            for tensor in [2, 3, 4, u32::MAX].map(TensorId) {
                let kind = WriteError::Kind { tensor, kind: Kind::State };
                assert_eq!(refused(tensor, None, &[0]), kind);
            }
            assert!(states.tensors().eq([one, other]));
            let inputs = Slots { kind: Kind::Input, slot: 1, ..states };
            assert_eq!(inputs.place(TensorId(3), None, &[0u8; 5]), Ok(26));
        });
    }
}
