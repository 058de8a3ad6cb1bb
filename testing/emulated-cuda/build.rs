//! Gives the library the name by which programs open the CUDA driver. A program that has opened it
//! by its path gets it under that name as well. No other does: no file has this name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
}
