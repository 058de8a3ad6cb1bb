//! Switches of a session between two graphs: by name, with other kernels, and what is refused.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostDevice, HostError};
use spillway::planner_core::backend::{
    DeviceRange, FillError, InputWriter, Kernels, Launch, StateWriter,
};
use spillway::planner_core::switch::SwitchError;
use spillway::planner_core::{Machine, MachineParameters};
use spillway::strategy::Groups;
use spillway::{Error, Graph, GraphBuilder, OwnedMachine, Plan, Session, SessionError, TensorId};

const BYTES: u64 = 3000;
const LAYERS: usize = 6;

/// Each op adds up the first bytes of what it reads, and writes the sum to the first byte of what
/// it writes.
struct Sums {
    x: TensorId,
    states: Vec<TensorId>,
    /// The number that all inputs of an iteration have, by iteration.
    inputs: fn(u64) -> u8,
    filled: Vec<u64>,
}

impl Kernels<HostDevice> for Sums {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let first = |range: DeviceRange, device: &HostDevice| {
            let mut byte = [0];
            device.read(DeviceRange { bytes: 1, ..range }, &mut byte).map(|()| byte[0])
        };
        let mut sum = 0u8;
        for range in launch.reads.iter().flatten() {
            sum = sum.wrapping_add(first(range, device)?);
        }
        launch
            .writes
            .iter()
            .flatten()
            .try_for_each(|range| device.write(DeviceRange { bytes: 1, ..range }, &[sum]))
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        self.states.iter().try_for_each(|&state| states.write(state, &[0u8; BYTES as usize]))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        self.filled.push(inputs.iteration());
        inputs.write_at(self.x, 0, &[(self.inputs)(inputs.iteration())])
    }
}

fn machine() -> OwnedMachine {
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 16)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(1024)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000)
            .with_transfer_latency_ns(100)
            .with_map_ns_per_chunk(5),
    );
    OwnedMachine::new("host", machine.unwrap())
}

/// Each layer adds the input to its own sum. With `backward`, the layers run and are listed the
/// other way round, and they take longer.
fn graph(backward: bool) -> (Graph, Sums) {
    let mut graph = GraphBuilder::new(if backward { "backward" } else { "forward" });
    let mut order: Vec<usize> = (0..LAYERS).collect();
    if backward {
        order.reverse();
    }
    let scale = graph.state("scale", BYTES);
    let states: Vec<TensorId> =
        order.iter().map(|layer| graph.state(format!("sum {layer}"), BYTES)).collect();
    let x = graph.input("x", 8);
    for (layer, &state) in order.iter().zip(&states) {
        let time_ns = if backward { 9000 } else { 2000 };
        graph.op(format!("layer {layer}"), time_ns).reads([state, x]).writes([state]);
    }
    let inputs: fn(u64) -> u8 = if backward { |_| 1 } else { |iteration| iteration as u8 };
    let states = states.into_iter().chain([scale]).collect();
    (graph.build().unwrap(), Sums { x, states, inputs, filled: Vec::new() })
}

fn plan(graph: &Graph, budget: &str) -> Plan {
    graph.plan(&machine()).budget(budget).run().unwrap()
}

fn first(session: &mut Session<HostDevice, Sums>, name: &str) -> u8 {
    let names = &session.plan().graph().owned().tensor_names;
    let id = names.iter().position(|other| other == name).unwrap();
    let mut bytes = [0; BYTES as usize];
    session.read_state(TensorId(id as u32), &mut bytes).unwrap();
    bytes[0]
}

