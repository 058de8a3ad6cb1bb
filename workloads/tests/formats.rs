//! What is written is read back as it was, and nothing that is read can do harm.

use planner_core::plan::{ArenaPlacement, Part, Pool, Prediction, Resident, Step};
use planner_core::{Kind, Launched, Machine, MachineParameters, OpId, TensorId};
use proptest::prelude::*;
use workloads::chain::Layer;
use workloads::format::{
    FormatError, compress, document, read_chain, read_graph, read_machine, read_plan, write_chain,
    write_graph, write_machine, write_plan,
};
use workloads::{OwnedChain, OwnedGraph, OwnedMachine, OwnedPlacements, OwnedPlan};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::collection::vec(any::<char>(), 0..6).prop_map(String::from_iter),
        Just("layer1.0.conv1.weight".to_owned())
    ]
}

/// Ops that read states and inputs and write anything are legal in every order.
fn graphs() -> impl Strategy<Value = OwnedGraph> {
    let bytes = 1..1u64 << 50;
    let tensor = (name(), bytes, 0..3u8);
    let op = (name(), 0..1u64 << 50, 0..1u64 << 50, any::<[u64; 2]>(), any::<bool>());
    let tensors = proptest::collection::vec(tensor, 0..20);
    (name(), tensors, proptest::collection::vec(op, 1..20)).prop_map(|(name, tensors, ops)| {
        let mut graph = OwnedGraph::new(name);
        for (name, bytes, kind) in tensors {
            let kind = [Kind::State, Kind::Input, Kind::Temporary][usize::from(kind)];
            graph.push_tensor(name, bytes, kind);
        }
        for (name, time_ns, workspace_bytes, [reads, writes], repeatable) in ops {
            let ids = |mask: u64| {
                (0..graph.tensors.len() as u32).filter(move |id| mask >> id & 1 == 1).map(TensorId)
            };
            let reads: Vec<_> =
                ids(reads).filter(|id| graph.tensors[id.index()].kind != Kind::Temporary).collect();
            let writes: Vec<_> = ids(writes).collect();
            let op = graph.push_op(name, time_ns, workspace_bytes, &reads, &writes);
            if repeatable {
                graph.set_repeatable(op);
            }
        }
        graph
    })
}

fn chains() -> impl Strategy<Value = OwnedChain> {
    let layer = proptest::array::uniform5(0..1u64 << 50).prop_map(|n| Layer {
        forward_ns: n[0],
        backward_ns: n[1],
        weight_bytes: n[2],
        activation_bytes: n[3],
        optimizer_bytes: n[4],
    });
    let layers = proptest::collection::vec(layer, 1..20);
    (name(), any::<u64>(), 1..u64::MAX, 0..1u64 << 50, layers).prop_map(
        |(name, device_bytes, bandwidth_bytes_per_s, input_bytes, layers)| OwnedChain {
            name,
            device_bytes,
            bandwidth_bytes_per_s,
            input_bytes,
            layers,
        },
    )
}

fn one_way() -> impl Strategy<Value = Option<[u64; 2]>> {
    prop::option::of([1..u64::MAX, 1..u64::MAX])
}

fn machines() -> impl Strategy<Value = OwnedMachine> {
    (name(), any::<[u64; 5]>(), 1..u64::MAX, [1..u64::MAX, 1..u64::MAX], one_way()).prop_map(
        |(name, n, chunk_bytes, [h2d_bytes_per_s, d2h_bytes_per_s], one_way_bytes_per_s)| {
            OwnedMachine::new(
                name,
                Machine::new(
                    MachineParameters::new()
                        .with_device_bytes(n[0])
                        .with_host_bytes(n[1])
                        .with_chunk_bytes(chunk_bytes)
                        .with_h2d_bytes_per_s(h2d_bytes_per_s)
                        .with_d2h_bytes_per_s(d2h_bytes_per_s)
                        .with_transfer_latency_ns(n[2])
                        .with_map_ns_per_chunk(n[3])
                        .with_unmap_ns_per_chunk(n[4]),
                )
                .expect("no speed and no chunk is zero"),
            )
            .with_one_way_bytes_per_s(one_way_bytes_per_s)
        },
    )
}

fn parts() -> impl Strategy<Value = Part> {
    let tensor = || any::<u32>().prop_map(TensorId);
    prop_oneof![
        tensor().prop_map(Part::whole),
        (tensor(), any::<u64>(), 0..Part::ALL).prop_map(|(tensor, first, count)| Part {
            tensor,
            first,
            count
        })
    ]
}

