//! Expressions as Python, pandas or C write them, and what SQL says instead.
//!
//! The readers of these errors write Python all day. Where SQL has another word for what they mean, the
//! error names it, in place of what the parser or the type checker have against the symbol.

use forebay_core::{Error, ErrorKind};

use crate::df::sqlparser::dialect::GenericDialect;
use crate::df::sqlparser::keywords::Keyword;
use crate::df::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};
use crate::error::{Spot, at_spot};
use crate::parse::spot_of;

/// Functions and values by their names in Python.
const NAMES: [(&str, &str); 14] = [
    ("len", "length(x) for texts, array_length(x) for lists"),
    ("str", "CAST(x AS VARCHAR)"),
    ("int", "CAST(x AS BIGINT)"),
    ("float", "CAST(x AS DOUBLE)"),
    ("isnull", "x IS NULL"),
    ("isna", "x IS NULL"),
    ("is_null", "x IS NULL"),
    ("notnull", "x IS NOT NULL"),
    ("notna", "x IS NOT NULL"),
    ("isin", "x IN (1, 2, 3)"),
    ("between", "x BETWEEN 1 AND 3"),
    ("startswith", "starts_with(x, 'a')"),
    ("endswith", "ends_with(x, 'a')"),
    ("None", "NULL, and x IS NULL tests for it"),
];

/// How SQL writes a function or value that has this name in Python; of a method its last part.
pub(crate) fn in_sql(name: &str) -> Option<String> {
    let last = name.rsplit('.').next().unwrap_or(name);
    NAMES.iter().find(|(python, _)| *python == last).map(|(_, sql)| format!("SQL writes {sql}"))
}

/// A part of an expression that SQL does not have, before the parser says what it expected there.
pub(crate) fn refused(tokens: &[TokenWithSpan], sql: &str) -> Option<Error> {
    let words = words(tokens);
    let at = |i: usize| words.get(i).map_or(&Token::EOF, |t| &t.token);
    words.iter().enumerate().find_map(|(i, word)| {
        let before = i.checked_sub(1).map_or(&Token::EOF, |i| at(i));
        let (what, hint) = match &word.token {
            Token::Overlap => ("&&", "write AND"),
            Token::ExclamationMark => ("!", "write NOT"),
            Token::Tilde if !is_value(before) => ("~", "write NOT"),
            Token::DuckIntDiv => {
                ("//", "write floor(a / b); between integers a / b drops the fraction already")
            }
            Token::Mul if *at(i + 1) == Token::Mul => ("**", "write power(a, b)"),
            token if keyword(token) == Some(Keyword::IN) && *at(i + 1) == Token::LBracket => {
                ("IN [", "write the values in parentheses: x IN (1, 2, 3)")
            }
            token if is_none(token) && keyword(before) == Some(Keyword::IS) => {
                ("IS None", "write x IS NULL")
            }
            token if is_none(token) && keyword(before) == Some(Keyword::NOT) => {
                ("NOT None", "write x IS NOT NULL")
            }
            token
                if keyword(token) == Some(Keyword::IF)
                    && is_value(before)
                    && *at(i + 1) != Token::LParen =>
            {
                ("IF", "write CASE WHEN condition THEN a ELSE b END")
            }
            _ => return None,
        };
        let message = format!("SQL has no `{what}` here");
        let spot = spot_of(word.span, &word.token.to_string());
        Some(at_spot(ErrorKind::InvalidInput, message, sql, spot).with_hint(hint))
    })
}

/// Where an expression whose types do not fit is likely to be meant otherwise, and how to say that.
/// `sentence` is what the type checker says.
pub(crate) fn misread(sentence: &str, sql: &str) -> Option<(Spot, String)> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().ok()?;
    let words = words(&tokens);
    let spot = |t: &TokenWithSpan| spot_of(t.span, &t.token.to_string());
    let booleans = sentence.contains("Boolean");
    if booleans || sentence.contains("string concat") {
        let symbol = words.iter().find_map(|t| {
            let hint = match t.token {
                Token::Ampersand => "`&` combines the bits of integers: write AND",
                Token::Pipe => "`|` combines the bits of integers: write OR",
                Token::StringConcat => "`||` joins texts: write OR",
                _ => return None,
            };
            spot(t).map(|s| (s, hint.to_owned()))
        });
        if symbol.is_some() {
            return symbol;
        }
    }
    if booleans && let Some(second) = chained(&words) {
        let hint = "write each comparison by itself: 1 < x AND x < 3";
        return spot(second).map(|s| (s, hint.to_owned()));
    }
    if booleans && sentence.contains("comparison operation") {
        let first = words.iter().find(|t| is_comparison(&t.token))?;
        let hint = "a boolean is compared with TRUE or FALSE, or stands by itself";
        return spot(first).map(|s| (s, hint.to_owned()));
    }
    if sentence.contains("logical boolean operation") {
        let logical = |t: &Token| matches!(keyword(t), Some(Keyword::AND | Keyword::OR));
        let first = words.iter().find(|t| logical(&t.token))?;
        let hint = "AND and OR join conditions: compare each side with something, e.g. x > 0";
        return spot(first).map(|s| (s, hint.to_owned()));
    }
    let (text, dtype) =
        sentence.strip_prefix("Cannot cast string '")?.rsplit_once("' to value of ")?;
    let literal =
        words.iter().find(|t| matches!(&t.token, Token::SingleQuotedString(s) if s == text))?;
    let dtype = dtype.strip_suffix(" type").unwrap_or(dtype);
    spot(literal).map(|s| (s, format!("it is a text, and {dtype} is wanted beside it")))
}

/// The second of two comparisons in a row: `1 < x < 3`.
fn chained<'a>(words: &[&'a TokenWithSpan]) -> Option<&'a TokenWithSpan> {
    // One for each parenthesis that is open: whether a comparison was seen in it.
    let mut seen = vec![false];
    for word in words {
        match &word.token {
            Token::LParen => seen.push(false),
            Token::RParen => {
                seen.pop();
            }
            Token::Comma => *seen.last_mut()? = false,
            token if is_comparison(token) => {
                let before = seen.last_mut()?;
                if *before {
                    return Some(word);
                }
                *before = true;
            }
            token if keyword(token).is_some() => *seen.last_mut()? = false,
            _ => {}
        }
    }
    None
}

fn words(tokens: &[TokenWithSpan]) -> Vec<&TokenWithSpan> {
    tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).collect()
}

fn keyword(token: &Token) -> Option<Keyword> {
    match token {
        Token::Word(word) if word.quote_style.is_none() && word.keyword != Keyword::NoKeyword => {
            Some(word.keyword)
        }
        _ => None,
    }
}

fn is_none(token: &Token) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.value == "None")
}

fn is_value(token: &Token) -> bool {
    match token {
        Token::Word(_) => !matches!(
            keyword(token),
            Some(
                Keyword::AND
                    | Keyword::OR
                    | Keyword::NOT
                    | Keyword::WHEN
                    | Keyword::THEN
                    | Keyword::ELSE
                    | Keyword::CASE
                    | Keyword::BETWEEN
                    | Keyword::IN
                    | Keyword::IS
                    | Keyword::LIKE
            )
        ),
        Token::Number(..) | Token::SingleQuotedString(_) | Token::RParen | Token::RBracket => true,
        _ => false,
    }
}

fn is_comparison(token: &Token) -> bool {
    matches!(
        token,
        Token::Eq
            | Token::DoubleEq
            | Token::Neq
            | Token::Lt
            | Token::Gt
            | Token::LtEq
            | Token::GtEq
    )
}
