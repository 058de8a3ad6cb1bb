//! Everything stays on the device. Only inputs move, a whole iteration ahead if memory allows.

use super::builder::Builder;
use super::list::{Lengths, Stuck};
use super::request::Task;
use super::strategy::{Need, Rule};
use super::trials::Search;
use crate::graph::Kind;
use crate::scratch::Scratch;
use crate::sequence::{LaunchId, Sequence};

/// The rule. It has two lists: with inputs prefetched early, and without.
#[derive(Debug)]
pub(super) struct InCore;

impl Rule for InCore {
    fn need(&self, _: &Sequence<'_>) -> Need {
        Need::Everything
    }

    fn lists(&self, _: &Task<'_>) -> usize {
        2
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        _: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        write(builder, list == 0)
    }
}

/// With `early_inputs`, the next value of an input is prefetched into the memory of the last one as
/// soon as that is no longer needed.
fn write(mut builder: Builder<'_>, early_inputs: bool) -> Result<Lengths, Stuck> {
    let sequence = builder.task.sequence;
    for (_, op) in sequence.iterations(2) {
        builder.reach(op);
        for &tensor in sequence.reads(op) {
            builder.prefetch(tensor)?;
        }
        builder.launch(op)?;
        if early_inputs {
            renew_inputs(&mut builder, op)?;
        }
    }
    builder.finish()
}

/// Prefetches the next iteration's value of each input that an op used last.
fn renew_inputs(builder: &mut Builder<'_>, op: LaunchId) -> Result<(), Stuck> {
    let sequence = builder.task.sequence;
    for &tensor in sequence.reads(op) {
        let done = sequence.tensor(tensor).kind == Kind::Input
            && !builder.is_resident(tensor)
            && builder.upcoming(tensor).is_none();
        if done && builder.reads_first(tensor) {
            builder.prefetch(tensor)?;
        }
    }
    Ok(())
}