fn placements() -> impl Strategy<Value = OwnedPlacements> {
    let objects = proptest::collection::vec(any::<u64>(), 0..4);
    (any::<u32>(), proptest::collection::vec(objects, 0..5)).prop_map(|(iterations, arrays)| {
        let end = |end: &mut u32, array: &Vec<u64>| {
            *end += array.len() as u32;
            Some(*end)
        };
        let ends = arrays.iter().scan(0, end).collect();
        OwnedPlacements::new(iterations, arrays.concat(), ends)
    })
}

/// A few ops, so that some are launched again.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        parts().prop_map(Step::Prefetch),
        parts().prop_map(Step::Offload),
        parts().prop_map(Step::Evict),
        (0..8u32).prop_map(|op| Step::launch(OpId(op))),
        (0..8u32).prop_map(|op| Step::Host(OpId(op))),
    ];
    proptest::collection::vec(step, 0..30).prop_map(|mut steps| {
        let mut launched = [false; 8];
        for step in &mut steps {
            match step {
                Step::Launch(Launched { op, is_repeat }) => {
                    *is_repeat = std::mem::replace(&mut launched[op.index()], true);
                }
                Step::Host(op) => launched[op.index()] = true,
                _ => {}
            }
        }
        steps
    })
}

prop_compose! {
    fn plans()(
        names in [name(), name(), name()],
        numbers in any::<[u64; 10]>(),
        arena in proptest::collection::vec(any::<(u32, u64)>(), 0..5),
        pools in proptest::collection::vec(any::<(u64, u64)>(), 0..5),
        tensor_pool in proptest::collection::vec(any::<u32>(), 0..5),
        workspace_pool in proptest::collection::vec(any::<u32>(), 0..5),
        resident in proptest::collection::vec((parts(), any::<bool>()), 0..5),
        steps in steps(),
        placements in proptest::option::of(placements()),
    ) -> OwnedPlan {
        let [graph, machine, strategy] = names;
        let [budget_bytes, arena_bytes, period_ns, compute_ns, repeat_ns, host_ns, peak_bytes,
            h2d_bytes, d2h_bytes, host_bytes] = numbers;
        let pools = pools.into_iter().map(|(object_bytes, count)| Pool { object_bytes, count });
        let resident =
            resident.into_iter().map(|(part, host_copy)| Resident { part, host_copy });
        let mut plan = OwnedPlan::new(pools.collect(), resident.collect(), steps);
        (plan.graph, plan.machine, plan.strategy) = (graph, machine, strategy);
        (plan.budget_bytes, plan.arena_bytes) = (budget_bytes, arena_bytes);
        plan.arena = arena
            .into_iter()
            .map(|(id, offset_bytes)| ArenaPlacement { tensor: TensorId(id), offset_bytes })
            .collect();
        (plan.tensor_pool, plan.workspace_pool) = (tensor_pool, workspace_pool);
        plan.placements = placements;
        plan.predicted = Prediction {
            period_ns,
            compute_ns,
            repeat_ns,
            host_ns,
            peak_bytes,
            h2d_bytes,
            d2h_bytes,
            host_bytes,
        };
        plan
    }
}

/// One of the formats, valid.
fn files() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        graphs().prop_map(|graph| write_graph(&graph)),
        machines().prop_map(|machine| write_machine(&machine)),
        plans().prop_map(|plan| write_plan(&plan)),
        chains().prop_map(|chain| write_chain(&chain)),
    ]
}

