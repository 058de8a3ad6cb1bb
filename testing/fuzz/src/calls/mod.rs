//! Calls of all public functions. Each must return, with whatever result.

pub mod plain;
pub mod planners;
pub mod plans;

use crate::fault::{Fault, returns};
use planner_core::Scratch;
use std::fmt::{Debug, Display};

/// More working memory is never given.
const MOST_WORDS: usize = 1 << 20;

/// Calls with this many thousandths of the working memory that is documented to be enough, with
/// garbage in it.
///
/// # Errors
/// A panic; too little memory where it was all of it.
fn call_with_scratch<T: Debug, E: Display>(
    name: &str,
    enough_words: usize,
    permille: usize,
    call: impl FnOnce(&mut Scratch<'_>) -> Result<T, E>,
) -> Result<(), Fault> {
    let words = enough_words.min(MOST_WORDS) * permille.min(1000) / 1000;
    let mut memory = vec![0xaaaa_aaaa_aaaa_aaaa; words];
    let lacks = returns(name, || match call(&mut Scratch::new(&mut memory)) {
        Ok(_) => false,
        Err(error) => error.to_string().starts_with("working memory is too small"),
    })?;
    if lacks && words == enough_words {
        let detail = format!("{name} lacks memory with the {words} words that should be enough");
        return Err(Fault::new(format!("{name} lacks memory"), detail));
    }
    Ok(())
}
