//! Languages with heaps of their own. Programs are compiled beforehand, so the compilers are not measured.

use super::{ProgramRow, all, words};
use crate::machine::packages::Need;

pub const JAVA: ProgramRow = ProgramRow {
    name: "java",
    what: "a Java program with a large HashMap, whose heap is more than twice the budget",
    needs: &[Need { test: "command -v javac", packages: &["default-jdk-headless"] }],
    prepare: |place| {
        place.file("Maps.java", include_str!("../inputs/Maps.java"))?;
        place.make("Maps.class", "javac Maps.java")
    },
    command: |place| {
        let heap = format!("{}k", place.scaled(600 << 10));
        let classes = place.folder.display().to_string();
        let (least, most) = (format!("-Xms{heap}"), format!("-Xmx{heap}"));
        words(["java", "-cp", &classes, &least, &most, "-XX:+UseG1GC", "Maps", &place.scaled(2_000_000)])
    },
    compared: all,
};

pub const NODE: ProgramRow = ProgramRow {
    name: "node",
    what: "a Node.js script with a large heap of objects",
    needs: &[Need { test: "command -v node", packages: &["nodejs"] }],
    prepare: |place| place.file("heap.js", include_str!("../inputs/heap.js")),
    command: |place| {
        words(["node", "--max-old-space-size=4096", &place.path("heap.js"), &place.scaled(1_500_000)])
    },
    compared: all,
};

pub const GO: ProgramRow = ProgramRow {
    name: "go",
    what: "a static Go program with large maps",
    needs: &[Need { test: "command -v go", packages: &["golang-go"] }],
    prepare: |place| {
        place.file("maps.go", include_str!("../inputs/maps.go"))?;
        place.make("maps", "CGO_ENABLED=0 go build -o maps maps.go")
    },
    command: |place| words([&place.path("maps"), &place.scaled(2_500_000)]),
    compared: all,
};

pub const JEMALLOC: ProgramRow = ProgramRow {
    name: "rust-jemalloc",
    what: "a Rust program on jemalloc with 8 threads",
    needs: &[Need {
        test: "command -v cargo && command -v make && command -v cc",
        packages: &["gcc", "make", "libc6-dev"],
    }],
    prepare: |place| {
        place.file("threads/Cargo.toml", include_str!("../inputs/threads.toml"))?;
        place.file("threads/src/main.rs", include_str!("../inputs/threads.rs.txt"))?;
        let build = "cd threads && CARGO_TARGET_DIR=target cargo build -q --release";
        place.make("threads/target/release/threads", build)
    },
    command: |place| words([&place.path("threads/target/release/threads"), &place.scaled(300_000)]),
    compared: all,
};
