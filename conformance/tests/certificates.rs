//! No valid plan beats what prices prove, whatever the prices.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::certificates::{includes, prices, with_prices};
use conformance::chains::chains_in_microseconds;
use conformance::graphs::{graphs, machines, training_graphs};
use conformance::plans::cases;
use conformance::sharded::sharded;
use conformance::shortest::shortest_period_units;
use planner_core::bounds::BoundOrder;
use planner_core::bounds::priced::{ONE, Price};
use planner_core::host::HostLayout;
use planner_core::plan::Step;
use planner_core::planner::{self, Auto, Host, Repeats, Request, Strategy as Planner, Window};
use planner_core::scratch::{Limits, Scratch};
use planner_core::{Kind, Machine, MachineParameters, OpId};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::certificate::{find, prove};
use spillway::planning;
use workloads::format::{read_certificate, write_certificate};
use workloads::{OwnedCertificate, OwnedGraph, OwnedMachine, OwnedPlan, machines};

const KINDS: [(BoundOrder, bool); 4] = [
    (BoundOrder::Given, true),
    (BoundOrder::Given, false),
    (BoundOrder::Any, true),
    (BoundOrder::Any, false),
];

fn named(machine: &Machine) -> OwnedMachine {
    machines::builtin("v100-pcie3").unwrap().with_machine(*machine)
}

fn check(
    graph: &OwnedGraph,
    machine: &Machine,
    plan: &OwnedPlan,
    random: &[[u64; 4]],
) -> Result<(), TestCaseError> {
    // Certificates are for plans that run every op on the device.
    prop_assume!(!plan.steps.iter().any(|step| matches!(step, Step::Host(_))));
    // The least host on which the plan is valid.
    let named = named(&machine.with_host_bytes(host_bytes(graph, machine, plan)));
    let period_ns = plan.predicted.period_ns;
    for (order, repeats) in KINDS {
        let found = find(graph, &named, plan.budget_bytes, (order, repeats)).unwrap();
        prop_assert_eq!(read_certificate(&write_certificate(&found)), Ok(found.clone()));
        if !includes(&found, plan) {
            continue;
        }
        for certificate in [with_prices(&found, machine, &graph.ops, random), found] {
            let bound_ns = prove(graph, &named, &certificate).unwrap();
            prop_assert!(bound_ns <= period_ns, "{bound_ns} > {period_ns}: {certificate:?}");
        }
    }
    Ok(())
}

/// The host memory that a plan takes.
fn host_bytes(graph: &OwnedGraph, machine: &Machine, plan: &OwnedPlan) -> u64 {
    let (graph, plan) = (graph.graph().unwrap(), plan.plan());
    let limits = Limits::of_plan(&graph, &plan);
    let mut memory = vec![0; HostLayout::scratch_words(&limits)];
    let layout = HostLayout::new(&graph, machine, &plan, &mut Scratch::new(&mut memory));
    layout.unwrap().moved_bytes()
}

/// A byte a nanosecond each way.
fn machine() -> OwnedMachine {
    machine_with(1 << 40, 1_000_000_000)
}

/// A machine with this much host memory, and links of this speed each way.
fn machine_with(host_bytes: u64, bytes_per_s: u64) -> OwnedMachine {
    let of = machines::builtin("v100-pcie3").unwrap();
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 40)
        .with_host_bytes(host_bytes)
        .with_chunk_bytes(1)
        .with_h2d_bytes_per_s(bytes_per_s)
        .with_d2h_bytes_per_s(bytes_per_s);
    of.with_machine(Machine::new(parameters).unwrap())
}

