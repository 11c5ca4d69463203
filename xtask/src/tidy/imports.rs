//! Rule `layers`, inside the engine: imports go down, or sideways without a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::policy::{Allowed, ENGINE_SOURCE, LAYERS, NO_CIRCLES};
use super::source::{NamedPath, RustFile};
use super::{Violation, report_unused};

/// The words at the beginning of a path that are not items.
const PLACES: [&str; 3] = ["crate", "self", "super"];

/// The modules that each module names, and where it first does so.
type Sideways<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, usize)>>;

/// Reports imports that go up, imports that cannot be placed, and circles inside a layer.
pub fn check(sources: &[RustFile], exceptions: &[Allowed], findings: &mut Vec<Violation>) {
    let engine: Vec<&RustFile> = sources.iter().filter(|file| file.path.starts_with(ENGINE_SOURCE)).collect();
    let root_names = root_names(&engine);
    let mut sideways = Sideways::new();
    let mut used = BTreeSet::new();

    for file in engine.iter().filter(|file| !file.module.is_empty()) {
        let from = file.module[0].as_str();
        let mut report =
            |line, what| findings.push(Violation { path: file.path.clone(), line, rule: "layers", what });
        let Some(from_layer) = layer(from) else {
            report(1, format!("`{from}` has no place in LAYERS of xtask/src/tidy/policy.rs: give it one"));
            continue;
        };
        for path in &file.paths {
            let Some(target) = path.in_own_crate() else { continue };
            let Some(first) = target.first() else { continue };
            let to = match layer(first) {
                Some(_) => first.as_str(),
                None => match root_names.get(first.as_str()) {
                    Some(Some(module)) => module,
                    Some(None) => continue,
                    None if first == "*" => {
                        report(path.line, "a glob of the crate's root hides what it imports: name it".into());
                        continue;
                    }
                    None => {
                        report(
                            path.line,
                            format!("`crate::{first}` belongs to no layer that could be found"),
                        );
                        continue;
                    }
                },
            };
            let Some((to, to_layer)) = placed(to) else { continue };
            if to_layer > from_layer {
                let exception = exceptions.iter().position(|e| e.covers(&file.path) && e.what == to);
                match exception {
                    Some(index) => {
                        used.insert(index);
                    }
                    None => report(path.line, format!("`{from}` is below `{to}` and must not name it")),
                }
            } else if to_layer == from_layer && to != from {
                let (from, _) = placed(from).expect("its layer is known");
                sideways.entry(from).or_default().entry(to).or_insert((&file.path, path.line));
            }
        }
    }
    report_circles(&sideways, "share a layer and depend on each other in a circle", findings);
    for (_, unused) in exceptions.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
        report_unused("UPWARD_IMPORTS", unused, "layers", findings);
    }
}

/// Reports files of one folder that name each other in a circle. A file that names its parent's items counts
/// as naming the parent's file, which names its children. So items that both use belong in a file of their
/// own.
pub fn check_circles(sources: &[RustFile], findings: &mut Vec<Violation>) {
    for folder in NO_CIRCLES {
        let files = || sources.iter().filter(|file| file.path.starts_with(folder));
        let by_module: BTreeMap<&[String], &str> =
            files().map(|file| (file.module.as_slice(), file.path.as_str())).collect();
        let mut named = Sideways::new();
        for file in files() {
            // A visibility (`pub(super)`) does not count as naming a module.
            let is_item =
                |path: &&NamedPath| path.segments.iter().any(|part| !PLACES.contains(&part.as_str()));
            for path in file.paths.iter().filter(is_item) {
                let Some(target) = path.in_own_crate() else { continue };
                let to = (0..=target.len()).rev().find_map(|len| by_module.get(&target[..len]));
                if let Some(&to) = to.filter(|to| **to != file.path) {
                    named.entry(&file.path).or_default().entry(to).or_insert((&file.path, path.line));
                }
            }
        }
        report_circles(
            &named,
            "name each other in a circle: what they share belongs into a file below both",
            findings,
        );
    }
}

