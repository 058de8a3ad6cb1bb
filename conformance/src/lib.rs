//! What every planner, verifier and backend is held to.
//!
//! [`ledger`] judges a plan slowly and straight from the text of the plan format, so that
//! the fast code of `planner-core` has something independent to be compared with.
#![forbid(unsafe_code)]

pub mod ledger;