/// A certificate that claims nothing. Prices are in eighths: of a nanosecond a byte of memory, and of the
/// time for uploads and for downloads.
fn certificate(
    (order, repeats): (BoundOrder, bool),
    budget_bytes: u64,
    marks: &[u32],
    eighths: &[[u64; 3]],
) -> OwnedCertificate {
    let price = |&[memory, upload, download]: &[u64; 3]| Price {
        memory: memory * ONE / 8,
        host: 0,
        upload: upload * ONE / 8,
        download: download * ONE / 8,
    };
    let mut certificate =
        OwnedCertificate::new("graph", machine().name, budget_bytes, order, repeats);
    certificate.marks = marks.iter().map(|&op| OpId(op)).collect();
    certificate.intervals = eighths.iter().map(price).collect();
    certificate
}

const GIVEN: (BoundOrder, bool) = (BoundOrder::Given, true);

/// The state moves once for 1 ns a byte, or stays over the second op for 2 ns. When the first op starts and
/// when it ends, the state is its operand, and pays in any case.
#[test]
fn a_mark_pays_for_its_operands_and_its_workspace() {
    let mut graph = OwnedGraph::new("graph");
    let state = graph.push_tensor("state", 100, Kind::State);
    graph.push_op("reads", 10, 0, &[state], &[]);
    graph.push_op("works", 10, 7, &[], &[]);
    let prices = [[0, 8, 0], [24, 0, 0], [16, 8, 0], [8, 8, 0], [8, 8, 0]];
    let moves = certificate(GIVEN, 50, &[0, 1], &prices);
    // Compute is charged only while the first op runs.
    let sum_ns = 100 + 10 + (3 + 2) * 100 + (1 + 1) * 7 - (3 + 2 + 1 + 1) * 50;
    assert_eq!(prove(&graph, &machine(), &moves), Ok(sum_ns));
    // Uploads always cost something, and to stay costs nothing more than what an operand pays.
    let stays = certificate(GIVEN, 50, &[0], &[[0, 8, 0], [24, 8, 0], [16, 8, 0]]);
    assert_eq!(prove(&graph, &machine(), &stays), Ok((3 + 2) * (100 - 50)));
}

#[test]
fn a_byte_stays_or_moves_or_is_made_again() {
    let mut graph = OwnedGraph::new("graph");
    let value = graph.push_tensor("value", 600, Kind::Temporary);
    let make = graph.push_op("make", 500, 0, &[], &[value]);
    graph.set_repeatable(make);
    graph.push_op("other", 100, 0, &[], &[]);
    graph.push_op("use", 100, 0, &[value], &[]);
    // When the second op starts, it costs 1 ns a byte to stay. After it, a byte comes back for half a
    // nanosecond, or all bytes for half the time of a repeat. A repeat would cost less during that op, but
    // cannot run then.
    let prices = [[0; 3], [0; 3], [0; 3], [8, 6, 0], [0, 4, 0], [0; 3], [0; 3]];
    let proved =
        |kind| prove(&graph, &machine(), &certificate(kind, 200, &[0, 1, 2], &prices)).unwrap();
    let launched_ns = 500 + 100 / 4 + 100;
    assert_eq!(proved((BoundOrder::Given, false)), launched_ns + 600 / 2 - 200);
    // The price of a byte is rounded down.
    assert_eq!(proved((BoundOrder::Given, true)), launched_ns + 500 / 2 - 200 - 1);
}

/// A second op updates the value. A repeat of it needs the value that it read, so the first op runs again too.
#[test]
fn a_repeated_update_needs_the_value_before() {
    let mut graph = OwnedGraph::new("graph");
    let value = graph.push_tensor("value", 600, Kind::Temporary);
    for (name, time_ns, reads) in [("make", 300, &[][..]), ("update", 100, &[value])] {
        let op = graph.push_op(name, time_ns, 0, reads, &[value]);
        graph.set_repeatable(op);
    }
    graph.push_op("other", 10, 0, &[], &[]);
    graph.push_op("use", 10, 0, &[value], &[]);
    // A byte stays for 1 ns, or moves for half a nanosecond each way, or both ops run again for half of their time.
    let prices = [[0, 0, 4], [8, 0, 0], [0, 4, 0]];
    let proved = prove(&graph, &machine(), &certificate(GIVEN, 0, &[2], &prices));
    // Prices of a byte are rounded down.
    assert_eq!(proved, Ok((300 + 100) / 2 + 10 + 10 / 2 + (300 + 100) / 2 - 1));
}

