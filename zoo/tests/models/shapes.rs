//! Shapes of what the stages of a model make.

use super::make;

/// Batch, channels, height, width of single-precision tensors, by name.
fn check(spec: &str, stages: &[(&str, [u64; 4])]) {
    let graph = make(spec);
    for (name, shape) in stages {
        let at = graph.tensor_names.iter().position(|other| other == name);
        let at = at.unwrap_or_else(|| panic!("{spec} has no {name}"));
        let bytes = 4 * shape.iter().product::<u64>();
        assert_eq!(graph.tensors[at].bytes, bytes, "{spec}: {name}");
    }
}

/// Table 1 of the paper.
#[test]
fn densenet() {
    for (spec, channels) in
        [("densenet121", [512, 1024]), ("densenet169", [640, 1664]), ("densenet201", [896, 1920])]
    {
        let [third, fourth] = channels;
        check(
            &format!("{spec}:batch=3"),
            &[
                ("features.conv0.out", [3, 64, 112, 112]),
                ("features.pool0.out", [3, 64, 56, 56]),
                ("features.denseblock1.denselayer6.cat.out", [3, 224, 56, 56]),
                ("features.denseblock1.denselayer6.conv1.out", [3, 128, 56, 56]),
                ("features.denseblock1.denselayer6.conv2.out", [3, 32, 56, 56]),
                ("features.transition1.pool.out", [3, 128, 28, 28]),
                ("features.transition2.pool.out", [3, 256, 14, 14]),
                ("features.transition3.pool.out", [3, third, 7, 7]),
                ("features.denseblock4.cat.out", [3, fourth, 7, 7]),
                ("avgpool.out", [3, fourth, 1, 1]),
            ],
        );
    }
}

/// Figures 2 and 4 of the paper, at output stride 16.
#[test]
fn deeplab() {
    check(
        "deeplabv3plus:batch=2",
        &[
            ("entry.1.out", [2, 32, 257, 257]),
            ("entry.block1.separable3.pointwise.out", [2, 128, 129, 129]),
            ("entry.block2.separable2.pointwise.bn.out", [2, 256, 129, 129]),
            ("entry.block2.separable3.pointwise.out", [2, 256, 65, 65]),
            ("entry.block3.shortcut.out", [2, 728, 33, 33]),
            ("middle.unit16.separable3.pointwise.out", [2, 728, 33, 33]),
            ("exit.block1.separable3.pointwise.out", [2, 1024, 33, 33]),
            ("exit.block2.separable3.pointwise.out", [2, 2048, 33, 33]),
            ("aspp.image.out", [2, 2048, 1, 1]),
            ("aspp.3.depthwise.out", [2, 2048, 33, 33]),
            ("aspp.cat.out", [2, 1280, 33, 33]),
            ("decoder.cat.out", [2, 304, 129, 129]),
            ("decoder.logits.out", [2, 21, 129, 129]),
            ("decoder.upsample2.out", [2, 21, 513, 513]),
        ],
    );
}

#[test]
fn pix2pixhd() {
    check(
        "pix2pixhd:batch=2",
        &[
            ("scene.out", [2, 36, 512, 1024]),
            ("g.first.pad.out", [2, 36, 518, 1030]),
            ("g.first.out", [2, 64, 512, 1024]),
            ("g.down4.out", [2, 1024, 32, 64]),
            ("g.block9.conv2.out", [2, 1024, 32, 64]),
            ("g.up1.out", [2, 512, 64, 128]),
            ("g.up4.out", [2, 64, 512, 1024]),
            ("g.tanh.out", [2, 3, 512, 1024]),
            ("d.fake.cat.out", [2, 39, 512, 1024]),
            ("d.fake.fine0.out", [2, 64, 257, 513]),
            ("d.fake.fine4.out", [2, 1, 67, 131]),
            ("d.fake.coarse4.out", [2, 1, 35, 67]),
            ("vgg.fake.conv5_1.out", [2, 512, 32, 64]),
        ],
    );
}

#[test]
fn gpt() {
    check(
        "gpt:batch=2,layers=1",
        &[
            ("wte.out", [2, 1024, 768, 1]),
            ("h.0.attn.c_attn.out", [2, 1024, 3 * 768, 1]),
            ("h.0.attn.softmax.out", [2, 12, 1024, 1024]),
            ("h.0.mlp.gelu.out", [2, 1024, 3072, 1]),
            ("lm_head.out", [2, 1024, 50_257, 1]),
        ],
    );
}

#[test]
fn bert() {
    check(
        "bert:batch=2,layers=1",
        &[
            ("segments.out", [2, 512, 768, 1]),
            ("layer.0.attn.c_attn.out", [2, 512, 3 * 768, 1]),
            ("layer.0.attn.softmax.out", [2, 12, 512, 512]),
            ("layer.0.mlp.gelu.out", [2, 512, 3072, 1]),
            ("pooler.out", [2, 768, 1, 1]),
            ("follows.out", [2, 2, 1, 1]),
            ("scores.out", [2, 512, 30_522, 1]),
        ],
    );
}

#[test]
fn lstm() {
    check(
        "lstm:steps=2",
        &[
            ("input.1", [128, 2048, 1, 1]),
            ("lstm1.1.gates", [128, 4 * 2048, 1, 1]),
            ("lstm1.1.hidden", [128, 2048, 1, 1]),
            ("fc.out", [128, 1000, 1, 1]),
        ],
    );
}
