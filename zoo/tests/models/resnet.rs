//! ResNets: sizes as published.

use super::{bytes_where, make, ops_where, parameters};
use planner_core::Kind;

#[test]
fn resnets_have_the_published_sizes() {
    for (name, parameter_count, convolutions, statistics) in
        [("resnet50", 25_557_032, 53, 53_120), ("resnet152", 60_192_808, 155, 151_424)]
    {
        let training = make(&format!("{name}:batch=2"));
        assert_eq!(parameters(&training), parameter_count, "{name}");
        let state_bytes = bytes_where(&training, |_, kind| kind == Kind::State);
        let expected = 2 * parameter_count * 4 + statistics * 4 + convolutions as u64 * 8;
        assert_eq!(state_bytes, expected, "{name}");
        let ends = |ending: &str| ops_where(&training, |op| op.ends_with(ending));
        let blocks = (convolutions - 5) / 3;
        assert_eq!(ends(".num_batches_tracked.add_"), convolutions);
        assert_eq!(ends(".grad_input.add_"), blocks);
        assert_eq!(ends(".add"), blocks);
        assert_eq!(ends(".sgd"), 3 * convolutions + 2);
        let relus = ops_where(&training, |op| op.contains("relu") && op.ends_with(".backward"));
        assert_eq!(relus, 3 * blocks + 1);

        let inference = make(&format!("{name}:batch=2,mode=inference"));
        let state_bytes = bytes_where(&inference, |_, kind| kind == Kind::State);
        assert_eq!(state_bytes, (parameter_count + statistics) * 4, "{name}");
        assert_eq!(inference.ops.len(), 2 * convolutions + (3 * blocks + 1) + blocks + 3);
        let states_written = inference.graph().unwrap().op_ids().any(|op| {
            let writes = inference.graph().unwrap().writes(op);
            writes.iter().any(|id| inference.tensors[id.index()].kind == Kind::State)
        });
        assert!(!states_written);
    }
}