#[test]
fn states_keep_their_names_and_iterations_go_on() {
    let ((forward, sums), (backward, other)) = (graph(false), graph(true));
    let (one, two) = (plan(&forward, "60%"), plan(&backward, "80%"));
    let capacity = one.capacity().max(two.capacity());
    let device = HostDevice::new(1024, 1 << 16);
    let mut session = Session::with_capacity(one, capacity, device, sums).unwrap();
    session.run(3).unwrap();
    assert_eq!(session.kernels().filled, [1, 2, 3, 4]);
    session.switch(two, |kernels| *kernels = other).unwrap();
    assert_eq!(session.plan().graph().name(), "backward");
    assert_eq!(first(&mut session, "sum 2"), 1 + 2 + 3);
    session.run(2).unwrap();
    assert_eq!(session.iterations(), 5);
    assert_eq!(session.kernels().filled, [4, 5, 6]);
    for layer in 0..LAYERS {
        assert_eq!(first(&mut session, &format!("sum {layer}")), 1 + 2 + 3 + 1 + 1);
    }
    assert_eq!(first(&mut session, "scale"), 0);
}

/// Two plans that take turns map their memory once each.
#[test]
fn plans_that_come_again_are_mapped() {
    let ((forward, sums), (backward, _)) = (graph(false), graph(true));
    let (one, two) = (plan(&forward, "60%"), plan(&backward, "80%"));
    let capacity = one.capacity().max(two.capacity());
    let most_ns = one.switch_to(&two).unwrap().mapping_ns;
    assert_eq!(most_ns, two.mappings().unwrap().bytes / 1024 * 5);
    let device = HostDevice::new(1024, 1 << 16);
    let mut session = Session::with_capacity(one.clone(), capacity, device, sums).unwrap();
    let mut mapping_ns = |to: &Plan, backward| {
        session.run(2).unwrap();
        let change = move |kernels: &mut Sums| *kernels = graph(backward).1;
        session.switch(to.clone(), change).unwrap().mapping_ns
    };
    let first_ns = mapping_ns(&two, true);
    assert!((1..=most_ns).contains(&first_ns), "{first_ns} of {most_ns}");
    for _ in 0..3 {
        assert_eq!([mapping_ns(&one, false), mapping_ns(&two, true)], [0, 0]);
    }
}

/// A plan that is refused leaves the session as it is.
#[test]
fn what_cannot_be_switched_to_is_named() {
    let (forward, sums) = graph(false);
    let least = plan(&forward, "min");
    let device = HostDevice::new(1024, 1 << 16);
    let mut session = Session::new(least, device, sums).unwrap();
    session.run(3).unwrap();
    let mut refused = |plan: Plan| match session.switch(plan, |_| panic!("nothing changes")) {
        Err(SessionError::Plan(error)) => error,
        other => panic!("{other:?}"),
    };
    let error = refused(plan(&forward, "100%"));
    assert!(matches!(error, Error::Switch(SwitchError::DeviceMemory { .. })), "{error}");
    let with = |states: &[(&str, u64)]| {
        let mut graph = GraphBuilder::new("other");
        let states: Vec<_> = states.iter().map(|&(name, bytes)| graph.state(name, bytes)).collect();
        graph.op("op", 1000).reads(states.clone());
        plan(&graph.build().unwrap(), "64KiB")
    };
    let all = ["scale", "sum 0", "sum 1", "sum 2", "sum 3", "sum 4", "sum 5"].map(|it| (it, 1));
    let alone =
        "is a state of the graph \"other\" alone: declare it in both, even if no op uses it";
    for (states, message) in [
        (&[("more", 8)][..], format!("tensor 0 (\"more\") {alone}")),
        (&all, "the state \"scale\" has 3000 bytes in one graph and 1 in the other".to_owned()),
        (
            &[("scale", 1), ("scale", 2)],
            "two states of the graph \"other\" have the name \"scale\"".to_owned(),
        ),
        (
            &[("scale", BYTES)],
            format!("tensor 1 (\"sum 0\") {}", alone.replace("other", "forward")),
        ),
    ] {
        assert_eq!(refused(with(states)).to_string(), message);
    }
    session.run(1).unwrap();
    assert_eq!(first(&mut session, "sum 5"), 1 + 2 + 3 + 4);
}

