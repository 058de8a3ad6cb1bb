//! Setters of structs that may get fields, so that other crates cannot write them as literals.

/// Gives a struct a setter for each of these fields. After `as` is what wraps the value.
macro_rules! setters {
    ($of:ident { $($field:ident: $type:ty $(as $wrap:ident)? => $with:ident,)* }) => {
        impl $of {
            $(
                #[doc = concat!("The same parameters with this `", stringify!($field), "`.")]
                #[must_use]
                pub const fn $with(mut self, $field: $type) -> Self {
                    self.$field = $($wrap)?($field);
                    self
                }
            )*
        }
    };
}
