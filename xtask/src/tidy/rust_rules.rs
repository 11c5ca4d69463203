//! Rules about what Rust source may say: `unsafe`, `facade`, `sizes`, `unfinished`, `docs`.

use std::collections::BTreeSet;

use super::policy::{
    Allowed, DOCUMENTED, ENGINE_SOURCE, FACADE, FACADE_ONLY, SIZES, UNFINISHED_MACROS, UNSAFE_HOME,
};
use super::source::RustFile;
use super::{Repository, Violation, report_unused};

const SOUNDNESS: &str = "docs/soundness.md";

/// Unsafe code lives in one crate. Elsewhere, it needs an exception, and an argument in the soundness
/// document.
pub fn check_unsafe(
    tree: &Repository,
    sources: &[RustFile],
    exceptions: &[Allowed],
    findings: &mut Vec<Violation>,
) {
    let mut used = BTreeSet::new();
    for file in sources.iter().filter(|file| !file.path.starts_with(UNSAFE_HOME)) {
        for word in file.words.iter().filter(|word| word.text == "unsafe") {
            match exceptions.iter().position(|exception| exception.covers(&file.path)) {
                Some(index) => {
                    used.insert(index);
                }
                None => findings.push(Violation {
                    path: file.path.clone(),
                    line: word.line,
                    rule: "unsafe",
                    what: format!("unsafe code belongs in {UNSAFE_HOME}"),
                }),
            }
        }
    }
    for (index, exception) in exceptions.iter().enumerate() {
        if !used.contains(&index) {
            report_unused("UNSAFE_ELSEWHERE", exception, "unsafe", findings);
        } else if !tree.get(SOUNDNESS).is_some_and(|text| text.contains(exception.path)) {
            findings.push(Violation {
                path: SOUNDNESS.into(),
                line: 1,
                rule: "unsafe",
                what: format!("the unsafe code of `{}` is not argued here", exception.path),
            });
        }
    }
}

/// Atomics, locks, threads, clocks, CPUs and random bytes come from the facade, so that each face of the
/// facade sees all of their uses.
pub fn check_facade(sources: &[RustFile], findings: &mut Vec<Violation>) {
    let outside = |file: &&RustFile| file.path.starts_with(ENGINE_SOURCE) && !file.path.starts_with(FACADE);
    for file in sources.iter().filter(outside) {
        let mut report = |line, name: &str| {
            findings.push(Violation {
                path: file.path.clone(),
                line,
                rule: "facade",
                what: format!("`{name}` is reached only through `crate::sync`"),
            });
        };
        for path in &file.paths {
            let written = path.segments.join("::");
            let behind = |name: &&&str| {
                written.strip_prefix(**name).is_some_and(|r| r.is_empty() || r.starts_with("::"))
            };
            if let Some(name) = FACADE_ONLY.iter().find(behind) {
                report(path.line, name);
            }
        }
        // A test may keep pretended state (a CPU's number) in the thread that pretends it.
        let calls = file.words.iter().filter(|word| word.is_macro_call && !word.in_tests);
        for word in calls.filter(|word| word.text == "thread_local") {
            report(word.line, "thread_local!");
        }
    }
}

/// All sizes that are small in models are in one file, so that no other code asks which face it runs on.
pub fn check_sizes(sources: &[RustFile], findings: &mut Vec<Violation>) {
    for file in sources.iter().filter(|file| file.path.starts_with(ENGINE_SOURCE) && file.path != SIZES) {
        for word in file.words.iter().filter(|word| word.is_macro_call && word.text == "cfg") {
            findings.push(Violation {
                path: file.path.clone(),
                line: word.line,
                rule: "sizes",
                what: format!("a size that depends on what is compiled belongs in {SIZES}"),
            });
        }
    }
}

/// No placeholder stands for code that was never written.
pub fn check_unfinished(sources: &[RustFile], findings: &mut Vec<Violation>) {
    for file in sources {
        for word in &file.words {
            if word.is_macro_call && UNFINISHED_MACROS.contains(&word.text.as_str()) {
                findings.push(Violation {
                    path: file.path.clone(),
                    line: word.line,
                    rule: "unfinished",
                    what: format!("`{}!` stands for code that is missing", word.text),
                });
            }
        }
    }
}

