//! Errors and steps as text, with the names of ops and tensors: `op 17 ("conv1")`.

use crate::units;
use planner_core::backend::{BackendError, ErrorIds};
use planner_core::bounds::priced::PriceError;
use planner_core::executor::Moment;
use planner_core::plan::{Location, Part, PlanError, Step};
use planner_core::planner::PlanningError;
use planner_core::{ExecuteError, GraphError, Launched, OpId, TensorId, VerifyError};
use workloads::{OwnedGraph, Shown};

/// The names of a graph, and the steps of a plan for it.
#[derive(Clone, Copy, Debug)]
pub struct Names<'n> {
    graph: &'n OwnedGraph,
    steps: &'n [Step],
}

impl<'n> Names<'n> {
    /// Takes the names of a graph, and the steps to describe in errors, which may be empty.
    #[must_use]
    pub const fn new(graph: &'n OwnedGraph, steps: &'n [Step]) -> Self {
        Self { graph, steps }
    }

    /// Returns an op with its name. An id out of range has no name.
    #[must_use]
    pub fn op(&self, op: OpId) -> String {
        named(op.to_string(), self.graph.op_names.get(op.index()))
    }

    /// Returns a tensor with its name. An id out of range has no name.
    #[must_use]
    pub fn tensor(&self, tensor: TensorId) -> String {
        named(tensor.to_string(), self.graph.tensor_names.get(tensor.index()))
    }

