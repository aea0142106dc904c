//! From text to syntax tree, with every name checked before DataFusion sees it.
//!
//! The names are checked here, on the tree with its positions, because only here a wrong one can be
//! shown with a caret under it and the nearest right one beside it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, Fields, Schema};
use forebay_core::{Error, ErrorKind, Result, suggest};

use crate::df::sqlparser::ast::{
    AccessExpr, Expr, FunctionArguments, Ident, ObjectNamePart, OneOrManyWithParens, Query, Value,
    ValueWithSpan, Visit, Visitor,
};
use crate::df::sqlparser::dialect::GenericDialect;
use crate::df::sqlparser::keywords::Keyword;
use crate::df::sqlparser::parser::{Parser, ParserError};
use crate::df::sqlparser::tokenizer::{Span, Token, Tokenizer};
use crate::error::{Spot, at_spot};
use crate::functions::{FUNCTIONS, Refusal};
use crate::habits;

/// How deep parentheses, functions and CASE may nest. Enough for any expression written by hand,
/// and small enough for the 2 MiB stacks of the worker threads that evaluate it.
const NESTING: usize = 48;

/// How many tokens an expression may have: an IN list of ten thousand values.
const TOKENS: usize = 20_000;

/// How many operators an expression may have. The syntax tree of a chain of operators is as deep as
/// the chain is long, and everything that walks it recurses.
const OPERATORS: usize = 400;

/// Parses one expression over the columns of `schema`.
pub(crate) fn parse(sql: &str, schema: &Schema) -> Result<Expr> {
    if sql.trim().is_empty() {
        return Err(Error::invalid("the SQL expression is empty"));
    }
    let dialect = GenericDialect {};
    let tokens = Tokenizer::new(&dialect, sql).tokenize_with_location().map_err(|e| {
        let spot = Spot::new(e.location.line, e.location.column, 1);
        at_spot(
            ErrorKind::InvalidInput,
            format!("SQL syntax error: {}", lower_first(&e.message)),
            sql,
            Some(spot),
        )
    })?;
    let words = tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).count();
    if words > TOKENS {
        return Err(Error::invalid(format!(
            "the SQL expression has {words} tokens; the limit is {TOKENS}"
        )));
    }
    let operators = count_operators(tokens.iter().map(|t| &t.token));
    if operators > OPERATORS {
        return Err(Error::invalid(format!(
            "the SQL expression has {operators} operators; the limit is {OPERATORS}"
        ))
        .with_hint(
            "write x IN (1, 2, …) instead of x = 1 OR x = 2 OR …, or split it into several steps",
        ));
    }
    if let Some(error) = habits::refused(&tokens, sql) {
        return Err(error);
    }
    let mut parser =
        Parser::new(&dialect).with_recursion_limit(NESTING).with_tokens_with_locations(tokens);
    let expr = parser.parse_expr().map_err(|e| syntax_error(&e, sql))?;
    let next = parser.peek_token();
    if next.token != Token::EOF {
        let spot = spot_of(next.span, &next.token.to_string());
        let e = at_spot(
            ErrorKind::InvalidInput,
            format!(
                "SQL syntax error: the expression ends before {}",
                quoted(&next.token.to_string())
            ),
            sql,
            spot,
        );
        return Err(match next.token {
            Token::SemiColon => e.with_hint("leave the semicolon out"),
            _ => e,
        });
    }
    let mut names = Names { sql, schema, lambda: Vec::new(), fields: HashSet::new(), error: None };
    if expr.visit(&mut names).is_break()
        && let Some(error) = names.error
    {
        return Err(error);
    }
    Ok(expr)
}

