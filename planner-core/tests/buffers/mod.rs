//! Buffers for the output of a planner.

use planner_core::plan::{ArenaPlacement, Part, Pool, Resident};
use planner_core::planner::Output;
use planner_core::{Limits, OpId, Step, TensorId};

const LAUNCH: Step = Step::launch(OpId(0));
const NOTHING: Resident = Resident { part: Part::whole(TensorId(0)), host_copy: false };
const NOWHERE: ArenaPlacement = ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 };

/// The buffers of a plan.
pub(crate) struct Buffers {
    steps: Vec<Step>,
    resident: Vec<Resident>,
    arena: Vec<ArenaPlacement>,
    pools: [Pool; 2],
    tensor_pool: Vec<u32>,
}

impl Buffers {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            steps: vec![LAUNCH; limits.steps],
            resident: vec![NOTHING; 2 * limits.tensors],
            arena: vec![NOWHERE; limits.tensors],
            pools: [Pool { object_bytes: 1, count: 0 }; 2],
            tensor_pool: vec![0; limits.tensors],
        }
    }

    pub(crate) fn output(&mut self) -> Output<'_> {
        Output {
            steps: &mut self.steps,
            resident: &mut self.resident,
            arena: &mut self.arena,
            pools: &mut self.pools,
            tensor_pool: &mut self.tensor_pool,
        }
    }
}
