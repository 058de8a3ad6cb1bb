//! Table 2: ResNet-152 inference in little memory.

use super::{Result, machine, ours};
use planner_core::planner::{PlanningError, Request};
use zoo::models;

const MIB: [u64; 5] = [64, 128, 192, 512, 640];

/// The published seconds for each memory size. `None` if the size is too small.
const PUBLISHED: [(u64, [Option<f64>; 5]); 3] = [
    (1, [Some(0.024), Some(0.022), Some(0.018), Some(0.017), Some(0.017)]),
    (16, [None, Some(0.077), Some(0.044), Some(0.040), Some(0.040)]),
    (64, [None, None, None, Some(0.238), Some(0.123)]),
];

pub(crate) fn run(seconds: f64) -> Result<()> {
    let machine = machine("v100-pcie3-244gb")?;
    println!("| batch | | 64 MiB | 128 MiB | 192 MiB | 512 MiB | 640 MiB |");
    println!("|--:|---|--:|--:|--:|--:|--:|");
    let show = |seconds: Option<f64>| seconds.map_or("–".to_owned(), |s| format!("{s:.4}"));
    for (batch, published) in PUBLISHED {
        // A V100 of the cloud, and what a normalization in the convolution's op would save.
        let spec = format!("resnet152:mode=inference,batch={batch},tflops=15.7,memory_gb_s=1000");
        let work = models::generate(&spec)?;
        let graph = work.graph()?;
        let row = |cells: Vec<String>| cells.join(" | ");
        println!("| {batch} | published | {} |", row(published.into_iter().map(show).collect()));
        let mut cells = Vec::new();
        for mib in MIB {
            let machine = &machine.machine;
            let request = Request { graph: &graph, machine, budget_bytes: mib << 20 };
            let found = match ours(&request, seconds) {
                Ok(found) => Some(found.plan.predicted.period_ns as f64 / 1e9),
                Err(error) => match error.downcast_ref::<PlanningError>() {
                    Some(PlanningError::Infeasible { .. }) => None,
                    _ => return Err(error),
                },
            };
            cells.push(show(found));
        }
        println!("| | ours | {} |", row(cells));
    }
    Ok(())
}
