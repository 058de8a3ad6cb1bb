//! Figure 7: WResNet-152-4, the largest model that TFLMS can train.

use super::{MACHINE, Result, bound_ns, limit, machine, ours, prove, published};
use planner_core::planner::{Lms, Request, Strategy};
use planner_core::scratch::Scratch;
use planner_core::{Graph, Kind, Machine, TensorId};
use spillway::planning;
use spillway::search::genetic::Settings;
use zoo::models;

pub(crate) fn run(seconds: f64) -> Result<()> {
    let machine = machine(MACHINE)?.machine;
    println!(
        "| batch | in-core, GB | ideal | bound | LMS, parameters stay | LMS | on-demand \
         | published search | ours | ours over LMS, parameters stay |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for batch in [16u64, 32, 64] {
        let work = models::generate(&format!("wresnet152:widen=4,tflops=15.7,batch={batch}"))?;
        let graph = work.graph()?;
        let budget_bytes = machine.device_bytes;
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        let plan_ns = |strategy| -> Result<u64> {
            let plan = planning::plan(&request, strategy)?;
            prove(&request, &plan)?;
            Ok(plan.predicted.period_ns)
        };
        let settings = Settings::PUBLISHED.with_limit(limit(seconds, &request)?);
        let stay_ns = with_parameters_ns(&graph, &machine)?;
        let ours_ns = ours(&request, seconds)?.plan.predicted.period_ns;
        let periods_ns = [
            graph.compute_ns(),
            bound_ns(&request)?,
            stay_ns,
            plan_ns(Strategy::Lms(Lms::default()))?,
            plan_ns(Strategy::OnDemand)?,
            published(&request, settings)?.plan.predicted.period_ns,
            ours_ns,
        ];
        let rates = periods_ns.map(|ns| format!("{:.1}", batch as f64 * 1e9 / ns as f64));
        println!(
            "| {batch} | {:.0} | {} | {:.2} |",
            planning::in_core_peak_bytes(&graph, &machine)? as f64 / 1e9,
            rates.join(" | "),
            stay_ns as f64 / ours_ns as f64,
        );
    }
    Ok(())
}

/// The period with LMS for all tensors except the parameters, which TFLMS leaves on the device.
fn with_parameters_ns(graph: &Graph<'_>, machine: &Machine) -> Result<u64> {
    let is_state = |&tensor: &TensorId| graph.tensor(tensor).kind == Kind::State;
    let states_bytes: u64 =
        graph.tensor_ids().filter(is_state).map(|state| graph.tensor(state).bytes).sum();
    let (mut ops, mut operands) = (Vec::new(), Vec::new());
    for op in graph.op_ids() {
        let others = |from: &[TensorId]| {
            from.iter().copied().filter(|tensor| !is_state(tensor)).collect::<Vec<_>>()
        };
        let (reads, writes) = (others(graph.reads(op)), others(graph.writes(op)));
        ops.push(
            graph
                .op(op)
                .with_first_operand(operands.len() as u32)
                .with_reads(reads.len() as u32)
                .with_writes(writes.len() as u32),
        );
        operands.extend(reads.into_iter().chain(writes));
    }
    let mut memory = vec![0; Graph::scratch_words(graph.tensors().len())];
    let scratch = &mut Scratch::new(&mut memory);
    let graph = Graph::new(graph.tensors(), &ops, &operands, scratch)?;
    let budget_bytes = machine.device_bytes - states_bytes;
    let request = Request { graph: &graph, machine, budget_bytes };
    let plan = planning::plan(&request, Strategy::Lms(Lms::default()))?;
    prove(&request, &plan)?;
    Ok(plan.predicted.period_ns)
}