    /// Returns only the name of the op or tensor of a step. The plan is proved, so all ids exist.
    pub(crate) fn of_step(&self, step: &Step) -> Shown<'n> {
        Shown::name(match step {
            Step::Launch(Launched { op, .. }) | Step::Host(op) => &self.graph.op_names[op.index()],
            Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
                &self.graph.tensor_names[part.tensor.index()]
            }
        })
    }

    /// Describes a step in a few words, without ids. The plan is proved, so all ids exist.
    pub(crate) fn brief(&self, step: &Step) -> String {
        let what = match step {
            Step::Launch(Launched { is_repeat: false, .. }) => "",
            Step::Launch(Launched { is_repeat: true, .. }) => "repeat of ",
            Step::Host(_) => "host run of ",
            Step::Prefetch(_) => "upload of ",
            Step::Offload(_) => "download of ",
            Step::Evict(_) => "evict of ",
        };
        format!("{what}{}", self.of_step(step))
    }

    /// Describes a step and its op or tensor.
    #[must_use]
    pub fn step(&self, step: &Step) -> String {
        match step {
            Step::Launch(Launched { op, is_repeat: false }) => {
                format!("launch of {}", self.op(*op))
            }
            Step::Launch(Launched { op, is_repeat: true }) => format!("repeat of {}", self.op(*op)),
            Step::Host(op) => format!("host run of {}", self.op(*op)),
            Step::Prefetch(part) => format!("prefetch of {}", self.part(part)),
            Step::Offload(part) => format!("offload of {}", self.part(part)),
            Step::Evict(part) => format!("evict of {}", self.part(part)),
        }
    }

    fn part(&self, part: &Part) -> String {
        let tensor = self.tensor(part.tensor);
        if part.is_whole() {
            return tensor;
        }
        let last = part.first.saturating_add(part.count).saturating_sub(1);
        format!("{tensor}, objects {} to {last}", part.first)
    }

    fn location(&self, location: Location) -> String {
        let step = match location {
            Location::Step(at) => self.steps.get(at as usize),
            _ => None,
        };
        match step {
            Some(step) => format!("{location}, the {}", self.step(step)),
            None => location.to_string(),
        }
    }

    /// Explains why a graph is malformed.
    #[must_use]
    pub fn graph_error(&self, error: &GraphError) -> String {
        self.translate(&error.to_string(), &graph_mentions(error))
    }

    /// Explains why prices prove nothing.
    #[must_use]
    pub fn price_error(&self, error: &PriceError) -> String {
        let op = match *error {
            PriceError::MarkOutOfOrder(op) | PriceError::CollectiveMark(op) => Some(op),
            _ => None,
        };
        self.translate(&error.to_string(), &Mentions { op, ..Mentions::default() })
    }

    /// Explains which rule of the format a plan breaks.
    #[must_use]
    pub fn plan_error(&self, error: &PlanError) -> String {
        self.translate(&error.to_string(), &mentions(error))
    }

    /// Explains why a schedule is not safe.
    #[must_use]
    pub fn verify_error(&self, error: &VerifyError) -> String {
        let (step, tensor) = match *error {
            VerifyError::Plan(error) => return self.plan_error(&error),
            VerifyError::Race { step, tensor, .. } | VerifyError::HostTaken { step, tensor } => {
                (step, Some(tensor))
            }
            VerifyError::NotThisPlan { step }
            | VerifyError::BadWait { step, .. }
            | VerifyError::Memory { step, .. } => (step, None),
            _ => return error.to_string(),
        };
        let tensors = [tensor, None];
        let mentions = Mentions { location: Some(Location::Step(step)), op: None, tensors };
        self.translate(&error.to_string(), &mentions)
    }

    /// Explains why planning failed.
    #[must_use]
    pub fn planning_error(&self, error: &PlanningError, budget_bytes: u64) -> String {
        match *error {
            PlanningError::Infeasible { min_feasible_bytes, op }
                if min_feasible_bytes > budget_bytes =>
            {
                format!(
                    "the budget of {} is too small: {} needs at least {}{}",
                    exactly(budget_bytes),
                    self.op(op),
                    exactly(min_feasible_bytes),
                    share_hint(budget_bytes)
                )
            }
            PlanningError::Infeasible { .. } => {
                "no plan was found, although each op alone fits the budget".to_owned()
            }
            PlanningError::BudgetAboveDevice { budget_bytes, device_bytes }
            | PlanningError::Plan(PlanError::BudgetAboveDevice { budget_bytes, device_bytes }) => {
                format!(
                    "the budget of {} is larger than the device's {}",
                    exactly(budget_bytes),
                    exactly(device_bytes)
                )
            }
            PlanningError::Plan(PlanError::HostMemory { needed_bytes, host_bytes }) => format!(
                "the host has too little memory: the tried plan with the least need takes {} of \
                 pinned host memory, the machine has {}; a host with this much memory is enough, a \
                 smaller one may be, and a larger budget leaves less to move",
                exactly(needed_bytes),
                exactly(host_bytes)
            ),
            PlanningError::Plan(error) => self.plan_error(&error),
            PlanningError::NoChain { op } => {
                let mentions = Mentions { op: Some(op), ..Mentions::default() };
                self.translate(&error.to_string(), &mentions)
            }
            _ => error.to_string(),
        }
    }

    /// Explains why a device refuses a plan or fails.
    #[must_use]
    pub fn device_error<E: BackendError>(&self, error: &E) -> String {
        self.translate(&error.to_string(), &device_mentions(error))
    }

    /// Explains why a plan did not run to its end.
    #[must_use]
    pub fn execute_error<E: BackendError>(&self, error: &ExecuteError<E>) -> String {
        let (at, mut mentions) = match error {
            ExecuteError::Plan(error) => return self.plan_error(error),
            ExecuteError::Device { at, error } => (at, device_mentions(error)),
            ExecuteError::Write { at, error } => {
                let tensors = [Some(error.tensor()), None];
                (at, Mentions { tensors, ..Mentions::default() })
            }
            ExecuteError::Fragmented(at)
            | ExecuteError::Addresses(at)
            | ExecuteError::PoolEmpty { at, .. }
            | ExecuteError::ForeignSignal { at, .. } => (at, Mentions::default()),
            _ => return error.to_string(),
        };
        match *at {
            Moment::Step { step, .. } => mentions.location = Some(Location::Step(step)),
            Moment::Start(tensor) | Moment::State(tensor) => mentions.tensors[1] = Some(tensor),
            _ => {}
        }
        self.translate(&error.to_string(), &mentions)
    }

    /// Adds the names to the ids in a message.
    #[must_use]
    pub fn translate(&self, message: &str, mentions: &Mentions) -> String {
        let location =
            mentions.location.map(|location| (location.to_string(), self.location(location)));
        let op = mentions.op.map(|op| (op.to_string(), self.op(op)));
        let tensors = mentions.tensors.into_iter().flatten();
        let tensors = tensors.map(|tensor| (tensor.to_string(), self.tensor(tensor)));
        let known: Vec<_> = location.into_iter().chain(op).chain(tensors).collect();
        replace(message, &known)
    }
}