/// A plan in a smaller host block than it needs.
#[test]
fn a_small_host_block_is_an_error() {
    let (forward, sums) = graph(false);
    let one = plan(&forward, "80%");
    let mut larger = GraphBuilder::new("larger");
    for name in &forward.owned().tensor_names {
        if name != "x" {
            larger.state(name, BYTES);
        }
    }
    let x = larger.input("x", 4000);
    larger.op("read", 1000).reads([x]);
    let two = larger.build().unwrap().plan(&machine()).budget("100%").run().unwrap();
    let mut capacity = one.capacity().max(two.capacity());
    capacity.host_bytes -= 1;
    let device = HostDevice::new(1024, 1 << 16);
    let mut session = Session::with_capacity(one, capacity, device, sums).unwrap();
    let error = session.switch(two, |_| panic!("nothing changes")).unwrap_err();
    let is_host = matches!(
        error,
        SessionError::Plan(Error::Switch(SwitchError::HostMemory { needed_bytes, created_bytes }))
            if needed_bytes == created_bytes + 1
    );
    assert!(is_host, "{error}");
    session.run(1).unwrap();
}

/// The same layers stay in two plans, and small states have the same offsets: only inputs are
/// copied.
#[test]
fn between_plans_that_hold_the_same_nothing_is_copied() {
    let graph = |name: &str, time_ns: u64, handed_bytes: u64| {
        let mut graph = GraphBuilder::new(name);
        let bias = |graph: &mut GraphBuilder, layer| graph.state(format!("bias {layer}"), 200);
        let mut before = graph.input("x", handed_bytes);
        for layer in 0..8 {
            let weight = graph.state(format!("weight {layer}"), 4096);
            let bias = bias(&mut graph, layer);
            let after = graph.temporary(format!("y {layer}"), handed_bytes);
            graph
                .op(format!("layer {layer}"), time_ns)
                .reads([before, weight, bias])
                .writes([after]);
            before = after;
        }
        graph.build().unwrap()
    };
    let (prompt, token) = (graph("prompt", 9000, 900), graph("token", 1000, 20));
    let strategy = Groups::new().with_size(4).with_leaving(1).with_ahead(1);
    let plan = |graph: &Graph| {
        graph.plan(&machine()).budget(44 * 1024u64).strategy(strategy).run().unwrap()
    };
    let (one, two) = (plan(&prompt), plan(&token));
    let arranged = two.arranged_after(&one).unwrap();
    let [plain, kept] = [&two, &arranged].map(|to| one.switch_to(to).unwrap());
    assert!(plain.h2d_bytes > kept.h2d_bytes, "{plain:?} {kept:?}");
    assert_eq!((kept.h2d_bytes, kept.d2h_bytes, kept.time_ns), (20, 0, 100 + 20));
    assert!(kept.kept_bytes >= 6 * 4096, "{kept:?}");
}

/// The pool of each plan takes all that its arena leaves of the budget, though few objects are used.
#[test]
fn a_larger_arena_takes_objects_that_no_allocation_has() {
    let plan = |name: &str, handed_bytes: u64| {
        let mut graph = GraphBuilder::new(name);
        let bytes = [700, 1400];
        let states: Vec<_> = (0..LAYERS)
            .map(|layer| graph.state(format!("state {layer}"), bytes[layer % 2]))
            .collect();
        for (layer, state) in states.into_iter().enumerate() {
            let handed = graph.temporary(format!("handed {layer}"), handed_bytes);
            graph.op(format!("read {layer}"), 1000).reads([state]).writes([handed]);
            graph.op(format!("update {layer}"), 1000).reads([state, handed]).writes([state]);
        }
        plan(&graph.build().unwrap(), "64KiB")
    };
    let (one, two) = (plan("one", 900), plan("two", 100));
    let arranged = two.arranged_after(&one).unwrap();
    let arena = |plan: &Plan| plan.owned().arena_bytes.div_ceil(1024);
    let [plain, kept] = [&two, &arranged].map(|to| one.switch_to(to).unwrap());
    assert!(arena(&arranged) > arena(&two));
    assert!(arranged.owned().pools[0].count < two.owned().pools[0].count);
    assert_eq!(arranged.owned().predicted.period_ns, two.owned().predicted.period_ns);
    assert!(plain.h2d_bytes > 0 && kept.h2d_bytes == 0, "{plain:?} {kept:?}");
}
