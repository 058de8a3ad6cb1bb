//! The arithmetic of forward and backward passes.

use super::make;

/// A memory so fast, and a processor so slow, that every op shows its arithmetic: 1000
/// operations a nanosecond at 1 TFLOP/s.
fn arithmetic_ns(spec: &str, mode: &str) -> f64 {
    let graph = make(&format!("{spec},mode={mode},tflops=1,memory_gb_s=1000000"));
    graph.ops.iter().map(|op| op.time_ns - 5_000).sum::<u64>() as f64
}

#[test]
fn forward_passes_take_the_published_arithmetic() {
    // torchvision publishes 4.09, 11.51, 2.83, 3.36 and 4.29 billion multiplications for
    // 224 x 224; table 5 of the DeepLabv3+ paper 54.17 billion for 513 x 513.
    for (spec, low, high) in [
        ("resnet50:batch=1", 4.08e9, 4.10e9),
        ("resnet152:batch=1", 11.50e9, 11.53e9),
        ("densenet121:batch=1", 2.82e9, 2.84e9),
        ("densenet169:batch=1", 3.35e9, 3.37e9),
        ("densenet201:batch=1", 4.28e9, 4.30e9),
        ("deeplabv3plus:batch=1", 54.0e9, 54.3e9),
    ] {
        let forward_ns = arithmetic_ns(spec, "inference");
        let products = forward_ns * 1_000.0 / 2.0;
        assert!((low..high).contains(&products), "{spec}: {products}");
        // Twice as much backward, but for the gradient of the images.
        let ratio = arithmetic_ns(spec, "training") / forward_ns;
        assert!((2.9..3.0).contains(&ratio), "{spec}: {ratio}");
    }
}

/// A multiplication for each weight and token, the table of embeddings counted once, and two
/// for each column, token and token before it or after.
#[test]
fn transformers_multiply_by_every_weight() {
    let (layers, width, sequence, vocabulary) = (3, 128, 256, 1000);
    let weights = layers * 12 * width * width + vocabulary * width;
    let products = 2 * sequence * (weights + layers * 2 * sequence * width);
    for model in ["gpt", "bert"] {
        let spec = format!(
            "{model}:batch=2,layers={layers},width={width},sequence={sequence},\
             vocabulary={vocabulary}"
        );
        // Of the heads of BERT: a product of all tokens, and two of the first.
        let heads = match model {
            "bert" => 2 * width * (sequence * width + width + 2),
            _ => 0,
        };
        let forward_ns = arithmetic_ns(&spec, "inference");
        let error = forward_ns * 1_000.0 / 2.0 / (products + heads) as f64 - 1.0;
        assert!(error.abs() < 1e-3, "{model}: {error}");
        let ratio = arithmetic_ns(&spec, "training") / forward_ns;
        assert!((ratio - 3.0).abs() < 1e-3, "{model}: {ratio}");
    }
}
