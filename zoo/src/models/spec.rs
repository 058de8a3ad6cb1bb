//! Parameters of models, and the values that a spec sets.

use super::roofline::{Roofline, Speeds};
use super::{Model, list};
use planner_core::GraphError;
use std::fmt;
use workloads::Shown;

/// A parameter of a model.
#[derive(Debug)]
pub struct Parameter {
    /// Its name in a spec.
    pub name: &'static str,
    /// The value without a setting in the spec.
    pub default: &'static str,
    /// The valid values.
    pub domain: Domain,
    /// The meaning, with the unit.
    pub about: &'static str,
}

/// The valid values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Domain {
    /// An integer from 1 to this number.
    Count(u64),
    /// A number above 0 and up to this number, with at most three decimals.
    Decimal(u64),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// 0 to switch the feature off, or a value of this domain.
    OrZero(&'static Self),
    /// A value of a domain, or `preset`: the entry of `values` for the value of the model's first parameter.
    Preset {
        /// The domain.
        of: &'static Self,
        /// The values as numbers, one for each word of the first parameter.
        values: &'static [u64],
    },
}

/// The number of images.
pub(super) const BATCH: Parameter =
    Parameter { name: "batch", default: "32", domain: Domain::Count(1 << 20), about: "images" };

/// The size of a square image.
pub(super) const IMAGE: Parameter = Parameter {
    name: "image",
    default: "224",
    domain: Domain::Count(1 << 16),
    about: "height and width of an image in pixels",
};

/// Training or inference.
pub(super) const MODE: Parameter = Parameter {
    name: "mode",
    default: "training",
    domain: Domain::OneOf(&["training", "inference"]),
    about: "a training step, or a request",
};

/// The arithmetic side of the roofline.
pub(super) const TFLOPS: Parameter = Parameter {
    name: "tflops",
    default: "14",
    domain: Domain::Decimal(1_000_000),
    about: "arithmetic speed in TFLOP/s",
};

/// The memory side of the roofline.
pub(super) const MEMORY_GB_S: Parameter = Parameter {
    name: "memory_gb_s",
    default: "800",
    domain: Domain::Decimal(1_000_000),
    about: "memory speed in GB/s",
};

/// The memory side of the host's roofline.
pub(super) const HOST_GB_S: Parameter = Parameter {
    name: "host_gb_s",
    default: "0",
    domain: Domain::OrZero(&MEMORY_GB_S.domain),
    about: "memory speed of the host in GB/s, for ops that may run there; at 0, none may",
};

/// The arithmetic side of the host's roofline.
pub(super) const HOST_TFLOPS: Parameter = Parameter {
    name: "host_tflops",
    default: "0",
    domain: Domain::OrZero(&TFLOPS.domain),
    about: "arithmetic speed of the host in TFLOP/s; at 0, only updates may run there",
};

/// The text of a value that the preset determines.
pub(super) const PRESET: &str = "preset";

/// The number for this text until the preset is known.
const OF_PRESET: u64 = u64::MAX;

