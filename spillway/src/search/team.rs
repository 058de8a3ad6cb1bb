//! The threads of a search, each with its own judge.

use super::judge::Judge;
use rayon::prelude::*;
use std::sync::Mutex;

/// One judge per thread. Rounds share the judges.
#[derive(Debug)]
pub(crate) struct Team {
    judges: Vec<Mutex<Judge>>,
}

impl Team {
    /// Makes judges for the threads of the current pool.
    pub(crate) fn new() -> Self {
        let threads = rayon::current_num_threads().max(1);
        Self { judges: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// Calls a function on each item and counts for how many it returns true.
    pub(crate) fn each<T: Send>(
        &self,
        individuals: &mut [T],
        work: impl Fn(&mut Judge, &mut T) -> bool + Sync,
    ) -> u64 {
        let done = individuals.par_iter_mut().map(|individual| {
            let judge = &self.judges[rayon::current_thread_index().unwrap_or(0)];
            // A judge keeps no state between individuals, so a poisoned one is usable.
            let mut judge = judge.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            u64::from(work(&mut judge, individual))
        });
        done.sum()
    }

    /// Maps each item, in order.
    pub(crate) fn map<T: Sync, U: Send>(
        &self,
        items: &[T],
        work: impl Fn(usize, &T) -> U + Sync + Send,
    ) -> Vec<U> {
        items.par_iter().enumerate().map(|(at, item)| work(at, item)).collect()
    }
}
