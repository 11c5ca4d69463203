//! Rules about manifests. Rule `layers`, between packages: a package depends only on packages that its place
//! allows. Rule `msrv`: all packages and the README name the same oldest Rust version.

use toml::de::{DeTable, DeValue};

use super::policy::PACKAGES;
use super::{Repository, Violation};

/// The manifest of the workspace.
const ROOT: &str = "Cargo.toml";

/// Reads every manifest of a package, and reports dependencies on packages of this workspace that
/// [`PACKAGES`] does not list.
pub fn check(tree: &Repository, findings: &mut Vec<Violation>) {
    let workspace = parse(tree.get(ROOT).unwrap_or_default());
    let manifests: Vec<_> = tree
        .iter()
        .filter_map(|(path, text)| Some((path, path.strip_suffix("/Cargo.toml")?, text, parse(text))))
        .collect();
    let folder_of = |name: &str| {
        let names = |manifest| at(manifest, &["package", "name"]).and_then(DeValue::as_str) == Some(name);
        manifests.iter().find(|(.., manifest)| names(manifest)).map(|(_, folder, ..)| *folder)
    };
    for (path, folder, text, manifest) in &manifests {
        let mut report =
            |line, what| findings.push(Violation { path: path.to_string(), line, rule: "layers", what });
        let Some((_, allowed)) = PACKAGES.iter().find(|(known, _)| known == folder) else {
            report(
                1,
                format!("`{folder}` has no place in PACKAGES of xtask/src/tidy/policy.rs: give it one"),
            );
            continue;
        };
        for (offset, name) in dependencies(manifest, &workspace) {
            let Some(target) = folder_of(name).filter(|target| !allowed.contains(target)) else { continue };
            let line = text[..offset].matches('\n').count() + 1;
            report(line, format!("`{folder}` must not depend on `{target}`"));
        }
    }
}

/// Checks that all packages and the README name one Rust version. The README's commands build every package,
/// so all must name the newest Rust that any package needs.
pub fn check_rust_version(tree: &Repository, findings: &mut Vec<Violation>) {
    let Some(root) = tree.get(ROOT) else { return };
    let mut report =
        |path: &str, what| findings.push(Violation { path: path.into(), line: 1, rule: "msrv", what });
    let root = parse(root);
    let Some(version) = at(&root, &["workspace", "package", "rust-version"]).and_then(DeValue::as_str) else {
        report(ROOT, "name the oldest Rust that does by `rust-version` in [workspace.package]".into());
        return;
    };
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        let is_shared =
            at(&parse(text), &["package", "rust-version", "workspace"]).and_then(DeValue::as_bool);
        if is_shared != Some(true) {
            report(path, "take the workspace's: `rust-version.workspace = true`".into());
        }
    }
    let sentence = format!("Rust {version} or later");
    if tree.get("README.md").is_some_and(|readme| !readme.contains(&sentence)) {
        report("README.md", format!("Cargo.toml asks for {version}: say \"{sentence}\""));
    }
}

/// Reads a manifest. Cargo has already refused a bad one, before it built this program.
fn parse(text: &str) -> DeTable<'_> {
    DeTable::parse_recoverable(text).0.into_inner()
}

/// Returns the value at a path of keys.
fn at<'m, 't>(manifest: &'m DeTable<'t>, keys: &[&str]) -> Option<&'m DeValue<'t>> {
    let (first, rest) = keys.split_first()?;
    rest.iter().try_fold(manifest.get(*first)?.get_ref(), |value, key| Some(value.get(key)?.get_ref()))
}

/// Returns the dependencies of a manifest, of every kind and for every target: where each begins in the text,
/// and the name of its package.
fn dependencies<'m>(
    manifest: &'m DeTable<'_>,
    workspace: &'m DeTable<'_>,
) -> impl Iterator<Item = (usize, &'m str)> {
    let targets = manifest.get("target").and_then(|targets| targets.get_ref().as_table());
    let targets = targets.into_iter().flat_map(|targets| targets.values());
    let all = [manifest].into_iter().chain(targets.filter_map(|target| target.get_ref().as_table()));
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let all = all.flat_map(move |tables| kinds.map(|kind| tables.get(kind)?.get_ref().as_table()));
    all.flatten().flatten().map(|(key, value)| {
        let (name, value) = (&**key.get_ref(), value.get_ref());
        let in_workspace = at(workspace, &["workspace", "dependencies", name]);
        let is_shared = value.get("workspace").is_some();
        let renamed =
            if is_shared { in_workspace } else { Some(value) }.and_then(|value| value.get("package"));
        (key.span().start, renamed.and_then(|package| package.get_ref().as_str()).unwrap_or(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(platform: &str, engine: &str) -> Vec<String> {
        let platform = format!("[package]\nname = \"octavo-platform\"\n{platform}");
        let engine = format!("[package]\nname = \"octavo\"\n{engine}");
        let tree = Repository::from([
            (
                "Cargo.toml",
                "[workspace.dependencies]\nengine = { path = \"crates/octavo\", package = \"octavo\" }",
            ),
            ("crates/platform/Cargo.toml", platform.as_str()),
            ("crates/octavo/Cargo.toml", engine.as_str()),
        ]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn the_engine_may_depend_on_the_platform() {
        assert!(
            findings("[dependencies]\nlibc = \"0.2\"", "[dependencies]\noctavo-platform.workspace = true")
                .is_empty()
        );
    }

    #[test]
    fn the_platform_may_depend_on_nothing_of_ours_however_it_is_written() {
        for dependency in [
            "[dependencies]\noctavo.workspace = true",
            "[dependencies]\noctavo = { path = \"../octavo\" }",
            "[dev-dependencies]\noctavo = { workspace = true }",
            "[target.'cfg(unix)'.dependencies]\noctavo.path = \"../octavo\"",
            "[dependencies]\nmotor = { path = \"../octavo\", package = \"octavo\" }",
            "[build-dependencies]\nengine.workspace = true",
            "[dependencies.octavo]\npath = \"../octavo\"",
        ] {
            assert_eq!(
                findings(dependency, ""),
                ["`crates/platform` must not depend on `crates/octavo`"],
                "{dependency}"
            );
        }
    }

    #[test]
    fn one_rust_version_stands_everywhere() {
        let paths = |workspace, package, readme| {
            let tree = Repository::from([
                ("Cargo.toml", workspace),
                ("crates/a/Cargo.toml", package),
                ("README.md", readme),
            ]);
            let mut findings = Vec::new();
            check_rust_version(&tree, &mut findings);
            findings.into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        let workspace = "[workspace.package]\nrust-version = \"1.91\"";
        let package = "[package]\nrust-version.workspace = true";
        assert!(paths(workspace, package, "Linux, Rust 1.91 or later.").is_empty());
        assert_eq!(paths(workspace, package, "Rust 1.90 or later"), ["README.md"]);
        let of_its_own = paths(workspace, "[package]\nrust-version = \"1.91\"", "Rust 1.91 or later");
        assert_eq!(of_its_own, ["crates/a/Cargo.toml"]);
        assert_eq!(paths("[workspace.package]\nedition = \"2024\"", package, ""), ["Cargo.toml"]);
    }

    #[test]
    fn a_package_without_a_place_is_reported() {
        let tree = Repository::from([("crates/gadget/Cargo.toml", "[package]\nname = \"gadget\"")]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
