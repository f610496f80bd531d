// SPDX-License-Identifier: MIT OR Apache-2.0
//! Expressions in manifests: shapes, defaults, conditions, packed sizes, costs.
//!
//! Counts are `u64` and exact: an overflow, a negative difference or a division with a remainder is an error, never a
//! rounded size. A count meets a float as a float. Grammar, loosest first: `||`, `&&`, comparison, `+ -`, `* / %`, `!`;
//! then numbers, `'text'`, `true`, `false`, names (dots allowed), and the functions `sqrt(x)`, `ln(x)`, `ceil(x, m)`,
//! `max(a, b)`, `min(a, b)`, `if(condition, a, b)` (the other branch is not looked at), `at(list or text, index)` (a text
//! gives the one letter), `len(list or text)`.

mod parse;

use std::fmt;

/// A value in an expression or of a param.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A size or number of things.
    Count(u64),
    /// A number.
    Float(f64),
    /// A switch.
    Bool(bool),
    /// Text.
    Text(String),
    /// One value per layer; only in params, never of lists.
    List(Vec<Value>),
}

impl Value {
    fn type_name(&self) -> &'static str {
        match self {
            Value::Count(_) => "count",
            Value::Float(_) => "float",
            Value::Bool(_) => "switch",
            Value::Text(_) => "text",
            Value::List(_) => "list",
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Value::Count(c) => Some(*c as f64),
            Value::Float(f) => Some(*f),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(c) => write!(f, "{c}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Text(t) => f.write_str(t),
            Value::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// The text is no expression.
    #[error("`{text}` is no expression: {what}")]
    Syntax {
        /// The text.
        text: String,
        /// What was wrong.
        what: String,
    },
    /// A name without a value.
    #[error("`{0}` has no value here")]
    Unknown(String),
    /// A count left the range of 64 bits.
    #[error("`{0}` overflows")]
    Overflow(String),
    /// A count would be negative.
    #[error("`{0}` is negative")]
    Negative(String),
    /// A division of counts with a remainder, or by zero.
    #[error("`{0}` is no whole number")]
    Inexact(String),
    /// An operand of the wrong type.
    #[error("`{0}` mixes types")]
    Type(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Value(Value),
    Name(String),
    Not(Box<Expr>),
    Binary(Op, Box<Expr>, Box<Expr>),
    Call(Function, Vec<Expr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Or,
    And,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Sqrt,
    Ceil,
    Max,
    Min,
    Ln,
    If,
    At,
    Len,
}

/// A parsed expression; remembers its text for messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    text: String,
    node: Node,
}

/// Where names get their values.
pub type Names<'a> = &'a dyn Fn(&str) -> Option<Value>;

impl Expr {
    /// Parses.
    ///
    /// # Errors
    /// [`ExprError::Syntax`].
    pub fn parse(text: &str) -> Result<Expr, ExprError> {
        parse::parse(text)
    }

    /// The source text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Evaluates.
    ///
    /// # Errors
    /// Any but [`ExprError::Syntax`].
    pub fn eval(&self, names: Names<'_>) -> Result<Value, ExprError> {
        match &self.node {
            Node::Value(v) => Ok(v.clone()),
            Node::Name(n) => names(n).ok_or_else(|| ExprError::Unknown(n.clone())),
            Node::Not(e) => Ok(Value::Bool(!e.truth(names)?)),
            Node::Binary(Op::And, a, b) => Ok(Value::Bool(a.truth(names)? && b.truth(names)?)),
            Node::Binary(Op::Or, a, b) => Ok(Value::Bool(a.truth(names)? || b.truth(names)?)),
            Node::Binary(op, a, b) => self.binary(*op, &a.eval(names)?, &b.eval(names)?),
            Node::Call(Function::If, args) => match args.as_slice() {
                [condition, a, b] => if condition.truth(names)? { a } else { b }.eval(names),
                _ => Err(ExprError::Type(self.text.clone())),
            },
            Node::Call(f, args) => {
                let args = args
                    .iter()
                    .map(|a| a.eval(names))
                    .collect::<Result<Vec<_>, _>>()?;
                self.call(*f, &args)
            }
        }
    }

    /// Evaluates to a count.
    ///
    /// # Errors
    /// As [`Expr::eval`]; [`ExprError::Type`] for any other value.
    pub fn count(&self, names: Names<'_>) -> Result<u64, ExprError> {
        match self.eval(names)? {
            Value::Count(c) => Ok(c),
            _ => Err(ExprError::Type(self.text.clone())),
        }
    }

    /// Evaluates to a number.
    ///
    /// # Errors
    /// As [`Expr::eval`]; [`ExprError::Type`] for a switch or text.
    pub fn float(&self, names: Names<'_>) -> Result<f64, ExprError> {
        self.eval(names)?
            .float()
            .ok_or_else(|| ExprError::Type(self.text.clone()))
    }

    /// Evaluates a condition.
    ///
    /// # Errors
    /// As [`Expr::eval`]; [`ExprError::Type`] for any other value.
    pub fn truth(&self, names: Names<'_>) -> Result<bool, ExprError> {
        match self.eval(names)? {
            Value::Bool(b) => Ok(b),
            _ => Err(ExprError::Type(self.text.clone())),
        }
    }

    fn binary(&self, op: Op, a: &Value, b: &Value) -> Result<Value, ExprError> {
        let text = || self.text.clone();
        if let (Value::Count(a), Value::Count(b)) = (a, b) {
            let overflow = || ExprError::Overflow(text());
            let inexact = || ExprError::Inexact(text());
            return Ok(match op {
                Op::Add => Value::Count(a.checked_add(*b).ok_or_else(overflow)?),
                Op::Sub => Value::Count(a.checked_sub(*b).ok_or(ExprError::Negative(text()))?),
                Op::Mul => Value::Count(a.checked_mul(*b).ok_or_else(overflow)?),
                Op::Rem => Value::Count(a.checked_rem(*b).ok_or_else(inexact)?),
                Op::Div if *b != 0 && a.is_multiple_of(*b) => Value::Count(a / b),
                Op::Div => return Err(inexact()),
                _ => Value::Bool(ordered(op, a.cmp(b))),
            });
        }
        if let (Some(x), Some(y)) = (a.float(), b.float()) {
            return Ok(match op {
                Op::Add => Value::Float(x + y),
                Op::Sub => Value::Float(x - y),
                Op::Mul => Value::Float(x * y),
                Op::Div => Value::Float(x / y),
                Op::Rem => return Err(ExprError::Type(text())),
                _ => Value::Bool(
                    x.partial_cmp(&y)
                        .map_or(op == Op::Ne, |order| ordered(op, order)),
                ),
            });
        }
        if a.type_name() != b.type_name() {
            return Err(ExprError::Type(text()));
        }
        match op {
            Op::Eq => Ok(Value::Bool(a == b)),
            Op::Ne => Ok(Value::Bool(a != b)),
            _ => Err(ExprError::Type(text())),
        }
    }

    fn call(&self, f: Function, args: &[Value]) -> Result<Value, ExprError> {
        let wrong = || ExprError::Type(self.text.clone());
        match (f, args) {
            (Function::Sqrt, [x]) => Ok(Value::Float(x.float().ok_or_else(wrong)?.sqrt())),
            (Function::Ceil, [Value::Count(x), Value::Count(m)]) => x
                .checked_next_multiple_of(*m)
                .map(Value::Count)
                .ok_or_else(|| ExprError::Overflow(self.text.clone())),
            (Function::Max, [Value::Count(a), Value::Count(b)]) => Ok(Value::Count(*a.max(b))),
            (Function::Min, [Value::Count(a), Value::Count(b)]) => Ok(Value::Count(*a.min(b))),
            (Function::Ln, [x]) => Ok(Value::Float(libm::log(x.float().ok_or_else(wrong)?))),
            (Function::At, [Value::List(items), Value::Count(i)]) => {
                let item = usize::try_from(*i).ok().and_then(|i| items.get(i));
                item.cloned().ok_or_else(wrong)
            }
            (Function::At, [Value::Text(text), Value::Count(i)]) => {
                let letter = usize::try_from(*i).ok().and_then(|i| text.chars().nth(i));
                letter.map(|c| Value::Text(c.into())).ok_or_else(wrong)
            }
            (Function::Len, [Value::List(items)]) => Ok(Value::Count(items.len() as u64)),
            (Function::Len, [Value::Text(text)]) => Ok(Value::Count(text.chars().count() as u64)),
            _ => Err(wrong()),
        }
    }
}

fn ordered(op: Op, order: std::cmp::Ordering) -> bool {
    match op {
        Op::Eq => order.is_eq(),
        Op::Ne => order.is_ne(),
        Op::Lt => order.is_lt(),
        Op::Le => order.is_le(),
        Op::Gt => order.is_gt(),
        _ => order.is_ge(),
    }
}

impl<'de> serde::Deserialize<'de> for Expr {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Expr, D::Error> {
        let text = String::deserialize(d)?;
        Expr::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: &str) -> Option<Value> {
        match n {
            "heads" => Some(Value::Count(9)),
            "w.cols" => Some(Value::Count(576)),
            "kind" => Some(Value::Text("llama3".into())),
            "tied" => Some(Value::Bool(true)),
            "pattern" => Some(Value::Text("M-*".into())),
            "kinds" => Some(Value::List(vec![Value::Text("a".into()), Value::Count(2)])),
            _ => None,
        }
    }

    fn eval(text: &str) -> Result<Value, ExprError> {
        Expr::parse(text)?.eval(&names)
    }

    #[test]
    fn counts_are_exact() {
        assert_eq!(eval("(heads + 2 * 3) * 64"), Ok(Value::Count(960)));
        assert_eq!(
            eval("ceil(heads, 8) * (w.cols / 32) * 20"),
            Ok(Value::Count(5760))
        );
        assert_eq!(eval("w.cols / heads"), Ok(Value::Count(64)));
        assert!(matches!(eval("heads / 2"), Err(ExprError::Inexact(_))));
        assert!(matches!(eval("heads / 0"), Err(ExprError::Inexact(_))));
        assert!(matches!(eval("heads % 0"), Err(ExprError::Inexact(_))));
        assert!(matches!(eval("1 - heads"), Err(ExprError::Negative(_))));
        assert!(matches!(
            eval("heads * 9223372036854775807"),
            Err(ExprError::Overflow(_))
        ));
        assert!(matches!(
            eval("ceil(18446744073709551615, 8)"),
            Err(ExprError::Overflow(_))
        ));
    }

    #[test]
    fn conditions_and_floats() {
        assert_eq!(
            eval("kind == 'llama3' && !(heads % 3 != 0)"),
            Ok(Value::Bool(true))
        );
        assert_eq!(eval("!tied || heads < 3"), Ok(Value::Bool(false)));
        assert_eq!(eval("1 / sqrt(64)"), Ok(Value::Float(0.125)));
        assert_eq!(eval("2 < 2.5"), Ok(Value::Bool(true)));
        assert!(matches!(eval("kind + 1"), Err(ExprError::Type(_))));
        assert_eq!(eval("nope"), Err(ExprError::Unknown("nope".into())));
    }

    #[test]
    fn lists_letters_and_branches() {
        assert_eq!(eval("at(kinds, 1) + len(kinds)"), Ok(Value::Count(4)));
        assert_eq!(eval("at(pattern, 2) == '*'"), Ok(Value::Bool(true)));
        assert_eq!(eval("len(pattern)"), Ok(Value::Count(3)));
        assert!(matches!(eval("at(pattern, 3)"), Err(ExprError::Type(_))));
        // The branch that is not taken may have no value.
        assert_eq!(eval("if(heads > 8, 1, 1 - heads)"), Ok(Value::Count(1)));
        assert_eq!(eval("ln(1)"), Ok(Value::Float(0.0)));
    }

    #[test]
    fn what_is_no_expression() {
        for bad in [
            "",
            "1 +",
            "(1",
            "1 2",
            "ceil(1)x",
            "'open",
            "f(1)",
            "a &",
            "99999999999999999999999",
        ] {
            assert!(
                matches!(Expr::parse(bad), Err(ExprError::Syntax { .. })),
                "{bad}"
            );
        }
        assert!(Expr::parse(&"(".repeat(10_000)).is_err());
        assert!(Expr::parse(&"!".repeat(10_000)).is_err());
    }
}
