//! A Rust file as tokens: the words in its code, and the paths it names.

use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Words that may precede a path without being part of it: `use ::std`, `return ::std::mem::take(x)`.
const KEYWORDS: &[&str] = &[
    "as", "async", "await", "box", "break", "const", "continue", "dyn", "else", "enum", "extern", "fn",
    "for", "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return",
    "static", "struct", "trait", "type", "unsafe", "use", "where", "while", "yield",
];

/// One source file.
#[derive(Debug)]
pub struct RustFile {
    pub path: String,
    /// The module of the file's items, from the root of its crate. This is meaningful only for a file below a
    /// `src/`.
    pub module: Vec<String>,
    /// Every word of the code, with its line and whether a `!` follows.
    pub words: Vec<SourceWord>,
    /// Every path of the code, `use` trees taken apart.
    pub paths: Vec<NamedPath>,
    /// Names that the file's `use` declarations and items put at its top level, with the path behind each
    /// `use`.
    pub top_level: Vec<(String, Vec<String>)>,
    /// Whether the file begins with a `//!`.
    pub documented: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceWord {
    pub text: String,
    pub line: usize,
    pub is_macro_call: bool,
    /// Whether the word is in a module called `tests`.
    pub in_tests: bool,
}

/// A path as written, with the module that it is written in. A glob ends in `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    pub module: Vec<String>,
    pub segments: Vec<String>,
    pub line: usize,
}

impl NamedPath {
    /// Returns the path from the root of its crate, if it is written as one of the crate's own (`crate`,
    /// `self`, `super`).
    pub fn in_own_crate(&self) -> Option<Vec<String>> {
        let mut module = self.module.clone();
        let mut rest = self.segments.as_slice();
        match rest.first()?.as_str() {
            "crate" => module.clear(),
            "self" | "super" => {}
            _ => return None,
        }
        while let Some(first) = rest.first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => {
                    module.pop();
                }
                _ => break,
            }
            rest = &rest[1..];
        }
        module.extend_from_slice(rest);
        Some(module)
    }
}

impl RustFile {
    /// Splits a file into its words and paths. Fails with the line of the error if the file is not Rust.
    pub fn parse(path: &str, text: &str) -> Result<Self, usize> {
        let tokens = TokenStream::from_str(text).map_err(|error| error.span().start().line)?;
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut file = Self {
            path: path.into(),
            module: module_of(path),
            words: Vec::new(),
            paths: Vec::new(),
            top_level: Vec::new(),
            documented: begins_with_docs(&tokens),
        };
        file.collect_top_level(&tokens);
        let module = file.module.clone();
        file.walk(&tokens, &module);
        Ok(file)
    }

    fn walk(&mut self, tokens: &[TokenTree], module: &[String]) {
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) => {
                    let text = word.to_string();
                    let line = word.span().start().line;
                    if starts_path(tokens, at) {
                        read_tree(tokens, at, &mut Vec::new(), &mut |segments, _| {
                            let segments = segments.to_vec();
                            self.paths.push(NamedPath { module: module.to_vec(), segments, line });
                        });
                    }
                    let is_macro_call = is_punct(tokens, at + 1, '!');
                    let in_tests = module.iter().any(|name| name == "tests");
                    self.words.push(SourceWord { text, line, is_macro_call, in_tests });
                }
                TokenTree::Group(group) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    match opens_module(tokens, at) {
                        Some(name) => self.walk(&inside, &[module, &[name]].concat()),
                        None if follows_path(tokens, at) => self.walk_words(&inside),
                        None => self.walk(&inside, module),
                    }
                }
                _ => {}
            }
        }
    }

    /// Adds the words inside a `use` tree. The paths of the tree were read with its prefix already.
    fn walk_words(&mut self, tokens: &[TokenTree]) {
        for token in tokens {
            match token {
                TokenTree::Ident(word) => self.words.push(SourceWord {
                    text: word.to_string(),
                    line: word.span().start().line,
                    is_macro_call: false,
                    in_tests: false,
                }),
                TokenTree::Group(group) => self.walk_words(&group.stream().into_iter().collect::<Vec<_>>()),
                _ => {}
            }
        }
    }

    fn collect_top_level(&mut self, tokens: &[TokenTree]) {
        for at in 0..tokens.len() {
            let Some(word) = ident(tokens, at) else { continue };
            match word.as_str() {
                "use" => {
                    let start = if is_separator(tokens, at + 1) { at + 3 } else { at + 1 };
                    read_tree(tokens, start, &mut Vec::new(), &mut |path, renamed| {
                        let name = renamed.or_else(|| path.last().cloned()).unwrap_or_default();
                        self.top_level.push((name, path.to_vec()));
                    });
                }
                "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => {
                    if let Some(name) = ident(tokens, at + 1) {
                        self.top_level.push((name, Vec::new()));
                    }
                }
                "macro_rules" => {
                    if let Some(name) = ident(tokens, at + 2) {
                        self.top_level.push((name, Vec::new()));
                    }
                }
                _ => {}
            }
        }
    }
}

