//! Plans in which `auto` runs ops on the host.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod buffers;

use buffers::Buffers;
use planner_core::planner::{self, Auto, Host, PlanningError, Request, Strategy};
use planner_core::{
    Graph, Kind, Limits, Machine, MachineParameters, Op, Scheduled, Scratch, Step, Tensor,
    TensorId, lower, verify,
};

/// Builds a graph.
#[derive(Default)]
struct Work {
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    operands: Vec<TensorId>,
}

impl Work {
    fn tensor(&mut self, kind: Kind, bytes: u64) -> u32 {
        self.tensors.push(Tensor::new(bytes, kind));
        self.tensors.len() as u32 - 1
    }

    fn op(&mut self, time_ns: u64, host_ns: Option<u64>, reads: &[u32], writes: &[u32]) {
        self.ops.push(
            Op::new(time_ns)
                .with_first_operand(self.operands.len() as u32)
                .with_reads(reads.len() as u32)
                .with_writes(writes.len() as u32)
                .with_repeatable(host_ns.is_none())
                .with_host_ns(host_ns),
        );
        self.operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id)));
    }
}

/// The forward and the backward pass of a training step. Returns each layer's weight, moments (six
/// times as many bytes) and gradient.
fn passes(layers: usize, bytes: u64) -> (Work, Vec<[u32; 3]>) {
    let mut work = Work::default();
    let weights: Vec<_> = (0..layers).map(|_| work.tensor(Kind::State, bytes)).collect();
    let moments: Vec<_> = (0..layers).map(|_| work.tensor(Kind::State, 6 * bytes)).collect();
    let mut x = work.tensor(Kind::Input, 64 << 20);
    let mut saved = Vec::new();
    for &weight in &weights {
        let (keep, next) =
            (work.tensor(Kind::Temporary, 1 << 30), work.tensor(Kind::Temporary, 64 << 20));
        work.op(30_000_000, None, &[x, weight], &[keep, next]);
        saved.push((x, keep));
        x = next;
    }
    let mut gradient = work.tensor(Kind::Temporary, 64 << 20);
    work.op(1_000_000, None, &[x], &[gradient]);
    let mut updated = Vec::new();
    for (layer, (x, keep)) in saved.into_iter().enumerate().rev() {
        let (next, of_weight) =
            (work.tensor(Kind::Temporary, 64 << 20), work.tensor(Kind::Temporary, bytes));
        work.op(60_000_000, None, &[gradient, x, keep, weights[layer]], &[next, of_weight]);
        gradient = next;
        updated.push([weights[layer], moments[layer], of_weight]);
    }
    (work, updated)
}

/// A training step whose updates may run on the host.
fn training(layers: usize, mib: u64, host_gb_s: u64) -> Work {
    let bytes = mib << 20;
    let (mut work, updated) = passes(layers, bytes);
    for [weight, moments, gradient] in updated {
        let touched = bytes / 2 * 28;
        let reads = [gradient, weight, moments];
        work.op(touched / 800, Some(touched / host_gb_s), &reads, &[weight, moments]);
    }
    work
}

/// The same, but weights decay in place, and the norm of all gradients clips each one in place.
fn clipped(layers: usize, mib: u64, host_gb_s: u64) -> Work {
    let bytes = mib << 20;
    let (mut work, updated) = passes(layers, bytes);
    let mut norms = Vec::new();
    for &[_, _, gradient] in &updated {
        norms.push(work.tensor(Kind::Temporary, 4));
        work.op(bytes / 800, Some(bytes / host_gb_s), &[gradient], &norms[norms.len() - 1..]);
    }
    let norm = work.tensor(Kind::Temporary, 4);
    work.op(1000, Some(1000), &norms, &[norm]);
    for [weight, moments, gradient] in updated {
        work.op(bytes / 400, Some(2 * bytes / host_gb_s), &[gradient, norm], &[gradient]);
        work.op(bytes / 400, Some(2 * bytes / host_gb_s), &[weight], &[weight]);
        let touched = bytes / 2 * 28;
        let reads = [gradient, weight, moments];
        work.op(touched / 800, Some(touched / host_gb_s), &reads, &[weight, moments]);
    }
    work
}

