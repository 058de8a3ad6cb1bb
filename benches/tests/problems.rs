//! Generated problems like those of MiniMalloc.

mod tight;

use spillway_benches::problems::generate;
use tight::assert_tight;

#[test]
fn generated_problems_are_packed_tightly() {
    for seed in 0..16 {
        assert_tight(&generate(seed, 150 + 5 * seed as usize));
    }
}
