//! What `--set` has set, and how a strategy reads it.

use std::fmt::Display;
use workloads::Shown;

/// The parameters of a strategy, by name. Those that it reads are those that it has: it reads
/// each, whatever the others are set to.
#[derive(Debug, Default)]
pub(crate) struct Settings<'s> {
    given: Vec<Setting<'s>>,
    known: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug)]
struct Setting<'s> {
    text: &'s str,
    name: &'s str,
    value: &'s str,
}

impl<'s> Settings<'s> {
    /// Parses texts of the form `name=value`.
    ///
    /// # Errors
    /// A text of another form, or a name that is set twice.
    pub(super) fn parse(texts: &'s [String]) -> Result<Self, String> {
        let mut given: Vec<Setting<'s>> = Vec::new();
        for text in texts {
            let Some((name, value)) = text.split_once('=') else {
                return Err(refusal(text, "it does not have the form name=value"));
            };
            if given.iter().any(|other| other.name == name) {
                return Err(refusal(text, format!("{} is set twice", Shown::name(name))));
            }
            given.push(Setting { text, name, value });
        }
        Ok(Self { given, known: Vec::new() })
    }

    /// The value of a parameter; none where it is not set.
    ///
    /// # Errors
    /// A value that does not parse; `rule` says what it must be.
    pub(super) fn get<T>(
        &mut self,
        name: &'static str,
        rule: impl Display,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        self.known.push(name);
        let Some(setting) = self.given.iter().find(|setting| setting.name == name) else {
            return Ok(None);
        };
        let value = parse(setting.value);
        value.map(Some).ok_or_else(|| refusal(setting.text, format!("{name} {rule}")))
    }

    /// Whether a parameter that takes one word is set.
    ///
    /// # Errors
    /// Another word.
    pub(super) fn is(&mut self, name: &'static str, word: &str) -> Result<bool, String> {
        let value =
            self.get(name, format!("can only be {word}"), |value| (value == word).then_some(()))?;
        Ok(value.is_some())
    }

    /// A parameter that is an integer from 1 to `most`.
    ///
    /// # Errors
    /// Another value.
    pub(super) fn number(&mut self, name: &'static str, most: u64) -> Result<Option<u64>, String> {
        self.get(name, format!("must be an integer from 1 to {most}"), |value| {
            value.parse().ok().filter(|number| (1..=most).contains(number))
        })
    }

    /// The parameters that have been read.
    #[cfg(test)]
    pub(super) fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Checks that a strategy has read all that is set.
    ///
    /// # Errors
    /// A parameter that it does not have.
    pub(super) fn check_all_known(&self, strategy: &str) -> Result<(), String> {
        let unknown = self.given.iter().find(|setting| !self.known.contains(&setting.name));
        let Some(&Setting { text, name, .. }) = unknown else { return Ok(()) };
        let (name, known) = (Shown::name(name), self.known.join(", "));
        Err(match known.as_str() {
            "" => refusal(text, format!("{strategy} has no parameters")),
            _ => refusal(text, format!("{strategy} has no parameter {name:?}; it has {known}")),
        })
    }
}

fn refusal(text: &str, reason: impl Display) -> String {
    format!("--set {}: {reason}", Shown::name(text))
}
