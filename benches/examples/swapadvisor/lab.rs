use super::{MACHINE, NEVER, Outcome, machine};
use planner_core::planner::Request;
use search::genetic::{self, Settings};
use search::{Limit, Watch};
use workloads::models;

pub(crate) fn run(seconds: f64) -> Outcome<()> {
    let var = |name: &str, default: &str| std::env::var(name).unwrap_or(default.to_owned());
    let work = models::generate(&var("SPEC", "rnn:layers=8,width=8192,batch=256"))?;
    let graph = work.graph()?;
    let machine = machine(MACHINE)?.machine;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: machine.device_bytes };
    let settings = Settings {
        population: var("POP", "144").parse()?,
        mutation: var("MUT", "0.1").parse()?,
        selection: var("SEL", "1").parse()?,
        limit: Limit { seconds: Some(seconds), rounds: None, bound_ns: 0 },
        ..Settings::default()
    };
    let mut at = 0.0;
    let mut watch = Watch { interrupted: &NEVER, progress: &mut |p| {
        if p.seconds > at {
            at = p.seconds * 1.3;
            println!("{:.1} s, generation {}, {} judged, {:.2} s", p.seconds, p.rounds, p.evaluations, p.best_ns.unwrap_or(0) as f64 / 1e9);
        }
    } };
    let found = genetic::search(&request, &settings, &mut watch)?;
    println!("by the clock {:.3}", found.generations.iter().map(|g| g.best_ns).min().unwrap_or(0) as f64 / 1e9);
    let first = found.generations[0].best_ns as f64 / 1e9;
    let last = found.plan.predicted.period_ns as f64 / 1e9;
    println!("{} judged, {:.0}/s, first {first:.2}, last {last:.2}, {:.2} times", found.evaluations, found.evaluations as f64 / found.seconds, first / last);
    Ok(())
}