/// The value of the first op may leave before the update. Then its copy costs an upload, and a repeat more.
#[test]
fn a_copy_of_the_value_before_may_be_uploaded() {
    let mut graph = OwnedGraph::new("graph");
    let value = graph.push_tensor("value", 600, Kind::Temporary);
    for (name, reads) in [("make", &[][..]), ("update", &[value])] {
        let op = graph.push_op(name, 240, 0, reads, &[value]);
        graph.set_repeatable(op);
        graph.push_op("other", 0, 0, &[], &[]);
    }
    graph.push_op("use", 0, 0, &[value], &[]);
    // Over the second "other", a byte stays for 1 ns, or is downloaded before it for half of that. An upload costs
    // an eighth, and a repeat at least three eighths of two fifths.
    let prices = [[0, 0, 8], [0, 0, 8], [0, 1, 4], [8, 2, 6], [0, 1, 0]];
    let proved = prove(&graph, &machine(), &certificate(GIVEN, 0, &[1, 3], &prices));
    assert_eq!(proved, Ok(240 * 3 / 8 + 600 / 8 + 240 * 7 / 8 - 1));
}

/// A value is away three times. It is downloaded once, for nothing; comes back from the host; is made
/// again for nothing, which keeps the copy on the host; and comes back from the host.
#[test]
fn a_copy_on_the_host_lasts() {
    let mut graph = OwnedGraph::new("graph");
    let value = graph.push_tensor("value", 1000, Kind::Temporary);
    let make = graph.push_op("make", 4000, 0, &[], &[value]);
    graph.set_repeatable(make);
    for _ in 0..3 {
        graph.push_op("other", 0, 0, &[], &[]);
        graph.push_op("use", 0, 0, &[value], &[]);
    }
    let of_marks = [[0, 0, 0], [64, 2, 0], [0, 0, 8], [64, 5, 3], [0, 0, 8], [64, 1, 3], [0, 0, 0]];
    let during_and_after = |[memory, up, down]: [u64; 3]| [[memory, up, down], [0, up, down]];
    let prices: Vec<_> =
        std::iter::once([0; 3]).chain(of_marks.into_iter().flat_map(during_and_after)).collect();
    let marks: Vec<u32> = (0..7).collect();
    let certificate = certificate(GIVEN, 0, &marks, &prices);
    let sum_ns = 4000 + 1000 * (2 + 1) / 8;
    assert_eq!(prove(&graph, &machine(), &certificate), Ok(sum_ns));
}

/// The last op of three needs all of the device. Before it, a value is downloaded for nothing, and is
/// priced on the host while the op runs; or it is made again, if that costs less.
#[test]
fn a_value_pays_for_host_memory_while_the_host_holds_it() {
    let mut graph = OwnedGraph::new("graph");
    let value = graph.push_tensor("value", 600, Kind::Temporary);
    let make = graph.push_op("make", 1200, 0, &[], &[value]);
    graph.set_repeatable(make);
    graph.push_op("other", 0, 0, &[], &[]);
    graph.push_op("use", 0, 0, &[value], &[]);
    let proved_ns = |host_eighths: u64, host_bytes| {
        let prices = [[0; 3], [0; 3], [0; 3], [80, 0, 0], [0; 3], [0; 3], [0; 3]];
        let mut certificate = certificate(GIVEN, 0, &[0, 1, 2], &prices);
        certificate.intervals[3].host = host_eighths * ONE / 8;
        prove(&graph, &machine_with(host_bytes, 1_000_000_000), &certificate).unwrap()
    };
    assert_eq!(proved_ns(0, 600), 1200);
    assert_eq!(proved_ns(8, 200), 1200 + (600 - 200));
    assert_eq!(proved_ns(24, 100), 1200 + 2 * 600 - 3 * 100);
}

