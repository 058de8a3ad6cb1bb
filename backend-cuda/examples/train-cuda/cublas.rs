//! Products by cuBLAS.
#![allow(unsafe_code, reason = "the library's functions take addresses")]

use crate::launcher::named;
use crate::work::{Location, Matmul, Matrix};
use backend_cuda::CudaError;
use backend_cuda::cudarc::cublas::result::{CublasError, sgemm_strided_batched};
use backend_cuda::cudarc::cublas::{CudaBlas, sys};
use backend_cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::sync::Arc;
use sys::cublasMath_t::CUBLAS_PEDANTIC_MATH;
use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};

/// What NVIDIA recommends for its newest devices; beside the budget.
const WORKSPACE_BYTES: usize = 32 << 20;

/// The library, on one stream. With a workspace of its own it gives the same bits in each run,
/// and can be captured.
#[derive(Debug)]
pub(crate) struct Blas {
    blas: CudaBlas,
    _workspace: CudaSlice<u8>,
}

fn checked(call: &'static str, result: Result<(), CublasError>) -> Result<(), CudaError> {
    result.map_err(|CublasError(status)| CudaError::Library { call, status: status as u32 })
}

impl Blas {
    /// Whether the library is found.
    pub(crate) fn is_present() -> bool {
        // SAFETY: only looks for a library; those with this name are cuBLAS.
        unsafe { sys::is_culib_present() }
    }

    /// Opens the library, for 32 bits as they are and no faster ones.
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self, String> {
        if !Self::is_present() {
            return Err("there is no cuBLAS: libcublas is not found".to_owned());
        }
        let blas = CudaBlas::new(Arc::clone(stream)).map_err(|error| error.to_string())?;
        let workspace = named("cuMemAlloc", stream.alloc_zeros(WORKSPACE_BYTES));
        let workspace: CudaSlice<u8> = workspace.map_err(|error| error.to_string())?;
        let (at, _) = workspace.device_ptr(stream);
        let handle = *blas.handle();
        // SAFETY: the handle is open.
        let set = unsafe { sys::cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH) }.result();
        checked("cublasSetMathMode", set).map_err(|error| error.to_string())?;
        // SAFETY: the memory has this size, and lives as long as the handle.
        let set = unsafe { sys::cublasSetWorkspace_v2(handle, at as *mut _, WORKSPACE_BYTES) };
        let set = checked("cublasSetWorkspace", set.result());
        set.map_err(|error| error.to_string())?;
        Ok(Self { blas, _workspace: workspace })
    }

    /// Enqueues a product whose locations have these addresses. To the library, which stores
    /// matrices by columns, each is its transpose: it computes right times left.
    pub(crate) fn multiply(
        &self,
        matmul: &Matmul,
        address: impl Fn(Location) -> u64,
    ) -> Result<(), CudaError> {
        let Matmul { left, right, result, .. } = *matmul;
        let [rows, columns, depth] =
            [matmul.rows, matmul.columns, matmul.depth].map(u32::cast_signed);
        let (alpha, beta) = (matmul.scale, f32::from(u8::from(matmul.adds)));
        let operation =
            |matrix: Matrix| if matrix.is_transposed { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let step = |matrix: Matrix| i64::from(matrix.steps[1]);
        for outer in 0..matmul.batch[0] {
            let at = |matrix: Matrix| {
                address(matrix.location) + 4 * u64::from(outer) * u64::from(matrix.steps[0])
            };
            // SAFETY: the matrices lie inside the op's tensors, which stay mapped until the
            // step's signal, and the factors are read before the call returns.
            let enqueued = unsafe {
                sgemm_strided_batched(
                    *self.blas.handle(),
                    operation(right),
                    operation(left),
                    columns,
                    rows,
                    depth,
                    &raw const alpha,
                    at(right) as *const f32,
                    right.row.cast_signed(),
                    step(right),
                    at(left) as *const f32,
                    left.row.cast_signed(),
                    step(left),
                    &raw const beta,
                    at(result) as *mut f32,
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
