use planner_core::planner::{Request, Strategy, Window};
use workloads::{format, planning};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut m = workloads::machines::builtin(&args[1]).unwrap().machine;
    for path in &args[2..] {
        let g = format::read_graph(&format::load(std::path::Path::new(path)).unwrap()).unwrap();
        let graph = g.graph().unwrap();
        let peak = planning::in_core_peak_bytes(&graph, &m).unwrap();
        let min = planning::min_feasible(
            &Request { graph: &graph, machine: &m, budget_bytes: 0 },
            Strategy::Auto,
        )
        .unwrap();
        m.device_bytes = m.device_bytes.max(peak * 2);
        println!("{path} peak {peak} min {} ({:.1}%)", min.0, min.0 as f64 / peak as f64 * 100.);
        for percent in [100, 75, 50, 35, 25, 0] {
            let budget = if percent == 0 { min.0 } else { peak * percent / 100 };
            print!(
                "{percent:4} {:5.1} lb {:.3} |",
                budget as f64 / 1e6,
                planning::lower_bound_ns(&graph, &m, budget).unwrap() as f64
                    / graph.compute_ns() as f64
            );
            for s in [
                Strategy::InCore,
                Strategy::OnDemand,
                Strategy::Window(Window::default()),
                Strategy::Auto,
            ] {
                let r = Request { graph: &graph, machine: &m, budget_bytes: budget };
                let t = std::time::Instant::now();
                match planning::plan(&r, s) {
                    Ok(p) => {
                        let el = t.elapsed();
                        let sch = planning::schedule(&graph, &m, &p.plan()).unwrap();
                        let v = planning::prove(&graph, &m, &p.plan(), &sch.schedule());
                        let waits: usize =
                            sch.steps.iter().map(|s| s.waits.iter().flatten().count()).sum();
                        print!(
                            " {:.3} ({} steps {} waits {:?}ms){}",
                            p.predicted.period_ns as f64 / p.predicted.compute_ns as f64,
                            p.steps.len(),
                            waits,
                            el.as_millis(),
                            if let Err(e) = v { format!("BAD {e}") } else { String::new() }
                        );
                    }
                    Err(e) => print!(" [{e}]"),
                }
            }
            println!();
        }
    }
}
