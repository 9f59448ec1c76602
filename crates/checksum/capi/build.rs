//! The shared library's name for the loader: its number changes when programs must be compiled
//! anew.

fn main() {
    old_glibc::link(old_glibc::Product::Library);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libshortwire_csum.so.0");
}
