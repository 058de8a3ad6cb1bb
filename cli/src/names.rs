//! Errors of planners and of the program's backends, with names of ops and tensors.

use backend_checks::Refused;
use backend_cuda::CudaError;
use backend_sim::SimError;
use backend_vulkan::VulkanError;
use planner_core::planner::PlanningError;
use planner_core::{ExecuteError, Step};
use spillway::names::{self, Mentions};
use workloads::OwnedGraph;

/// The names of a graph, and the steps of a plan for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'n>(names::Names<'n>);

impl<'n> Names<'n> {
    /// The names of a graph; steps are described where they are given.
    pub(crate) const fn new(graph: &'n OwnedGraph, steps: &'n [Step]) -> Self {
        Self(names::Names::new(graph, steps))
    }

    /// Why there is no plan, and what helps.
    pub(crate) fn planning_error(&self, error: &PlanningError, budget_bytes: u64) -> String {
        let reason = self.0.planning_error(error, budget_bytes);
        match error {
            PlanningError::NoChain { .. } => {
                format!("{reason}; `spillway export chain` converts a training step to one")
            }
            _ => reason,
        }
    }

    /// Why the simulated device refuses.
    pub(crate) fn sim_error(&self, error: &SimError) -> String {
        self.0.translate(&error.to_string(), &sim_mentions(error))
    }

    /// Why a plan could not be carried out on the simulated device.
    pub(crate) fn execute_error(&self, error: &ExecuteError<SimError>) -> String {
        self.0.execute_error(error, sim_mentions)
    }

    /// Why a plan could not be carried out on a Vulkan device.
    pub(crate) fn vulkan_execute_error(&self, error: &ExecuteError<VulkanError>) -> String {
        self.0.execute_error(error, vulkan_mentions)
    }

    /// Why a plan could not be carried out on a CUDA device.
    pub(crate) fn cuda_execute_error(&self, error: &ExecuteError<CudaError>) -> String {
        self.0.execute_error(error, cuda_mentions)
    }
}

fn vulkan_mentions(error: &VulkanError) -> Mentions {
    let VulkanError::Refused(refused) = error else { return Mentions::default() };
    refused_mentions(refused)
}

fn cuda_mentions(error: &CudaError) -> Mentions {
    let CudaError::Refused(refused) = error else { return Mentions::default() };
    refused_mentions(refused)
}

fn refused_mentions(refused: &Refused) -> Mentions {
    match *refused {
        Refused::Operands(op) | Refused::NotRepeatable(op) => {
            Mentions { op: Some(op), ..Mentions::default() }
        }
        // The others name only addresses and chunks.
        _ => Mentions::default(),
    }
}

fn sim_mentions(error: &SimError) -> Mentions {
    let (op, tensor) = match *error {
        SimError::Refused(ref refused) => return refused_mentions(refused),
        SimError::WrongContent { op, tensor, .. } | SimError::MixedVersions { op, tensor, .. } => {
            (Some(op), Some(tensor))
        }
        SimError::HostCopy { tensor, .. } => (None, Some(tensor)),
        // The others name only addresses and chunks.
        _ => (None, None),
    };
    Mentions { location: None, op, tensors: [tensor, None] }
}