/// Returns the names at the crate's root that are not modules, each with the module that it is re-exported
/// from. `None` stands for an item of the root itself, which has no layer. Macros at the root belong to the
/// module that defines them.
fn root_names(engine: &[&RustFile]) -> BTreeMap<String, Option<String>> {
    let mut names = BTreeMap::new();
    for file in engine {
        if file.module.is_empty() {
            for (name, path) in &file.top_level {
                let path = path.iter().find(|segment| !matches!(segment.as_str(), "crate" | "self"));
                names.insert(name.clone(), path.cloned());
            }
        } else {
            for words in file.words.windows(2).filter(|words| words[0].text == "macro_rules") {
                names.insert(words[1].text.clone(), file.module.first().cloned());
            }
        }
    }
    names
}

fn layer(module: &str) -> Option<usize> {
    placed(module).map(|(_, layer)| layer)
}

fn placed(module: &str) -> Option<(&'static str, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, modules)| {
        modules.iter().find(|known| **known == module).map(|known| (*known, layer))
    })
}

/// Reports every import that closes a circle.
fn report_circles(sideways: &Sideways<'_>, what: &str, findings: &mut Vec<Violation>) {
    for (from, targets) in sideways {
        for (to, (path, line)) in targets {
            if reaches(sideways, to, from) {
                findings.push(Violation {
                    path: path.to_string(),
                    line: *line,
                    rule: "layers",
                    what: format!("`{from}` and `{to}` {what}"),
                });
            }
        }
    }
}