/// Reads in every way; each error must be a single line.
fn read_all(bytes: &[u8]) {
    let errors: [Option<FormatError>; 5] = [
        document(bytes).err(),
        read_graph(bytes).err(),
        read_machine(bytes).err(),
        read_plan(bytes).err(),
        read_chain(bytes).err(),
    ];
    for error in errors.into_iter().flatten() {
        let shown = error.in_file("file").to_string();
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_graph_survives(graph in graphs()) {
        let bytes = write_graph(&graph);
        prop_assert_eq!(read_graph(&compress(&bytes)).unwrap(), graph.clone());
        prop_assert_eq!(read_graph(&bytes).unwrap(), graph);
    }

    #[test]
    fn a_machine_survives(machine in machines()) {
        let bytes = write_machine(&machine);
        prop_assert_eq!(read_machine(&compress(&bytes)).unwrap(), machine.clone());
        prop_assert_eq!(read_machine(&bytes).unwrap(), machine);
    }

    #[test]
    fn a_plan_survives(plan in plans()) {
        let bytes = write_plan(&plan);
        prop_assert_eq!(read_plan(&compress(&bytes)).unwrap(), plan.clone());
        prop_assert_eq!(read_plan(&bytes).unwrap(), plan);
    }

    #[test]
    fn a_chain_survives(chain in chains()) {
        let bytes = write_chain(&chain);
        prop_assert_eq!(read_chain(&compress(&bytes)).unwrap(), chain.clone());
        prop_assert_eq!(read_chain(&bytes).unwrap(), chain);
    }

    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, gzip: bool) {
        read_all(&bytes);
        let behind_magic = [&[0x1f, 0x8b, 8, 0][..], &bytes].concat();
        read_all(&if gzip { compress(&bytes) } else { behind_magic });
    }

    #[test]
    fn any_prefix_is_refused(file in files(), at: prop::sample::Index) {
        let end = at.index(file.len() - 1);
        read_all(&file[..end]);
        prop_assert!(read_graph(&file[..end]).is_err());
        prop_assert!(read_machine(&file[..end]).is_err());
        prop_assert!(read_plan(&file[..end]).is_err());
        let packed = compress(&file);
        let end = at.index(packed.len());
        prop_assert!(end == 0 || document(&packed[..end]).is_err());
    }

    #[test]
    fn any_mutation_is_survived(
        file in files(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 1..6),
        gzip: bool,
    ) {
        let mut file = if gzip { compress(&file) } else { file };
        for (at, edit, byte) in edits {
            let at = at.index(file.len());
            // Mostly bytes that mean something in JSON, so that some edits go deep.
            let meaningful = b"[]{},:\"\\0-.e1 nu\n";
            match edit {
                0 => file[at] = byte,
                1 => file[at] = meaningful[usize::from(byte) % meaningful.len()],
                2 => file.insert(at, meaningful[usize::from(byte) % meaningful.len()]),
                _ => { file.remove(at); }
            }
            if file.is_empty() {
                break;
            }
        }
        read_all(&file);
    }
}

#[test]
fn the_second_launch_of_an_op_is_a_repeat() {
    let plan = |steps: &str, repeat: &str| {
        let file = format!(
            r#"{{ "format": "spillway.plan.v1", "graph": "g", "machine": "m", "strategy": "s",
                 "budget_bytes": 1, "pools": [], "resident_at_start": [], "steps": [{steps}],
                 "predicted": {{ "period_ns": 1, "compute_ns": 1, {repeat} "peak_bytes": 1,
                                "h2d_bytes": 0, "d2h_bytes": 0, "host_bytes": 0 }} }}"#
        );
        read_plan(file.as_bytes()).unwrap()
    };
    let [one, two] = [1, 2].map(OpId);
    let again = r#"["launch", 1], ["launch", 2], ["launch", 1], ["launch", 1]"#;
    let read = plan(again, r#""repeat_ns": 7,"#);
    let expected = [Step::launch(one), Step::launch(two), Step::repeat(one), Step::repeat(one)];
    assert_eq!((&read.steps[..], read.predicted.repeat_ns), (&expected[..], 7));
    assert_eq!(read_plan(&write_plan(&read)).unwrap(), read);
    let once = plan(r#"["launch", 1], ["launch", 2]"#, "");
    assert_eq!((once.steps, once.predicted.repeat_ns), (expected[..2].to_vec(), 0));
}

#[test]
fn one_way_speeds_are_both_there_and_not_zero() {
    let read = |speeds: &str| {
        let file = format!(
            r#"{{ "format": "spillway.machine.v1", "name": "m", "device_bytes": 1,
                "host_bytes": 1, "chunk_bytes": 1, "h2d_bytes_per_s": 1, "d2h_bytes_per_s": 1,
                "transfer_latency_ns": 0, "map_ns_per_chunk": 0, "unmap_ns_per_chunk": 0 {speeds} }}"#
        );
        read_machine(file.as_bytes()).map(|machine| machine.one_way_bytes_per_s)
    };
    let [h2d, d2h] = [r#","one_way_h2d_bytes_per_s": 2"#, r#","one_way_d2h_bytes_per_s": 3"#];
    assert_eq!(read("").unwrap(), None);
    assert_eq!(read(&format!("{h2d}{d2h}")).unwrap(), Some([2, 3]));
    assert_eq!(read(h2d).unwrap(), None, "half a pair says nothing");
    let zero = read(&format!("{h2d}{}", d2h.replace('3', "0"))).unwrap_err();
    assert!(zero.to_string().contains("one-way link speed is 0"), "{zero}");
}
