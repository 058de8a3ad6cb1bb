//! Gives the library the name under which cuBLAS is asked for. Whoever has opened it by its path
//! then gets it instead of a real one, and nobody else does: no file has this name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcublas.so");
    }
}
