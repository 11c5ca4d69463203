//! Chooses the simulated face of the engine's facade.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=octavo_sim");
}
