//! Gives the shared library its SONAME, and keeps it loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librdma_transport.so.0");
    // A thread may still close what a hostile peer handed over: its code stays.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
