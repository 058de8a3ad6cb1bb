//! What an op launches, with locations in tensors instead of addresses.

use planner_core::TensorId;

/// Elements side by side: of a tensor, or of the op's workspace, from one on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    /// None for the workspace.
    pub(crate) tensor: Option<TensorId>,
    pub(crate) first: u64,
}

impl Location {
    pub(crate) const WORKSPACE: Self = Self { tensor: None, first: 0 };

    pub(crate) const fn at(self, first: u64) -> Self {
        Self { first, ..self }
    }
}

impl From<TensorId> for Location {
    fn from(tensor: TensorId) -> Self {
        Self { tensor: Some(tensor), first: 0 }
    }
}

/// What a kernel is given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// An address, or a null one.
    At(Option<Location>),
    Word(u32),
    Long(u64),
    Number(f32),
}

impl<P: Into<Location>> From<P> for Argument {
    fn from(location: P) -> Self {
        Self::At(Some(location.into()))
    }
}

/// A launch of a kernel of `kernels.cu`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) kernel: &'static str,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) arguments: Vec<Argument>,
}

/// What is launched.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Call(Call),
    Matmul(Matmul),
}

/// A matrix, or several of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) location: Location,
    /// Elements from one row to the next, as it is stored.
    pub(crate) row: u32,
    /// Whether its transpose is meant.
    pub(crate) is_transposed: bool,
    /// Elements from one matrix to the next, in both dimensions of a batch.
    pub(crate) steps: [u32; 2],
}

impl Matrix {
    /// A matrix with rows of this many elements.
    pub(crate) fn new(location: impl Into<Location>, row: u32) -> Self {
        Self { location: location.into(), row, is_transposed: false, steps: [0, 0] }
    }

    pub(crate) const fn transposed(self) -> Self {
        Self { is_transposed: true, ..self }
    }

    pub(crate) const fn stepping(self, steps: [u32; 2]) -> Self {
        Self { steps, ..self }
    }

    /// Elements from one row to the next, and from one column to the next, of what is meant.
    const fn strides(self) -> [u32; 2] {
        if self.is_transposed { [1, self.row] } else { [self.row, 1] }
    }
}

/// `result = scale left right`, added to what the result holds where `adds`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matmul {
    pub(crate) left: Matrix,
    pub(crate) right: Matrix,
    /// Never transposed.
    pub(crate) result: Matrix,
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    /// Terms of each sum.
    pub(crate) depth: u32,
    pub(crate) scale: f32,
    pub(crate) adds: bool,
    /// How many there are, in two dimensions.
    pub(crate) batch: [u32; 2],
}

/// Rows and columns of a block of the kernel, as in the source.
const TILE: u32 = 64;
/// Threads of such a block.
const TILE_THREADS: u32 = 256;

impl Matmul {
    /// This by the kernel of `kernels.cu`.
    pub(crate) fn call(&self) -> Call {
        let Self { left, right, result, .. } = *self;
        let ([left_row, left_k], [right_k, right_column]) = (left.strides(), right.strides());
        let mut arguments =
            vec![left.location.into(), right.location.into(), result.location.into()];
        arguments.extend([self.rows, self.columns, self.depth].map(Argument::Word));
        let strides = [left_row, left_k, right_column, right_k, result.row];
        arguments.extend(strides.map(Argument::Word));
        arguments.extend([Argument::Number(self.scale), Argument::Word(self.adds.into())]);
        arguments.push(Argument::Word(self.batch[1]));
        let steps = [left, right, result].map(|matrix| matrix.steps);
        arguments.extend(steps.concat().into_iter().map(Argument::Word));
        let [across, down] = [self.columns, self.rows].map(|count| count.div_ceil(TILE));
        let blocks = [across, down, self.batch[0] * self.batch[1]];
        Call { kernel: "matmul", blocks, threads: TILE_THREADS, arguments }
    }
}

/// Threads of a block that works on elements or on a row, at most; as in the source.
const MOST_THREADS: u32 = 256;

/// A thread an element.
pub(crate) fn each(kernel: &'static str, count: u64, arguments: Vec<Argument>) -> Work {
    let blocks = count.div_ceil(MOST_THREADS.into()) as u32;
    Work::Call(Call { kernel, blocks: [blocks, 1, 1], threads: MOST_THREADS, arguments })
}

/// A block a row, of this many elements.
pub(crate) fn by_row(
    kernel: &'static str,
    [rows, width]: [u32; 2],
    arguments: Vec<Argument>,
) -> Work {
    let threads = width.next_power_of_two().clamp(32, MOST_THREADS);
    Work::Call(Call { kernel, blocks: [rows, 1, 1], threads, arguments })
}

/// Columns of a block that sums them, and its threads; as in the source.
const COLUMNS: u32 = 32;
const COLUMN_THREADS: u32 = 32 * COLUMNS;

/// A group of threads a column.
pub(crate) fn by_column(kernel: &'static str, columns: u32, arguments: Vec<Argument>) -> Work {
    let blocks = [columns.div_ceil(COLUMNS), 1, 1];
    Work::Call(Call { kernel, blocks, threads: COLUMN_THREADS, arguments })
}