/// Counts what makes the tree deeper; values, names, commas, and the signs of numbers do not.
fn count_operators<'a>(tokens: impl Iterator<Item = &'a Token>) -> usize {
    let mut count = 0;
    let mut value_before = false;
    for token in tokens {
        match token {
            Token::Whitespace(_) => continue,
            Token::Word(word) if word.keyword != Keyword::NoKeyword => {
                count += 1;
                value_before = false;
            }
            Token::Word(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::RParen
            | Token::RBracket => {
                value_before = true;
            }
            Token::Comma | Token::LParen | Token::LBracket => value_before = false,
            Token::Minus | Token::Plus if !value_before => {}
            _ => {
                count += 1;
                value_before = false;
            }
        }
    }
    count
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn quoted(token: &str) -> String {
    format!("`{token}`")
}

pub(crate) fn spot_of(span: Span, text: &str) -> Option<Spot> {
    if span.start.line == 0 {
        return None;
    }
    let width = if span.end.line == span.start.line && span.end.column > span.start.column {
        span.end.column - span.start.column
    } else {
        text.chars().count() as u64
    };
    Some(Spot::new(span.start.line, span.start.column, width))
}

/// The parser's sentence ends in " at Line: 1, Column: 7"; that becomes the caret.
fn syntax_error(error: &ParserError, sql: &str) -> Error {
    let text = match error {
        ParserError::TokenizerError(s) | ParserError::ParserError(s) => s.as_str(),
        ParserError::RecursionLimitExceeded => {
            return Error::invalid(format!(
                "the SQL expression nests more than {NESTING} levels deep"
            ))
            .with_hint("compute a part of it in a with_column step of its own");
        }
    };
    let (text, spot) = match text.rfind(" at Line: ") {
        Some(at) => {
            let mut numbers = text[at..]
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|n| n.parse::<u64>().ok());
            match (numbers.next(), numbers.next()) {
                (Some(line), Some(column)) => (&text[..at], Some(Spot::new(line, column, 1))),
                _ => (text, None),
            }
        }
        None => (text, None),
    };
    let message =
        text.replacen("Expected: ", "expected ", 1).replacen(", found: EOF", ", found the end", 1);
    let (message, width) = match message.rsplit_once(", found: ") {
        Some((head, found)) => {
            (format!("{head}, found {}", quoted(found)), found.chars().count() as u64)
        }
        None => (message, 1),
    };
    let at_end = || {
        let line = sql.trim_end().split('\n').count() as u64;
        let column =
            sql.trim_end().split('\n').next_back().map_or(0, |l| l.chars().count()) as u64 + 1;
        Spot::new(line, column, 1)
    };
    let spot = spot.map_or_else(at_end, |s| Spot { width, ..s });
    at_spot(
        ErrorKind::InvalidInput,
        format!("SQL syntax error: {}", lower_first(&message)),
        sql,
        Some(spot),
    )
}

/// Checks names while walking the tree.
struct Names<'a> {
    sql: &'a str,
    schema: &'a Schema,
    /// Parameters of the lambdas around the current node.
    lambda: Vec<String>,
    /// Positions of identifiers that are names of struct fields, not of columns.
    fields: HashSet<(u64, u64)>,
    error: Option<Error>,
}

impl Names<'_> {
    fn stop(&mut self, error: Error) -> ControlFlow<()> {
        self.error = Some(error);
        ControlFlow::Break(())
    }

    fn refuse(&mut self, message: &str, span: Span, text: &str, hint: &str) -> ControlFlow<()> {
        let e = at_spot(ErrorKind::InvalidInput, message, self.sql, spot_of(span, text))
            .with_hint(hint);
        self.stop(e)
    }

    fn column(&mut self, ident: &Ident) -> ControlFlow<()> {
        let name = ident.value.as_str();
        if self.lambda.iter().any(|p| p == name) || self.schema.column_with_name(name).is_some() {
            return ControlFlow::Continue(());
        }
        let known = self.schema.fields().iter().map(|f| f.name().as_str());
        let mut hint = suggest::hint(name, known.clone());
        if ident.quote_style == Some('"') && suggest::nearest(name, known).is_none() {
            hint.push_str(&format!("; text goes in single quotes: '{name}'"));
        }
        if let Some(sql) = habits::in_sql(name).filter(|_| ident.quote_style.is_none()) {
            hint = sql;
        }
        let message = format!("there is no column {name:?}");
        let e = at_spot(
            ErrorKind::InvalidInput,
            message,
            self.sql,
            spot_of(ident.span, &ident.to_string()),
        );
        self.stop(e.in_column(name).with_hint(hint))
    }

    /// `a.b.c`: the first part is a column, the others are fields of structs within.
    fn path(&mut self, parts: &[Ident]) -> ControlFlow<()> {
        let Some((first, rest)) = parts.split_first() else { return ControlFlow::Continue(()) };
        let whole = parts.iter().map(|p| p.value.as_str()).collect::<Vec<_>>().join(".");
        let Some((_, field)) = self.schema.column_with_name(&first.value) else {
            if self.schema.column_with_name(&whole).is_some() {
                let message =
                    format!("the column {whole:?} has a dot in its name and needs quotes");
                let hint = format!("write \"{whole}\"");
                return self.refuse(&message, first.span, &whole, &hint);
            }
            return self.column(first);
        };
        let mut dtype = field.data_type();
        let mut owner = first.value.clone();
        for part in rest {
            let DataType::Struct(fields) = dtype else {
                let message = format!("{owner:?} has no fields: it is {dtype}");
                let hint = format!(
                    "a column whose name has a dot in it is written in quotes: \"{whole}\""
                );
                return self.refuse(&message, part.span, &part.value, &hint);
            };
            match find(fields, &part.value) {
                Some(inner) => dtype = inner,
                None => {
                    let message = format!("{owner:?} has no field {:?}", part.value);
                    let hint = suggest::hint(&part.value, fields.iter().map(|f| f.name().as_str()));
                    return self.refuse(&message, part.span, &part.value, &hint);
                }
            }
            owner = format!("{owner}.{}", part.value);
        }
        ControlFlow::Continue(())
    }

    fn function(&mut self, function: &crate::df::sqlparser::ast::Function) -> ControlFlow<()> {
        let written = function.name.to_string();
        let span = match function.name.0.first() {
            Some(ObjectNamePart::Identifier(ident)) => ident.span,
            _ => Span::empty(),
        };
        let name = written.trim_matches('"').to_lowercase();
        if function.over.is_some() {
            return self.refuse(
                &format!("`{name}` with OVER is a window function, and an expression sees one row at a time"),
                span,
                &written,
                "window functions are no part of filter and with_column",
            );
        }
        match FUNCTIONS.refusal(&name) {
            Some(Refusal::Volatile) => {
                return self.refuse(
                    &format!("`{name}` is refused: its result changes from run to run"),
                    span,
                    &written,
                    "samples and their order must be reproducible; put the value into the expression as a constant, \
                     or into the data as a column",
                );
            }
            Some(Refusal::Aggregate) => {
                return self.refuse(
                    &format!("`{name}` is an aggregate over many rows, and an expression sees one row at a time"),
                    span,
                    &written,
                    "compute it beforehand and put the value into the expression; for the elements of a list, see \
                     array_sum, array_min, array_max, array_length",
                );
            }
            Some(Refusal::Window) => {
                return self.refuse(
                    &format!(
                        "`{name}` is a window function, and an expression sees one row at a time"
                    ),
                    span,
                    &written,
                    "window functions are no part of filter and with_column",
                );
            }
            None => {}
        }
        if !FUNCTIONS.knows(&name) && name != "make_map" {
            let known = FUNCTIONS.names();
            let message = format!("there is no function `{name}`");
            let e = at_spot(ErrorKind::InvalidInput, message, self.sql, spot_of(span, &written));
            let method = name.rsplit_once('.').map(|(_, method)| method);
            let near = suggest::nearest(method.unwrap_or(&name), known);
            return self.stop(e.with_hint(match (habits::in_sql(&name), near, method) {
                (Some(sql), _, _) => sql,
                (_, Some(near), None) => format!("did you mean `{near}`?"),
                (_, Some(near), Some(_)) => format!("SQL has no methods: write {near}(x)"),
                (_, None, _) => {
                    "the functions are those of DataFusion's SQL reference, scalar functions".into()
                }
            }));
        }
        if matches!(function.args, FunctionArguments::Subquery(_)) {
            return self.subquery();
        }
        ControlFlow::Continue(())
    }

    fn subquery(&mut self) -> ControlFlow<()> {
        let e = at_spot(
            ErrorKind::InvalidInput,
            "an expression cannot hold a query (SELECT)",
            self.sql,
            None,
        );
        self.stop(e.with_hint(
            "an expression sees the columns of one row; for membership write x IN (1, 2, 3)",
        ))
    }
}