/// One token: layers with one weight each, which may run on the host.
fn token(layers: usize, mib: u64, host_gb_s: u64) -> Work {
    let mut work = Work::default();
    let bytes = mib << 20;
    let mut x = work.tensor(Kind::Input, 16 << 10);
    for layer in 0..layers {
        let [weight, other] = [(); 2].map(|()| work.tensor(Kind::State, bytes / 2));
        let cache = work.tensor(Kind::State, 8 << 20);
        for (weight, cache) in [(weight, Some(cache)), (other, None)] {
            let is_last = layer + 1 == layers && cache.is_none();
            let next = work.tensor(if is_last { Kind::Output } else { Kind::Temporary }, 16 << 10);
            let reads: Vec<_> = [x, weight].into_iter().chain(cache).collect();
            let writes: Vec<_> = [next].into_iter().chain(cache).collect();
            work.op(bytes / 2 / 1000, Some(bytes / 2 / host_gb_s), &reads, &writes);
            x = next;
        }
    }
    work
}

fn machine(gb_s: u64) -> Machine {
    Machine::new(
        MachineParameters::new()
            .with_device_bytes(24 << 30)
            .with_host_bytes(512 << 30)
            .with_chunk_bytes(2 << 20)
            .with_h2d_bytes_per_s(gb_s * 1_000_000_000)
            .with_d2h_bytes_per_s(gb_s * 1_000_000_000)
            .with_transfer_latency_ns(10_000),
    )
    .unwrap()
}

/// A verified plan.
struct Planned {
    period_ns: u64,
    compute_ns: u64,
    /// The number of ops on the host.
    hosted: usize,
}

impl Planned {
    fn ratio(&self) -> f64 {
        self.period_ns as f64 / self.compute_ns as f64
    }
}

/// Plans and verifies; none if the budget is too small.
fn plan(
    work: &Work,
    machine: &Machine,
    budget_bytes: u64,
    strategy: impl Into<Strategy>,
) -> Option<Planned> {
    let tensors = work.tensors.len();
    let mut memory = vec![0; Graph::scratch_words(tensors)];
    let graph =
        Graph::new(&work.tensors, &work.ops, &work.operands, &mut Scratch::new(&mut memory));
    let graph = graph.unwrap();
    let limits = Limits::of_graph(&graph);
    let limits = limits.with_steps(limits.max_steps());
    let mut buffers = Buffers::new(&limits);
    let mut memory = vec![0; planner::scratch_words(&limits)];
    let request = Request { graph: &graph, machine, budget_bytes };
    let plan =
        planner::plan(&request, strategy.into(), buffers.output(), &mut Scratch::new(&mut memory));
    let plan = match plan {
        Err(PlanningError::Infeasible { .. }) => return None,
        plan => plan.unwrap(),
    };
    let limits = Limits::of_plan(&graph, &plan);
    let mut entries = vec![Scheduled::EMPTY; limits.entries()];
    let words = lower::scratch_words(&limits).max(verify::scratch_words(&limits));
    let mut memory = vec![0; words];
    let schedule = lower(&graph, machine, &plan, &mut entries, &mut Scratch::new(&mut memory));
    let schedule = schedule.unwrap();
    verify(&graph, machine, &plan, &schedule, &mut Scratch::new(&mut memory)).unwrap();
    Some(Planned {
        period_ns: plan.predicted.period_ns,
        compute_ns: graph.compute_ns(),
        hosted: plan.steps.iter().filter(|step| matches!(step, Step::Host(_))).count(),
    })
}

fn auto(host: Host) -> Auto {
    Auto::new().with_host(host)
}