/// A state pays for its slot on the host in all intervals if it moves, even while only the device holds
/// its value, and for the device alone if it stays. One that no op writes does so too.
#[test]
fn a_state_has_its_slot_on_the_host_all_the_time_or_never() {
    for writes in [true, false] {
        let mut graph = OwnedGraph::new("graph");
        let state = graph.push_tensor("state", 100, Kind::State);
        let written: &[_] = if writes { &[state] } else { &[] };
        graph.push_op("uses", 0, 0, &[state], written);
        graph.push_op("other", 0, 0, &[], &[]);
        let proved_ns = |memory: u64, host: u64| {
            let prices = [[0; 3], [0; 3], [0; 3], [memory, 0, 0], [0; 3]];
            let mut certificate = certificate(GIVEN, 0, &[0, 1], &prices);
            certificate.intervals[1].host = host * ONE / 8;
            prove(&graph, &machine_with(10, 1_000_000_000), &certificate).unwrap()
        };
        assert_eq!(proved_ns(80, 8), 100 - 10);
        assert_eq!(proved_ns(80, 160), 10 * 100 - 20 * 10);
        assert_eq!(proved_ns(80, 0), 0);
    }
}

/// The update runs at any time after the first op, and is charged where that costs nothing.
#[test]
fn an_op_that_may_run_at_any_time_is_charged_where_it_is_cheapest() {
    let mut graph = OwnedGraph::new("graph");
    let state = graph.push_tensor("state", 1000, Kind::State);
    let [one, two] = ["one", "two"].map(|name| graph.push_tensor(name, 1, Kind::Temporary));
    graph.push_op("first", 100, 0, &[], &[one]);
    graph.push_op("update", 100, 0, &[one, state], &[state]);
    graph.push_op("second", 100, 0, &[one], &[two]);
    graph.push_op("third", 100, 0, &[two], &[]);
    let prices = [[0; 3], [0; 3], [0; 3], [8, 0, 0], [0; 3], [0, 8, 0], [0, 8, 0]];
    let marks = [0, 2, 3];
    let proved =
        |order| prove(&graph, &machine(), &certificate((order, true), 0, &marks, &prices)).unwrap();
    // The operands of the second mark, and the launches but the last, which the uploads are charged for.
    let others_ns = 2 + 100 + 100;
    // The state has to be there at the start of the update, and is dirty after it. So it stays over the
    // second mark, or is downloaded for nothing.
    assert_eq!(proved(BoundOrder::Given), others_ns + 100);
    assert_eq!(proved(BoundOrder::Any), others_ns);
}

/// Uploads are free before the first mark ends and while the second one runs. But the state that the update
/// needs stays over the end of the first mark, or comes later, and nothing runs beside the second one.
#[test]
fn nothing_runs_beside_a_mark() {
    let mut graph = OwnedGraph::new("graph");
    let state = graph.push_tensor("state", 1000, Kind::State);
    let out = graph.push_tensor("out", 1, Kind::Temporary);
    graph.push_op("loss", 100, 0, &[], &[out]);
    graph.push_op("next", 100, 0, &[out], &[]);
    graph.push_op("update", 10, 0, &[out, state], &[state]);
    let prices = [[0; 3], [0; 3], [8, 8, 0], [8, 0, 0], [8, 8, 0]];
    let certificate = certificate((BoundOrder::Any, true), 0, &[0, 1], &prices);
    let operands_ns = 1 + 1 + 1;
    assert_eq!(prove(&graph, &machine(), &certificate), Ok(100 + 100 + operands_ns + 1000));
}

