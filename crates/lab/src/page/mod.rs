//! `octavo-lab report`: one HTML page of all results in a folder.
//!
//! | file | what |
//! |---|---|
//! | `args` | the options |
//! | `sections` | each kind of results, as a part of the page |
//! | `style.css` | the style of the page |
//!
//! The page holds everything that it shows, and no script. Results are in the order of their files' names, so
//! the same results give the same bytes.

pub mod args;
mod sections;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use octavo_command::failure::Failure;
use octavo_command::output::Text;

use self::args::PageArgs;
use self::sections::Section;
use crate::table::counted;

const STYLE: &str = include_str!("style.css");

/// Reads the folder, and writes the page.
pub fn run(args: &PageArgs) -> Result<(), Failure> {
    let text = Text::beside(None);
    let folder = args.folder.display();
    let mut sections = Vec::new();
    for file in
        results_in(&args.folder).map_err(|error| Failure::system(format!("cannot read {folder}"), error))?
    {
        match Section::read(&file)? {
            Some(section) => sections.push(section),
            None => text.line(format!("{} has no results that have a table; left out", file.display()))?,
        }
    }
    if sections.is_empty() {
        return Err(Failure::Said(format!(
            "{folder} has no results; write some there with --json FILE.json"
        )));
    }
    let output = args.output.clone().unwrap_or_else(|| args.folder.join("report.html"));
    let name = output.display();
    fs::write(&output, page(&args.title, &sections).into_string())
        .map_err(|error| Failure::system(format!("cannot write {name}"), error))?;
    text.line(format!("{} in {name}", counted(sections.len() as u64, "result", "results")))
}

/// Returns the files of results, by name.
fn results_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn page(title: &str, sections: &[Section]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    nav aria-label="Results" {
                        ul {
                            @for section in sections {
                                li { a href={ "#" (section.id) } { (section.title) } }
                            }
                        }
                    }
                }
                main {
                    @for section in sections {
                        section id=(section.id) aria-labelledby={ (section.id) "-title" } {
                            h2 id={ (section.id) "-title" } { (section.title) }
                            (section.body)
                            p.source { "From " code { (section.file) } }
                        }
                    }
                }
                footer { "Made by octavo " (env!("CARGO_PKG_VERSION")) ". Simulated figures are called simulated." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_results_cannot_become_a_part_of_the_page() {
        let folder = tempfile::tempdir().unwrap();
        let evil =
            r#"{"workload": "<script>alert(1)</script>", "runs": [{"mode": "\"><b>", "seconds": 1.0}]}"#;
        fs::write(folder.path().join("a b&c.json"), evil).unwrap();
        fs::write(folder.path().join("notes.txt"), "no results").unwrap();
        let files = results_in(folder.path()).unwrap();
        assert_eq!(files.len(), 1);
        let section = Section::read(&files[0]).unwrap().unwrap();
        let page = page("a & b", &[section]).into_string();
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
        assert!(page.contains("&lt;script&gt;") && page.contains("<title>a &amp; b</title>"), "{page}");
        assert!(page.contains("id=\"a-b-c\""), "{page}");
        for elsewhere in ["href=\"http", "src=", "@import", "url("] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn a_folder_without_results_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of = |path: PathBuf| PageArgs { folder: path, output: None, title: "t".into() };
        let said = run(&of(folder.path().into())).unwrap_err().to_string();
        assert!(said.contains("has no results; write some there"), "{said}");
        let said = run(&of(folder.path().join("missing"))).unwrap_err().to_string();
        assert!(said.starts_with("cannot read"), "{said}");
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        let said = run(&of(folder.path().into())).unwrap_err().to_string();
        assert!(said.contains("broken.json is not JSON"), "{said}");
    }
}
