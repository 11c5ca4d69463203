//! Copies the engine's source, and puts the mutants of `mutants.toml` into the copy.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::Deserialize;

type Problem = Box<dyn std::error::Error>;

#[derive(Deserialize)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// A change of the source that makes a bug.
#[derive(Deserialize)]
struct Mutant {
    name: String,
    /// What is wrong with the bug switched on.
    what: String,
    change: Vec<SourceChange>,
}

#[derive(Deserialize)]
struct SourceChange {
    /// The path of the file, below the engine's source.
    file: String,
    /// `from` is a text that the file contains exactly once, and `to` is the text that replaces it. In `to`,
    /// `BROKEN` tells whether the mutant is switched on.
    from: String,
    to: String,
}

fn main() -> Result<(), Problem> {
    let source = Path::new("../octavo/src");
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-changed=mutants.toml");
    println!("cargo:rustc-cfg=octavo_sim");
    let copy = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo says where")?).join("engine");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    copy_folder(source, &copy)?;
    let Mutants { mutant: mutants } = toml::from_str(&fs::read_to_string("mutants.toml")?)?;
    for mutant in &mutants {
        for change in &mutant.change {
            put_in(&copy, &mutant.name, change)?;
        }
    }
    // Leave out the attributes and the documentation of the crate as a whole: an included file must not have
    // them.
    let root = fs::read_to_string(copy.join("lib.rs"))?;
    let (_, modules) = root.split_once("\nmod access;").ok_or("the engine's modules begin with `access`")?;
    fs::write(copy.join("lib.rs"), format!("mod access;{modules}"))?;
    let mut table = String::from("&[\n");
    for Mutant { name, what, change } in &mutants {
        let files: Vec<_> = change.iter().map(|change| &change.file).collect();
        writeln!(table, "Mutant {{ name: {name:?}, what: {what:?}, files: &{files:?} }},")?;
    }
    table.push(']');
    fs::write(copy.join("mutants.rs"), table)?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Problem> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().ok_or("a file has a name")?);
        if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

fn put_in(copy: &Path, name: &str, change: &SourceChange) -> Result<(), Problem> {
    let SourceChange { file, from, to } = change;
    let path = copy.join(file);
    let text = fs::read_to_string(&path)?;
    let from = from.trim_end();
    if text.matches(from).count() != 1 {
        return Err(format!(
            "mutant {name}: what it replaces does not stand once in {file}; renew mutants.toml"
        )
        .into());
    }
    let is_on = format!("crate::mutant::is_on({name:?})");
    fs::write(&path, text.replace(from, to.trim_end().replace("BROKEN", &is_on).as_str()))?;
    Ok(())
}