/// One device of some: a gather of a state, a layer, a reduction of its gradient, an update, and an op after it.
/// All tensors but the state have a byte.
fn sharded_step() -> OwnedGraph {
    let mut graph = OwnedGraph::new("graph");
    let rows = graph.push_tensor("rows", 1000, Kind::State);
    let [whole, gradient, part, done] = ["whole", "gradient", "part", "done"]
        .map(|name| graph.push_tensor(name, 1, Kind::Temporary));
    let gather = graph.push_op("gather", 7000, 0, &[rows], &[whole]);
    graph.push_op("layer", 100, 0, &[whole], &[gradient]);
    let reduce = graph.push_op("reduce", 7000, 0, &[gradient], &[part]);
    graph.push_op("update", 100, 0, &[part, rows], &[rows, done]);
    graph.push_op("after", 100, 0, &[done], &[]);
    [gather, reduce].into_iter().for_each(|op| graph.set_collective(op));
    graph
}

const ORDERS: [BoundOrder; 2] = [BoundOrder::Given, BoundOrder::Any];

#[test]
fn collectives_take_no_compute() {
    for order in ORDERS {
        let free = certificate((order, true), 0, &[1, 3, 4], &[[0; 3]; 7]);
        assert_eq!(prove(&sharded_step(), &machine(), &free), Ok(300));
    }
}

/// Over the start of the layer, the state comes back for half a nanosecond a byte. Over the start of `after`, it
/// stays for an eighth, or comes back for a quarter, but the gather may run before that, in the iteration before.
/// Only a reduction, which the network runs earlier, keeps it from running before the layer.
#[test]
fn a_gather_may_run_in_the_iteration_before() {
    let upload = |eighths| [0, eighths, 0];
    let mut prices = [2, 4, 4, 4, 4, 2, 2].map(upload);
    for order in ORDERS {
        let proved_ns = |prices: &[[u64; 3]]| {
            let certificate = certificate((order, true), 0, &[1, 3, 4], prices);
            prove(&sharded_step(), &machine(), &certificate).unwrap()
        };
        // The least share of compute while an op may run.
        let launched_ns = 50 + 50 + 75;
        assert_eq!(proved_ns(&prices), launched_ns);
        prices[1][0] = 8;
        assert_eq!(proved_ns(&prices), launched_ns + 2 + 500);
        prices[5][0] = 1;
        assert_eq!(proved_ns(&prices), launched_ns + 2 + 500);
        (prices[1][0], prices[5][0]) = (0, 0);
    }
}

/// A state is uploaded for nothing while the second op runs, and a collective reads it then.
#[test]
fn collectives_run_beside_marks() {
    let mut graph = OwnedGraph::new("graph");
    let rows = graph.push_tensor("rows", 1000, Kind::State);
    let [one, two, three] =
        ["one", "two", "three"].map(|name| graph.push_tensor(name, 1, Kind::Temporary));
    graph.push_op("first", 100, 0, &[], &[one, two]);
    let exchange = graph.push_op("exchange", 10, 0, &[one, rows], &[three]);
    graph.set_collective(exchange);
    graph.push_op("second", 100, 0, &[two], &[two]);
    graph.push_op("third", 100, 0, &[two, three], &[]);
    let at = |interval| match interval {
        3 => [0; 3],
        0 | 4 => [8, 8, 0],
        _ => [0, 8, 0],
    };
    let prices = [0, 1, 2, 3, 4, 5, 6].map(at);
    for order in ORDERS {
        let certificate = certificate((order, true), 0, &[0, 2, 3], &prices);
        let operands_ns = 1;
        assert_eq!(prove(&graph, &machine(), &certificate), Ok(100 + operands_ns));
    }
}