fn reaches(sideways: &Sideways<'_>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            open.extend(sideways.get(module).into_iter().flat_map(|targets| targets.keys().copied()));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        findings_with(files, &[])
    }

    fn findings_with(files: &[(&str, &str)], exceptions: &[Allowed]) -> Vec<String> {
        let parse =
            |(path, text): &(&str, &str)| RustFile::parse(&format!("{ENGINE_SOURCE}{path}"), text).unwrap();
        let sources: Vec<RustFile> = files.iter().map(parse).collect();
        let mut findings = Vec::new();
        check(&sources, exceptions, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    fn runs_up(file: &str, text: &str) -> bool {
        findings(&[(file, text)]).iter().any(|what| what.contains("must not name it"))
    }

    #[test]
    fn an_import_that_runs_up_is_reported_however_it_is_written() {
        assert!(runs_up("frame/buddy.rs", "use crate::fault::Fault;"));
        assert!(runs_up("frame/buddy.rs", "use crate::{units::Order, fault::Fault};"));
        assert!(runs_up("frame/buddy.rs", "use super::super::fault::Fault;"));
        assert!(runs_up("frame/mod.rs", "use super::fault;"));
        assert!(runs_up("frame/buddy.rs", "fn f() { crate::fault::begin() }"));
        assert!(runs_up("frame/buddy.rs", "fn f() { m!(a, crate::fault::begin()) }"));
        assert!(runs_up("frame/buddy.rs", "mod inner { use super::super::super::fault::Fault; }"));
        assert!(runs_up("frame/buddy.rs", "#[cfg(test)] mod tests { use crate::manager::Manager; }"));
        assert!(runs_up("error.rs", "use crate::space::Space;"));
    }

    #[test]
    fn an_import_that_runs_down_or_stays_is_not() {
        assert!(
            findings(&[("fault/anon.rs", "use crate::reclaim::direct; use crate::frame::*;")]).is_empty()
        );
        assert!(
            findings(&[("frame/buddy.rs", "use super::words::W; mod tests { use super::*; }")]).is_empty()
        );
        assert!(
            findings(&[("table/walk.rs", "use crate::region::Region; use octavo_platform::Word;")])
                .is_empty()
        );
        assert!(
            findings(&[("frame/buddy.rs", "//! Serves [`crate::fault`].\npub(crate) fn f() {}")]).is_empty()
        );
    }

    #[test]
    fn fault_may_reclaim_and_reclaim_never_faults() {
        assert!(!runs_up("fault/mod.rs", "use crate::reclaim::direct;"));
        assert!(runs_up("reclaim/mod.rs", "use crate::fault::begin;"));
    }

    #[test]
    fn a_name_of_the_root_counts_as_the_module_behind_it() {
        let root = (
            "lib.rs",
            "mod space; mod units; pub use space::Space; pub use units::{Order as O}; pub const N: u8 = 1;",
        );
        let up = findings(&[root, ("frame/buddy.rs", "use crate::Space;")]);
        assert_eq!(up, ["`frame` is below `space` and must not name it"]);
        assert!(findings(&[root, ("frame/buddy.rs", "use crate::{O, N};")]).is_empty());
        let in_fault = ("fault/mod.rs", "macro_rules! begin { () => {} }");
        assert_eq!(findings(&[root, in_fault, ("frame/buddy.rs", "fn f() { crate::begin!() }")]).len(), 1);
    }

    #[test]
    fn what_cannot_be_placed_is_reported() {
        assert_eq!(findings(&[("gadget/mod.rs", "")]).len(), 1);
        assert_eq!(findings(&[("frame/buddy.rs", "use crate::gadget::G;")]).len(), 1);
        assert_eq!(findings(&[("frame/buddy.rs", "use crate::*;")]).len(), 1);
        assert_eq!(findings(&[("frame/mod.rs", "use super::*;")]).len(), 1);
    }

    #[test]
    fn neighbours_may_not_form_a_circle() {
        let one_way = [("table/a.rs", "use crate::region::R;"), ("region/a.rs", "use crate::rmap::O;")];
        assert!(findings(&one_way).is_empty());
        let circle = [one_way[0], one_way[1], ("rmap.rs", "use crate::table::E;")];
        assert_eq!(findings(&circle).len(), 3);
    }

    #[test]
    fn files_of_a_folder_without_circles_may_not_form_one() {
        let circles = |files: &[(&str, &str)]| {
            let parse = |(path, text): &(&str, &str)| {
                RustFile::parse(&format!("{}{path}", NO_CIRCLES[0]), text).unwrap()
            };
            let sources: Vec<RustFile> = files.iter().map(parse).collect();
            let mut findings = Vec::new();
            check_circles(&sources, &mut findings);
            findings.len()
        };
        let job = ("swap/job.rs", "pub struct Job;");
        let parent = ("swap/mod.rs", "mod job; mod tables; use self::job::Job; use self::tables::print;");
        assert_eq!(circles(&[job, parent, ("swap/tables.rs", "use super::job::Job;")]), 0);
        // The circle goes through the parent's own items, and through a third file.
        assert_eq!(circles(&[job, parent, ("swap/tables.rs", "use super::run;")]), 2);
        let args = ("args.rs", "use crate::swap::Job; fn f() { crate::output::g() }");
        let output = ("output.rs", "use crate::args::Target;");
        assert_eq!(circles(&[args, output, parent, ("swap/tables.rs", "")]), 2);
        assert_eq!(circles(&[("output.rs", "mod tests { use super::*; }")]), 0);
        assert_eq!(circles(&[job, parent, ("swap/tables.rs", "pub(super) fn print() {}")]), 0);
    }

    #[test]
    fn an_exception_holds_for_its_import_only_and_must_be_needed() {
        let exception = [Allowed {
            path: "crates/octavo/src/frame/buddy.rs",
            what: "fault",
            reason: "to show the exception",
        }];
        let file = ("frame/buddy.rs", "use crate::fault::F;");
        assert!(findings_with(&[file], &exception).is_empty());
        assert_eq!(findings_with(&[file, ("frame/zone.rs", "use crate::fault::F;")], &exception).len(), 1);
        assert!(findings_with(&[("frame/buddy.rs", "")], &exception)[0].contains("not needed"));
    }
}
