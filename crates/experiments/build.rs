//! Lists the line where each function of the engine begins, so that a place in its source can be named by its
//! function.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let source = Path::new("../octavo/src");
    println!("cargo:rerun-if-changed={}", source.display());
    let mut paths = Vec::new();
    list(source, &mut paths)?;
    // Sort by the names as text, since the lookup of places compares text. Paths would sort differently.
    let name =
        |path: PathBuf| (path.strip_prefix(source).expect("listed below it").display().to_string(), path);
    let mut files: Vec<_> = paths.into_iter().map(name).collect();
    files.sort();
    let mut table = String::from("&[\n");
    for (name, path) in files {
        let text = fs::read_to_string(&path)?;
        for (number, line) in text.lines().enumerate() {
            if let Some(function) = function_that_begins(line) {
                writeln!(table, "({name:?}, {}, {function:?}),", number + 1).expect("a string grows");
            }
        }
    }
    table.push(']');
    let out = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(PathBuf::from(out).join("functions.rs"), table)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the function whose head is on this line.
fn function_that_begins(line: &str) -> Option<&str> {
    let words = line.split_whitespace();
    let is_head = |word: &&str| matches!(*word, "const" | "async" | "unsafe") || word.starts_with("pub");
    let mut rest = words.skip_while(is_head);
    if rest.next()? != "fn" {
        return None;
    }
    let name = rest.next()?;
    name.split(['(', '<']).next()
}