fn find<'a>(fields: &'a Fields, name: &str) -> Option<&'a DataType> {
    fields.iter().find(|f| f.name() == name).map(|f| f.data_type())
}

impl Visitor for Names<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.subquery()
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(ident) => {
                if self.fields.contains(&(ident.span.start.line, ident.span.start.column)) {
                    return ControlFlow::Continue(());
                }
                self.column(ident)
            }
            Expr::CompoundIdentifier(parts) => {
                let lambda = parts.first().is_some_and(|p| self.lambda.contains(&p.value));
                if lambda { ControlFlow::Continue(()) } else { self.path(parts) }
            }
            Expr::CompoundFieldAccess { access_chain, .. } => {
                for access in access_chain {
                    if let AccessExpr::Dot(Expr::Identifier(ident)) = access {
                        self.fields.insert((ident.span.start.line, ident.span.start.column));
                    }
                }
                ControlFlow::Continue(())
            }
            Expr::Function(function) => self.function(function),
            Expr::Lambda(lambda) => {
                match &lambda.params {
                    OneOrManyWithParens::One(p) => self.lambda.push(p.name.value.clone()),
                    OneOrManyWithParens::Many(ps) => {
                        self.lambda.extend(ps.iter().map(|p| p.name.value.clone()))
                    }
                }
                ControlFlow::Continue(())
            }
            Expr::Wildcard(token) => {
                self.refuse("`*` stands for no single value", token.0.span, "*", "name the columns")
            }
            Expr::QualifiedWildcard(..) => self.refuse(
                "`*` stands for no single value",
                Span::empty(),
                "*",
                "name the columns",
            ),
            _ => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Lambda(lambda) = expr {
            let count = match &lambda.params {
                OneOrManyWithParens::One(_) => 1,
                OneOrManyWithParens::Many(ps) => ps.len(),
            };
            self.lambda.truncate(self.lambda.len().saturating_sub(count));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<()> {
        if let Value::Placeholder(text) = &value.value {
            let message = format!("the placeholder {text} has no value here");
            return self.refuse(&message, value.span, text, "write the value itself");
        }
        ControlFlow::Continue(())
    }
}