/// The figures that such a training step must reach: for a budget in GiB, and the speed of the host
/// and of each link in GB/s, the period as a multiple of the time of all ops on the device.
#[test]
fn an_optimizer_on_the_host_leaves_the_device_to_the_passes() {
    for (budget_gib, host_gb_s, link_gb_s, most) in
        [(22, 200, 25, 1.00), (8, 200, 25, 1.05), (22, 60, 25, 1.20), (22, 200, 12, 1.10)]
    {
        let work = training(32, 416, host_gb_s);
        let planned =
            plan(&work, &machine(link_gb_s), budget_gib << 30, auto(Host::Allowed)).unwrap();
        println!("{budget_gib} GiB, {host_gb_s} and {link_gb_s} GB/s: {:.3}", planned.ratio());
        assert!(planned.ratio() <= most, "{} is more than {most}", planned.ratio());
        assert!(planned.hosted > 0);
    }
}

/// The device gets a weight after the last op on the host that uses it.
#[test]
fn an_optimizer_that_updates_in_place_runs_on_the_host() {
    let work = clipped(12, 416, 60);
    let may = work.ops.iter().filter(|op| op.host_ns.is_some()).count();
    for budget_gib in [6, 12, 24] {
        for host in [Host::Allowed, Host::All] {
            let planned = plan(&work, &machine(25), budget_gib << 30, auto(host)).unwrap();
            println!("{budget_gib} GiB, {host:?}: {:.3}, {}", planned.ratio(), planned.hosted);
            assert!(planned.hosted == may || host != Host::All);
        }
    }
}

/// While the host computes some layers, the link uploads the weights of others.
#[test]
fn a_token_takes_both_processors_and_the_link() {
    for budget_gib in [10, 22] {
        let (link_gb_s, host_gb_s) = (25, 80);
        let work = token(80, 480, host_gb_s);
        let planned =
            plan(&work, &machine(link_gb_s), budget_gib << 30, auto(Host::Allowed)).unwrap();
        let all_bytes: u64 = work.tensors.iter().map(|tensor| tensor.bytes).sum();
        let away_bytes = (all_bytes - (budget_gib << 30)) as f64;
        // With h bytes on the host, the period is the time of the launches and of the host, and at
        // least the time of the uploads.
        let best_ns = |hosted_bytes: f64| {
            let hosted = hosted_bytes / all_bytes as f64;
            let computed_ns =
                planned.compute_ns as f64 * (1.0 - hosted) + hosted_bytes / host_gb_s as f64;
            computed_ns.max((away_bytes - hosted_bytes) / link_gb_s as f64)
        };
        let shares = (0..=1000).map(|share| best_ns(away_bytes * f64::from(share) / 1000.0));
        let best_ns = shares.fold(f64::INFINITY, f64::min);
        let ratio = planned.period_ns as f64 / best_ns;
        println!("{budget_gib} GiB: {ratio:.3} of the best split");
        assert!(ratio < 1.08, "{} ns, and {best_ns} ns would do", planned.period_ns);
    }
}

/// One token: layers with a dense weight, and with experts of eight times its bytes, of which the token
/// chooses an eighth.
fn experts(layers: usize, mib: u64, host_gb_s: u64) -> Work {
    let mut work = Work::default();
    let bytes = mib << 20;
    let mut x = work.tensor(Kind::Input, 16 << 10);
    for layer in 0..layers {
        for state_bytes in [bytes, 8 * bytes] {
            let is_last = layer + 1 == layers && state_bytes > bytes;
            let state = work.tensor(Kind::State, state_bytes);
            let next = work.tensor(if is_last { Kind::Output } else { Kind::Temporary }, 16 << 10);
            work.op(bytes / 1000, Some(bytes / host_gb_s), &[x, state], &[next]);
            x = next;
        }
    }
    work
}

