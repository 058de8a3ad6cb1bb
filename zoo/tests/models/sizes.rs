//! How many parameters there are, and how much memory a step needs.

use super::{bytes_where, make, ops_where, parameters};
use planner_core::Kind;
use workloads::OwnedGraph;

#[test]
fn models_have_the_published_parameters() {
    // torchvision publishes those of DenseNets and of VGG-16, and Hugging Face's models report those of
    // GPT-2 and of BERT for pretraining.
    // Of a stack of LSTM cells with two biases there are 8 width (width + 1) a layer.
    let gpt2 = |layers, width| format!("gpt:batch=1,sequence=1024,layers={layers},width={width}");
    let bert = |layers, width| format!("bert:batch=1,sequence=512,layers={layers},width={width}");
    for (spec, count) in [
        ("densenet121:batch=1".to_owned(), 7_978_856),
        ("densenet169:batch=1".to_owned(), 14_149_480),
        ("densenet201:batch=1".to_owned(), 20_013_928),
        (gpt2(12, 768), 124_439_808),
        (gpt2(24, 1024), 354_823_168),
        (gpt2(36, 1280), 774_030_080),
        (gpt2(48, 1600), 1_557_611_200),
        (bert(12, 768), 110_106_428),
        (bert(24, 1024), 336_226_108),
        ("lstm".to_owned(), 2 * 8 * 2048 * 2049 + 2049 * 1000),
    ] {
        assert_eq!(parameters(&make(&spec)), count, "{spec}");
    }
}

/// Keras counts running statistics as parameters.
#[test]
fn models_have_the_sizes_that_keras_publishes() {
    for (spec, count) in [
        ("densenet121:batch=1", 8_062_504),
        ("densenet169:batch=1", 14_307_880),
        ("densenet201:batch=1", 20_242_984),
        ("deeplabv3plus:batch=1", 41_258_213),
    ] {
        let graph = make(spec);
        let statistics = bytes_where(&graph, |name, _| name.contains(".running_")) / 4;
        assert_eq!(parameters(&graph) + statistics, count, "{spec}");
    }
}

#[test]
fn an_optimizer_updates_each_parameter_once_at_the_end() {
    for (spec, ending, states) in [
        ("resnet50:batch=1", ".sgd", 1),
        ("gpt:layers=2,width=64,sequence=8,vocabulary=9", ".adam", 2),
        ("bert:layers=2,width=64,sequence=8,vocabulary=9", ".adam", 2),
        ("lstm:layers=2,width=8,steps=3", ".sgd", 1),
    ] {
        let graph = make(spec);
        let updates = ops_where(&graph, |name| name.ends_with(ending));
        assert!(updates > 2, "{spec}");
        let ends = &graph.op_names[graph.op_names.len() - updates..];
        assert!(ends.iter().all(|name| name.ends_with(ending)), "{spec}");
        let kept = [".momentum", ".exp_avg", ".exp_avg_sq"];
        let kept = |name: &&String| kept.iter().any(|end| name.ends_with(end));
        assert_eq!(graph.tensor_names.iter().filter(kept).count(), states * updates, "{spec}");
    }
}

/// All states, and inputs and temporaries from first to last touch, in exact bytes.
fn in_core_peak_bytes(owned: &OwnedGraph) -> u64 {
    let graph = owned.graph().map_err(|error| error.to_string()).ok();
    let graph = graph.expect("generated graphs are checked");
    let mut change = vec![0i64; graph.ops().len() + 1];
    let mut span = vec![None; graph.tensors().len()];
    for op in graph.op_ids() {
        for tensor in graph.touches(op) {
            let (_, last) = span[tensor.index()].get_or_insert((op.index(), op.index()));
            *last = op.index();
        }
    }
    let mut peak_bytes = bytes_where(owned, |_, kind| kind == Kind::State) as i64;
    for (tensor, span) in graph.tensors().iter().zip(&span) {
        if let (Some((first, last)), false) = (span, tensor.kind == Kind::State) {
            change[*first] += tensor.bytes as i64;
            change[last + 1] -= tensor.bytes as i64;
        }
    }
    let states_bytes = peak_bytes;
    let mut live_bytes = 0;
    for change_bytes in change {
        live_bytes += change_bytes;
        peak_bytes = peak_bytes.max(states_bytes + live_bytes);
    }
    peak_bytes as u64
}

#[test]
fn peaks_are_those_of_independent_traces() {
    // The same models, traced by others, need 3031 MB (a recorded PyTorch step, 102 MB of
    // it for the exchange of gradients between devices), 6189 MB and 396 MB; and 8139 MB,
    // with fused batch norms and without copies of gradients.
    for (spec, peak_bytes) in [
        ("resnet50:batch=32", 2_987_609_736),
        ("resnet50:batch=512", 44_605_591_176),
        ("resnet152:batch=32", 6_194_155_960),
        ("resnet152:batch=16,mode=inference", 395_517_600),
        ("densenet121:batch=64", 8_437_154_984),
    ] {
        assert_eq!(in_core_peak_bytes(&make(spec)), peak_bytes, "{spec}");
    }
}

/// Of the models of SwapAdvisor, from their definitions; those of Inception-v4 are what its
/// authors' slim library has (42.7 million, without those of the auxiliary classifier) less
/// the normalizations' running statistics.
#[test]
fn wide_models_have_their_parameters() {
    let parameters = |graph: &OwnedGraph| {
        let states = graph.tensors.iter().zip(&graph.tensor_names);
        let states = states
            .filter(|(tensor, name)| tensor.kind == Kind::State && !name.ends_with(".running"));
        states.map(|(tensor, _)| tensor.bytes / 4).sum::<u64>()
    };
    let resnet = parameters(&make("wresnet152:batch=1,image=33,widen=1"));
    assert_eq!(resnet, 60_192_808);
    let inception = parameters(&make("inception4:batch=1,image=107,widen=1"));
    assert_eq!(inception, 42_679_816);
    // Four gates, a bias each, and a head of 1000 classes for both directions.
    let layer = |inputs: u64, width: u64| 4 * width * (inputs + width + 1);
    let rnn = parameters(&make("rnn:batch=1,layers=2,steps=2,width=16"));
    assert_eq!(rnn, 2 * layer(16, 16) + 16 * 1000);
    let brnn = parameters(&make("brnn:batch=1,layers=2,steps=2,width=16"));
    assert_eq!(brnn, 2 * layer(16, 16) + 2 * layer(32, 16) + 32 * 1000);
}

/// Table 1 of the paper gives ops and tensor sizes.
#[test]
fn models_have_about_as_many_ops_and_sizes_as_published() {
    for (spec, ops, sizes) in [
        ("wresnet152:batch=64,widen=10", 882, 26),
        ("inception4:batch=64", 830, 64),
        ("nasnet:batch=64,repeats=25,image=331", 5533, 65),
        ("rnn:batch=256", 8594, 7),
        ("brnn:batch=128,layers=4", 9034, 9),
    ] {
        let graph = make(spec);
        let mut different: Vec<_> = graph.tensors.iter().map(|tensor| tensor.bytes).collect();
        different.sort_unstable();
        different.dedup();
        let near = |ours: usize, theirs: usize, percent: usize| {
            ours.abs_diff(theirs) * 100 <= theirs * percent
        };
        assert!(near(graph.ops.len(), ops, 20), "{spec}: {} ops", graph.ops.len());
        assert!(near(different.len(), sizes, 35), "{spec}: {} sizes", different.len());
    }
}
