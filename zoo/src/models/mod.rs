//! Graphs of well-known models, from a line of text.
//!
//! A spec such as `resnet50:batch=512,mode=training` names a model and sets some of its parameters; the
//! others have defaults. The spec alone determines the graph, including the time of each op. The name of the
//! graph is the spec with all parameters, except parameters that are 0 or come from a preset. All arithmetic
//! is on integers, so every machine generates the same graph.
//!
//! Ops follow PyTorch, in single precision unless the model says otherwise. They update the same tensors in
//! place as PyTorch, and the backward pass reads the tensors that autograd saves. Convolutions have no
//! workspace, since the needs of cuDNN depend on its version and the device.

mod bert;
mod deeplab;
mod densenet;
mod gpt;
mod inception;
mod layers;
mod llama;
mod lstm;
mod nasnet;
mod optimizer;
mod pix2pixhd;
mod resnet;
mod rnn;
mod roofline;
mod spec;
mod tape;
mod transformer;
mod wide_resnet;

pub use spec::{Domain, Parameter, SpecError};

use optimizer::Optimizer;
use spec::Arguments;
use tape::Tape;
use workloads::OwnedGraph;

/// A model that [`generate`] knows.
#[derive(Debug)]
pub struct Model {
    /// Its name in a spec.
    pub name: &'static str,
    /// Its description, in one line.
    pub about: &'static str,
    /// Its parameters, in the order of the graph's name.
    pub parameters: &'static [Parameter],
    optimizer: Optimizer,
    /// Checks the combination of values that are each valid.
    check: fn(&Arguments) -> Result<(), String>,
    build: fn(&Arguments, &mut Tape),
}

/// All models.
#[must_use]
pub const fn list() -> &'static [Model] {
    &MODELS
}

static MODELS: [Model; 17] = [
    resnet::RESNET50,
    resnet::RESNET152,
    densenet::DENSENET121,
    densenet::DENSENET169,
    densenet::DENSENET201,
    deeplab::DEEPLABV3PLUS,
    pix2pixhd::PIX2PIXHD,
    gpt::GPT,
    bert::BERT,
    lstm::LSTM,
    wide_resnet::WRESNET152,
    inception::INCEPTION4,
    nasnet::NASNET,
    rnn::RNN,
    rnn::BRNN,
    llama::LLAMA,
    llama::MIXTRAL,
];

/// Generates the graph of one iteration.
///
/// # Errors
/// The model or a parameter is unknown, a parameter does not take its value, or the sizes of the work exceed
/// 64 bits.
pub fn generate(spec: &str) -> Result<OwnedGraph, SpecError> {
    let (name, parameters) = match spec.split_once(':') {
        Some((name, parameters)) => (name, Some(parameters)),
        None => (spec, None),
    };
    let model = list()
        .iter()
        .find(|model| model.name == name)
        .ok_or_else(|| SpecError::UnknownModel(name.to_owned()))?;
    let arguments = Arguments::parse(model, parameters)?;
    let (training, speeds) = (arguments.training(), arguments.speeds());
    let mut tape = Tape::new(arguments.to_string(), training, speeds, model.optimizer);
    (model.build)(&arguments, &mut tape);
    let graph = tape.finish();
    graph.graph().map_err(SpecError::Graph)?;
    Ok(graph)
}