/// A gathered weight stays over an op for 1 ns a byte, or comes back for half of that, or is gathered again for
/// nothing.
#[test]
fn a_repeat_of_a_collective_takes_no_compute() {
    let mut graph = OwnedGraph::new("graph");
    let [one, two] = ["one", "two"].map(|name| graph.push_tensor(name, 1, Kind::Temporary));
    let whole = graph.push_tensor("whole", 1000, Kind::Temporary);
    graph.push_op("first", 100, 0, &[], &[one, two]);
    let gather = graph.push_op("gather", 10, 0, &[one], &[whole]);
    graph.set_collective(gather);
    graph.set_repeatable(gather);
    graph.push_op("layer", 100, 0, &[whole, two], &[two]);
    graph.push_op("other", 100, 0, &[two], &[two]);
    graph.push_op("layer", 100, 0, &[whole, two], &[]);
    let mut prices = [[0; 3]; 9];
    (prices[5], prices[6]) = ([8, 4, 0], [0, 4, 0]);
    for (repeats, back_ns) in [(true, 0), (false, 500)] {
        let certificate = certificate((BoundOrder::Given, repeats), 0, &[0, 2, 3, 4], &prices);
        let launched_ns = 100 + 100 + 50 + 100;
        assert_eq!(prove(&graph, &machine(), &certificate), Ok(launched_ns + 1 + back_ns));
    }
}

/// Nothing waits for the reduction, so it may end in the next iteration, before the gather there ends. Bytes that it
/// reads may be downloaded, and come back in that iteration for nothing. Its read of a state proves nothing.
#[test]
fn a_reduction_may_end_in_the_next_iteration() {
    let mut graph = OwnedGraph::new("graph");
    let [seed, rows] = [1, 1000].map(|bytes| graph.push_tensor("state", bytes, Kind::State));
    let gradient = graph.push_tensor("gradient", 1000, Kind::Temporary);
    let [whole, one, two] =
        ["whole", "one", "two"].map(|name| graph.push_tensor(name, 1, Kind::Temporary));
    let sum = graph.push_tensor("sum", 1, Kind::Output);
    let gather = graph.push_op("gather", 10, 0, &[seed], &[whole]);
    graph.push_op("layer", 100, 0, &[whole], &[gradient, one]);
    graph.push_op("last", 100, 0, &[one], &[two]);
    let reduce = graph.push_op("reduce", 10, 0, &[gradient, rows, two], &[sum]);
    [gather, reduce].into_iter().for_each(|op| graph.set_collective(op));
    for order in ORDERS {
        let proved_ns = |prices: [[u64; 3]; 3]| {
            prove(&graph, &machine(), &certificate((order, true), 0, &[2], &prices)).unwrap()
        };
        // Two tensors of a byte are operands of the mark.
        assert_eq!(proved_ns([[0; 3], [0; 3], [8, 8, 0]]), 100 + 100 + 2);
        // The gradient comes back once, and so do five other bytes.
        assert_eq!(proved_ns([[8, 8, 0]; 3]), 1000 + 5);
    }
}

/// A collective after which nothing runs may run at any time until the next one, so its reads prove nothing about
/// states; one that nothing keeps in an iteration proves nothing about any tensor.
#[test]
fn little_is_known_of_a_collective_beside_everything() {
    let mut graph = OwnedGraph::new("graph");
    let rows = graph.push_tensor("rows", 1000, Kind::State);
    let whole = graph.push_tensor("whole", 1000, Kind::Temporary);
    let exchange = graph.push_op("exchange", 10, 0, &[rows], &[whole]);
    graph.set_collective(exchange);
    graph.push_op("layer", 100, 0, &[whole], &[]);
    let prices = [[8, 8, 0], [8, 8, 0], [8, 8, 0]];
    for order in ORDERS {
        let certificate = certificate((order, true), 0, &[1], &prices);
        assert_eq!(prove(&graph, &machine(), &certificate), Ok(2 * 1000));
    }
}

