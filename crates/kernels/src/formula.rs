// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launch geometry and sizes as formulas: text in `KERNEL.toml`, postfix code in the registry.
//!
//! ```text
//! sum     = product { "+" product }
//! product = factor { "*" factor }
//! factor  = integer | name | function "(" sum { "," sum } ")" | "(" sum ")"
//! ```
//! `tiles(n, m)` is n over m, rounded up, `floor(n, m)` rounded down; `min(a, b)` and `max(a, b)`; `power2(n)` is the
//! largest power of two that is not above n, and 1 for 0. A name is a u32 argument of the family, or else one of [`Var`]'s.
//!
//! The build script includes this file to parse; at run time only [`Formula::eval`] is used.

use std::borrow::Cow;

/// A value that a formula takes from outside its family's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Var {
    /// Rows of the bucket, or of the limits.
    Rows,
    /// Logits rows of the bucket, or of the limits.
    LogitsRows,
    /// One of the two, by the family's argument `rows_unit`, whose index this is.
    UnitRows(u8),
    /// Sequences that hold a block table.
    Slots,
    /// Multiprocessors of the device: the grid of a kernel that walks its own list of tiles.
    Processors,
}

/// One step of a formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Pushes a number.
    Num(u32),
    /// Pushes a u32 argument by its index in the family's list.
    Arg(u8),
    /// Pushes a value.
    Var(Var),
    /// Adds the top two.
    Add,
    /// Multiplies the top two.
    Mul,
    /// Divides the second by the top, rounding up.
    Tiles,
    /// Divides the second by the top, rounding down.
    Floor,
    /// The smaller of the top two.
    Min,
    /// The larger of the top two.
    Max,
    /// The largest power of two that is not above the top; 1 for 0.
    Power2,
}

/// A formula in postfix order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formula(pub Cow<'static, [Op]>);

/// Where a formula's values come from.
pub trait Values {
    /// A u32 argument by index.
    fn arg(&self, index: u8) -> u32;
    /// Another value.
    fn var(&self, var: Var) -> u32;
}

impl Formula {
    /// The formula's value; `None` if it overflows 64 bits or divides by 0.
    #[must_use]
    pub fn eval(&self, values: &impl Values) -> Option<u64> {
        let mut stack: Vec<u64> = Vec::with_capacity(self.0.len());
        for op in self.0.iter() {
            let value = match *op {
                Op::Num(n) => u64::from(n),
                Op::Arg(i) => u64::from(values.arg(i)),
                Op::Var(v) => u64::from(values.var(v)),
                Op::Power2 => 1 << stack.pop()?.max(1).ilog2(),
                Op::Add | Op::Mul | Op::Tiles | Op::Floor | Op::Min | Op::Max => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    match op {
                        Op::Add => a.checked_add(b)?,
                        Op::Mul => a.checked_mul(b)?,
                        Op::Min => a.min(b),
                        Op::Max => a.max(b),
                        _ if b == 0 => return None,
                        Op::Floor => a / b,
                        _ => a.div_ceil(b),
                    }
                }
            };
            stack.push(value);
        }
        stack.pop()
    }

    /// Whether it is that number.
    #[must_use]
    pub fn is(&self, number: u32) -> bool {
        matches!(self.0[..], [Op::Num(n)] if n == number)
    }

    /// Whether it depends on a value.
    #[must_use]
    pub fn uses(&self, var: fn(Var) -> bool) -> bool {
        self.0.iter().any(|op| matches!(op, Op::Var(v) if var(*v)))
    }

    /// Parses `text`; `args` are the family's u32 arguments by index (`None` for the others).
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(text: &str, args: &[Option<&str>]) -> Result<Formula, String> {
        let mut parser = Parser {
            rest: text.trim_start(),
            args,
            ops: Vec::new(),
        };
        parser.sum(0)?;
        if parser.rest.is_empty() {
            Ok(Formula(parser.ops.into()))
        } else {
            Err(format!(
                "`{text}`: nothing can follow before `{}`",
                parser.rest
            ))
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    args: &'a [Option<&'a str>],
    ops: Vec<Op>,
}

/// Parentheses within parentheses; manifests need five.
const MAX_DEPTH: u32 = 16;

/// Name, operands, what it does.
const FUNCTIONS: [(&str, u32, Op); 5] = [
    ("tiles", 2, Op::Tiles),
    ("floor", 2, Op::Floor),
    ("min", 2, Op::Min),
    ("max", 2, Op::Max),
    ("power2", 1, Op::Power2),
];

impl<'a> Parser<'a> {
    fn take(&mut self, symbol: char) -> bool {
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, symbol: char) -> Result<(), String> {
        if self.take(symbol) {
            Ok(())
        } else {
            Err(format!("`{symbol}` is missing before `{}`", self.rest))
        }
    }

    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn sum(&mut self, depth: u32) -> Result<(), String> {
        self.product(depth)?;
        while self.take('+') {
            self.product(depth)?;
            self.ops.push(Op::Add);
        }
        Ok(())
    }