/// The device keeps dense weights, as llama.cpp does with `--n-cpu-moe`. Experts free more memory for
/// their time on the host.
#[test]
fn experts_leave_the_device_first() {
    let (layers, mib, host_gb_s) = (12, 64, 50);
    let work = experts(layers, mib, host_gb_s);
    for kept in [2, 6, 9] {
        let budget_bytes = ((layers + 8 * kept) as u64 * mib + 32) << 20;
        let leave = layers - kept;
        let split = plan(&work, &machine(6), budget_bytes, Strategy::Split).unwrap();
        assert_eq!(split.hosted, leave, "{kept} layers of experts fit the device");
        let own = plan(&work, &machine(6), budget_bytes, auto(Host::Allowed)).unwrap();
        println!("{kept}: {:.3}, split {:.3}", own.ratio(), split.ratio());
        assert!(own.period_ns <= split.period_ns);
        let on_host_ns = leave as u64 * (mib << 20) / host_gb_s;
        let least_ns = on_host_ns + (layers + kept) as u64 * (mib << 20) / 1000;
        assert!(own.period_ns < least_ns + least_ns / 20, "{} and {least_ns}", own.period_ns);
    }
}

/// The host takes 40 times as long as the device, but computes the first op of the next prompt beside all
/// others. It takes about as long for the last two ops.
#[test]
fn a_slow_host_computes_an_op_of_a_prompt() {
    let (layers, time_ns) = (64, 10_000_000);
    let mut work = Work::default();
    let mut x = work.tensor(Kind::Input, 1 << 20);
    let mut layer = |x: u32, kind: Kind, time_ns: u64, host_ns: u64| {
        let (weight, next) = (work.tensor(Kind::State, 8 << 20), work.tensor(kind, 1 << 20));
        work.op(time_ns, Some(host_ns), &[x, weight], &[next]);
        next
    };
    for _layer in 0..layers {
        x = layer(x, Kind::Temporary, time_ns, 40 * time_ns);
    }
    let few_ns = time_ns / 100;
    for _head in 0..2 {
        layer(x, Kind::Output, few_ns, 2 * few_ns);
    }
    let own = plan(&work, &machine(25), 1 << 30, auto(Host::Allowed)).unwrap();
    let least_ns = (layers - 1) * time_ns + 2 * few_ns;
    assert!(own.period_ns <= least_ns, "{} ns, not {least_ns}", own.period_ns);
}

#[test]
fn no_choice_is_better_than_the_one_that_is_made() {
    let mut seed = 0x5eed_u64;
    let mut draw = |from: u64, to: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (seed >> 33) % (to - from + 1)
    };
    for case in 0..24 {
        let (layers, mib) = (draw(2, 12) as usize, draw(8, 400));
        let (host_gb_s, link_gb_s) = (draw(20, 300), draw(6, 60));
        let work = match case % 2 {
            0 => training(layers, mib, host_gb_s),
            _ => token(layers, mib, host_gb_s),
        };
        let all_bytes: u64 = work.tensors.iter().map(|tensor| tensor.bytes).sum();
        let budget_bytes = (all_bytes * draw(10, 90) / 100).min(24 << 30);
        let machine = machine(link_gb_s);
        let about = format!(
            "case {case}: {layers} layers of {mib} MiB, {host_gb_s} and {link_gb_s} GB/s, {budget_bytes} bytes"
        );
        let own = plan(&work, &machine, budget_bytes, auto(Host::Allowed));
        for other in [
            auto(Host::Never).into(),
            auto(Host::All).into(),
            Strategy::Split,
            Strategy::OptimizerOffload,
        ] {
            let Some(other_plan) = plan(&work, &machine, budget_bytes, other) else { continue };
            let own = own.as_ref().unwrap_or_else(|| panic!("{about}: no plan, unlike {other:?}"));
            let (own_ns, other_ns) = (own.period_ns, other_plan.period_ns);
            println!("{about}: {own_ns}, and {other_ns} by {other:?}");
            assert!(own_ns <= other_ns, "{about}: {own_ns} ns, and {other_ns} by {other:?}");
        }
    }
}