#[test]
fn what_proves_nothing_is_refused() {
    let mut graph = OwnedGraph::new("graph");
    let [one, two] = ["one", "two"].map(|name| graph.push_tensor(name, 1, Kind::Temporary));
    graph.push_op("first", 100, 0, &[], &[one]);
    graph.push_op("second", 100, 0, &[], &[two]);
    let refused = |certificate: &OwnedCertificate| {
        prove(&graph, &machine(), certificate).unwrap_err().to_string()
    };
    let free = [[0; 3]; 5];
    // Nothing keeps the two ops in their order, but the given order.
    let any = certificate((BoundOrder::Any, true), 0, &[0, 1], &free);
    assert!(refused(&any).contains("op 1 (\"second\") is a mark, but does not come after"));
    assert_eq!(prove(&graph, &machine(), &certificate(GIVEN, 0, &[0, 1], &free)), Ok(200));
    for marks in [&[1, 0], &[1, 1]] {
        assert!(refused(&certificate(GIVEN, 0, marks, &free)).contains("does not come after"));
    }
    assert!(refused(&certificate(GIVEN, 0, &[0, 2], &free)).contains("no such op"));
    assert!(refused(&certificate(GIVEN, 0, &[0], &free)).contains("there must be 3 intervals"));
    let collective = prove(&sharded_step(), &machine(), &certificate(GIVEN, 0, &[0], &[[0; 3]; 3]));
    let message = collective.unwrap_err().to_string();
    assert!(message.contains("op 0 (\"gather\") is a mark, but it is a collective"), "{message}");
    let shares = certificate(GIVEN, 0, &[0], &[[0; 3], [0, 5, 4], [0; 3]]);
    assert!(refused(&shares).contains("in interval 1 add up to more than 2^32"));
    let mut high = certificate(GIVEN, u64::MAX, &[0], &[[0; 3]; 3]);
    high.intervals.iter_mut().for_each(|price| price.memory = u64::MAX);
    assert!(refused(&high).contains("too high"));
    let mut more = certificate(GIVEN, 0, &[], &[[0; 3]]);
    more.bound_ns = 201;
    assert!(refused(&more).contains("no plan takes less than 201 ns, but its prices prove 200 ns"));
    let mut other = more.clone();
    other.graph = "other".to_owned();
    assert!(refused(&other).contains("is for the graph \"other\", but the graph is \"graph\""));
    let mut other = more;
    other.machine = "other".to_owned();
    assert!(refused(&other).contains("is for the machine \"other\""));
}

const STRATEGIES: [Planner; 6] = [
    Planner::OnDemand,
    Planner::Window(Window::new()),
    auto(planner::Order::Given, Repeats::Never),
    auto(planner::Order::Free, Repeats::Never),
    auto(planner::Order::Free, Repeats::Allowed),
    Planner::CheckpointOffload,
];

const fn auto(order: planner::Order, repeats: Repeats) -> Planner {
    Planner::Auto(
        Auto::new().with_effort(9).with_order(order).with_repeats(repeats).with_host(Host::Never),
    )
}

/// A forward pass whose values are updated in place, and a backward pass that reads them in the opposite order.
/// Layers have the bytes of their value, the times of the ops that write it, and the time of the backward op.
/// All ops may run again.
fn with_updates(layers: &[(u64, Vec<u64>, u64)]) -> OwnedGraph {
    let mut graph = OwnedGraph::new("graph");
    let mut before = None;
    let mut values = Vec::new();
    for (bytes, times, _) in layers {
        let value = graph.push_tensor("value", bytes * 100, Kind::Temporary);
        for (at, time_ns) in times.iter().enumerate() {
            let reads = if at == 0 { before } else { Some(value) };
            graph.push_op("write", time_ns * 10, 0, reads.as_slice(), &[value]);
        }
        before = Some(value);
        values.push(value);
    }
    let gradient = graph.push_tensor("gradient", 100, Kind::Temporary);
    graph.push_op("loss", 10, 0, before.as_slice(), &[gradient]);
    for (value, (.., time_ns)) in values.iter().zip(layers).rev() {
        graph.push_op("backward", time_ns * 10, 0, &[*value, gradient], &[gradient]);
    }
    graph.ops.iter_mut().for_each(|op| op.repeatable = true);
    graph
}

