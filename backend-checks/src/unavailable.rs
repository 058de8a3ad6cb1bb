//! Why no device is available.

use std::fmt;

/// Why no device is available, as text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

impl From<Unavailable> for String {
    fn from(Unavailable(reason): Unavailable) -> Self {
        reason
    }
}
