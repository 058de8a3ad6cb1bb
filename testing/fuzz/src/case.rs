//! Numbered cases: one input for one target, checked, and made smaller where it fails.

use crate::fault::{Fault, returns};
use crate::{calls, judge, layers, memory, pages, plans, sessions, switches, texts};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::time::{Duration, Instant};

/// What it may take to make an input smaller.
const SHRINKING: Duration = Duration::from_secs(5);

/// The names and contents of files.
pub type Files = Vec<(&'static str, Vec<u8>)>;

/// An input that shows a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What goes wrong.
    pub fault: Fault,
    /// The smallest input found.
    pub files: Files,
}

/// One case of the run by a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// The number of the case.
    pub number: u64,
}

impl Case {
    /// Checks the case. Where it fails, the input that is returned is as small as some seconds
    /// allow, and fails in the same way.
    #[must_use]
    pub fn check(self) -> Option<Finding> {
        self.visit(true)
    }

    /// The input, not checked.
    #[must_use]
    pub fn input(self) -> Files {
        self.visit(false).map_or_else(Files::new, |finding| finding.files)
    }

    fn visit(self, checks: bool) -> Option<Finding> {
        match self.number % 12 {
            0..=3 => {
                let check = |case: &_| judge::judge(case).map(|_| ());
                self.with(checks, &plans::plans(), check, plans::files)
            }
            4 => {
                let inputs = calls::plans::inputs();
                self.with(checks, &inputs, calls::plans::check, calls::plans::files)
            }
            5 => {
                let inputs = calls::planners::inputs();
                self.with(checks, &inputs, calls::planners::check, calls::planners::files)
            }
            6 => {
                let inputs = calls::plain::inputs();
                self.with(checks, &inputs, calls::plain::check, calls::plain::files)
            }
            7 => self.with(checks, &switches::inputs(), switches::check, switches::files),
            8 => self.with(checks, &sessions::inputs(), sessions::check, sessions::files),
            9 => self.with(checks, &layers::inputs(), layers::check, layers::files),
            10 => self.with(checks, &pages::inputs(), pages::check, pages::files),
            _ => self.with(checks, &texts::texts(), texts::check, texts::files),
        }
    }

    fn with<S: Strategy>(
        self,
        checks: bool,
        inputs: &S,
        check: impl Fn(&S::Value) -> Result<(), Fault>,
        files: impl Fn(&S::Value) -> Files,
    ) -> Option<Finding> {
        let mut runner = self.runner();
        let drawn = returns("the generator", || {
            let tree = inputs.new_tree(&mut runner).ok()?;
            let input = tree.current();
            Some((tree, input))
        });
        let (mut tree, mut input) = match drawn {
            Err(fault) => return Some(Finding { fault, files: Files::new() }),
            Ok(drawn) => drawn?,
        };
        let checked = |input: &S::Value| {
            memory::within_bounds(|| returns("the check itself", || check(input))?).err()
        };
        if !checks {
            let fault = Fault::new("unchecked", "");
            return Some(Finding { fault, files: files(&input) });
        }
        let mut fault = checked(&input)?;
        let end = Instant::now() + SHRINKING;
        let mut goes_on = tree.simplify();
        while goes_on && Instant::now() < end {
            let smaller = returns("the generator", || tree.current()).ok();
            let same = smaller.and_then(|it| Some((checked(&it)?, it)));
            goes_on = match same.filter(|(other, _)| other.kind == fault.kind) {
                Some(same) => {
                    (fault, input) = same;
                    tree.simplify()
                }
                None => tree.complicate(),
            };
        }
        Some(Finding { fault, files: files(&input) })
    }

    /// Draws from the seed and the number alone.
    fn runner(self) -> TestRunner {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&self.number.to_le_bytes());
        let config = Config { failure_persistence: None, ..Config::default() };
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
    }
}
