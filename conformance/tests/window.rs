//! The window's steps on a chain of three layers, followed by hand through figure 2 of the
//! paper: four chunks of memory, each variable one chunk.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::chain;
use crate::chain::CHUNK_BYTES;
use planner_core::planner::{Strategy, Window};

fn plan(budget_chunks: u64, window: Window) -> String {
    chain::plan(&chain::chain(), budget_chunks, Strategy::Window(window))
}

fn window(chunks: u64, published: bool) -> Window {
    Window::new().with_bytes(chunks * CHUNK_BYTES).with_published(published)
}

/// A window of one variable: each op finds its own and no more. The oldest swap-out frees
/// memory, and a variable that is used again before that stays.
#[test]
fn the_smallest_window_covers_the_running_op() {
    assert_eq!(
        plan(4, window(1, false)),
        "w0 w1 [F0] >a0 [F1] >a1 -w0 +w2 -a0 [F2] >a2 -w1 [B2] -a2 >w2 >d +w1 \
         [B1] -a1 >d >w1 +a0 -w2 +w0 [B0] -d -a0 >w0"
    );
}

/// As published, what the host holds already is copied all the same.
#[test]
fn the_published_variant_copies_clean_values() {
    assert_eq!(
        plan(4, window(1, true)),
        "w0 w1 [F0] >w0 >a0 [F1] >a0 >w1 >a1 -w0 +w2 -a0 [F2] >a1 >w2 >a2 -w1 [B2] -a2 \
         >w2 >d +w1 [B1] -a1 >d >w1 +a0 -w2 +w0 [B0] -d -a0 >w0"
    );
}

/// A window of four variables: what is in it again is not swapped out (figure 2d), `a0` and
/// `a1` after the ops that write them and `d` after both of its.
#[test]
fn a_wider_window_keeps_what_comes_again() {
    assert_eq!(
        plan(4, window(4, false)),
        "w0 w1 [F0] >w0 [F1] >a0 -w0 +w2 -a0 [F2] >a1 -w1 [B2] -a2 >w2 +w1 [B1] -a1 >w1 \
         +a0 -w2 +w0 [B0] -d -a0"
    );
}
