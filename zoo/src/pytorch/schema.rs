//! Operator declarations, with the arguments that an operator writes.
//!
//! The grammar is in PyTorch's `aten/src/ATen/native/README.md`: the operator writes an argument
//! `Tensor(a!)`, and arguments after `*` are keywords, such as `out`.

/// One declared argument.
#[derive(Debug, PartialEq)]
pub(super) struct Argument<'a> {
    pub(super) name: &'a str,
    /// Whether the argument has a `!`.
    pub(super) written: bool,
    /// Whether the argument comes after the `*`.
    pub(super) keyword: bool,
}

/// Returns the declared arguments, in the order of a node's inputs.
pub(super) fn arguments(schema: &str) -> Vec<Argument<'_>> {
    let mut keyword = false;
    let mut arguments = Vec::new();
    for declaration in split(parenthesised(schema)) {
        let declaration = declaration.trim();
        if declaration == "*" {
            keyword = true;
        } else if !declaration.is_empty() {
            let named = declaration.split('=').next().unwrap_or(declaration).trim();
            let (kind, name) = named.rsplit_once(' ').unwrap_or((named, ""));
            arguments.push(Argument { name, written: kind.contains('!'), keyword });
        }
    }
    arguments
}

/// Returns the text between the first parenthesis and the matching one.
fn parenthesised(schema: &str) -> &str {
    let Some((_, rest)) = schema.split_once('(') else { return "" };
    let mut depth = 0usize;
    for (at, letter) in rest.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' if depth == 0 => return &rest[..at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    rest
}

/// Splits at the commas outside all brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    list.split(move |letter| {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_real_declarations() {
        let add =
            "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()";
        let of = |name, written, keyword| Argument { name, written, keyword };
        assert_eq!(
            arguments(add),
            [of("self", true, false), of("other", false, false), of("alpha", false, true)]
        );
        let pool = "aten::max_pool2d(Tensor self, int[2] stride=[1, 2], bool ceil=False) -> Tensor";
        assert_eq!(arguments(pool)[2], of("ceil", false, false));
        let out = "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)";
        assert_eq!(arguments(out)[2], of("out", true, true));
        assert_eq!(arguments("aten::mul.out"), []);
        assert_eq!(arguments("aten::mul(Tensor(a!"), [of("", true, false)]);
    }
}
