//! Compilers and builds.

use super::{CXX, ProgramRow, all, words};
use crate::machine::packages::Need;
use crate::programs::place::InputFolder;

/// Writes classes and functions that give an optimiser something to do, one group for each number.
fn cxx(numbers: std::ops::Range<u64>) -> String {
    let head = "#include <algorithm>\n#include <functional>\n#include <map>\n#include <numeric>\n#include <string>\n#include <vector>\n\n";
    let groups = numbers.map(|n| include_str!("../inputs/group.cpp").replace("$N", &n.to_string()));
    head.to_owned() + &groups.collect::<String>()
}

fn main_of(calls: impl Iterator<Item = u64> + Clone) -> String {
    let declared: String = calls.clone().map(|n| format!("long total_{n}(int);\n")).collect();
    let called: String = calls.map(|n| format!("    sum += total_{n}(100);\n")).collect();
    format!(
        "#include <cstdio>\n{declared}int main() {{\n    long sum = 0;\n{called}    std::printf(\"%ld\\n\", sum);\n}}\n"
    )
}

fn groups(place: &InputFolder, count: u64) -> u64 {
    place.scaled(count).parse().unwrap_or(1)
}

pub const GCC: ProgramRow = ProgramRow {
    name: "gcc",
    what: "g++ -O2 of one large generated file",
    needs: &[CXX],
    prepare: |place| {
        let count = groups(place, 12);
        place.file("large.cpp", &(cxx(0..count) + &main_of(0..count)))
    },
    command: |place| {
        let build = "g++ -O2 -o large \"$1\" && ./large && sha256sum large";
        [words(["sh", "-c", build, "sh"]), vec![place.path("large.cpp")]].concat()
    },
    compared: all,
};

/// The source files of the tree, besides its `main`.
const FILES: u64 = 8;

pub const MAKE: ProgramRow = ProgramRow {
    name: "make",
    what: "make -j4 of a tree of generated C++ files",
    needs: &[CXX, Need { test: "command -v make", packages: &["make"] }],
    prepare: |place| {
        let files = FILES;
        let each = groups(place, 2);
        for file in 0..files {
            place.file(&format!("tree/part{file}.cpp"), &cxx(file * each..(file + 1) * each))?;
        }
        place.file("tree/main.cpp", &main_of(0..files * each))?;
        place.file("tree/Makefile", include_str!("../inputs/Makefile"))
    },
    command: |place| {
        let build = "make -s -j4 -f \"$1/Makefile\" TREE=\"$1\" LAST=$2 && ./program && sha256sum program";
        [words(["sh", "-c", build, "sh"]), vec![place.path("tree"), (FILES - 1).to_string()]].concat()
    },
    compared: all,
};

pub const CARGO: ProgramRow = ProgramRow {
    name: "cargo",
    what: "cargo builds a program with the regex and syn packages, optimised",
    needs: &[Need { test: "command -v cargo && command -v cc", packages: &["gcc", "libc6-dev"] }],
    prepare: |place| {
        place.file("package/Cargo.toml", include_str!("../inputs/builds.toml"))?;
        place.file("package/src/main.rs", include_str!("../inputs/builds.rs.txt"))?;
        place.make("package/Cargo.lock", "cd package && cargo fetch -q")
    },
    command: |place| {
        let build = "cp -r \"$1\" package && cd package && CARGO_TARGET_DIR=$PWD/target CARGO_INCREMENTAL=0 cargo build -q --release --offline \
                     -j2 && target/release/builds src/main.rs";
        [words(["sh", "-c", build, "sh"]), vec![place.path("package")]].concat()
    },
    compared: all,
};

const NODE: Need = Need { test: "command -v node && command -v npm", packages: &["nodejs", "npm"] };

pub const NPM: ProgramRow = ProgramRow {
    name: "npm",
    what: "an npm script compiles a generated TypeScript project",
    needs: &[NODE],
    prepare: |place| {
        let count = groups(place, 300);
        for file in 0..count {
            let text = include_str!("../inputs/module.ts.txt").replace("$N", &file.to_string());
            place.file(&format!("project/src/module{file}.ts"), &text)?;
        }
        // The compiler takes only the files that the index imports. Files of an earlier, larger project may
        // be left in the folder.
        let index: String = (0..count).map(|file| format!("export * from './module{file}';\n")).collect();
        place.file("project/src/index.ts", &index)?;
        place.file("project/package.json", include_str!("../inputs/package.json.txt"))?;
        place.make(
            "project/node_modules/typescript/bin/tsc",
            "cd project && npm install --silent --no-audit --no-fund",
        )
    },
    command: |place| {
        let build = "cp -r \"$1\" project && cd project && npm run --silent build && cat out/*.js out/*.d.ts | sha256sum && ls out | wc -l";
        [words(["sh", "-c", build, "sh"]), vec![place.path("project")]].concat()
    },
    compared: all,
};