/// The reason why a spec gives no graph.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// The model is unknown.
    UnknownModel(String),
    /// A part between two commas is not `name=value`.
    NotAnAssignment(String),
    /// The model does not have the parameter.
    UnknownParameter {
        /// The model.
        model: &'static str,
        /// The parameter.
        parameter: String,
    },
    /// The parameter is set twice.
    Repeated(&'static str),
    /// The parameter does not take this value.
    Value {
        /// The parameter.
        parameter: &'static str,
        /// The valid values.
        domain: Domain,
        /// The given value.
        value: String,
    },
    /// The values contradict each other. The text explains it.
    Together(String),
    /// The sizes of the work exceed 64 bits.
    Graph(GraphError),
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(most) => write!(f, "an integer from 1 to {most}"),
            Self::Decimal(most) => {
                write!(f, "a number above 0 and up to {most}, with at most 3 decimals")
            }
            Self::OneOf(words) => f.write_str(&words.join(" or ")),
            Self::OrZero(of) => write!(f, "0 or {of}"),
            Self::Preset { of, .. } => write!(f, "{PRESET} or {of}"),
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel(name) => {
                let known: Vec<_> = list().iter().map(|model| model.name).collect();
                let name = Shown::name(name);
                write!(f, "there is no model {name:?}; known are {}", known.join(", "))
            }
            Self::NotAnAssignment(part) => {
                write!(f, "{:?} does not have the form name=value", Shown::name(part))
            }
            Self::UnknownParameter { model, parameter } => {
                let parameters = list().iter().find(|known| known.name == *model);
                let known: Vec<_> = parameters
                    .into_iter()
                    .flat_map(|model| model.parameters)
                    .map(|parameter| parameter.name)
                    .collect();
                let parameter = Shown::name(parameter);
                write!(f, "{model} has no parameter {parameter:?}; it has {}", known.join(", "))
            }
            Self::Repeated(parameter) => write!(f, "{parameter} is set twice"),
            Self::Value { parameter, domain, value } => {
                write!(f, "{parameter} must be {domain}, not {:?}", Shown::name(value))
            }
            Self::Together(contradiction) => f.write_str(contradiction),
            Self::Graph(error) => write!(f, "the work is too large: {error}"),
        }
    }
}

impl std::error::Error for SpecError {}

impl Domain {
    /// Parses a value to a number: the count, thousandths, or the position of the word.
    fn read(self, text: &str) -> Option<u64> {
        match self {
            Self::Count(most) => digits(text).filter(|count| (1..=most).contains(count)),
            Self::Decimal(most) => {
                thousandths(text).filter(|milli| (1..=1_000 * most).contains(milli))
            }
            Self::OneOf(words) => {
                words.iter().position(|word| *word == text).map(|position| position as u64)
            }
            Self::OrZero(_) if text == "0" => Some(0),
            Self::OrZero(of) => of.read(text),
            Self::Preset { .. } if text == PRESET => Some(OF_PRESET),
            Self::Preset { of, .. } => of.read(text),
        }
    }

