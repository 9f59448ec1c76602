//! The programs run also where the C library is older than here.

fn main() {
    build_id::tell();
    old_glibc::link(old_glibc::Product::Programs);
}
