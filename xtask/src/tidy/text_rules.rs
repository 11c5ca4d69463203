//! Rules about files as text: `length`, `columns`, `unfinished`, `links`, `private`.

use super::policy::{
    DEBT_MARKS, MAX_LINES, MOST_COLUMNS, MOST_PROSE_COLUMNS, PRIVATE_PLACES, PRIVATE_PLACES_ALLOWED_IN,
};
use super::{Repository, Violation};

/// A source file that is too long to grasp should be two.
pub fn check_length(tree: &Repository, findings: &mut Vec<Violation>) {
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            let what = format!("{lines} lines, and {MAX_LINES} are the most: find the seam");
            findings.push(Violation { path: path.into(), line: lines, rule: "length", what });
        }
    }
}

/// Comments and prose fit on a screen. Tables, drawings, code and lines of one word may be wider.
pub fn check_columns(tree: &Repository, findings: &mut Vec<Violation>) {
    for (path, text) in tree.iter() {
        let is_rust = path.ends_with(".rs");
        if !is_rust && !path.ends_with(".md") {
            continue;
        }
        let most = if is_rust { MOST_COLUMNS } else { MOST_PROSE_COLUMNS };
        let mut fence = Fence::default();
        for (index, line) in text.lines().enumerate() {
            let comment = ["///", "//!", "//"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
            let Some(prose) = (if is_rust { comment } else { Some(line) }) else {
                fence = Fence::default();
                continue;
            };
            let words = prose.strip_prefix(' ').filter(|_| is_rust).unwrap_or(prose);
            let is_code = fence.encloses(words);
            let is_drawn = words.trim_start().starts_with('|') || words.starts_with("    ");
            let columns = line.chars().count();
            if columns > most && !is_code && !is_drawn && words.trim().contains(' ') {
                let what = format!("{columns} columns, and {most} are the most");
                findings.push(Violation { path: path.into(), line: index + 1, rule: "columns", what });
            }
        }
    }
}

/// Debts are issues, not comments.
pub fn check_debt_marks(tree: &Repository, findings: &mut Vec<Violation>) {
    each_line(tree, |path, line, text| {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        for mark in words.filter(|word| DEBT_MARKS.contains(word)) {
            let what = format!("`{mark}` marks a debt: pay it, or write an issue");
            findings.push(Violation { path: path.into(), line, rule: "unfinished", what });
        }
    });
}

/// Readers of a commit have only the repository.
pub fn check_private_places(tree: &Repository, findings: &mut Vec<Violation>) {
    each_line(tree, |path, line, text| {
        for place in PRIVATE_PLACES.iter().filter(|place| text.contains(**place)) {
            if path != PRIVATE_PLACES_ALLOWED_IN {
                let what = format!("`{place}` exists only where the project is worked on");
                findings.push(Violation { path: path.into(), line, rule: "private", what });
            }
        }
    });
}

/// Links in markdown files lead to files, and to headings in them, that exist.
pub fn check_links(tree: &Repository, findings: &mut Vec<Violation>) {
    for (path, text) in tree.iter().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { Some(path.to_string()) } else { resolve(path, file) };
            let is_there = |file: &str| {
                let has_heading = |text| headings(text).any(|known| known == heading);
                tree.exists(file) && (heading.is_empty() || tree.get(file).is_some_and(has_heading))
            };
            if !file.is_some_and(|file| is_there(&file)) {
                let what = format!("the link leads to `{target}`, which does not exist");
                findings.push(Violation { path: path.into(), line, rule: "links", what });
            }
        }
    }
}

/// Returns the headings of a page as links name them: in lower case, with a dash for each space, and without
/// other signs.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let mut fence = Fence::default();
    let titles = text.lines().filter(move |line| !fence.encloses(line) && line.starts_with('#'));
    let titles = titles.map(|line| line.trim_start_matches('#').trim());
    titles.map(|title| {
        let kept = title.chars().filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign));
        kept.map(|sign| if sign == ' ' { '-' } else { sign.to_ascii_lowercase() }).collect()
    })
}

/// Distinguishes code between fences from the text around it, line by line.
#[derive(Default)]
struct Fence(Option<&'static str>);

impl Fence {
    /// Returns whether the next line is code, or a fence.
    fn encloses(&mut self, line: &str) -> bool {
        let line = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark));
        let was_open = self.0.is_some();
        if mark.is_some() && (!was_open || self.0 == mark) {
            self.0 = if was_open { None } else { mark };
        }
        was_open || self.0.is_some()
    }
}

fn each_line(tree: &Repository, mut visit: impl FnMut(&str, usize, &str)) {
    for (path, text) in tree.iter() {
        for (index, line) in text.lines().enumerate() {
            visit(path, index + 1, line);
        }
    }
}