/// Every module of the engine and of the platform crate says at its head what it is.
pub fn check_docs(sources: &[RustFile], findings: &mut Vec<Violation>) {
    for file in sources.iter().filter(|file| !file.documented) {
        if DOCUMENTED.iter().any(|folder| file.path.starts_with(folder)) {
            findings.push(Violation {
                path: file.path.clone(),
                line: 1,
                rule: "docs",
                what: "the module has no `//!` documentation at its head".into(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str, text: &str) -> [RustFile; 1] {
        [RustFile::parse(path, text).unwrap()]
    }

    fn lines(path: &str, text: &str, rule: impl Fn(&[RustFile], &mut Vec<Violation>)) -> Vec<usize> {
        let mut findings = Vec::new();
        rule(&parsed(path, text), &mut findings);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    fn unsafe_lines(path: &str, text: &str) -> Vec<usize> {
        lines(path, text, |sources, findings| check_unsafe(&Repository::default(), sources, &[], findings))
    }

    #[test]
    fn unsafe_code_outside_its_home_is_reported() {
        assert_eq!(unsafe_lines("crates/octavo/src/a.rs", "fn f() {\n    unsafe { g() }\n}"), [2]);
        assert_eq!(unsafe_lines("crates/cli/src/main.rs", "unsafe extern \"C\" { fn fork() -> i32; }"), [1]);
        assert_eq!(unsafe_lines("xtask/src/main.rs", "macro_rules! m { () => {\n unsafe { g() } } }"), [2]);
        assert_eq!(unsafe_lines("crates/octavo/tests/a.rs", "#[unsafe(no_mangle)] fn f() {}"), [1]);
    }

    #[test]
    fn the_word_in_its_home_in_comments_strings_and_names_is_not() {
        assert!(unsafe_lines("crates/platform/src/a.rs", "fn f() { unsafe { g() } }").is_empty());
        let text = "//! No unsafe here.\n#![deny(unsafe_code)]\nfn f() { /* unsafe */ g(\"unsafe\", r#\"unsafe\"#) }";
        assert!(unsafe_lines("crates/octavo/src/a.rs", text).is_empty());
    }

    #[test]
    fn an_exception_must_be_needed_and_argued() {
        let exception = [Allowed { path: "crates/cli/src/", what: "", reason: "to show the exception" }];
        let uses = parsed("crates/cli/src/main.rs", "fn f() { unsafe { g() } }");
        let rules = |tree: Repository, sources: &[RustFile]| {
            let mut findings = Vec::new();
            check_unsafe(&tree, sources, &exception, &mut findings);
            findings.into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        let argued = || Repository::from([(SOUNDNESS, "`crates/cli/src/` calls fork because ...")]);
        assert!(rules(argued(), &uses).is_empty());
        assert_eq!(rules(Repository::default(), &uses), [SOUNDNESS]);
        assert_eq!(rules(argued(), &[]), ["xtask/src/tidy/policy.rs"]);
    }

    #[test]
    fn what_the_facade_owns_is_reported_outside_it() {
        for text in [
            "use std::sync::atomic::AtomicU32;",
            "use std::{fmt, sync::atomic};",
            "use core::sync::atomic::Ordering;",
            "use parking_lot::Mutex;",
            "use std::thread;",
            "fn f() { std::thread::yield_now() }",
            "thread_local! { static X: u8 = 0; }",
            "use std::time::Duration;",
            "use std::{fmt, time::Instant};",
            "fn f() { std::time::Instant::now() }",
            "use octavo_platform::{ArenaBytes, usage};",
            "fn f() { octavo_platform::rseq::current_cpu() }",
            "fn f(bytes: &mut [u8]) { getrandom::fill(bytes).unwrap() }",
        ] {
            assert_eq!(lines("crates/octavo/src/frame/a.rs", text, check_facade), [1], "{text}");
            assert!(lines("crates/octavo/src/sync/real/mod.rs", text, check_facade).is_empty());
            assert!(lines("crates/octavo/tests/a.rs", text, check_facade).is_empty());
        }
        let through_it = "use crate::sync::{thread, AtomicU32};\nuse std::fmt;\nuse octavo_platform::ArenaBytes;\nfn f() { thread::yield_now() }";
        assert!(lines("crates/octavo/src/frame/a.rs", through_it, check_facade).is_empty());
    }

    #[test]
    fn a_size_that_asks_what_is_compiled_is_reported_outside_its_file() {
        let text = "const N: usize = if cfg!(loom) { 1 } else { 64 };";
        assert_eq!(lines("crates/octavo/src/lru/mod.rs", text, check_sizes), [1]);
        assert!(lines(SIZES, text, check_sizes).is_empty());
        assert!(lines("crates/cli/src/main.rs", text, check_sizes).is_empty());
        assert!(lines("crates/octavo/src/lru/mod.rs", "#[cfg(loom)]\nmod a;", check_sizes).is_empty());
    }

    #[test]
    fn placeholders_are_reported_and_names_like_them_are_not() {
        assert_eq!(lines("crates/cli/src/a.rs", "fn f() {\n todo!() }", check_unfinished), [2]);
        assert_eq!(
            lines("crates/cli/src/a.rs", "fn f() { std::unimplemented!(\"later\") }", check_unfinished),
            [1]
        );
        assert!(lines("crates/cli/src/a.rs", "fn todo() {} // todo!()", check_unfinished).is_empty());
    }

    #[test]
    fn a_module_without_documentation_is_reported() {
        assert_eq!(lines("crates/octavo/src/a.rs", "// A comment.\nstruct S;", check_docs), [1]);
        assert_eq!(lines("crates/platform/src/a.rs", "/// Of the item.\nstruct S;", check_docs), [1]);
        assert!(lines("crates/octavo/src/a.rs", "//! Of the module.\nstruct S;", check_docs).is_empty());
        assert!(lines("crates/octavo/src/a.rs", "#![cfg(loom)]\n//! Of the module.", check_docs).is_empty());
        assert!(lines("crates/cli/src/a.rs", "struct S;", check_docs).is_empty());
    }
}
