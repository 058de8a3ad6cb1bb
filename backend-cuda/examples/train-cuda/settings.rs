//! What is asked for on the command line, as names and values.

use crate::launcher::Products;
use crate::model::Sizes;
use planner_core::Machine;
use std::error::Error;
use workloads::{format, machines};

/// Everything that can be set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) sizes: Sizes,
    /// The share of what training needs in-core, in percent.
    pub(crate) budget_percent: u64,
    pub(crate) products: Products,
    /// That of a file, or the links of one that is built in; else the device is measured.
    pub(crate) machine: Option<Given>,
    /// Its index among the devices.
    pub(crate) device: usize,
}

/// A machine that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    /// As it is.
    File(Machine),
    /// Its links only: its memory is another's.
    Builtin(Machine),
}

impl Settings {
    /// By default, some 300 million parameters.
    pub(crate) fn new(
        characters: u32,
        arguments: impl Iterator<Item = String>,
    ) -> Result<Self, Box<dyn Error>> {
        let sizes = Sizes {
            characters,
            width: 1024,
            layers: 24,
            heads: 16,
            context: 512,
            batch: 8,
            iterations: 32,
            rate: 3e-4,
        };
        let products = Products::Either;
        let mut settings = Self { sizes, budget_percent: 25, products, machine: None, device: 0 };
        for argument in arguments {
            let known = match argument.split_once('=') {
                Some((name, value)) => settings.set(name, value),
                None => Err("it is no name=value".into()),
            };
            known.map_err(|error| format!("{argument}: {error}"))?;
        }
        settings.check()?;
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Box<dyn Error>> {
        let sizes = &mut self.sizes;
        match name {
            "width" => sizes.width = value.parse()?,
            "layers" => sizes.layers = value.parse()?,
            "heads" => sizes.heads = value.parse()?,
            "context" => sizes.context = value.parse()?,
            "batch" => sizes.batch = value.parse()?,
            "iterations" => sizes.iterations = value.parse()?,
            "rate" => sizes.rate = value.parse()?,
            "budget" => self.budget_percent = value.trim_end_matches('%').parse()?,
            "device" => self.device = value.parse()?,
            "machine" => self.machine = Some(find(value)?),
            "matmul" => {
                self.products = match value {
                    "own" => Products::Own,
                    "cublas" => Products::Cublas,
                    _ => return Err("it is own or cublas".into()),
                }
            }
            _ => return Err("there is no such setting".into()),
        }
        Ok(())
    }

    /// Sizes that the kernels take: their steps within a tensor are numbers of 32 bits.
    fn check(&self) -> Result<(), Box<dyn Error>> {
        let Sizes { width, layers, heads, context, batch, iterations, .. } = self.sizes;
        let sizes = [width, layers, heads, context, batch].map(u64::from);
        if sizes.contains(&0) || iterations == 0 || !width.is_multiple_of(heads) {
            return Err("sizes are at least 1, and the width is a multiple of the heads".into());
        }
        let [width, _, heads, context, batch] = sizes.map(u128::from);
        let most = (4 * width).max(heads * context) * (batch * context).max(width);
        if most > u128::from(u32::MAX) || batch * heads > 65_535 {
            return Err("these sizes are more than the kernels take".into());
        }
        Ok(())
    }
}

/// The machine of that name, or in that file.
fn find(machine: &str) -> Result<Given, Box<dyn Error>> {
    match machines::builtin(machine) {
        Some(builtin) => Ok(Given::Builtin(builtin.machine)),
        None => Ok(Given::File(format::read_machine(&format::load(machine)?)?.machine)),
    }
}