/// A hint for a budget of so few bytes that the user probably meant a percentage.
const fn share_hint(budget_bytes: u64) -> &'static str {
    match budget_bytes {
        1..=100 => {
            " (a number without a unit is in bytes; 35% is a share of the memory needed in-core, min the smallest budget)"
        }
        _ => "",
    }
}

/// A size in units and in exact bytes, so that the user can copy it as the next budget.
pub(crate) fn exactly(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", units::bytes(bytes))
}

fn named(id: String, name: Option<&String>) -> String {
    match name {
        None => id,
        Some(name) => format!("{id} ({:?})", Shown::name(name)),
    }
}

/// Replaces the first text of each pair by the second, unless a digit follows. Works from left to right, so
/// that an inserted name that looks like an id stays unchanged.
fn replace(text: &str, pairs: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let found = pairs.iter().find(|(from, _)| {
            rest.strip_prefix(from.as_str())
                .is_some_and(|after| !after.starts_with(|c: char| c.is_ascii_digit()))
        });
        let (length, shown) = match found {
            Some((from, to)) => (from.len(), to.clone()),
            None => (next.len_utf8(), next.to_string()),
        };
        out += &shown;
        rest = &rest[length..];
    }
    out
}

/// The ids in a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mentions {
    /// The part of the plan in the message.
    pub location: Option<Location>,
    /// The op in the message.
    pub op: Option<OpId>,
    /// The tensors in the message.
    pub tensors: [Option<TensorId>; 2],
}

fn mentions(error: &PlanError) -> Mentions {
    use PlanError as E;
    let at = |location| Mentions { location: Some(location), ..Mentions::default() };
    let of = |tensor| Mentions { tensors: [Some(tensor), None], ..Mentions::default() };
    match *error {
        E::UnknownTensor(location, tensor)
        | E::TwiceInArena(location, tensor)
        | E::ArenaStep(location, tensor)
        | E::NoValueAtStart(location, tensor)
        | E::AlreadyResident(location, tensor)
        | E::NotResident(location, tensor)
        | E::NoValue(location, tensor)
        | E::NextInput(location, tensor)
        | E::ArenaInputAbsent(location, tensor)
        | E::NoHostCopy(location, tensor)
        | E::ValueLost(location, tensor)
        | E::Range { location, tensor, .. } => Mentions { location: Some(location), ..of(tensor) },
        E::UnknownOp(location, op)
        | E::LaunchedTwice(location, op)
        | E::NotOnHost(location, op)
        | E::NotRepeatable(location, op)
        | E::RepeatedTooEarly(location, op) => Mentions { op: Some(op), ..at(location) },
        E::Dependency { location, op, tensor }
        | E::RepeatReads { location, op, tensor }
        | E::HostArena { location, op, tensor }
        | E::HostReads { location, op, tensor } => {
            Mentions { location: Some(location), op: Some(op), ..of(tensor) }
        }
        E::Overflow(location)
        | E::ObjectSize(location)
        | E::Misaligned(location)
        | E::OutsideArena(location)
        | E::PoolFull { location, .. }
        | E::PlacementSize { location, .. }
        | E::UnknownObject { location, .. }
        | E::TwoHolders { location, .. } => at(location),
        E::TensorWithoutPool(tensor)
        | E::ArenaInput(tensor)
        | E::ArenaStateNotResident(tensor)
        | E::PlacementEnd(tensor) => of(tensor),
        E::ArenaOverlap(one, other) => {
            Mentions { tensors: [Some(one), Some(other)], ..Mentions::default() }
        }
        E::WorkspaceWithoutPool(op) | E::NeverLaunched(op) => {
            Mentions { op: Some(op), ..Mentions::default() }
        }
        // The other errors mention only sizes.
        _ => Mentions::default(),
    }
}

fn device_mentions<E: BackendError>(error: &E) -> Mentions {
    let ErrorIds { op, tensor, .. } = error.ids();
    Mentions { location: None, op, tensors: [tensor, None] }
}