    /// Returns the shortest text that [`Domain::read`] converts to the number.
    fn show(self, value: u64) -> String {
        match self {
            Self::Count(_) => value.to_string(),
            Self::OrZero(_) if value == 0 => "0".to_owned(),
            Self::OrZero(of) | Self::Preset { of, .. } => of.show(value),
            Self::Decimal(_) => {
                let text = format!("{}.{:03}", value / 1_000, value % 1_000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Self::OneOf(words) => words[value as usize].to_owned(),
        }
    }
}

/// Parses digits. Unlike `str::parse`, refuses a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let scale = [100, 10, 1].get(fraction.len().checked_sub(1)?)?;
    digits(whole)?.checked_mul(1_000)?.checked_add(digits(fraction)? * scale)
}

/// The value of each parameter of a model. It displays as the canonical spec, without values that are 0 or
/// come from the preset.
pub(super) struct Arguments {
    model: &'static Model,
    values: Vec<u64>,
}

impl Arguments {
    /// Reads the text after the colon of a spec, if the spec has a colon.
    pub(super) fn parse(model: &'static Model, text: Option<&str>) -> Result<Self, SpecError> {
        let mut set = vec![None; model.parameters.len()];
        for part in text.into_iter().flat_map(|text| text.split(',')) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| SpecError::NotAnAssignment(part.to_owned()))?;
            let position = model.parameters.iter().position(|parameter| parameter.name == name);
            let position = position.ok_or_else(|| SpecError::UnknownParameter {
                model: model.name,
                parameter: name.to_owned(),
            })?;
            if set[position].replace(value).is_some() {
                return Err(SpecError::Repeated(model.parameters[position].name));
            }
        }
        let values = model.parameters.iter().zip(set).map(|(parameter, value)| {
            let value = value.unwrap_or(parameter.default);
            parameter.domain.read(value).ok_or_else(|| SpecError::Value {
                parameter: parameter.name,
                domain: parameter.domain,
                value: value.to_owned(),
            })
        });
        let mut values = values.collect::<Result<Vec<_>, _>>()?;
        let preset = values[0];
        for (parameter, value) in model.parameters.iter().zip(&mut values) {
            if let (Domain::Preset { values, .. }, OF_PRESET) = (parameter.domain, *value) {
                *value = values[preset as usize];
            }
        }
        let arguments = Self { model, values };
        if arguments.get(&HOST_GB_S) == 0 && arguments.get(&HOST_TFLOPS) > 0 {
            let needed = "host_tflops needs host_gb_s, the memory speed of the host";
            return Err(SpecError::Together(needed.to_owned()));
        }
        (model.check)(&arguments).map_err(SpecError::Together)?;
        Ok(arguments)
    }

    /// Returns the number for the value of a parameter of the model.
    pub(super) fn get(&self, parameter: &Parameter) -> u64 {
        let known = self.model.parameters.iter().position(|known| known.name == parameter.name);
        self.values[known.expect("a model asks only for the parameters that it lists")]
    }

    /// Returns whether the graph is of a training step.
    pub(super) fn training(&self) -> bool {
        self.get(&MODE) == 0
    }

    /// Returns the speeds of the device and of the host.
    pub(super) fn speeds(&self) -> Speeds {
        let roofline = |tflops, gb_s| {
            let (milli_tflops, milli_gb_s) = (self.get(&tflops), self.get(&gb_s));
            Roofline { milli_tflops, milli_gb_s }
        };
        let host = roofline(HOST_TFLOPS, HOST_GB_S);
        let device = roofline(TFLOPS, MEMORY_GB_S);
        Speeds { device, host: (host.milli_gb_s > 0).then_some(host) }
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model.name)?;
        let pairs = self.model.parameters.iter().zip(&self.values);
        let shown = pairs.filter(|&(parameter, &value)| match parameter.domain {
            Domain::OrZero(_) => value > 0,
            Domain::Preset { values, .. } => value != values[self.values[0] as usize],
            _ => true,
        });
        for (at, (parameter, &value)) in shown.enumerate() {
            let separator = if at == 0 { ':' } else { ',' };
            write!(f, "{separator}{}={}", parameter.name, parameter.domain.show(value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECIMAL: Domain = Domain::Decimal(1_000_000);

    #[test]
    fn decimals_are_exact() {
        for (text, milli) in [
            ("14", Some(14_000)),
            ("14.5", Some(14_500)),
            ("0.125", Some(125)),
            ("007.010", Some(7_010)),
            ("1000000", Some(1_000_000_000)),
            ("1000000.001", None),
            ("0", None),
            ("0.000", None),
            ("1.2345", None),
            ("1.", None),
            (".5", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(DECIMAL.read(text), milli, "{text}");
        }
        assert_eq!(DECIMAL.show(14_000), "14");
        assert_eq!(DECIMAL.show(7_010), "7.01");
        assert_eq!(DECIMAL.show(125), "0.125");
    }

    #[test]
    fn zero_and_presets_stand_beside_a_domain() {
        let of = &Domain::Count(512);
        let or_zero = Domain::OrZero(of);
        assert_eq!(
            ["0", "1", "513", PRESET].map(|text| or_zero.read(text)),
            [Some(0), Some(1), None, None]
        );
        assert_eq!([or_zero.show(0), or_zero.show(7)], ["0", "7"]);
        let preset = Domain::Preset { of, values: &[3] };
        assert_eq!(
            ["0", "1", PRESET].map(|text| preset.read(text)),
            [None, Some(1), Some(OF_PRESET)]
        );
        assert_eq!(preset.to_string(), "preset or an integer from 1 to 512");
        assert_eq!(or_zero.to_string(), "0 or an integer from 1 to 512");
    }

    #[test]
    fn counts_are_bounded_and_unsigned() {
        let domain = Domain::Count(512);
        for (text, count) in [
            ("1", Some(1)),
            ("512", Some(512)),
            ("513", None),
            ("0", None),
            ("+1", None),
            ("", None),
        ] {
            assert_eq!(domain.read(text), count, "{text}");
        }
    }
}