/// Returns the line and the target of every link outside code: `[text](target)`, `[text](target "title")` and
/// `[name]: target`.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence = Fence::default();
    for (index, line) in text.lines().enumerate() {
        if fence.encloses(line) {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (at, _) in prose.match_indices("](") {
            if let Some((inside, _)) = prose[at + 2..].split_once(')') {
                found.push((index + 1, without_title(inside)));
            }
        }
        if let Some((_, target)) = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "))
        {
            found.push((index + 1, without_title(target)));
        }
    }
    found
}

fn without_title(target: &str) -> String {
    let target = target.trim();
    let end = target.find(char::is_whitespace).unwrap_or(target.len());
    target[..end].trim_matches(['<', '>']).to_string()
}

/// Returns the path from the top of the repository that a link in `from` leads to. `None` if the link leads
/// out of it.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if link.starts_with('/') {
        parts.clear();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines<const N: usize>(
        files: [(&str, &str); N],
        rule: fn(&Repository, &mut Vec<Violation>),
    ) -> Vec<usize> {
        let mut findings = Vec::new();
        rule(&Repository::from(files), &mut findings);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_source_file_that_is_too_long_is_reported() {
        let longest = "\n".repeat(MAX_LINES);
        assert!(lines([("a.rs", longest.as_str())], check_length).is_empty());
        let longer = "\n".repeat(MAX_LINES + 1);
        assert_eq!(lines([("a.rs", longer.as_str())], check_length), [MAX_LINES + 1]);
        assert!(lines([("Cargo.lock", longer.as_str())], check_length).is_empty());
    }

    #[test]
    fn comments_and_prose_have_a_width() {
        let wide = "word ".repeat(30);
        let comments = format!(
            "/// {wide}\n/// | {wide}\n/// ```\n/// {wide}\n/// ```\n/// {wide}\nlet s = \"{wide}\";"
        );
        assert_eq!(lines([("a.rs", comments.as_str())], check_columns), [1, 6]);
        let prose = format!("{wide}\n| {wide}\n    {wide}\n{}\n```\n{wide}\n```\n{wide}", "x".repeat(150));
        assert_eq!(lines([("a.md", prose.as_str())], check_columns), [1, 8]);
        assert!(lines([("a.toml", wide.as_str())], check_columns).is_empty());
    }

    #[test]
    fn debt_marks_are_reported_as_words_only() {
        for mark in DEBT_MARKS {
            let text = format!("//! Docs.\n// {mark}: later\n");
            assert_eq!(lines([("a.rs", text.as_str())], check_debt_marks), [2]);
            let inside_a_word = format!("mktemp {mark}{mark}");
            assert!(lines([("a.sh", inside_a_word.as_str())], check_debt_marks).is_empty());
        }
    }

    #[test]
    fn private_places_are_reported_everywhere_but_in_the_ignore_list() {
        for place in PRIVATE_PLACES {
            let text = format!("first\nsee {place} there");
            assert_eq!(lines([("docs/a.md", text.as_str())], check_private_places), [2]);
            assert_eq!(lines([(".ci/run", text.as_str())], check_private_places), [2]);
            assert!(lines([(".gitignore", text.as_str())], check_private_places).is_empty());
        }
    }

    #[test]
    fn a_link_to_a_file_that_does_not_exist_is_reported() {
        let text =
            "ok\n[a](docs/gone.md)\n[b](docs/gone.md#part \"title\") [c](docs/here.md)\n\n[d]: gone.png\n";
        assert_eq!(lines([("README.md", text), ("docs/here.md", "")], check_links), [2, 3, 5]);
        assert_eq!(lines([("docs/a.md", "[up](../README.md) [out](../../etc/passwd)")], check_links), [1, 1]);
    }

    #[test]
    fn links_to_files_folders_parts_and_the_web_are_not() {
        let text = "[a](../README.md#top) [b](b.md) [c](../crates/octavo/) [d](#part) [e](https://x.org/y) [f](/README.md)";
        let with = |readme, title: &str| {
            let page = format!("{title}\n{text}");
            let files = [
                ("docs/a.md", &*page),
                ("README.md", readme),
                ("docs/b.md", ""),
                ("crates/octavo/Cargo.toml", ""),
            ];
            lines(files, check_links)
        };
        assert!(with("# Top", "## `Part`").is_empty());
        assert_eq!(with("# Tip", "## Another part"), [2, 2], "headings that do not exist");
    }

    #[test]
    fn code_holds_no_links() {
        let text = "`f[i](x)` and\n```rust\nlet y = f[i](x);\n```\n~~~\n[a](b)\n~~~\n";
        assert!(lines([("a.md", text)], check_links).is_empty());
    }
}
