//! What a switch between the prompt and the token steps of a decoder costs:
//! `cargo run --release -p spillway-plan --example switch`. `docs/research/switching.md` shows the figures.

use spillway::SwitchFigures;
use spillway::planner_core::{Machine, MachineParameters};
use spillway::strategy::{Auto, Groups, Strategy};
use spillway::{Error, Graph, OwnedMachine, Plan};
use zoo::models::generate;

/// A decoder of 12 layers of width 1024, in 32-bit weights, for so many tokens at a time.
fn decoder(tokens: u32) -> Result<Graph, Error> {
    const POSITIONS_BYTES: u64 = 4 * 1024 * 512;
    let spec = format!(
        "gpt:layers=12,width=1024,sequence={tokens},batch=1,vocabulary=8192,mode=inference,tflops=60,\
         memory_gb_s=2000"
    );
    let mut graph = generate(&spec).expect("the parameters are those of the model");
    // The generator makes a table of positions as long as the sequence; here both steps have one.
    let names = graph.tensor_names.iter();
    for (tensor, name) in graph.tensors.iter_mut().zip(names) {
        if name == "wpe.weight" {
            tensor.bytes = POSITIONS_BYTES;
        }
    }
    Graph::new(graph)
}

fn machine() -> OwnedMachine {
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(32 << 30)
            .with_host_bytes(256 << 30)
            .with_chunk_bytes(2 << 20)
            .with_h2d_bytes_per_s(25_000_000_000)
            .with_d2h_bytes_per_s(25_000_000_000)
            .with_transfer_latency_ns(10_000),
    );
    let machine = machine.expect("a chunk has bytes and a link has a speed");
    OwnedMachine::new("link-25", machine)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn milliseconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

/// What the second plan holds at its start, which is what a start afresh uploads.
fn held_bytes(plan: &Plan) -> Result<u64, Error> {
    let SwitchFigures { kept_bytes, h2d_bytes, .. } = plan.switch_to(plan)?;
    Ok(kept_bytes + h2d_bytes)
}

fn main() -> Result<(), Error> {
    let (prompt, token) = (decoder(512)?, decoder(1)?);
    let machine = machine();
    let same = Groups::new().with_size(3).with_leaving(1).with_ahead(1);
    let strategies: [(&str, Strategy); 2] =
        [("auto", Auto::default().into()), ("groups of 3, 1 streamed", same.into())];
    println!(
        "| strategy | budget | token plan holds | stays | copied | time | stays, arranged | copied | time |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (name, strategy) in strategies {
        for budget in ["100%", "85%", "70%", "50%", "30%"] {
            let plan = |graph: &Graph, budget: &str| {
                graph.plan(&machine).budget(budget).strategy(strategy.clone()).run()
            };
            let Ok(first) = plan(&prompt, budget) else { continue };
            let second = plan(&token, &first.owned().budget_bytes.to_string())?;
            let mut row = format!("| {name} | {budget} | {}", megabytes(held_bytes(&second)?));
            for second in [&second, &second.arranged_after(&first)?] {
                let SwitchFigures { kept_bytes, h2d_bytes, d2h_bytes, time_ns, .. } =
                    first.switch_to(second)?;
                let (kept, copied) = (megabytes(kept_bytes), megabytes(h2d_bytes + d2h_bytes));
                row += &format!(" | {kept} | {copied} | {}", milliseconds(time_ns));
            }
            println!("{row} |");
        }
    }
    Ok(())
}