fn graph_mentions(error: &GraphError) -> Mentions {
    let (op, tensor) = match *error {
        GraphError::EmptyTensor(tensor) | GraphError::NeverWritten(tensor) => (None, Some(tensor)),
        GraphError::OperandsOutOfRange(op) | GraphError::OperandsOutOfOrder(op) => (Some(op), None),
        GraphError::UnknownTensor { op, tensor }
        | GraphError::RepeatedOperand { op, tensor }
        | GraphError::ReadBeforeWrite { op, tensor }
        | GraphError::HostWritesInput { op, tensor } => (Some(op), Some(tensor)),
        // The other errors mention only sums and limits.
        _ => (None, None),
    };
    Mentions { location: None, op, tensors: [tensor, None] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend_checks::HostFailure;
    use backend_host::HostError;
    use planner_core::{Kind, Stream};

    fn graph() -> OwnedGraph {
        let mut graph = OwnedGraph::new("g");
        for name in ["w", "tensor 0", "x\ny"] {
            graph.push_tensor(name, 4, Kind::State);
        }
        graph.push_op("conv1", 1, 0, &[TensorId(0)], &[]);
        graph
    }

    #[test]
    fn errors_name_steps_ops_and_tensors() {
        let graph = graph();
        let steps = [Step::launch(OpId(0)), Step::Evict(Part::whole(TensorId(1)))];
        let names = Names::new(&graph, &steps);
        let lost = PlanError::ValueLost(Location::Step(1), TensorId(1));
        assert_eq!(
            names.plan_error(&lost),
            "step 1, the evict of tensor 1 (\"tensor 0\"): tensor 1 (\"tensor 0\") is needed \
             later, and the host has no copy of its value"
        );
        let race = VerifyError::Race { step: 0, stream: Stream::Upload, tensor: TensorId(2) };
        let race = names.verify_error(&race);
        assert!(race.starts_with("step 0, the launch of op 0 (\"conv1\"): "), "{race}");
        assert!(race.ends_with("use tensor 2 (\"x\\ny\")"), "{race}");
    }

    #[test]
    fn errors_about_repeats_name_the_op_the_tensor_and_the_step() {
        let (graph, op) = (graph(), OpId(0));
        let steps = [Step::launch(op), Step::repeat(op)];
        let names = Names::new(&graph, &steps);
        let location = Location::Step(1);
        for (error, expected) in [
            (
                PlanError::NotRepeatable(location, op),
                "op 0 (\"conv1\") is launched again, but it is not repeatable",
            ),
            (
                PlanError::RepeatedTooEarly(location, op),
                "op 0 (\"conv1\") is repeated before its first launch",
            ),
            (
                PlanError::RepeatReads { location, op, tensor: TensorId(0) },
                "op 0 (\"conv1\") is launched again, but tensor 0 (\"w\") does not hold the value \
                 that its first launch read",
            ),
        ] {
            let expected = format!("step 1, the repeat of op 0 (\"conv1\"): {expected}");
            assert_eq!(names.plan_error(&error), expected);
        }
    }

    #[test]
    fn errors_of_a_run_name_what_was_under_way() {
        let graph = graph();
        let steps = [Step::launch(OpId(0))];
        let names = Names::new(&graph, &steps);
        let message = |at| {
            let failure =
                HostFailure { op: OpId(0), iteration: 2, reason: "no tensor 0".to_owned() };
            names.execute_error(&ExecuteError::Device { at, error: HostError::HostOp(failure) })
        };
        let step = message(Moment::Step { iteration: 3, step: 0 });
        assert!(
            step.starts_with(
                "step 0, the launch of op 0 (\"conv1\") of iteration 3: op 0 (\"conv1\") failed on the host"
            ),
            "{step}"
        );
        assert!(step.ends_with("no tensor 0"), "{step}");
        let start = message(Moment::Start(TensorId(0)));
        assert!(start.starts_with("uploading tensor 0 (\"w\") before "), "{start}");
    }

    #[test]
    fn ids_without_a_name_stay_numbers() {
        let graph = graph();
        let names = Names::new(&graph, &[]);
        let unknown = PlanError::UnknownTensor(Location::Step(9), TensorId(12));
        assert_eq!(names.plan_error(&unknown), "step 9: there is no tensor 12");
    }

    #[test]
    fn ids_are_not_taken_for_the_start_of_longer_ones() {
        let pairs = [("tensor 1".to_owned(), "ONE".to_owned())];
        assert_eq!(replace("tensor 12 and tensor 1", &pairs), "tensor 12 and ONE");
    }
}
