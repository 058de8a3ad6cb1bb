//! Measures the time of planning and of its parts over the number of ops.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use planner_core::placement::Over;
use planner_core::planner::{Auto, Lms, Request, Strategy, Window};
use spillway::streaming::{self, Layer};
use spillway::{placing, planning};
use spillway_benches::training_step;
use std::hint::black_box;
use std::time::Duration;
use workloads::machines;

fn planning_by_ops(criterion: &mut Criterion) {
    let machine = machines::builtin("v100-nvlink").expect("a built-in machine").machine;
    let mut machine = machine.with_host_bytes(u64::MAX);
    for ops in [1_000, 10_000, 100_000] {
        let owned = training_step(ops);
        let graph = owned.graph().expect("a valid graph");
        let peak_bytes = planning::in_core_peak_bytes(&graph, &machine).expect("scratch");
        machine = machine.with_device_bytes(machine.device_bytes.max(peak_bytes));
        let request = Request { graph: &graph, machine: &machine, budget_bytes: peak_bytes / 4 };
        let given = Window::new().with_bytes(1 << 30);

        let mut group = criterion.benchmark_group("ops");
        group.sample_size(10).measurement_time(Duration::from_secs(3));
        group.throughput(Throughput::Elements(graph.ops().len() as u64));
        let id = |name: &str| BenchmarkId::new(name.to_owned(), ops);
        for (name, strategy) in [
            ("window, given size", Strategy::Window(given)),
            ("window, size chosen", Strategy::Window(Window::default())),
            ("on-demand", Strategy::OnDemand),
            ("fit", Strategy::Fit),
            ("vdnn", Strategy::Vdnn),
            ("lms, tuned", Strategy::Lms(Lms::default())),
            ("auto, first plan", Strategy::Auto(Auto::new().with_effort(0))),
            ("auto", Strategy::Auto(Auto::default())),
        ] {
            let mut buffers = planning::Buffers::default();
            group.bench_function(id(name), |bencher| {
                bencher.iter(|| {
                    black_box(buffers.plan(&request, strategy).expect("a plan").steps.len())
                });
            });
        }
        let plan = planning::plan(&request, Strategy::Window(given)).expect("a plan");
        let plan = plan.plan();
        let schedule = planning::schedule(&graph, &machine, &plan).expect("a schedule");
        group.bench_function(id("lower"), |bencher| {
            bencher.iter(|| planning::schedule(&graph, &machine, &plan).expect("a schedule"));
        });
        group.bench_function(id("predict"), |bencher| {
            let schedule = schedule.schedule();
            bencher.iter(|| planning::predict(&graph, &machine, &plan, &schedule).expect("times"));
        });
        group.bench_function(id("verify"), |bencher| {
            let schedule = schedule.schedule();
            bencher.iter(|| {
                black_box(planning::prove(&graph, &machine, &plan, &schedule).expect("a proof"));
            });
        });
        for iterations in [1, 2] {
            let over = Over { iterations, settled: true, spares_due: true, most_lacking: u64::MAX };
            let name = if iterations == 1 { "placements" } else { "placements, two iterations" };
            let owned = planning::plan(&request, Strategy::Window(given)).expect("a plan");
            group.bench_function(id(name), |bencher| {
                bencher.iter(|| black_box(placing::place_over(&graph, &machine, &owned, over)));
            });
        }
        group.finish();
    }
}

/// Chains with layers of one size, and with layers of many sizes.
fn streaming_by_layers(criterion: &mut Criterion) {
    let mut machine = machines::builtin("a100-pcie4").expect("a built-in machine");
    machine.machine = machine.machine.with_device_bytes(u64::MAX).with_host_bytes(u64::MAX);
    let mib = 1 << 20;
    let alike = |_: u64| Layer::new(400 * mib, 10_000_000);
    let mixed = |layer: u64| {
        Layer::new((1 + layer * 37 % 50) * 16 * mib, 1_000_000 * (1 + layer * 11 % 19))
    };
    let mut group = criterion.benchmark_group("streaming");
    for (name, layer) in [("alike", &alike as &dyn Fn(u64) -> Layer), ("mixed", &mixed)] {
        for count in [30, 100, 300] {
            let layers: Vec<_> = (0..count).map(layer).collect();
            for budget in ["75%", "50%", "25%"] {
                let id = BenchmarkId::new(format!("{name}, {budget}"), count);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| streaming::plan(&layers, &machine, budget).expect("a plan"));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, planning_by_ops, streaming_by_layers);
criterion_main!(benches);
