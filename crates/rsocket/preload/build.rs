//! Bind eagerly, never unload: as the library that it contains.

fn main() {
    old_glibc::link(old_glibc::Product::Library);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