fn module_of(path: &str) -> Vec<String> {
    let inside = path.rsplit_once("/src/").map_or(path, |(_, inside)| inside);
    let mut module: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if module.last().is_some_and(|last| last == "mod") || matches!(inside, "lib.rs" | "main.rs") {
        module.pop();
    }
    module
}

/// Returns whether the file begins with a `//!`. To the tokenizer, an inner doc comment is an attribute.
/// Other inner attributes may precede it.
fn begins_with_docs(tokens: &[TokenTree]) -> bool {
    let mut at = 0;
    while is_punct(tokens, at, '#') && is_punct(tokens, at + 1, '!') {
        if let Some(TokenTree::Group(attribute)) = tokens.get(at + 2) {
            let inside: Vec<TokenTree> = attribute.stream().into_iter().collect();
            if ident(&inside, 0).is_some_and(|word| word == "doc") {
                return true;
            }
        }
        at += 3;
    }
    false
}

fn ident(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(word)) => Some(word.to_string()),
        _ => None,
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, wanted: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// Returns whether `::` is here.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

fn braces(tokens: &[TokenTree], at: usize) -> Option<Vec<TokenTree>> {
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            Some(group.stream().into_iter().collect())
        }
        _ => None,
    }
}

/// Returns whether the word here is the first of a path, and neither a later segment nor a keyword. The path
/// in `pub(in crate::frame)` is a permission, not an import.
fn starts_path(tokens: &[TokenTree], at: usize) -> bool {
    if ident(tokens, at).is_some_and(|word| KEYWORDS.contains(&word.as_str())) {
        return false;
    }
    if at == 1 && ident(tokens, 0).is_some_and(|word| word == "in") {
        return false;
    }
    if at < 2 || !is_separator(tokens, at - 2) {
        return true;
    }
    match at.checked_sub(3).map(|before| &tokens[before]) {
        Some(TokenTree::Ident(word)) => KEYWORDS.contains(&word.to_string().as_str()),
        Some(TokenTree::Punct(punct)) => punct.as_char() != '>',
        _ => true,
    }
}

/// Returns the name in `mod name { ... }` whose braces are here.
fn opens_module(tokens: &[TokenTree], at: usize) -> Option<String> {
    let keyword = at.checked_sub(2)?;
    braces(tokens, at)?;
    ident(tokens, keyword).filter(|word| word == "mod")?;
    ident(tokens, keyword + 1)
}

/// Returns whether the braces of a `path::{ ... }` are here.
fn follows_path(tokens: &[TokenTree], at: usize) -> bool {
    at >= 3 && is_separator(tokens, at - 2) && ident(tokens, at - 3).is_some() && braces(tokens, at).is_some()
}

