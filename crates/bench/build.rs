//! Tells the program whether its profile has debug information of any level.
//!
//! With debug information, the build scripts of snmalloc's and mimalloc's crates enable assertions.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(peers_with_assertions)");
    if std::env::var("DEBUG").is_ok_and(|debug| debug == "true") {
        println!("cargo:rustc-cfg=peers_with_assertions");
    }
}
