//! Products by cuBLAS.
#![allow(unsafe_code, reason = "the library's functions take addresses")]

use crate::cublas_library::{Opened, open};
use crate::driver::Memory;
use crate::work::{Location, Matmul, Matrix};
use backend_cuda::CudaError;
use backend_cuda::cudarc::driver::sys::CUstream;
use std::path::PathBuf;

/// What NVIDIA recommends for its newest devices; beside the budget.
const WORKSPACE_BYTES: usize = 32 << 20;
/// `CUBLAS_PEDANTIC_MATH`.
const PEDANTIC_MATH: i32 = 2;

/// The library, on one stream. With a workspace of its own it gives the same bits in each run,
/// and can be captured.
#[derive(Debug)]
pub(crate) struct Blas {
    /// It goes first, once the work on its stream has ended.
    opened: Opened,
    stream: CUstream,
    workspace: Memory,
}

fn checked(call: &'static str, status: u32) -> Result<(), CudaError> {
    if status == 0 { Ok(()) } else { Err(CudaError::Library { call, status }) }
}

impl Blas {
    /// Opens the library, one that the loader finds or one in these folders, for 32 bits as they
    /// are and no faster ones. The stream's context is current on this thread, and the stream lives
    /// longer than this.
    pub(crate) fn new(stream: CUstream, folders: &[PathBuf]) -> Result<Self, String> {
        let words = |error: CudaError| error.to_string();
        let opened = open(folders)?;
        let blas = Self { opened, stream, workspace: Memory::new(WORKSPACE_BYTES).map_err(words)? };
        blas.set_up().map_err(words)?;
        Ok(blas)
    }

    fn set_up(&self) -> Result<(), CudaError> {
        let Opened { handle, functions, .. } = &self.opened;
        // SAFETY: the handle and the stream are open.
        let set = unsafe { (functions.set_stream)(*handle, self.stream) };
        checked("cublasSetStream", set)?;
        // SAFETY: the handle is open.
        let set = unsafe { (functions.set_math_mode)(*handle, PEDANTIC_MATH) };
        checked("cublasSetMathMode", set)?;
        // SAFETY: the memory has this size, and lives as long as the handle.
        let set = unsafe { (functions.set_workspace)(*handle, self.workspace.0, WORKSPACE_BYTES) };
        checked("cublasSetWorkspace", set)
    }

    /// Which library this is.
    pub(crate) fn name(&self) -> &str {
        &self.opened.name
    }

    /// Enqueues a product whose locations have these addresses. To the library, which stores
    /// matrices by columns, each is its transpose: it computes right times left.
    pub(crate) fn multiply(
        &self,
        matmul: &Matmul,
        address: impl Fn(Location) -> u64,
    ) -> Result<(), CudaError> {
        let Opened { handle, functions, .. } = &self.opened;
        let Matmul { left, right, result, .. } = *matmul;
        let [rows, columns, depth] =
            [matmul.rows, matmul.columns, matmul.depth].map(u32::cast_signed);
        let (alpha, beta) = (matmul.scale, f32::from(u8::from(matmul.adds)));
        let operation = |matrix: Matrix| i32::from(matrix.is_transposed);
        let step = |matrix: Matrix| i64::from(matrix.steps[1]);
        for outer in 0..matmul.batch[0] {
            let at = |matrix: Matrix| {
                address(matrix.location) + 4 * u64::from(outer) * u64::from(matrix.steps[0])
            };
            // SAFETY: the matrices lie inside the op's tensors, which stay mapped until the
            // step's signal, and the factors are read before the call returns.
            let enqueued = unsafe {
                (functions.sgemm_strided_batched)(
                    *handle,
                    operation(right),
                    operation(left),
                    columns,
                    rows,
                    depth,
                    &raw const alpha,
                    at(right),
                    right.row.cast_signed(),
                    step(right),
                    at(left),
                    left.row.cast_signed(),
                    step(left),
                    &raw const beta,
                    at(result),
                    result.row.cast_signed(),
                    step(result),
                    matmul.batch[1].cast_signed(),
                )
            };
            checked("cublasSgemmStridedBatched", enqueued)?;
        }
        Ok(())
    }
}
