//! Bind eagerly, never unload: threads of an application may be inside when it lets go of the
//! library.

fn main() {
    old_glibc::link(old_glibc::Product::Library);
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libshortwire_rsocket.so.0");
}