/// Reads the path, or the tree of paths, that begins here. Each path comes with the name that `as` gives it.
fn read_tree(
    tokens: &[TokenTree],
    mut at: usize,
    prefix: &mut Vec<String>,
    found: &mut dyn FnMut(&[String], Option<String>),
) {
    let length = prefix.len();
    while let Some(word) = ident(tokens, at) {
        if word != "self" || prefix.is_empty() {
            prefix.push(word);
        }
        at += 1;
        if !is_separator(tokens, at) {
            let renamed = ident(tokens, at).filter(|word| word == "as").and_then(|_| ident(tokens, at + 1));
            found(prefix, renamed);
            prefix.truncate(length);
            return;
        }
        at += 2;
    }
    if let Some(inside) = braces(tokens, at) {
        for branch in inside.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ',')) {
            if !branch.is_empty() {
                read_tree(branch, 0, prefix, found);
            }
        }
    } else {
        if is_punct(tokens, at, '*') {
            prefix.push("*".into());
        }
        found(prefix, None);
    }
    prefix.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(path: &str, text: &str) -> Vec<String> {
        let file = RustFile::parse(path, text).unwrap();
        file.paths.iter().map(|path| path.segments.join("::")).filter(|path| path.contains("::")).collect()
    }

    fn resolved(path: &str, text: &str) -> Vec<String> {
        let file = RustFile::parse(path, text).unwrap();
        let own = file.paths.iter().filter_map(NamedPath::in_own_crate).map(|path| path.join("::"));
        own.filter(|path| !path.is_empty()).collect()
    }

    #[test]
    fn use_trees_are_taken_apart() {
        let text = "use crate::{frame::{self, Order as O}, table::*, io};\nuse ::std::sync::Arc;";
        let expected =
            ["crate::frame", "crate::frame::Order", "crate::table::*", "crate::io", "std::sync::Arc"];
        assert_eq!(paths("crates/a/src/b.rs", text), expected);
    }

    #[test]
    fn paths_in_expressions_types_and_macros_are_seen() {
        let text = "fn f(x: crate::io::Disk) -> u8 { m!(crate::swap::g::<u8>(2 * crate::units::N)); 0 }";
        let expected = ["crate::io::Disk", "crate::swap::g", "crate::units::N"];
        assert_eq!(paths("crates/a/src/b.rs", text), expected);
        assert_eq!(
            paths("crates/a/src/b.rs", "fn f() { return ::std::thread::park() }"),
            ["std::thread::park"]
        );
        assert_eq!(
            resolved("crates/a/src/b.rs", "macro_rules! m { () => { $crate::swap::g() } }"),
            ["swap::g"]
        );
    }

    #[test]
    fn paths_are_resolved_from_where_they_stand() {
        let text =
            "use super::words::W; use super::super::table::T; mod tests { use super::*; use self::x::Y; }";
        let expected = ["frame::words::W", "table::T", "frame::buddy::*", "frame::buddy::tests::x::Y"];
        assert_eq!(resolved("crates/octavo/src/frame/buddy.rs", text), expected);
        assert_eq!(resolved("crates/octavo/src/frame/mod.rs", "use super::swap::S;"), ["swap::S"]);
        assert_eq!(resolved("crates/octavo/src/space.rs", "use super::swap::S;"), ["swap::S"]);
    }

    #[test]
    fn permissions_comments_and_strings_name_nothing() {
        let text = "/// [`crate::space`]\npub(in crate::frame) fn f() { /* crate::space */ g(\"crate::space::S\"); }";
        assert!(paths("crates/a/src/frame/b.rs", text).is_empty());
    }

    #[test]
    fn names_at_the_top_level_are_known_with_what_is_behind_them() {
        let text =
            "mod units;\npub use units::{Order, FrameId as F};\npub const N: u8 = 1; fn f() { use a::b; }";
        let file = RustFile::parse("crates/octavo/src/lib.rs", text).unwrap();
        let names: Vec<_> =
            file.top_level.iter().map(|(name, path)| (name.as_str(), path.join("::"))).collect();
        let expected = [
            ("Order", "units::Order".to_string()),
            ("F", "units::FrameId".to_string()),
            ("N", String::new()),
            ("f", String::new()),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_file_that_does_not_lex_is_an_error_with_its_line() {
        assert_eq!(RustFile::parse("crates/a/src/b.rs", "fn f() {\n  )").unwrap_err(), 2);
    }
}
