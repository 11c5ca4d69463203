//! Rule `commits`: the first line of each new commit.

use std::fs;
use std::path::Path;

use super::{Violation, git};

/// Commits from this day on follow the rule.
const SINCE: &str = "2026-11-30T00:00:00Z";
const MOST_COLUMNS: usize = 72;

/// Checks the history, if there is one. Merges do not count.
pub fn check(root: &Path) -> Vec<Violation> {
    let since = format!("--since={SINCE}");
    // The tree may lie inside the tree of another project.
    let top =
        git(root, &["rev-parse", "--show-toplevel"]).and_then(|top| fs::canonicalize(top.trim_end()).ok());
    if top.is_none() || top != fs::canonicalize(root).ok() {
        return Vec::new();
    }
    let text = git(root, &["log", "--no-merges", &since, "--format=%h %s"]).unwrap_or_default();
    let commits = text.lines().filter_map(|line| line.split_once(' '));
    let wrong = commits.filter_map(|(commit, subject)| Some((commit, subject, objection(subject)?)));
    wrong
        .map(|(commit, subject, what)| Violation {
            path: format!("commit {commit}"),
            line: 1,
            rule: "commits",
            what: format!("{what}: `{subject}`"),
        })
        .collect()
}

/// Says what is wrong with a subject, if anything.
fn objection(subject: &str) -> Option<&'static str> {
    let is_area = |area: &str| !area.is_empty() && area.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    // Git itself writes these subjects. In a shallow clone, a merge may look like a plain commit.
    if subject.starts_with("Merge ") || subject.starts_with("Revert \"") {
        return None;
    }
    match subject.split_once(": ") {
        None => Some("a subject is `area: what it does`"),
        Some((area, _)) if !is_area(area) => Some("the area is one word in lower case"),
        Some((_, what)) if what.starts_with(char::is_uppercase) => Some("what it does begins in lower case"),
        Some(_) if subject.chars().count() > MOST_COLUMNS => Some("a subject has 72 columns at most"),
        Some(_) if subject.contains(';') => Some("a commit is one change"),
        Some(_) if subject.ends_with('.') => Some("a subject ends without a full stop"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_an_area_and_one_change() {
        assert_eq!(objection("pager: serve faults from several threads"), None);
        assert_eq!(objection("octavo-lab: draw the curves"), None);
        assert_eq!(objection("docs: `octavo run` has a page"), None);
        assert_eq!(objection("Merge branch 'main'"), None);
        let long = format!("pager: {}", "x".repeat(66));
        let wrong = [
            "Serve faults from several threads",
            "pager, stub: serve faults",
            "pager: Serve faults",
            "pager: serve faults; docs",
            "pager: serve faults.",
            &long,
        ];
        for subject in wrong {
            assert!(objection(subject).is_some(), "{subject}");
        }
    }
}
