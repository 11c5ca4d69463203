//! Rules about manifests. Rule `layers`, between packages: a package depends only on packages that its place
//! allows. Rule `msrv`: all packages and the README name one oldest Rust.

use super::policy::PACKAGES;
use super::{Finding, Tree};

/// Reads every manifest of a package, and reports dependencies on packages of ours that [`PACKAGES`] does not
/// list.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let manifests: Vec<(&str, &str, Manifest)> = tree
        .iter()
        .filter_map(|(path, text)| Some((path, path.strip_suffix("/Cargo.toml")?, Manifest::parse(text))))
        .collect();
    for (path, folder, manifest) in &manifests {
        let mut report =
            |line, what| findings.push(Finding { path: path.to_string(), line, rule: "layers", what });
        let Some((_, allowed)) = PACKAGES.iter().find(|(known, _)| known == folder) else {
            report(
                1,
                format!("`{folder}` has no place in PACKAGES of xtask/src/tidy/policy.rs: give it one"),
            );
            continue;
        };
        for (line, dependency) in &manifest.dependencies {
            let Some((_, target, _)) = manifests.iter().find(|(_, _, other)| other.name == *dependency)
            else {
                continue;
            };
            if !allowed.contains(target) {
                report(*line, format!("`{folder}` must not depend on `{target}`"));
            }
        }
    }
}

/// The README's commands build every package, so the newest Rust that any package needs holds for all.
pub fn check_rust_version(tree: &Tree, findings: &mut Vec<Finding>) {
    let Some(root) = tree.get("Cargo.toml") else { return };
    let mut report =
        |path: &str, line, what| findings.push(Finding { path: path.into(), line, rule: "msrv", what });
    let Some(version) = root.lines().find_map(|line| line.strip_prefix("rust-version")?.split('"').nth(1))
    else {
        report(
            "Cargo.toml",
            1,
            "name the oldest Rust that does by `rust-version` in [workspace.package]".into(),
        );
        return;
    };
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        if !text.lines().any(|line| line.trim() == "rust-version.workspace = true") {
            report(path, 1, "take the workspace's: `rust-version.workspace = true`".into());
        }
    }
    let sentence = format!("Rust {version} or later");
    if tree.get("README.md").is_some_and(|readme| !readme.contains(&sentence)) {
        report("README.md", 1, format!("Cargo.toml asks for {version}: say \"{sentence}\""));
    }
}

/// The parts of a `Cargo.toml` that the rules need.
#[derive(Debug, Default)]
struct Manifest {
    name: String,
    /// The line and the package name of each dependency of any kind.
    dependencies: Vec<(usize, String)>,
}

impl Manifest {
    /// Reads the forms that appear in this repository: `[dependencies]` tables of every kind with one
    /// dependency a line, and `[dependencies.name]` tables. It follows a rename that stands on the same line.
    fn parse(text: &str) -> Self {
        let mut manifest = Self::default();
        let mut section = String::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                section = header.trim_end_matches(']').to_string();
                if let Some((_, name)) = section.rsplit_once("dependencies.") {
                    manifest.dependencies.push((index + 1, name.to_string()));
                }
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            if section == "package" && key.trim() == "name" {
                manifest.name = unquoted(value);
            } else if section.ends_with("dependencies") {
                let renamed = value.split_once("package").and_then(|(_, rest)| rest.trim().strip_prefix('='));
                let name = match renamed {
                    Some(package) => unquoted(package.split([',', '}']).next().unwrap_or_default()),
                    None => key.trim().split('.').next().unwrap_or_default().to_string(),
                };
                manifest.dependencies.push((index + 1, name));
            }
        }
        manifest
    }
}

fn unquoted(value: &str) -> String {
    value.trim().trim_matches('"').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(platform: &str, engine: &str) -> Vec<String> {
        let platform = format!("[package]\nname = \"octavo-platform\"\n{platform}");
        let engine = format!("[package]\nname = \"octavo\"\n{engine}");
        let tree = Tree::from([
            ("Cargo.toml", "[workspace.dependencies]\noctavo = { path = \"crates/octavo\" }"),
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
            "[dependencies]\nengine = { path = \"../octavo\", package = \"octavo\" }",
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
            let tree = Tree::from([
                ("Cargo.toml", workspace),
                ("crates/a/Cargo.toml", package),
                ("README.md", readme),
            ]);
            let mut findings = Vec::new();
            check_rust_version(&tree, &mut findings);
            findings.into_iter().map(|finding| finding.path).collect::<Vec<_>>()
        };
        let (workspace, package) = ("rust-version = \"1.91\"", "rust-version.workspace = true");
        assert!(paths(workspace, package, "Linux, Rust 1.91 or later.").is_empty());
        assert_eq!(paths(workspace, package, "Rust 1.90 or later"), ["README.md"]);
        let of_its_own = paths(workspace, "rust-version = \"1.91\"", "Rust 1.91 or later");
        assert_eq!(of_its_own, ["crates/a/Cargo.toml"]);
        assert_eq!(paths("edition = \"2024\"", package, ""), ["Cargo.toml"]);
    }

    #[test]
    fn a_package_without_a_place_is_reported() {
        let tree = Tree::from([("crates/gadget/Cargo.toml", "[package]\nname = \"gadget\"")]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
