//! The programs run also where the C library is older than here.

fn main() {
    old_glibc::link(old_glibc::Product::Programs);
}
