//! The house rules, checked on the source itself.
//!
//! | rule | it reports |
//! |---|---|
//! | `layers` | an import of the engine that goes up its layers, or a circle inside one; a package that depends upward |
//! | `unsafe` | unsafe code outside its one crate |
//! | `facade` | an atomic, a lock or a thread that does not come from `crate::sync` |
//! | `length` | a source file that has grown too long |
//! | `columns` | a line of a comment or of prose that is too wide |
//! | `unfinished` | placeholder macros and debt marks |
//! | `docs` | a module without documentation at its head |
//! | `msrv` | a package or a README that names a different Rust version than the workspace |
//! | `links` | a link in a markdown file to a file that does not exist |
//! | `private` | a name of a place that exists only on one person's machine |
//! | `reasons` | an exception that does not say why it is one |
//! | `commits` | a new commit whose first line is not `area: what it does` |
//!
//! Only [`policy`] says what is allowed where. The rules look at a [`Repository`], which holds the text of
//! every file that is or could be committed. So tests can hand them a made-up tree.
//!
//! The rules see Rust as tokens, before macros are expanded. So they miss a path that a macro puts together.

mod commits;
mod imports;
mod packages;
pub mod policy;
mod rust_rules;
mod source;
mod text_rules;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use policy::Allowed;
use source::RustFile;

const POLICY: &str = "xtask/src/tidy/policy.rs";

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub rule: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.path, self.line, self.rule, self.what)
    }
}

/// Every file of the repository, by its path from the top. A file that is not text is there with an empty
/// text.
#[derive(Debug, Default)]
pub struct Repository {
    files: BTreeMap<String, String>,
}

