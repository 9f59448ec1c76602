//! Export only the intercepted names, bind eagerly, and never unload.

fn main() {
    build_id::tell();
    old_glibc::link(old_glibc::Product::Library);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libshortwire.so");
}
