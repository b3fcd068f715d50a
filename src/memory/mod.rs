//! Memory of the library.

pub mod pool;