    fn product(&mut self, depth: u32) -> Result<(), String> {
        self.factor(depth)?;
        while self.take('*') {
            self.factor(depth)?;
            self.ops.push(Op::Mul);
        }
        Ok(())
    }

    fn factor(&mut self, depth: u32) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deep".into());
        }
        if self.take('(') {
            self.sum(depth + 1)?;
            return self.expect(')');
        }
        let word = self.word();
        let function = FUNCTIONS.iter().find(|(name, ..)| *name == word);
        if let Some((_, count, op)) = function
            && self.take('(')
        {
            for i in 0..*count {
                if i > 0 {
                    self.expect(',')?;
                }
                self.sum(depth + 1)?;
            }
            self.ops.push(*op);
            return self.expect(')');
        }
        let op = self.value(word)?;
        self.ops.push(op);
        Ok(())
    }

    fn value(&self, word: &str) -> Result<Op, String> {
        if let Ok(n) = word.parse::<u32>() {
            return Ok(Op::Num(n));
        }
        let arg = |name: &str| {
            self.args
                .iter()
                .position(|a| *a == Some(name))
                .map(|i| i as u8)
        };
        if let Some(i) = arg(word) {
            return Ok(Op::Arg(i));
        }
        let var = match word {
            "rows" => Var::Rows,
            "logits_rows" => Var::LogitsRows,
            "unit_rows" => {
                Var::UnitRows(arg("rows_unit").ok_or("the family has no argument rows_unit")?)
            }
            "slots" => Var::Slots,
            "processors" => Var::Processors,
            _ => {
                return Err(format!(
                    "`{word}` is neither a number, nor a u32 argument of the family, nor a known value"
                ));
            }
        };
        Ok(Op::Var(var))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Launch([u32; 3]);

    impl Values for Launch {
        fn arg(&self, index: u8) -> u32 {
            self.0[index as usize]
        }
        fn var(&self, var: Var) -> u32 {
            match var {
                Var::Rows => 7,
                Var::LogitsRows => 3,
                Var::UnitRows(i) => {
                    if self.0[i as usize] == 0 {
                        7
                    } else {
                        3
                    }
                }
                Var::Slots => 2,
                Var::Processors => 132,
            }
        }
    }

    const ARGS: [Option<&str>; 4] = [Some("n"), Some("k"), Some("rows_unit"), None];

    fn eval(text: &str, args: [u32; 3]) -> Option<u64> {
        Formula::parse(text, &ARGS).unwrap().eval(&Launch(args))
    }

    #[test]
    fn formulas_bind_as_in_arithmetic() {
        assert_eq!(eval("2 + n * 3", [5, 0, 0]), Some(17));
        assert_eq!(eval("(2 + n) * 3", [5, 0, 0]), Some(21));
        assert_eq!(eval("tiles(n + k, 32) * rows", [33, 31, 0]), Some(14));
        assert_eq!(eval("unit_rows*slots", [0, 0, 1]), Some(6));
        assert_eq!(eval("unit_rows * slots", [0, 0, 0]), Some(14));
        assert_eq!(eval("min(tiles(n, 8), processors)", [800, 0, 0]), Some(100));
        assert_eq!(eval("min(n, processors) * 2", [800, 0, 0]), Some(264));
        assert_eq!(eval("tiles(n, k) + floor(n, k)", [17, 8, 0]), Some(5));
        assert_eq!(eval("tiles(n, k)", [17, 0, 0]), None, "by zero");
        let power2 = |n| eval("power2(n)", [n, 0, 0]);
        assert_eq!(
            [0, 1, 3, 4, 7, 192].map(power2),
            [1, 1, 2, 4, 4, 128].map(Some)
        );
        assert_eq!(eval("max(n, k)", [3, 8, 0]), Some(8));
        assert_eq!(eval("n * n * n", [u32::MAX, 0, 0]), None, "overflow");
    }

    #[test]
    fn what_is_no_formula_is_refused() {
        for bad in [
            "",
            "n +",
            "n n",
            "(n",
            "tiles(n)",
            "power2(n, k)",
            "min(n)",
            "min(n, k",
            "m",
            "-1",
            "n / 2",
            "99999999999",
        ] {
            assert!(Formula::parse(bad, &ARGS).is_err(), "{bad}");
        }
        assert!(
            Formula::parse("unit_rows", &ARGS[..2]).is_err(),
            "no rows_unit in the family"
        );
        assert!(Formula::parse(&"(".repeat(100), &ARGS).is_err());
    }

    #[test]
    fn an_argument_hides_the_value_of_its_name() {
        let f = Formula::parse("rows", &[Some("rows")]).unwrap();
        assert_eq!(f.eval(&Launch([9, 0, 0])), Some(9));
        assert!(!f.uses(|v| v == Var::Rows));
    }
}
