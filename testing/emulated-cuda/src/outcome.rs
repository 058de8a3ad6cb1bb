//! The result of a driver call.

use cudarc::driver::sys::CUresult;

/// What a call of the driver returns.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;