/// Checks the plan of each strategy with this much memory beyond its least.
fn check_strategies(
    owned: &OwnedGraph,
    machine: &Machine,
    spare_bytes: u64,
    random: &[[u64; 4]],
) -> Result<(), TestCaseError> {
    let graph = owned.graph().unwrap();
    for strategy in STRATEGIES {
        let request = |budget_bytes| Request { graph: &graph, machine, budget_bytes };
        let (least_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
        let plan = planning::plan(&request(least_bytes + spare_bytes), strategy).unwrap();
        check(owned, machine, &plan, random)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(conformance::seeds::config(48))]
    #[test]
    fn no_plan_with_repeated_updates_beats_a_certificate(
        layers in vec((1..20u64, vec(1..100u64, 2..4), 1..100u64), 2..6),
        magnitude in 0..5u32,
        mantissa in 1..10u64,
        budget_percent in 0..60u64,
        random in prices(),
    ) {
        let bytes_per_s = mantissa * 10u64.pow(magnitude) * 1_000_000;
        let owned = with_updates(&layers);
        let machine = machine_with(1 << 40, bytes_per_s).machine;
        let graph = owned.graph().unwrap();
        let strategy = Planner::Auto(Auto::new().with_effort(60));
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let (least_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
        let most_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap();
        let spare_bytes = most_bytes.saturating_sub(least_bytes) * budget_percent / 100;
        let plan = planning::plan(&request(least_bytes + spare_bytes), strategy).unwrap();
        check(&owned, &machine, &plan, &random)?;
    }

    /// Training steps whose states some devices share, and whose gradients they reduce.
    #[test]
    fn no_plan_of_a_sharded_step_beats_a_certificate(
        whole in training_graphs(2..=6),
        machine in machines(),
        devices in 2..5u64,
        network_mb_s in 10..3000u64,
        spare_bytes in 0..4096u64,
        random in prices(),
        is_repeatable in any::<bool>(),
    ) {
        let mut owned = sharded(&whole, devices, network_mb_s * 1_000_000);
        for op in &mut owned.ops {
            op.host_ns = None;
            op.repeatable |= is_repeatable;
        }
        check_strategies(&owned, &machine, spare_bytes, &random)?;
    }

    #[test]
    fn no_random_plan_beats_a_certificate(case in cases(), random in prices()) {
        check(&case.graph, &case.machine, &case.plan, &random)?;
    }

    /// The optimum of all schedules that move whole weights.
    #[test]
    fn the_shortest_schedule_of_a_chain_does_not(
        chain in chains_in_microseconds(),
        random in prices(),
    ) {
        let shortest_ns = 1000 * shortest_period_units(&chain, 1000);
        let (graph, machine) = (chain.graph(), chain.machine().unwrap());
        let found = find(&graph, &machine, chain.device_bytes, (BoundOrder::Given, true)).unwrap();
        for certificate in [with_prices(&found, &machine.machine, &graph.ops, &random), found] {
            let bound_ns = prove(&graph, &machine, &certificate).unwrap();
            prop_assert!(bound_ns <= shortest_ns, "{bound_ns} > {shortest_ns}: {certificate:?}");
        }
    }

    #[test]
    fn no_planner_beats_a_certificate(
        mut owned in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
        random in prices(),
        is_repeatable in any::<bool>(),
    ) {
        owned.ops.iter_mut().for_each(|op| op.host_ns = None);
        if is_repeatable {
            owned.ops.iter_mut().for_each(|op| op.repeatable = true);
        }
        check_strategies(&owned, &machine, spare_bytes, &random)?;
    }
}
