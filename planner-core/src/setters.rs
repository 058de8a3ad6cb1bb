//! Setters of structs that may get fields, so that other crates cannot write them as literals.

/// Writes a setter for each listed field of a struct. If a field is an `Option`, `as Some` follows
/// the type that its setter takes.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($of:ident { $($field:ident: $type:ty $(as $wrap:ident)? => $with:ident,)* }) => {
        impl $of {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub const fn $with(mut self, $field: $type) -> Self {
                    self.$field = $($wrap)?($field);
                    self
                }
            )*
        }
    };
}