impl Repository {
    /// Loads the files that git tracks or would track. Without git, loads everything except build output.
    pub fn load(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        for path in git_files(root).unwrap_or_else(|| walked_files(root)) {
            let full = root.join(&path);
            if full.is_file() {
                files.insert(path, fs::read_to_string(full).unwrap_or_default());
            }
        }
        Self { files }
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns whether a file or a folder of this path exists.
    fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Repository {
    fn from(files: [(&str, &str); N]) -> Self {
        Self { files: files.into_iter().map(|(path, text)| (path.to_string(), text.to_string())).collect() }
    }
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let listing = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    let files: Vec<String> = listing.split_terminator('\0').map(str::to_string).collect();
    (!files.is_empty()).then_some(files)
}

/// Returns git's output if git succeeds.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}

fn walked_files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            let name = item.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            match item.file_type() {
                Ok(kind) if kind.is_dir() && name != ".git" && name != "target" => folders.push(path),
                // In a work tree, .git is a file.
                Ok(kind) if kind.is_file() && name != ".git" => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// Finds everything that breaks a rule: in the project's tree, and in its history.
pub fn check_all(root: &Path) -> Vec<Violation> {
    let mut findings = check(&Repository::load(root));
    findings.extend(commits::check(root));
    findings
}

/// Finds everything in the tree that breaks a rule, in order of path and line.
fn check(tree: &Repository) -> Vec<Violation> {
    let mut findings = Vec::new();
    let mut sources = Vec::new();
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        match RustFile::parse(path, text) {
            Ok(source) => sources.push(source),
            Err(line) => findings.push(Violation {
                path: path.into(),
                line,
                rule: "source",
                what: "this is not Rust source, so no rule could be checked".into(),
            }),
        }
    }
    imports::check(&sources, policy::UPWARD_IMPORTS, &mut findings);
    imports::check_circles(&sources, &mut findings);
    packages::check(tree, &mut findings);
    packages::check_rust_version(tree, &mut findings);
    rust_rules::check_unsafe(tree, &sources, policy::UNSAFE_ELSEWHERE, &mut findings);
    rust_rules::check_facade(&sources, &mut findings);
    rust_rules::check_sizes(&sources, &mut findings);
    rust_rules::check_unfinished(&sources, &mut findings);
    rust_rules::check_docs(&sources, &mut findings);
    text_rules::check_length(tree, &mut findings);
    text_rules::check_debt_marks(tree, &mut findings);
    text_rules::check_columns(tree, &mut findings);
    text_rules::check_links(tree, &mut findings);
    text_rules::check_private_places(tree, &mut findings);
    check_reasons(policy::UPWARD_IMPORTS, &mut findings);
    check_reasons(policy::UNSAFE_ELSEWHERE, &mut findings);
    findings.sort();
    findings.dedup();
    findings
}

/// Reports exceptions without a reason.
fn check_reasons(exceptions: &[Allowed], findings: &mut Vec<Violation>) {
    for exception in exceptions.iter().filter(|exception| exception.reason.trim().is_empty()) {
        findings.push(Violation {
            path: POLICY.into(),
            line: 1,
            rule: "reasons",
            what: format!("the exception for `{}` has no reason", exception.path),
        });
    }
}

/// Reports an exception that nothing needed.
fn report_unused(list: &str, unused: &Allowed, rule: &'static str, findings: &mut Vec<Violation>) {
    findings.push(Violation {
        path: POLICY.into(),
        line: 1,
        rule,
        what: format!("the exception for `{}` in {list} is not needed: take it out", unused.path),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_and_its_new_commits_are_tidy() {
        let findings = check_all(&crate::root());
        let list: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
        assert!(findings.is_empty(), "{} findings:\n{list}", findings.len());
    }

    #[test]
    fn the_tree_that_is_checked_is_the_whole_one() {
        for tree in
            [Repository::load(&crate::root()), Repository { files: as_files(walked_files(&crate::root())) }]
        {
            for path in ["Cargo.toml", "crates/octavo/src/lib.rs", "crates/platform/src", "xtask/src/tidy.rs"]
            {
                assert!(tree.exists(path), "{path} is missing");
            }
            assert!(!tree.exists("target"));
            assert!(!tree.exists(".git"));
        }
    }

    fn as_files(paths: Vec<String>) -> BTreeMap<String, String> {
        paths.into_iter().map(|path| (path, String::new())).collect()
    }

    #[test]
    fn an_exception_without_a_reason_is_reported() {
        let mut findings = Vec::new();
        check_reasons(&[Allowed { path: "crates/cli/", what: "", reason: "" }], &mut findings);
        assert_eq!(findings.len(), 1);
        check_reasons(&[Allowed { path: "crates/cli/", what: "", reason: "it must" }], &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn every_rule_is_part_of_the_check() {
        let debt = format!("//! Docs.\n// {}\n", policy::DEBT_MARKS[0]);
        let place = format!("See {}notes.", policy::PRIVATE_PLACES[0]);
        let long = "//! Docs.\n".repeat(policy::MAX_LINES + 1);
        let tree = Repository::from([
            ("crates/octavo/src/frame/a.rs", "//! Docs.\nuse crate::fault::Fault;"),
            ("crates/octavo/src/frame/b.rs", "//! Docs.\nfn f() { unsafe { g() } }"),
            ("crates/octavo/src/frame/c.rs", "//! Docs.\nuse std::sync::atomic::AtomicU8;"),
            ("crates/octavo/src/frame/d.rs", &long),
            ("crates/octavo/src/frame/e.rs", &debt),
            ("crates/octavo/src/frame/f.rs", "struct Undocumented;"),
            ("crates/octavo/src/frame/g.rs", "//! Docs.\nfn f() { todo!() }"),
            ("crates/platform/src/h.rs", "fn unclosed() {"),
            ("Cargo.toml", "[workspace]"),
            ("README.md", "[gone](docs/gone.md)"),
            ("docs/notes.md", &place),
        ]);
        // A made-up tree does not need the real exceptions. Unneeded exceptions are findings, too, but this
        // test is not about them.
        let found = check(&tree).into_iter().filter(|finding| finding.path != POLICY);
        let rules: Vec<_> = found.map(|finding| (finding.path, finding.rule)).collect();
        let expected = [
            ("Cargo.toml", "msrv"),
            ("README.md", "links"),
            ("crates/octavo/src/frame/a.rs", "layers"),
            ("crates/octavo/src/frame/b.rs", "unsafe"),
            ("crates/octavo/src/frame/c.rs", "facade"),
            ("crates/octavo/src/frame/d.rs", "length"),
            ("crates/octavo/src/frame/e.rs", "unfinished"),
            ("crates/octavo/src/frame/f.rs", "docs"),
            ("crates/octavo/src/frame/g.rs", "unfinished"),
            ("crates/platform/src/h.rs", "source"),
            ("docs/notes.md", "private"),
        ];
        assert_eq!(rules, expected.map(|(path, rule)| (path.to_string(), rule)));
    }
}
