// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parser: tokens, then precedence climbing.

use super::{Expr, ExprError, Function, Node, Op, Value};

/// Deepest nesting; manifests stay far below, and the stack is safe.
const MAX_DEPTH: u32 = 48;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Value(Value),
    Name(String),
    Op(Op),
    Not,
    Open,
    Close,
    Comma,
}

pub(super) fn parse(text: &str) -> Result<Expr, ExprError> {
    let fail = |what: String| ExprError::Syntax {
        text: text.to_owned(),
        what,
    };
    let tokens = tokens(text).map_err(fail)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
    };
    let node = parser.binary(0, 0).map_err(fail)?;
    if parser.at < tokens.len() {
        return Err(fail("something follows its end".into()));
    }
    Ok(Expr {
        text: text.to_owned(),
        node: node.node,
    })
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (token, len) = match c {
            ' ' | '\n' | '\t' => {
                rest = &rest[1..];
                continue;
            }
            '0'..='9' => number(rest)?,
            'a'..='z' | 'A'..='Z' | '_' => name(rest),
            '\'' => {
                let end = rest[1..].find('\'').ok_or("a text is not closed")?;
                (Token::Value(Value::Text(rest[1..=end].to_owned())), end + 2)
            }
            _ => symbol(rest)?,
        };
        out.push(token);
        rest = &rest[len..];
    }
    Ok(out)
}

fn number(rest: &str) -> Result<(Token, usize), String> {
    let len = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let digits = &rest[..len];
    let value = if digits.contains('.') {
        digits
            .parse()
            .map(Value::Float)
            .map_err(|_| format!("`{digits}` is no number"))?
    } else {
        digits
            .parse()
            .map(Value::Count)
            .map_err(|_| format!("`{digits}` is no 64-bit count"))?
    };
    Ok((Token::Value(value), len))
}

fn name(rest: &str) -> (Token, usize) {
    let len = rest
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')
        .unwrap_or(rest.len());
    let token = match &rest[..len] {
        "true" => Token::Value(Value::Bool(true)),
        "false" => Token::Value(Value::Bool(false)),
        name => Token::Name(name.to_owned()),
    };
    (token, len)
}

fn symbol(rest: &str) -> Result<(Token, usize), String> {
    const SYMBOLS: [(&str, Token); 17] = [
        ("||", Token::Op(Op::Or)),
        ("&&", Token::Op(Op::And)),
        ("==", Token::Op(Op::Eq)),
        ("!=", Token::Op(Op::Ne)),
        ("<=", Token::Op(Op::Le)),
        (">=", Token::Op(Op::Ge)),
        ("<", Token::Op(Op::Lt)),
        (">", Token::Op(Op::Gt)),
        ("+", Token::Op(Op::Add)),
        ("-", Token::Op(Op::Sub)),
        ("*", Token::Op(Op::Mul)),
        ("/", Token::Op(Op::Div)),
        ("%", Token::Op(Op::Rem)),
        ("!", Token::Not),
        ("(", Token::Open),
        (")", Token::Close),
        (",", Token::Comma),
    ];
    SYMBOLS
        .into_iter()
        .find(|(s, _)| rest.starts_with(s))
        .map(|(s, t)| (t, s.len()))
        .ok_or_else(|| format!("`{}` is not understood", rest.chars().next().unwrap_or(' ')))
}

fn precedence(op: Op) -> u32 {
    match op {
        Op::Or => 1,
        Op::And => 2,
        Op::Eq | Op::Ne | Op::Lt | Op::Le | Op::Gt | Op::Ge => 3,
        Op::Add | Op::Sub => 4,
        Op::Mul | Op::Div | Op::Rem => 5,
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<&Token> {
        let token = self.tokens.get(self.at);
        self.at += 1;
        token
    }

    fn binary(&mut self, above: u32, depth: u32) -> Result<Expr, String> {
        if depth > MAX_DEPTH {
            return Err("nested too deep".into());
        }
        let mut left = self.unary(depth)?;
        while let Some(Token::Op(op)) = self.tokens.get(self.at) {
            let op = *op;
            let bind = precedence(op);
            if bind <= above {
                break;
            }
            self.at += 1;
            let right = self.binary(bind, depth + 1)?;
            let text = format!("{} {} {}", left.text, symbol_of(op), right.text);
            left = Expr {
                text,
                node: Node::Binary(op, Box::new(left), Box::new(right)),
            };
        }
        Ok(left)
    }

    fn unary(&mut self, depth: u32) -> Result<Expr, String> {
        if depth > MAX_DEPTH {
            return Err("nested too deep".into());
        }
        match self.next().cloned() {
            Some(Token::Value(v)) => {
                let text = match &v {
                    Value::Text(t) => format!("'{t}'"),
                    other => other.to_string(),
                };
                Ok(Expr {
                    text,
                    node: Node::Value(v),
                })
            }
            Some(Token::Not) => {
                let inner = self.unary(depth + 1)?;
                Ok(Expr {
                    text: format!("!{}", inner.text),
                    node: Node::Not(Box::new(inner)),
                })
            }
            Some(Token::Open) => {
                let inner = self.binary(0, depth + 1)?;
                self.expect(&Token::Close)?;
                Ok(Expr {
                    text: format!("({})", inner.text),
                    node: inner.node,
                })
            }
            Some(Token::Name(name)) if self.tokens.get(self.at) == Some(&Token::Open) => {
                self.call(&name, depth)
            }
            Some(Token::Name(name)) => Ok(Expr {
                text: name.clone(),
                node: Node::Name(name),
            }),
            _ => Err("an operand is missing".into()),
        }
    }

    fn call(&mut self, name: &str, depth: u32) -> Result<Expr, String> {
        let (function, count) = match name {
            "sqrt" => (Function::Sqrt, 1),
            "ceil" => (Function::Ceil, 2),
            "max" => (Function::Max, 2),
            "min" => (Function::Min, 2),
            "ln" => (Function::Ln, 1),
            "if" => (Function::If, 3),
            "at" => (Function::At, 2),
            "len" => (Function::Len, 1),
            _ => return Err(format!("there is no function `{name}`")),
        };
        self.at += 1;
        let mut args = Vec::new();
        for i in 0..count {
            if i > 0 {
                self.expect(&Token::Comma)?;
            }
            args.push(self.binary(0, depth + 1)?);
        }
        self.expect(&Token::Close)?;
        let list: Vec<&str> = args.iter().map(|a| a.text.as_str()).collect();
        Ok(Expr {
            text: format!("{name}({})", list.join(", ")),
            node: Node::Call(function, args),
        })
    }

    fn expect(&mut self, token: &Token) -> Result<(), String> {
        if self.next() == Some(token) {
            Ok(())
        } else {
            Err("a bracket or comma is missing".into())
        }
    }
}

fn symbol_of(op: Op) -> &'static str {
    match op {
        Op::Or => "||",
        Op::And => "&&",
        Op::Eq => "==",
        Op::Ne => "!=",
        Op::Lt => "<",
        Op::Le => "<=",
        Op::Gt => ">",
        Op::Ge => ">=",
        Op::Add => "+",
        Op::Sub => "-",
        Op::Mul => "*",
        Op::Div => "/",
        Op::Rem => "%",
    }
}
